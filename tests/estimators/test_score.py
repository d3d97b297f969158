"""The score function against quadrature (continuous weights) and enumeration (discrete ones), by
z-tests (see ``zoo.stats``).
"""

import pytest
import torch
from torch import nn
from torch.distributions import Normal, StudentT
from zoo.gradients import Enumerated, gradients, joined, quadrature
from zoo.models import make_model, make_posterior
from zoo.stats import has_mean, same_mean

from credo import BNN
from credo.core.errors import SettingError
from credo.core.seeds import isolated
from credo.engine.elbo import Elbo
from credo.estimators import Weights
from credo.estimators.score import CONTROLS, Baseline, Score
from credo.posteriors import Start

DRAWS = 20_000
GENERATOR = torch.Generator().manual_seed(0)
X = torch.randn(8, 1, generator=GENERATOR, dtype=torch.float64)
Y = torch.poisson((0.7 * X[:, 0] + 1.2).exp(), generator=GENERATOR)
BITS = torch.randn(6, 3, generator=GENERATOR, dtype=torch.float64)


def regression(
    estimator,
    train_samples=4,
    kind="mean_field",
    random="all",
    prior=None,
    likelihood="poisson",
    kl="closed",
):
    """Poisson regression with a weight and a bias."""
    with isolated(0):
        net = nn.Linear(1, 1).double()
    model = make_model(net, random, likelihood, prior or Normal(0.0, 1.0))
    elbo = Elbo(model, make_posterior(kind, model, 0.3), estimator, train_samples, kl=kl)
    if elbo.state is not None:
        with isolated(3):
            for _ in range(20):
                elbo(X, Y)
    return elbo


def hold(monkeypatch):
    """Averages are constants within a step; many steps at once must not move them."""
    monkeypatch.setattr(Baseline, "update", lambda self, nll, kl: None)


def exact_gradient(elbo):
    value = quadrature(elbo, X, Y)
    return {
        n: g
        for (n, _), g in zip(
            elbo.named_parameters(),
            torch.autograd.grad(value, list(elbo.parameters())),
            strict=True,
        )
    }


@pytest.mark.parametrize("kl", ["closed", "sampled"])
@pytest.mark.parametrize("rao_blackwell", [True, False])
@pytest.mark.parametrize("control", CONTROLS)
def test_unbiased_against_quadrature(control, rao_blackwell, kl, monkeypatch):
    elbo = regression(Score(control, rao_blackwell), kl=kl)
    exact = exact_gradient(elbo)
    hold(monkeypatch)
    has_mean(
        joined(gradients(elbo, X, Y, DRAWS)), torch.cat([exact[n].flatten() for n in sorted(exact)])
    )


@pytest.mark.parametrize("control", CONTROLS)
def test_a_prior_without_a_closed_kl_agrees_with_the_pathwise_gradient(control, monkeypatch):
    ours = regression(Score(control), prior=StudentT(4.0))
    path = regression(Weights(), prior=StudentT(4.0), kl="sampled")
    hold(monkeypatch)
    same_mean(joined(gradients(ours, X, Y, DRAWS)), joined(gradients(path, X, Y, DRAWS, seed=1)))


@pytest.mark.parametrize("kind", ["low_rank", "full", "kron"])
def test_joint_families_agree_with_the_pathwise_gradient(kind):
    ours, path = regression(Score(), kind=kind), regression(Weights(), kind=kind)
    same_mean(joined(gradients(ours, X, Y, DRAWS)), joined(gradients(path, X, Y, DRAWS, seed=1)))


def test_points_and_likelihood_noise_keep_their_pathwise_gradient():
    """With a random weight, a point bias and a learned noise the exact gradient by quadrature
    covers all three.
    """
    elbo = regression(Score(), random="weights", likelihood="gaussian")
    names = {n.split(".")[0] for n, _ in elbo.named_parameters()}
    assert names == {"posterior", "likelihood"} and len(elbo.posterior.factors) == 2
    exact = exact_gradient(elbo)
    parts = gradients(elbo, X, Y, DRAWS)
    for name in exact:
        has_mean(parts[name].reshape(DRAWS, -1), exact[name].flatten())
    assert (
        exact["posterior.families.1.values.0"].abs() > 0.1
        and exact["likelihood.log_std"].abs() > 0.1
    )


@pytest.mark.parametrize("rao_blackwell", [True, False])
@pytest.mark.parametrize("control", CONTROLS)
def test_unbiased_against_enumeration(control, rao_blackwell, monkeypatch):
    elbo = binary(Score(control, rao_blackwell), train_samples=3)
    every = Enumerated(elbo, BITS, TARGETS)
    logits = elbo.posterior.factors[0].logits.detach().requires_grad_()
    (exact,) = torch.autograd.grad(-every.elbo_of(logits), logits)
    hold(monkeypatch)
    has_mean(joined(gradients(elbo, BITS, TARGETS, DRAWS)), exact.flatten())


TARGETS = torch.tensor([1, 0, 1, 1, 0, 0])


def binary(estimator, train_samples=2):
    with isolated(1):
        net = nn.Sequential(
            nn.Linear(3, 2, bias=False), nn.Tanh(), nn.Linear(2, 1, bias=False)
        ).double()
    model = make_model(net, likelihood="bernoulli")
    return Elbo(
        model,
        model.posterior("discrete", model.values(), Start(levels=(-1.0, 1.0))),
        estimator,
        train_samples,
    )


def test_control_variates_cut_the_variance_tenfold(monkeypatch, capsys):
    """Total variance of the gradient at equal numbers of draws, at the optimum, around which a fit
    spends most of its steps.
    """
    with isolated(2):
        x = torch.randn(40, 1, dtype=torch.float64)
        y = torch.poisson((0.7 * x[:, 0] + 1.2).exp())
    best = regression(Score())
    optimizer = torch.optim.Adam(best.posterior.parameters(), lr=0.05)
    for _ in range(200):
        optimizer.zero_grad()
        quadrature(best, x, y, nodes=12).backward()
        optimizer.step()
    total = {}
    for control, rao_blackwell in (
        ("none", False),
        ("none", True),
        ("baseline", True),
        ("leave_one_out", True),
    ):
        elbo = Elbo(best.model, best.posterior, Score(control, rao_blackwell), 4)
        with isolated(3):
            for _ in range(30):
                elbo(x, y)
        with monkeypatch.context() as patch:
            hold(patch)
            total[control, rao_blackwell] = float(joined(gradients(elbo, x, y, DRAWS)).var(0).sum())
    ratios = {key: total["none", False] / value for key, value in total.items()}
    with capsys.disabled():
        print(
            "\nvariance without control over that with (control, rao_blackwell): "
            f"{ {k: round(v, 1) for k, v in ratios.items()} }"
        )
    assert ratios["leave_one_out", True] > 10 and ratios["baseline", True] > 10


def test_leave_one_out_needs_two_draws():
    with pytest.raises(
        SettingError, match="control='leave_one_out' needs train_samples of at least 2"
    ):
        regression(Score("leave_one_out"), train_samples=1)(X, Y)


def test_the_values_are_those_of_plain_passes():
    ours, plain = regression(Score("none"), train_samples=1), regression(Weights(), train_samples=1)
    with isolated(5):
        nll, kl = ours(X, Y)
    with isolated(5):
        other, closed = plain(X, Y)
    assert torch.allclose(nll, other) and torch.allclose(kl, closed)


def test_the_baseline_is_used_before_it_sees_the_draw():
    """The first step has nothing to subtract: its gradient is that without control; the second
    subtracts the first's nll.
    """
    plain, ours = (regression_without_warmup(control) for control in ("none", "baseline"))
    grads = []
    for elbo in (plain, ours):
        with isolated(7):
            nll, _ = elbo(X, Y)
        grads.append(torch.autograd.grad(nll, list(elbo.posterior.parameters())))
    assert all(torch.equal(a, b) for a, b in zip(*grads, strict=True))
    before, _ = ours.state.read()
    assert torch.allclose(before * len(X), nll.detach())


def regression_without_warmup(control):
    elbo = regression(Score("none"), train_samples=1)
    return Elbo(elbo.model, elbo.posterior, Score(control), 1)


def test_the_baseline_is_saved_with_the_run(tmp_path):
    elbo = regression(Score("baseline"))
    assert {"state.nll", "state.kl", "state.steps"} <= set(elbo.state_dict()) and float(
        elbo.state.steps
    ) == 20

    class Stop(Exception):
        pass

    def crash(row):
        if row["epoch"] == 3:
            raise Stop

    import credo.engine.fit_job as fit_job

    how = {"method": "bbvi", "control": "baseline", "epochs": 6, "batch_size": 3, "progress": False}

    def fit(**more):
        with isolated(0):
            net = nn.Linear(1, 1).double()
        return BNN(net, "poisson").fit((X, Y), **how, **more)

    whole = fit()
    saved, fit_job.CHECKPOINT_SECONDS = fit_job.CHECKPOINT_SECONDS, 0.0
    try:
        with pytest.raises(Stop):
            fit(run=tmp_path / "run", callbacks=[crash])
    finally:
        fit_job.CHECKPOINT_SECONDS = saved
    resumed = fit(run=tmp_path / "run")
    for a, b in zip(
        whole.posterior.state_dict().values(), resumed.posterior.state_dict().values(), strict=True
    ):
        assert torch.equal(a, b)


def test_families_without_a_density_are_refused():
    elbo = regression(Score("leave_one_out"), kind="samples")
    with pytest.raises(
        SettingError, match="estimator='score' needs a density; the family 'samples' has none"
    ):
        Score().check(elbo.posterior)
