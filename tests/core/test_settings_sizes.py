import pytest

from credo.core.errors import SettingError
from credo.core.settings import check_sizes


@pytest.mark.parametrize("size", [0, -1, 2.5, True, "3", None])
def test_a_bad_size_is_named(size):
    with pytest.raises(SettingError, match="net: width=.* expected a whole number above 0"):
        check_sizes("net", depth=3, width=size)
    check_sizes("net", depth=3)
