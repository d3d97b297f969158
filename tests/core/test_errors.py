import pytest

from credo.core import errors
from credo.core.errors import CredoError, nearest


@pytest.mark.parametrize("name", ["DataError", "SettingError", "RunError", "NetworkError"])
def test_every_error_is_a_credo_error(name):
    assert issubclass(getattr(errors, name), CredoError)


def test_nearest_names_the_close_one_and_lists_all():
    assert nearest("vii", ["vi", "map"]) == " Did you mean 'vi'? Known: map, vi."
    assert nearest("zzz", ["vi"]) == " Known: vi."
    assert nearest("a", []) == " Known: none."
