"""A recurrent classifier."""

from __future__ import annotations

from torch import Tensor, nn

from credo.core.settings import check_sizes, renamed
from credo.nets.sequence import sequence_input


class LSTMClassifier(nn.Module):
    """Input map, LSTM, and a dense layer on the last output."""

    def __init__(
        self, source: nn.Module, width: int, hidden: int, outputs: int, layers: int
    ) -> None:
        super().__init__()
        self.source = source
        self.lstm = nn.LSTM(width, hidden, num_layers=layers, batch_first=True)
        self.head = nn.Linear(hidden, outputs)

    def forward(self, x: Tensor) -> Tensor:
        """Class scores ``(N, outputs)`` of token ids ``(N, T)`` or features ``(N, T,
        in_features)``.
        """
        outputs, _ = self.lstm(self.source(x))
        return self.head(outputs[:, -1])


@renamed(num_classes="outputs")
def lstm_classifier(
    vocab: int | None = None,
    in_features: int | None = None,
    hidden: int = 32,
    outputs: int = 2,
    width: int = 16,
    layers: int = 1,
) -> nn.Module:
    """An LSTM over token ids (``vocab=``) or feature vectors (``in_features=``), classified from
    its last output.

    Sequences in a batch share one length; pad them on the left, because the last position is the
    one read.
    """
    check_sizes("lstm_classifier", hidden=hidden, outputs=outputs, layers=layers)
    source = sequence_input("lstm_classifier", vocab, in_features, width)
    return LSTMClassifier(source, width, hidden, outputs, layers)
