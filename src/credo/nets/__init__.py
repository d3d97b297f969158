"""Plain networks: ordinary ``nn.Module``s with nothing Bayesian in them."""

from credo.nets.augmented import Augmented
from credo.nets.bottleneck import Bottleneck
from credo.nets.catalogue import build, names
from credo.nets.char_lstm import char_lstm
from credo.nets.cnn import small_cnn
from credo.nets.coders import conv_decoder, conv_encoder, mlp_decoder, mlp_encoder
from credo.nets.crops import CropFlip
from credo.nets.lenet import lenet5_caffe
from credo.nets.lstm import lstm_classifier
from credo.nets.mlp import Erf, lenet_300_100, mlp
from credo.nets.resnet import resnet
from credo.nets.resnet50 import resnet50
from credo.nets.transformer import transformer_classifier
from credo.nets.vgg import vgg

__all__ = [
    "Augmented",
    "Bottleneck",
    "CropFlip",
    "Erf",
    "build",
    "char_lstm",
    "conv_decoder",
    "conv_encoder",
    "lenet5_caffe",
    "lenet_300_100",
    "lstm_classifier",
    "mlp",
    "mlp_decoder",
    "mlp_encoder",
    "names",
    "resnet",
    "resnet50",
    "small_cnn",
    "transformer_classifier",
    "vgg",
]
