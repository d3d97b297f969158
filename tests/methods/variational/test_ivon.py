import numpy as np
import pytest
import torch
from torch import nn
from torch.distributions import Laplace, Normal
from zoo.regression import bnn, exact, flat_mean, problem

from credo import BNN
from credo.core.errors import SettingError
from credo.core.seeds import isolated
from credo.engine import fit_job
from credo.likelihoods import Gaussian
from credo.priors import Learned, Optimal

DATA = problem()
FIT = {
    "epochs": 1000,
    "batch_size": 1000,
    "lr": 0.1,
    "beta2": 0.99,
    "train_samples": 4,
    "progress": False,
}


def std_of(fitted):
    std = fitted.posterior.factors[0].std()
    return torch.cat([std["weight"].flatten(), std["bias"]]).detach().numpy()


@pytest.mark.parametrize("estimator", ["weights", "local", "flipout"])
def test_it_reaches_the_mean_field_optimum(estimator):
    """Tolerances as for vi: the noise of the last steps, doubled."""
    x, y, design = DATA
    fitted = bnn().fit((x, y), "ivon", estimator=estimator, **FIT)
    mean, cov, _ = exact(design, y[:, 0].numpy())
    expected = 1 / np.sqrt(np.diag(np.linalg.inv(cov)))
    assert np.abs((flat_mean(fitted).numpy() - mean) / expected).max() < 0.15
    assert np.abs(std_of(fitted) / expected - 1).max() < 0.15


def test_prior_means_and_scales_of_single_layers_are_respected():
    """Weights under N(2, 0.1^2), the bias under N(-1, 0.3^2): the mean-field optimum of that
    conjugate problem.
    """
    x, y, design = DATA
    prior = {"weight": Normal(2.0, 0.125), "bias": Normal(-1.0, 0.25)}
    fitted = bnn(prior=prior).fit((x, y), "ivon", **FIT)
    centre, scale = np.array([2.0, 2.0, 2.0, -1.0]), np.array([0.125, 0.125, 0.125, 0.25])
    precision = np.diag(1 / scale**2) + design.T @ design / 0.25
    mean = np.linalg.solve(precision, centre / scale**2 + design.T @ y[:, 0].numpy() / 0.25)
    expected = 1 / np.sqrt(np.diag(precision))
    assert np.abs((flat_mean(fitted).numpy() - mean) / expected).max() < 0.15
    assert np.abs(std_of(fitted) / expected - 1).max() < 0.15


def test_beta_tempers():
    x, y, design = DATA
    cold = bnn().fit((x, y), "ivon", beta=0.1, **FIT)
    precision = np.eye(4) / 1.25**2 + design.T @ design / (0.25 * 0.1)
    # beta KL = KL to a prior of the same precision, with the likelihood raised to 1 / beta
    assert np.abs(std_of(cold) * np.sqrt(np.diag(precision)) - 1).max() < 0.15


@pytest.mark.parametrize("prior", [Laplace(0.0, 1.0), Learned(Normal(0.0, 1.0)), Optimal()])
def test_priors_that_are_not_fixed_normals_are_refused(prior):
    x, y, _ = DATA
    with pytest.raises(SettingError, match="ivon needs a (fixed )?normal prior"):
        bnn(prior=prior).fit((x, y), "ivon", epochs=1, progress=False)


@pytest.mark.parametrize("bad", [{"kl": "sampled"}])
def test_settings_its_optimizer_cannot_follow_are_refused(bad):
    x, y, _ = DATA
    with pytest.raises(SettingError, match=f"ivon: {next(iter(bad))}="):
        bnn().fit((x, y), "ivon", epochs=1, progress=False, **bad)


def deep(likelihood=None, prior=None):
    with isolated(0):
        net = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 1)).double()
    return BNN(net, likelihood or Gaussian(), prior, random="*.weight")


def test_points_and_noise_move_by_adam_at_their_own_rate():
    """Adam's first step is the rate itself, whatever the gradient."""
    x, y, _ = DATA
    start = deep()
    fitted = deep().fit(
        (x, y),
        "ivon",
        epochs=1,
        batch_size=1000,
        point_lr=0.007,
        lr_schedule="constant",
        progress=False,
    )
    for name in ("0.bias", "2.bias"):
        moved = (fitted.posterior.mean()[name] - dict(start.net.named_parameters())[name]).abs()
        assert torch.allclose(moved, torch.full_like(moved, 0.007), rtol=1e-4)
    noise = (fitted.likelihood.log_std - start.likelihood.log_std.double()).abs()
    assert torch.allclose(noise, torch.full_like(noise, 0.007), rtol=1e-4)


def test_a_prior_named_for_a_point_counts():
    """A point held by a narrow prior stays near its mean; without one it follows the data."""
    x, y, _ = DATA
    how = {"epochs": 300, "batch_size": 1000, "point_lr": 0.05, "progress": False}
    held = deep(prior={"*.weight": Normal(0.0, 1.0), "2.bias": Normal(0.0, 1e-3)}).fit(
        (x, y + 3), "ivon", **how
    )
    free = deep(prior=Normal(0.0, 1.0)).fit((x, y + 3), "ivon", **how)
    assert (
        held.posterior.mean()["2.bias"].abs().item()
        < 0.05
        < 0.5
        < free.posterior.mean()["2.bias"].abs().item()
    )


def test_a_run_with_points_and_noise_resumes_bit_identically(tmp_path, monkeypatch):
    x, y, _ = DATA
    how = {"epochs": 6, "batch_size": 8, "progress": False}
    whole = deep().fit((x, y), "ivon", **how)

    class Stop(Exception):
        pass

    def crash(row):
        if row["epoch"] == 3:
            raise Stop

    monkeypatch.setattr(fit_job, "CHECKPOINT_SECONDS", 0.0)
    with pytest.raises(Stop):
        deep().fit((x, y), "ivon", run=tmp_path / "run", callbacks=[crash], **how)
    resumed = deep().fit((x, y), "ivon", run=tmp_path / "run", **how)
    state = whole.posterior.state_dict() | whole.likelihood.state_dict()
    other = resumed.posterior.state_dict() | resumed.likelihood.state_dict()
    assert state.keys() == other.keys() and all(torch.equal(state[k], other[k]) for k in state)


def test_a_warm_up_ends_at_the_same_posterior():
    """The KL's weight divides lambda while it rises; once it is 1 the optimum is the one without a
    schedule.
    """
    x, y, _ = problem()
    plain = bnn().fit((x, y), "ivon", **FIT)
    warm = bnn().fit((x, y), "ivon", kl_schedule="linear", kl_warmup=FIT["epochs"] // 3, **FIT)
    for a, b in zip(
        plain.posterior.factors[0].marginals(), warm.posterior.factors[0].marginals(), strict=True
    ):
        assert all(torch.allclose(a[n], b[n], rtol=0.15, atol=0.02) for n in a)
