"""A recurrent classifier."""

from __future__ import annotations

from torch import Tensor, nn

from credo.nets.catalogue import networks, positive
from credo.nets.sequence import sequence_input


class LSTMClassifier(nn.Module):
    """Input map, LSTM, and a dense layer on the last output."""

    def __init__(
        self, source: nn.Module, width: int, hidden: int, num_classes: int, layers: int
    ) -> None:
        super().__init__()
        self.source = source
        self.lstm = nn.LSTM(width, hidden, num_layers=layers, batch_first=True)
        self.head = nn.Linear(hidden, num_classes)

    def forward(self, x: Tensor) -> Tensor:
        """Class scores ``(N, num_classes)`` of token ids ``(N, T)`` or features ``(N, T,
        in_features)``.
        """
        outputs, _ = self.lstm(self.source(x))
        return self.head(outputs[:, -1])


@networks.register("lstm_classifier")
def lstm_classifier(
    vocab: int | None = None,
    in_features: int | None = None,
    hidden: int = 32,
    num_classes: int = 2,
    width: int = 16,
    layers: int = 1,
) -> nn.Module:
    """An LSTM over token ids (``vocab=``) or feature vectors (``in_features=``), classified from
    its last output.

    Sequences in a batch share one length; pad them on the left, because the last position is the
    one read.
    """
    positive("lstm_classifier", hidden=hidden, num_classes=num_classes, layers=layers)
    source = sequence_input("lstm_classifier", vocab, in_features, width)
    return LSTMClassifier(source, width, hidden, num_classes, layers)
