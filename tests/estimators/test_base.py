import pytest

from credo.core.errors import SettingError
from credo.estimators import estimators


def test_the_registry_knows_every_estimator_by_its_own_name():
    assert set(estimators) >= {"weights", "local", "flipout"}
    assert all(estimators[name].name == name for name in estimators)


def test_an_unknown_name_gets_the_nearest():
    with pytest.raises(SettingError, match=r"Unknown estimator 'flip_out'\. Did you mean 'flipout'\?"):
        estimators["flip_out"]
