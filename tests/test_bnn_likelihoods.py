"""A model whose likelihood is the user's own: saved, loaded, adopted, watched."""

import pytest
import torch
from torch import nn
from zoo.regression import bnn, problem

import credo
from credo.core.errors import CredoError
from credo.likelihoods import Gaussian


class OwnNoise(Gaussian):
    """A likelihood that no registry holds."""

    name = "own_noise"


def test_a_likelihood_of_ones_own_is_saved_loaded_and_adopted(tmp_path):
    x, y, _ = problem()
    settings = {"method": "vi", "epochs": 3, "lr": 0.3, "progress": False}
    fitted = bnn(likelihood=OwnNoise()).fit((x, y), run=tmp_path / "run", **settings)
    learned = float(fitted.likelihood.log_std)
    assert learned != 0.0
    given = OwnNoise()
    loaded = credo.load(tmp_path / "run", nn.Linear(3, 1).double(), likelihood=given)
    adopted = bnn(likelihood=OwnNoise()).fit((x, y), run=tmp_path / "run", **settings)
    for other in (loaded, adopted):
        assert float(other.likelihood.log_std) == float(other.model.likelihood.log_std) == learned
        assert torch.equal(other.predict(x, samples=3).mean, fitted.predict(x, samples=3).mean)
    with pytest.raises(CredoError, match="own_noise"):
        credo.load(tmp_path / "run", nn.Linear(3, 1).double())


def test_a_likelihood_given_at_loading_is_left_as_found(tmp_path):
    x, y, _ = problem()
    bnn(likelihood=OwnNoise()).fit((x, y), "vi", epochs=3, lr=0.3, progress=False).save(
        tmp_path / "model"
    )
    given = OwnNoise()
    credo.load(tmp_path / "model", nn.Linear(3, 1).double(), likelihood=given)
    assert float(given.log_std.detach()) == 0.0


def test_adopting_a_run_gives_the_learned_noise(tmp_path):
    x, y, _ = problem()
    settings = {"method": "vi", "epochs": 3, "lr": 0.3, "progress": False, "run": tmp_path / "run"}
    first = bnn(likelihood=Gaussian()).fit((x, y), **settings)
    second = bnn(likelihood=Gaussian()).fit((x, y), **settings)
    assert float(first.likelihood.log_std) == float(second.likelihood.log_std) != 0.0


def test_a_likelihood_that_watches_adds_to_the_history(tmp_path):
    class Watching(Gaussian):
        name = "watching"
        count = 0

        def monitor(self):
            self.count += 1
            return {"calls": float(self.count)}

    x, y, _ = problem()
    fitted = bnn(likelihood=Watching()).fit((x, y), "vi", epochs=3, progress=False)
    assert [row["calls"] for row in fitted.history] == [1.0, 2.0, 3.0]
