"""Learned priors through the engine: the scale that maximises the evidence, Graves's prior,
relevance, saving, collapse.
"""

import warnings

import numpy as np
import pytest
import torch
from scipy import stats
from scipy.optimize import minimize_scalar
from torch import nn
from torch.distributions import LogNormal, Normal
from zoo.regression import bnn, problem

from credo import BNN, load
from credo.core.errors import CredoError
from credo.core.seeds import isolated
from credo.engine import fit_job
from credo.likelihoods import Gaussian
from credo.priors import Learned, Optimal, learned_mixture

DATA = problem()
FIT = {"epochs": 1500, "lr": 0.05, "batch_size": 1000, "progress": False}


def log_evidence(scale):
    _, y, design = DATA
    cover = scale**2 * design @ design.T + 0.25 * np.eye(len(y))
    return stats.multivariate_normal(np.zeros(len(y)), cover).logpdf(y[:, 0].numpy())


def best(extra=lambda scale: 0.0):
    found = minimize_scalar(
        lambda log: -log_evidence(np.exp(log)) - extra(np.exp(log)),
        bounds=(-5, 3),
        method="bounded",
    )
    return float(np.exp(found.x))


def scale_of(fitted):
    return float(fitted.model.prior.values()["all"]["scale"])


def test_a_learned_scale_maximises_the_evidence():
    """With the family that holds the exact posterior and no sampling the ELBO is the evidence; 1 %
    is what the descent leaves.
    """
    x, y, _ = DATA
    prior = Learned(Normal(0.0, 1.0), learn=("scale",))
    fitted = bnn(prior=prior).fit((x, y), "moments", posterior="full", **FIT)
    assert scale_of(fitted) == pytest.approx(best(), rel=0.01)
    assert fitted.history[-1]["elbo"] == pytest.approx(log_evidence(best()), abs=0.01)


@pytest.mark.slow
def test_the_sampled_gradient_finds_it_too():
    x, y, _ = DATA
    prior = Learned(Normal(0.0, 1.0), learn=("scale",))
    fitted = bnn(prior=prior).fit(
        (x, y), "vi", posterior="full", estimator="weights", train_samples=4, init_std=0.1, **FIT
    )
    # the evidence is flat in the scale of four weights: its curvature gives log scale a deviation
    # of 0.35, a tenth of which is allowed
    assert abs(np.log(scale_of(fitted) / best())) < 0.035


def test_a_hyperprior_shifts_it():
    x, y, _ = DATA
    hyper = LogNormal(-2.0, 0.25)
    prior = Learned(Normal(0.0, 1.0), learn=("scale",), hyperprior={"scale": hyper})
    fitted = bnn(prior=prior).fit((x, y), "moments", posterior="full", **FIT)
    expected = best(lambda scale: stats.lognorm(0.25, scale=np.exp(-2.0)).logpdf(scale))
    assert scale_of(fitted) == pytest.approx(expected, rel=0.01) and expected < 0.7 * best()


def test_the_optimal_prior_is_the_closed_form_of_the_final_posterior():
    x, y, _ = DATA
    fitted = bnn(prior=Optimal()).fit((x, y), "vi", **(FIT | {"epochs": 20}))
    mean, var = fitted.posterior.factors[0].marginals()
    mu, v = (torch.cat([part["weight"].flatten(), part["bias"]]) for part in (mean, var))
    (values,) = fitted.model.prior.values().values()
    assert torch.allclose(values["loc"], mu.mean())
    assert torch.allclose(values["scale"] ** 2, (v + (mu - mu.mean()) ** 2).mean())


@pytest.mark.parametrize(
    "prior",
    [Optimal(per="weight", centred=True), Learned(Normal(0.0, 1.0), learn=("scale",), per="input")],
)
def test_irrelevant_inputs_are_switched_off(prior):
    """Two inputs matter and six are noise: their prior deviations differ by far more than a factor
    of four.
    """
    rng = np.random.default_rng(0)
    x = torch.from_numpy(rng.normal(size=(200, 8)))
    y = (x[:, :1] - 2 * x[:, 1:2]) + 0.3 * torch.from_numpy(rng.normal(size=(200, 1)))
    with isolated(0):
        net = nn.Linear(8, 1).double()
    fitted = BNN(net, Gaussian(std=0.3), prior=prior).fit(
        (x, y), "moments", epochs=1500, lr=0.03, batch_size=1000, progress=False
    )
    relevance = fitted.model.prior.relevance("weight").detach()
    assert relevance[2:].max() < 0.25 * relevance[:2].min() and relevance[1] > relevance[0]


PRIORS = {
    "learned": lambda: Learned(Normal(0.0, 1.0)),
    "optimal": lambda: Optimal(per="layer"),
    "mixture": lambda: learned_mixture(3),
}


@pytest.mark.parametrize("kind", list(PRIORS))
def test_a_learned_prior_is_saved_and_resumed(kind, tmp_path, monkeypatch):
    x, y, _ = DATA
    how = {"epochs": 6, "batch_size": 8, "progress": False, "lr": 0.05}
    whole = bnn(prior=PRIORS[kind]()).fit((x, y), "vi", **how)
    whole.save(tmp_path / "model")
    again = load(tmp_path / "model", whole.net)
    assert again.objective((x, y)) == whole.objective((x, y))

    class Stop(Exception):
        pass

    def crash(row):
        if row["epoch"] == 3:
            raise Stop

    monkeypatch.setattr(fit_job, "CHECKPOINT_SECONDS", 0.0)
    with pytest.raises(Stop):
        bnn(prior=PRIORS[kind]()).fit((x, y), "vi", run=tmp_path / "run", callbacks=[crash], **how)
    resumed = bnn(prior=PRIORS[kind]()).fit((x, y), "vi", run=tmp_path / "run", **how)
    for a, b in ((whole.posterior, resumed.posterior), (whole.model.prior, resumed.model.prior)):
        assert all(torch.equal(v, b.state_dict()[k]) for k, v in a.state_dict().items())


def test_a_prior_that_follows_every_weight_is_reported():
    x, y, _ = DATA
    with pytest.warns(
        UserWarning,
        match=r"the learned prior has collapsed onto the posterior, with a KL of .* nats per "
        r"weight over 4 weights",
    ):
        bnn(prior=Learned(Normal(0.0, 1.0), per="weight")).fit((x, y), "vi", **FIT)


def test_a_shared_one_is_not():
    x, y, _ = DATA
    with warnings.catch_warnings():
        warnings.filterwarnings("error", "collapsed prior")
        bnn(prior=Learned(Normal(0.0, 1.0))).fit((x, y), "vi", **FIT)
        bnn(prior=Normal(0.0, 1.0)).fit((x, y), "vi", **(FIT | {"epochs": 1}))


def test_the_check_leaves_the_global_generator_alone():
    """The KL to a learned mixture is sampled."""
    x, y, _ = DATA
    model = bnn(prior=learned_mixture(3))
    before = torch.get_rng_state()
    model.fit((x, y), "vi", **(FIT | {"epochs": 2}))
    assert torch.equal(before, torch.get_rng_state())


def test_the_facade_reads_relevance_of_the_first_layer_and_refuses_what_has_none():
    x, y, _ = DATA
    fitted = bnn(prior="ard").fit((x, y), epochs=2, progress=False)
    assert fitted.relevance().shape == (3,) and torch.equal(
        fitted.relevance("weight"), fitted.relevance()
    )
    plain = bnn().fit((x, y), epochs=2, progress=False)
    with pytest.raises(CredoError, match="is not learned per input; fit with prior='ard'"):
        plain.relevance()
