"""A recurrent language model: the next token at every position."""

from __future__ import annotations

from torch import Tensor, nn

from credo.core.settings import check_sizes


class CharLSTM(nn.Module):
    """Embedding, LSTM, and a dense layer on every output."""

    def __init__(self, vocab: int, hidden: int, width: int, layers: int) -> None:
        super().__init__()
        self.embed = nn.Embedding(vocab, width)
        self.lstm = nn.LSTM(width, hidden, num_layers=layers, batch_first=True)
        self.head = nn.Linear(hidden, vocab)

    def scores(self, x: Tensor) -> Tensor:
        """Scores ``(N, T, vocab)`` of the token after each of ``(N, T)``; the state is zero before
        the first.
        """
        outputs, _ = self.lstm(self.embed(x))
        return self.head(outputs)

    def forward(self, x: Tensor) -> Tensor:
        """The same as ``(N, vocab * T)``, token by token: all T scores of token 0 first, as
        ``Pixels(vocab)`` reads them.
        """
        return self.scores(x).transpose(1, 2).flatten(1)


def char_lstm(vocab: int, hidden: int = 256, width: int = 64, layers: int = 1) -> nn.Module:
    """An LSTM language model: token ids ``(N, T)`` to scores ``(N, vocab * T)`` of the token that
    follows each position.

    Its likelihood is ``Pixels(vocab)``, a categorical for every position with targets ``(N, T)``,
    whose log probability is the sum over the T targets of an example. The state starts at zero in
    every example, so the first positions are predicted from little.
    """
    check_sizes("char_lstm", vocab=vocab, hidden=hidden, width=width, layers=layers)
    return CharLSTM(vocab, hidden, width, layers)
