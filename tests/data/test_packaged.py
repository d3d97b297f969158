import pytest

from credo.data.packaged import NAMES, packaged


@pytest.mark.parametrize("name", NAMES)
def test_every_packaged_set_has_rows_that_match(name):
    arrays = packaged(name)
    assert len(arrays["x"]) == len(arrays["y"])
    assert arrays["x"].shape[1] == len(arrays["feature_names"])
    assert ("class_names" in arrays) == (name != "diabetes")
