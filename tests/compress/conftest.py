"""Both ways of coding a network, bit by bit and at once."""

import pytest

from credo.compress import position_coding, value_coding


@pytest.fixture(params=["bit by bit", "at once"])
def pace(request, monkeypatch):
    """Both ways of coding, whatever the size."""
    if request.param == "at once":
        monkeypatch.setattr(position_coding, "_MOST_CELLS", 0)
        monkeypatch.setattr(value_coding, "_MOST_VALUES", 0)
    return request.param
