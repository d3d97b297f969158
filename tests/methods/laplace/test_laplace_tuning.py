"""Laplace's approximation around the fit: the prior's width, more data, files, and what is refused
by name.
"""

import os

import numpy as np
import pytest
import torch
from torch import nn
from torch.distributions import Laplace as DoubleExponential
from torch.distributions import Normal, StudentT
from zoo.laplace import DESCENT, FORMS, STILL, classes, classifier, network, width
from zoo.regression import bnn, exact, flat_mean, problem

import credo
from credo import BNN
from credo.core.errors import CredoError, RunError, SettingError
from credo.core.seeds import isolated
from credo.engine import fit_job as job_module
from credo.likelihoods import Gaussian
from credo.posteriors import LowRankPrecision, MeanField
from credo.priors import Flat, Scaled

# --- the prior's width ----------------------------------------------------------------------------


def test_online_on_a_linear_model_maximises_the_exact_evidence():
    """Weights and width in turn: a joint optimum is where the true evidence, of method exact, is
    highest over widths.
    """
    x, y, _ = problem()
    fitted = bnn(prior=Normal(0.0, 0.3)).fit(
        (x, y), "laplace", structure="full", tune="online", every=10, **DESCENT
    )
    scored = {
        std: bnn(prior=Normal(torch.zeros(()).double(), std))
        .fit((x, y), "exact")
        .history[-1]["log_evidence"]
        for std in np.exp(np.linspace(-1, 1, 201))
    }
    assert width(fitted, "weight") == pytest.approx(
        max(scored, key=scored.__getitem__), rel=0.01
    )  # a step of the grid
    assert fitted.history[-1]["log_evidence"] == pytest.approx(max(scored.values()), abs=1e-4)


@pytest.mark.parametrize("per", ["global", "layer", "tensor"])
def test_the_evidence_tunes_the_width(per):
    x, y = classes()
    how = {"epochs": 100, "lr": 0.02, "progress": False}
    before = classifier().fit((x, y), "laplace", tune="none", **how)
    after = classifier().fit((x, y), "laplace", tune="evidence", per=per, **how)
    assert all(
        torch.equal(v, after.posterior.mean()[n]) for n, v in before.posterior.mean().items()
    )
    assert after.history[-1]["log_evidence"] > before.history[-1]["log_evidence"]
    widths = {n: width(after, n) for n in after.model.random}
    groups = {"global": 1, "layer": 2, "tensor": 4}
    assert len(set(widths.values())) == groups[per] and 1.0 not in widths.values()
    assert (
        isinstance(after.model.prior, Scaled)
        and after.prior.describe() == "Normal(loc: 0.0, scale: 1.0)"
    )
    wider = []
    for std in (0.3, 0.6, 1.2, 2.4):
        other = BNN(network(), "categorical", prior=Normal(0.0, std))
        other.fit((x, y), "laplace", init=after.posterior.mean(), **STILL)
        wider.append(other.history[-1]["log_evidence"])
    assert after.history[-1]["log_evidence"] > max(wider)


def test_online_moves_the_prior_while_training():
    x, y = classes()
    how = {"epochs": 60, "lr": 0.02, "progress": False}
    online = classifier().fit((x, y), "laplace", tune="online", every=5, **how)
    after = classifier().fit((x, y), "laplace", tune="evidence", **how)
    assert not torch.equal(online.posterior.mean()["0.weight"], after.posterior.mean()["0.weight"])
    assert width(online, "0.weight") != 1.0


def test_noise_is_learned_by_the_evidence_and_by_descent_where_each_output_has_its_own():
    x, _ = classes(60)
    y = torch.cat([x[:, :1], x[:, 1:2]], 1) + torch.tensor([0.1, 1.0]) * torch.randn(
        60, 2, generator=torch.Generator().manual_seed(0)
    )
    for tune in ("evidence", "online"):
        one = BNN(network(2), Gaussian()).fit(
            (x, y), "laplace", tune=tune, every=10, epochs=200, lr=0.05, progress=False
        )
        assert 0.4 < float(one.model.likelihood.std(y).detach()) < 1.1
        each = BNN(network(2), Gaussian(num_outputs=2)).fit(
            (x, y), "laplace", tune=tune, every=10, epochs=200, lr=0.05, progress=False
        )
        small, large = each.model.likelihood.std(y).tolist()
        assert small < 0.5 < large


def test_validation_chooses_the_width():
    x, y = classes()
    held = classes(60, seed=1)
    fitted = classifier().fit(
        (x, y), "laplace", tune="validation", validation=held, epochs=300, lr=0.05, progress=False
    )
    chosen = fitted.evaluate(held, samples=64)["nll"]
    assert (
        0.01 < width(fitted, "0.weight") < 100
    )  # not at an edge of the grid, whose steps are factors e on the precision
    for factor in (-6.0, -1.0, 1.0, 6.0):
        prior = Normal(0.0, width(fitted, "0.weight") * np.exp(-factor / 2))
        other = BNN(network(), "categorical", prior=prior)
        other.fit((x, y), "laplace", init=fitted.posterior.mean(), **STILL)
        assert other.evaluate(held, samples=64)["nll"] > chosen - 1e-9


def test_priors_of_points_are_left_alone():
    """A width per layer that no evidence speaks about stays as given."""
    x, y = classes()
    fitted = BNN(network(), "categorical", prior={"*": Normal(0.0, 0.7)})
    fitted.fit((x, y), "laplace", subset="last", per="layer", epochs=20, lr=0.02, progress=False)
    assert width(fitted, "0.weight") == pytest.approx(0.7) and width(
        fitted, "2.weight"
    ) != pytest.approx(0.7)


def test_a_width_that_is_not_to_be_tuned_is_not():
    x, y = classes()
    fitted = classifier(prior=Scaled(credo.priors.as_prior(Normal(0.0, 0.7)))).fit(
        (x, y), "laplace", **STILL
    )
    assert width(fitted, "0.weight") == pytest.approx(0.7)


def test_a_prior_without_a_normal_is_taken_by_its_curvature():
    """The evidence then has the prior's own density at the mode."""
    x, y, _ = problem()
    prior = StudentT(torch.tensor(5.0).double(), 0.0, 1.5)
    fitted = bnn(prior=prior).fit((x, y), "laplace", structure="full", tune="none", **DESCENT)
    mean = fitted.posterior.mean()
    log_prior = sum(float(prior.log_prob(v).sum()) for v in mean.values())
    nll = -float(Normal(torch.func.functional_call(fitted.net, mean, x), 0.5).log_prob(y).sum())
    volume = float(fitted.posterior.factors[0].entropy()) - 2.0  # P/2 log 2 pi - 1/2 log det
    assert fitted.history[-1]["log_evidence"] == pytest.approx(-nll + log_prior + volume, rel=1e-9)


def test_models_are_compared_by_their_evidence():
    """A line through noise: a network that is too small, one that is right, and the right one under
    a prior that is too wide.
    """
    generator = torch.Generator().manual_seed(0)
    x = torch.linspace(-2, 2, 60, dtype=torch.float64).unsqueeze(1)
    y = torch.sin(2 * x) + 0.2 * torch.randn(60, 1, generator=generator, dtype=torch.float64)
    torch.manual_seed(0)
    line, curve = (
        nn.Linear(1, 1).double(),
        nn.Sequential(nn.Linear(1, 8), nn.Tanh(), nn.Linear(8, 1)).double(),
    )
    fits = [
        BNN(net, Gaussian(std=0.2), prior=Normal(0.0, std)).fit(
            (x, y), "laplace", structure="full", tune=tune, **DESCENT
        )
        for net, std, tune in (
            (line, 1.0, "evidence"),
            (curve, 1.0, "evidence"),
            (curve, 100.0, "none"),
        )
    ]
    found = credo.compare(fits, (x, y))
    assert found.best == 1 and found.probability[1] > 0.99
    assert found.bound == (False, False, False)
    assert found.log_evidence == tuple(fit.history[-1]["log_evidence"] for fit in fits)


# --- more data ------------------------------------------------------------------------------------


def test_two_halves_equal_the_whole():
    x, y, design = problem()
    whole = bnn().fit((x, y), "laplace", structure="full", tune="none", **DESCENT)
    parts = bnn().fit((x[:12], y[:12]), "laplace", structure="full", tune="none", **DESCENT)
    parts.update((x[12:], y[12:]), **DESCENT)
    assert torch.allclose(flat_mean(parts), flat_mean(whole), rtol=1e-4)
    torch.testing.assert_close(
        parts.posterior.factors[0].covariance(),
        whole.posterior.factors[0].covariance(),
        rtol=1e-6,
        atol=1e-12,
    )
    evidence = exact(design, y[:, 0].numpy())[2]
    assert parts.history[-1]["log_evidence"] == pytest.approx(evidence, abs=1e-6)
    assert credo.compare([parts, whole], (x, y)).factor(0, 1).log == pytest.approx(0.0, abs=1e-6)


@pytest.mark.parametrize("structure", ["diagonal", "low_rank"])
def test_independent_precisions_add_up(structure):
    """What is kept of the first half is its diagonal; the second adds its own, in its own form."""
    x, y, _ = problem()
    first = bnn().fit((x[:12], y[:12]), "laplace", structure="diagonal", tune="none", **DESCENT)
    before = first.posterior.factors[0].marginals()[1]
    second = bnn().fit((x[12:], y[12:]), "laplace", structure=structure, tune="none", **DESCENT)
    first.update((x[12:], y[12:]), structure=structure, **DESCENT)
    if structure == "diagonal":
        own = second.posterior.factors[0].marginals()[1]
        for n, var in first.posterior.factors[0].marginals()[1].items():
            torch.testing.assert_close(1 / var, 1 / before[n] + 1 / own[n] - 1.25**-2)
    assert type(first.posterior.factors[0]) is (
        MeanField if structure == "diagonal" else LowRankPrecision
    )


def test_an_update_may_be_without_training_and_starts_from_the_posterior():
    x, y = classes()
    fitted = classifier().fit(
        (x[:20], y[:20]), "laplace", structure="full", epochs=20, lr=0.02, progress=False
    )
    before = fitted.posterior.mean()
    fitted.update((x[20:], y[20:]), train=False)
    assert all(torch.equal(v, before[n]) for n, v in fitted.posterior.mean().items())


def test_an_updated_model_is_stored_and_loaded(tmp_path):
    x, y = classes()
    fitted = classifier().fit(
        (x[:20], y[:20]), "laplace", structure="diagonal", epochs=5, progress=False
    )
    fitted.update((x[20:], y[20:]), epochs=5, progress=False)
    fitted.save(tmp_path / "model")
    again = credo.load(tmp_path / "model", network())
    assert torch.equal(again.predict(x).outputs, fitted.predict(x).outputs)


@pytest.mark.parametrize("structure", ["kfac", "low_rank"])
def test_forms_that_cannot_be_added_to_say_so_at_once(structure):
    x, y = classes()
    fitted = classifier().fit((x, y), "laplace", structure=structure, **STILL)
    with pytest.raises(
        SettingError,
        match=f"structure='{structure}' cannot add data to .*; fit both with 'diagonal', or both "
        "with 'full'",
    ):
        fitted.update((x, y), progress=False)


# --- files ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("structure", FORMS)
@pytest.mark.parametrize("predictive", ["linear", "weights"])
def test_save_and_load_bring_everything_back(structure, predictive, tmp_path):
    x, y = classes()
    how = {
        "structure": structure,
        "per": "layer",
        "predictive": predictive,
        "subset": ("2.*", "0.bias"),
        "epochs": 5,
        "progress": False,
    }
    fitted = classifier().fit((x, y), "laplace", **how)
    fitted.save(tmp_path / "model")
    again = credo.load(tmp_path / "model", network())
    assert again.method == fitted.method and again.method.shortcut == (
        None if predictive == "weights" else "linear"
    )
    assert torch.equal(again.predict(x).outputs, fitted.predict(x).outputs)
    assert torch.equal(again.functions(x[:3], 4), fitted.functions(x[:3], 4))
    assert {n: width(again, n) for n in again.model.random} == {
        n: width(fitted, n) for n in fitted.model.random
    }
    assert again.history == fitted.history and list(again.model.random) == list(fitted.model.random)


def rows(fitted):
    return [{k: v for k, v in row.items() if k != "seconds"} for row in fitted.history]


@pytest.mark.parametrize("tune", ["online", "evidence"])
@pytest.mark.parametrize("after", [2, 7])
def test_a_fit_killed_on_the_way_resumes_to_the_same_bits(tune, after, tmp_path, monkeypatch):
    """In a process of its own, at the row of an epoch; with an online prior, before and after it
    has moved.
    """
    monkeypatch.setattr(job_module, "CHECKPOINT_SECONDS", 0.0)
    x, y, _ = problem()

    def fit(**how):
        torch.manual_seed(0)
        net = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 1)).double()
        settings = {
            "tune": tune,
            "every": 3,
            "epochs": 12,
            "batch_size": 8,
            "lr": 0.02,
            "progress": False,
        }
        return BNN(net, Gaussian()).fit((x, y), "laplace", **settings, **how)

    def die(row):
        if row["epoch"] >= after:
            os._exit(9)

    child = os.fork()
    if child == 0:
        try:
            fit(run=tmp_path / "run", callbacks=[die])
        finally:
            os._exit(1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 9
    straight, resumed = fit(), fit(run=tmp_path / "run")
    one, two = straight.posterior.state_dict(), resumed.posterior.state_dict()
    assert all(torch.equal(one[n], two[n]) for n in one) and rows(straight) == rows(resumed)
    assert torch.equal(straight.likelihood.log_std, resumed.likelihood.log_std)
    assert {n: width(straight, n) for n in straight.model.random} == {
        n: width(resumed, n) for n in resumed.model.random
    }
    adopted = fit(run=tmp_path / "run")  # finished by now: read, not fitted
    assert torch.equal(adopted.predict(x).outputs, straight.predict(x).outputs)
    assert rows(adopted) == rows(straight) and width(adopted, "0.weight") == width(
        straight, "0.weight"
    )


def test_a_run_on_a_trained_network_is_of_that_network(tmp_path):
    """Its weights are what the run is about, so other ones are another run."""
    x, y = classes()
    classifier().fit((x, y), "laplace", run=tmp_path / "run", **STILL)
    assert (
        classifier().fit((x, y), "laplace", run=tmp_path / "run", **STILL).history[0]["epoch"] == 0
    )
    other = network()
    with torch.no_grad():
        other[0].bias.add_(0.1)
    with pytest.raises(RunError, match=r"holds another run \(fit.held"):
        BNN(other, "categorical").fit((x, y), "laplace", run=tmp_path / "run", **STILL)


# --- what is refused ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (
            {"structure": "kron"},
            "laplace: structure='kron' is not valid; expected one of diagonal, kfac, low_rank, "
            "full",
        ),
        (
            {"curvature": "hessian"},
            "laplace: curvature='hessian' is not valid; expected one of ggn, empirical, mc",
        ),
        (
            {"tune": "cv"},
            "laplace: tune='cv' is not valid; expected one of none, evidence, online, validation",
        ),
        (
            {"per": "unit"},
            "laplace: per='unit' is not valid; expected one of global, layer, tensor",
        ),
        (
            {"predictive": "moments"},
            "laplace: predictive='moments' is not valid; expected one of linear, probit, weights",
        ),
        ({"rank": 0}, "laplace: rank=0 is not valid; expected a whole number >= 1"),
        ({"mc_samples": 0}, "laplace: mc_samples=0 is not valid"),
        ({"every": 0}, "laplace: every=0 is not valid"),
        ({"train": "no"}, "laplace: train='no' is not valid; expected true or false"),
        ({"subset": "lost.*"}, "pattern 'lost.*' matches no parameter"),
        (
            {"structur": "full"},
            "method 'laplace' has no setting 'structur'. Did you mean 'structure'",
        ),
        ({"tune": "validation"}, r"tune='validation' needs validation=\(x, y\) in fit"),
        (
            {"tune": "online", "train": False},
            "tune='online' happens while training; with train=False use tune='evidence'",
        ),
        (
            {"predictive": "probit"},
            "gaussian likelihood has no probit approximation, which is for labels; use 'linear'",
        ),
        (
            {"num_data": 100, "train": False},
            "one pass saw 30 examples and num_data is 100; give a loader that shows every",
        ),
    ],
)
def test_wrong_settings_say_what_to_do(settings, message):
    x, y, _ = problem()
    with pytest.raises(CredoError, match=message):
        bnn().fit((x, y), "laplace", epochs=1, progress=False, **settings)


@pytest.mark.parametrize(
    "prior", [DoubleExponential(0.0, 1.0), Flat(), StudentT(2.0, 0.0, 1e-3)], ids=str
)
def test_priors_without_a_precision_are_refused_by_name(prior):
    x, y, _ = problem()
    named = type(prior).__name__
    with pytest.raises(
        SettingError,
        match=f"curves downwards at the mode, but 'weight' has {named}.*; use a normal prior",
    ):
        bnn(prior=prior).fit((x, y), "laplace", **STILL)
    with pytest.raises(
        SettingError,
        match=f"'weight' cannot be tuned: it is {named}.*give a normal prior, or use tune='none'",
    ):
        bnn(prior=prior).fit((x, y), "laplace", train=False, progress=False)


def test_a_learned_prior_is_not_tuned_twice():
    x, y, _ = problem()
    with pytest.raises(
        SettingError,
        match="tunes the prior's width itself; 'learned scale per layer.*is learned already: use "
        "tune='none'",
    ):
        bnn(prior="learned").fit((x, y), "laplace", epochs=1, progress=False)
    assert (
        "log_evidence"
        in bnn(prior="learned")
        .fit((x, y), "laplace", tune="none", epochs=2, progress=False)
        .history[-1]
    )


def test_too_large_a_covariance_is_refused_before_training():
    x, y = torch.randn(6, 20_000), torch.arange(6) % 2
    seen = []
    with pytest.raises(
        SettingError, match=r"structure='full' over 40002 parameters is too large \(at most 20000\)"
    ):
        BNN(nn.Linear(20_000, 2), "categorical").fit(
            (x, y), "laplace", structure="full", callbacks=[seen.append], progress=False
        )
    assert not seen


def test_a_diagonal_does_not_tell_noise():
    """Its evidence would call most of this signal noise; the descent's estimate stays."""
    source = torch.Generator().manual_seed(0)
    x = torch.cat([torch.linspace(-2, -1, 40), torch.linspace(1, 2, 40)]).unsqueeze(1)
    y = torch.sin(2 * x) + 0.1 * torch.randn(80, 1, generator=source)
    with isolated(0):
        net = torch.nn.Sequential(torch.nn.Linear(1, 20), torch.nn.Tanh(), torch.nn.Linear(20, 1))
    found = {}
    for structure in ("diagonal", "full"):
        bnn = credo.BNN(net, "gaussian").fit(
            (x, y), "laplace", structure=structure, epochs=400, lr=0.02, progress=False
        )
        found[structure] = float(bnn.likelihood.log_std.detach().exp())
    assert (
        0.07 < found["diagonal"] < found["full"] < 0.16
    )  # the evidence of all curvature counts what the network used up
