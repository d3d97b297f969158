"""Shared setting of every test: one thread, and the zoo of networks and statistics importable as
``zoo``.
"""

import sys
from pathlib import Path

import pytest
import torch

sys.path.insert(0, str(Path(__file__).parent))


@pytest.fixture(autouse=True, scope="session")
def one_thread():
    """Small tensors gain nothing from threads, and the suite shares two cores."""
    torch.set_num_threads(1)


@pytest.fixture(autouse=True)
def untouched_global_state():
    """credo leaves torch's global generator as found, in every test that does not use it itself."""
    torch.manual_seed(0)
    yield


@pytest.fixture
def shell(tmp_path, monkeypatch):
    """Runs credo commands in a directory of the test's own."""
    from zoo.shell import Shell

    monkeypatch.chdir(tmp_path)
    return Shell(tmp_path)
