import pytest

from credo.core.errors import SettingError
from credo.core.registry import Registry


def filled():
    registry = Registry("method")
    registry.register("vi")(1)
    registry.register("map")(2)
    return registry


def test_entries_keep_their_order():
    registry = filled()
    assert list(registry) == registry.names() == ["vi", "map"]
    assert list(registry.items()) == [("vi", 1), ("map", 2)]
    assert (
        len(registry) == 2 and "vi" in registry and "mle" not in registry and registry["map"] == 2
    )


def test_an_unknown_name_gets_the_nearest():
    with pytest.raises(
        SettingError, match=r"Unknown method 'mapp'\. Did you mean 'map'\? Known: map, vi\."
    ):
        filled()["mapp"]


def test_a_name_is_registered_once():
    with pytest.raises(ValueError, match="'vi' is registered twice"):
        filled().register("vi")(3)


def test_a_registry_may_start_with_entries():
    given = {"one": 1}
    registry = Registry("number", given)
    registry.register("two")(2)
    assert registry.names() == ["one", "two"] and given == {"one": 1}
