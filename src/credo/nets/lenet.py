"""The convolutional LeNet of the pruning literature."""

from __future__ import annotations

from torch import nn

from credo.core.settings import check_sizes, renamed


@renamed(num_classes="outputs")
def lenet5_caffe(outputs: int = 10) -> nn.Sequential:
    """20-50-800-500 LeNet as Caffe ships it: ``(N, 1, 28, 28) -> (N, outputs)``.

    Valid padding, 2x2 max pooling, and no nonlinearity between a convolution and its pooling: the
    only ReLU sits after the first dense layer. 431,080 parameters for ten classes; other image
    sizes do not fit the dense layer.
    """
    check_sizes("lenet5_caffe", outputs=outputs)
    return nn.Sequential(
        nn.Conv2d(1, 20, 5),
        nn.MaxPool2d(2),
        nn.Conv2d(20, 50, 5),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(800, 500),
        nn.ReLU(),
        nn.Linear(500, outputs),
    )
