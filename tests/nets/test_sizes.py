import pytest

from credo.core.errors import SettingError
from credo.nets.sizes import positive


@pytest.mark.parametrize("size", [0, -1, 2.5, True, "3", None])
def test_a_bad_size_is_named(size):
    with pytest.raises(SettingError, match="net: width=.* expected a whole number above 0"):
        positive("net", depth=3, width=size)
    positive("net", depth=3)
