"""An attention classifier."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from credo.core.errors import SettingError
from credo.core.settings import check_sizes, renamed
from credo.nets.sequence import sequence_input


class TransformerClassifier(nn.Module):
    """Input map plus learned positions, ``nn.TransformerEncoder``, mean over positions, dense
    layer.
    """

    def __init__(
        self, source: nn.Module, encoder: nn.Module, width: int, max_length: int, outputs: int
    ) -> None:
        super().__init__()
        self.source = source
        self.positions = nn.Parameter(0.02 * torch.randn(max_length, width))
        self.encoder = encoder
        self.head = nn.Linear(width, outputs)

    def forward(self, x: Tensor) -> Tensor:
        """Class scores ``(N, outputs)`` of token ids ``(N, T)`` or features ``(N, T,
        in_features)``, T up to max_length.
        """
        features = self.source(x)
        length, most = features.shape[1], self.positions.shape[0]
        if length > most:
            raise SettingError(
                f"transformer_classifier got a sequence of {length}; build it with "
                f"max_length={length} (now {most})."
            )
        return self.head(self.encoder(features + self.positions[:length]).mean(1))


@renamed(num_classes="outputs")
def transformer_classifier(
    vocab: int | None = None,
    in_features: int | None = None,
    outputs: int = 2,
    width: int = 32,
    heads: int = 4,
    layers: int = 2,
    feedforward: int = 64,
    max_length: int = 128,
    dropout: float = 0.0,
) -> nn.Module:
    """A Transformer encoder over token ids (``vocab=``) or feature vectors (``in_features=``),
    averaged over positions.

    ``dropout`` is a drop rate. Every position counts in the average, so padded batches need a mask
    of your own.
    """
    owner = "transformer_classifier"
    check_sizes(
        owner,
        outputs=outputs,
        heads=heads,
        layers=layers,
        feedforward=feedforward,
        max_length=max_length,
    )
    source = sequence_input(owner, vocab, in_features, width)
    if width % heads:
        raise SettingError(
            f"{owner}: width={width} is not a multiple of heads={heads}; each head takes width / "
            "heads numbers."
        )
    if not 0.0 <= dropout < 1.0:
        raise SettingError(
            f"{owner}: dropout={dropout!r} is not valid; expected a drop rate in [0, 1)."
        )
    layer = nn.TransformerEncoderLayer(width, heads, feedforward, dropout, batch_first=True)
    encoder = nn.TransformerEncoder(layer, layers, enable_nested_tensor=False)
    return TransformerClassifier(source, encoder, width, max_length, outputs)
