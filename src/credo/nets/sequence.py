"""What sequence networks share: token ids or feature vectors in, vectors of one width out."""

from __future__ import annotations

from torch import nn

from credo.core.errors import SettingError
from credo.core.settings import check_sizes


def sequence_input(owner: str, vocab: int | None, in_features: int | None, width: int) -> nn.Module:
    """An embedding of token ids ``(N, T) -> (N, T, width)`` or a linear map of features ``(N, T,
    in_features) -> (N, T, width)``.

    Exactly one of ``vocab`` and ``in_features`` says which; both or neither is refused.
    """
    if vocab is not None and in_features is None:
        check_sizes(owner, vocab=vocab, width=width)
        return nn.Embedding(vocab, width)
    if in_features is not None and vocab is None:
        check_sizes(owner, in_features=in_features, width=width)
        return nn.Linear(in_features, width)
    raise SettingError(
        f"{owner}: vocab={vocab!r} and in_features={in_features!r} were given; pass exactly one: "
        "vocab= for token ids or in_features= for feature vectors."
    )
