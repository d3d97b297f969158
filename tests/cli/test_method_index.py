import pytest

from credo.cli.method_index import MethodEntry, list_methods
from credo.methods import methods


def test_the_index_is_the_registry():
    assert [entry.name for entry in list_methods()] == methods.names()


@pytest.mark.parametrize("entry", list_methods(), ids=lambda entry: entry.name)
def test_every_entry_says_what_its_class_says(entry):
    kind = methods[entry.name]
    assert entry == MethodEntry(kind.name, kind.summary, kind.fidelity)
