"""A method that nobody registered does not exist."""

from __future__ import annotations

from pathlib import Path

import credo.methods
from credo.methods import methods


def test_every_file_in_methods_is_registered() -> None:
    here = Path(credo.methods.__path__[0])
    files = {path.stem for path in here.glob("*/*.py")} - {"__init__"}
    registered = {kind.__module__.rpartition(".")[2] for _, kind in methods.items()}
    assert files == registered, (
        f"not registered: {files - registered}; without a file: {registered - files}"
    )


def test_every_method_is_described() -> None:
    for name, kind in methods.items():
        assert kind.name == name
        assert kind.summary and kind.reference and kind.__doc__
