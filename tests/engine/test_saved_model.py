import json

import pytest
import torch
from zoo.models import make_model, make_posterior
from zoo.networks import make

from credo.core.atomic import write_json, write_tensors
from credo.core.errors import CredoError, RunError
from credo.engine.model import Fitted
from credo.engine.run import Run
from credo.engine.saved_model import CONFIG, POSTERIOR, unpack
from credo.likelihoods import Gaussian, Poisson


@pytest.fixture
def saved(tmp_path):
    net, _ = make("batchnorm")
    model = make_model(net, "weights", Gaussian(std=0.3))
    fitted = Fitted(make_posterior("mean_field", model), model.buffers())
    run = Run(tmp_path / "run")
    config = model.config(model.prior) | fitted.config()
    run.begin(config)
    run.finish(fitted.numbers(model), config)
    return tmp_path / "run", model, fitted


def test_everything_comes_back(saved):
    path, model, fitted = saved
    config, back, likelihood, prior = unpack(path)
    assert config["random"] == list(model.random) and config["parameters"]["0.weight"] == [6, 5]
    assert all(
        torch.equal(a, b)
        for a, b in zip(
            fitted.posterior.sample(2).values(), back.posterior.sample(2).values(), strict=True
        )
    )
    assert all(torch.equal(back.buffers[n], b) for n, b in fitted.buffers.items())
    assert (
        prior == {}
        and type(likelihood) is Gaussian
        and likelihood.config() == model.likelihood.config()
    )


def test_no_numbers_in_the_description(saved):
    path, _, _ = saved
    text = (path / CONFIG).read_text()
    assert json.loads(text)["complete"] is True and len(text) < 4000


def test_what_is_not_a_saved_model(saved, tmp_path):
    path, _, _ = saved
    with pytest.raises(
        RunError, match="holds no saved model; expected a directory written by save"
    ):
        unpack(tmp_path / "nothing")
    config = json.loads((path / CONFIG).read_text())
    write_json(path / CONFIG, {k: v for k, v in config.items() if k != "posterior"})
    with pytest.raises(RunError, match="not finished; resume it first"):
        unpack(path)


def test_parts_that_do_not_belong_together(saved):
    path, _, _ = saved
    write_tensors(path / POSTERIOR, {"posterior/families.0.flat_mean": torch.zeros(2)})
    with pytest.raises(RunError, match="does not fit together"):
        unpack(path)
    (path / POSTERIOR).write_bytes(b"xx")
    with pytest.raises(RunError, match="truncated or damaged"):
        unpack(path)
    (path / POSTERIOR).unlink()
    with pytest.raises(RunError, match="does not exist"):
        unpack(path)


class Own(Gaussian):
    """A likelihood that no registry holds."""

    name = "own"


@pytest.fixture
def saved_own(tmp_path):
    net, _ = make("batchnorm")
    likelihood = Own()
    likelihood.log_std.data.fill_(-1.25)
    model = make_model(net, "weights", likelihood)
    fitted = Fitted(make_posterior("mean_field", model), model.buffers())
    run = Run(tmp_path / "own")
    config = model.config(model.prior) | fitted.config()
    run.begin(config)
    run.finish(fitted.numbers(model), config)
    return tmp_path / "own"


def test_a_likelihood_of_ones_own_is_filled_with_the_stored_numbers(saved_own):
    with pytest.raises(CredoError, match="own"):
        unpack(saved_own)
    mine = Own()
    _, _, likelihood, _ = unpack(saved_own, mine)
    assert isinstance(likelihood, Own) and float(likelihood.log_std) == -1.25
    assert float(mine.log_std) != -1.25, "the caller's own stays as it is"


def test_a_likelihood_that_does_not_fit_the_stored_numbers(saved, saved_own):
    with pytest.raises(RunError, match="does not fit together"):
        unpack(saved_own, Own(std=0.3))
    with pytest.raises(RunError, match="gaussian"):
        unpack(saved[0], Poisson())
