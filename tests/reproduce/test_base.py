from dataclasses import dataclass
from typing import ClassVar

import pytest
import torch

from credo.core.devices import check_device
from credo.core.errors import SettingError
from credo.core.settings import setting
from credo_reproduce.base import Experiment, make_experiment, perform
from credo_reproduce.catalogue import experiments
from credo_reproduce.outcome import Outcome


@dataclass(frozen=True)
class Toy(Experiment):
    name: ClassVar[str] = "toy"
    title: ClassVar[str] = "A toy"
    reference: ClassVar[str] = "Someone 2000."
    cost: ClassVar[str] = "nothing"
    quick_settings: ClassVar[dict[str, int]] = {"size": 1}
    size: int = setting(3, "How large.", ge=1)

    def run(self, device, seed, say):
        say(f"{device} {seed} {torch.get_num_threads()}")
        return Outcome(notes=[str(self.size)])


@pytest.fixture
def toy(monkeypatch):
    monkeypatch.setitem(experiments, "toy", Toy)


def test_a_run_is_recorded(toy):
    heard = []
    result = perform(make_experiment("toy", {"size": 5, "quick": True}), "cpu", 7, heard.append)
    assert heard == ["cpu 7 1"]
    assert (result.experiment, result.seed, result.quick, result.settings["size"]) == (
        "toy",
        7,
        True,
        5,
    )
    assert result.seconds >= 0 and result.outcome.notes == ["5"]


def test_a_quick_run_is_small_unless_told_otherwise(toy):
    assert make_experiment("toy", {"quick": True}).size == 1
    assert make_experiment("toy", {"quick": True, "size": 4}).size == 4
    assert make_experiment("toy", {"quick": False}).size == 3


@pytest.mark.parametrize("name", experiments.names())
def test_small_settings_are_settings(name):
    make_experiment(name, {"quick": True})


def test_threads_are_put_back(monkeypatch):
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        perform(Toy())
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(before)


def test_bad_names_and_values_are_refused(toy):
    with pytest.raises(SettingError, match="Did you mean 'toy'"):
        make_experiment("toyy", {})
    with pytest.raises(SettingError, match="no setting 'sizes'"):
        make_experiment("toy", {"sizes": 1})
    with pytest.raises(SettingError, match="size=0 is not valid"):
        make_experiment("toy", {"size": 0})
    with pytest.raises(SettingError, match="seed"):
        perform(Toy(), seed=0.5)  # type: ignore[arg-type]


def test_devices_this_machine_lacks_are_refused(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    for name, message in (
        ("cuda", "finds no GPU"),
        ("nonsense", "expected 'cpu' or 'cuda'"),
        ("meta", "expected 'cpu'"),
    ):
        with pytest.raises(SettingError, match=message):
            check_device(name)
    assert check_device("cpu").type == "cpu"


@pytest.mark.parametrize("name", experiments.names())
def test_every_experiment_says_what_it_is(name):
    kind = experiments[name]
    assert kind.name == name
    assert kind.title and kind.reference and kind.cost
    assert kind().quick is False
