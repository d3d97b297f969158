import numpy as np
import pytest
import torch
from scipy import stats
from torch import nn
from torch.distributions import Laplace, Normal
from zoo.regression import bnn, exact, exact_unknown, flat_mean, problem
from zoo.stats import follows

from credo import BNN
from credo.core.errors import NetworkError, SettingError
from credo.likelihoods import Gaussian
from credo.posteriors import Delta, Full, NormalInverseGamma


def test_known_noise_is_the_closed_form():
    x, y, design = problem()
    fitted = bnn().fit((x, y), "exact")
    mean, cov, evidence = exact(design, y[:, 0].numpy())
    assert np.allclose(flat_mean(fitted), mean, rtol=1e-6)
    assert np.allclose(
        fitted.posterior.factors[0].covariance().detach(), cov, rtol=1e-6, atol=1e-12
    )
    assert np.isclose(fitted.history[-1]["log_evidence"], evidence, rtol=1e-9)


def test_batches_and_one_pass_agree():
    x, y, _ = problem()
    whole, parts = (
        bnn().fit((x, y), "exact", batch_size=1000),
        bnn().fit((x, y), "exact", batch_size=7),
    )
    assert torch.allclose(flat_mean(whole), flat_mean(parts), rtol=1e-10)


def test_several_outputs_with_their_own_noise():
    x, y, design = problem(outputs=2)
    stds = torch.tensor([0.3, 0.8], dtype=torch.float64)
    fitted = bnn(outputs=2, likelihood=Gaussian(std=stds.tolist())).fit((x, y), "exact")
    weight = fitted.posterior.mean()["weight"].detach()
    total = 0.0
    for d in range(2):
        mean, _, evidence = exact(design, y[:, d].numpy(), std=float(stds[d]))
        assert np.allclose(weight[d], mean[:3], rtol=1e-6)
        total += evidence
    assert np.isclose(fitted.history[-1]["log_evidence"], total, rtol=1e-9)


def test_unknown_noise_is_normal_inverse_gamma():
    x, y, design = problem()
    fitted = bnn(likelihood=Gaussian()).fit((x, y), "exact")
    family = fitted.posterior.factors[0]
    mean, cov, a, b, evidence = exact_unknown(design, y[:, 0].numpy())
    assert isinstance(family, NormalInverseGamma)
    assert np.allclose(family.flat_mean, mean, rtol=1e-6) and np.allclose(
        family.scale_tril @ family.scale_tril.T, cov, rtol=1e-6, atol=1e-12
    )
    assert np.allclose(family.shape_rate, [a, b], rtol=1e-9)
    assert np.isclose(fitted.history[-1]["log_evidence"], evidence, rtol=1e-9)


def test_the_predictive_under_unknown_noise_is_student_t():
    """y* ~ t with 2a degrees of freedom, scale sqrt(b/a (1 + phi' V phi)); Kolmogorov-Smirnov at
    the suite's failure rate.
    """
    x, y, design = problem(n=6)
    fitted = bnn(likelihood=Gaussian()).fit((x, y), "exact")
    mean, cov, a, b, _ = exact_unknown(design, y[:, 0].numpy())
    new = torch.tensor([[0.5, -1.0, 2.0]]).double()
    phi = np.array([0.5, -1.0, 2.0, 1.0])
    predictive = fitted.predict(new, samples=3000, seed=1)
    noise = torch.randn(3000, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    draws = (
        predictive.outputs[:, 0, 0]
        + noise
        * predictive.likelihood.std(predictive.outputs).expand_as(predictive.outputs)[:, 0, 0]
    )
    follows(draws, stats.t(2 * a, phi @ mean, np.sqrt(b / a * (1 + phi @ cov @ phi))).cdf)


@pytest.mark.parametrize("unknown", [False, True])
@pytest.mark.parametrize("order", [[0, 1, 2], [2, 0, 1]])
def test_updates_in_any_order_equal_one_fit_on_the_union(unknown, order):
    x, y, _ = problem(n=30)
    likelihood = Gaussian() if unknown else None
    whole = bnn(likelihood=likelihood).fit((x, y), "exact")
    parts = [(x[i::3], y[i::3]) for i in order]
    step = bnn(likelihood=likelihood).fit(parts[0], "exact")
    for part in parts[1:]:
        step.update(part)
    assert torch.allclose(flat_mean(step), flat_mean(whole), rtol=1e-6)
    for a, b in zip(
        step.posterior.state_dict().values(), whole.posterior.state_dict().values(), strict=True
    ):
        assert torch.allclose(a, b, rtol=1e-6, atol=1e-9)
    ours, theirs = (b.history[-1]["log_evidence"] for b in (step, whole))
    assert np.isclose(ours, theirs, rtol=1e-8), "log p(D1, D2) = log p(D1) + log p(D2 given D1)"


def test_a_last_layer_on_fixed_features():
    x, y, _ = problem()
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(3, 6), nn.Tanh(), nn.Linear(6, 1)).double()
    fitted = BNN(net, Gaussian(std=0.5), prior=Normal(0.0, 1.25), random="last").fit(
        (x, y), "exact"
    )
    features = torch.tanh(net[0](x)).detach().numpy()
    mean, _, evidence = exact(np.concatenate([features, np.ones((30, 1))], 1), y[:, 0].numpy())
    assert np.allclose(fitted.posterior.mean()["2.weight"].detach()[0], mean[:6], rtol=1e-6)
    assert np.isclose(fitted.history[-1]["log_evidence"], evidence, rtol=1e-9)
    assert [type(m) for m in fitted.posterior.factors] == [Full, Delta]


def test_a_prior_with_a_mean():
    """Shifting prior and targets together shifts nothing else."""
    x, y, design = problem()
    shifted = bnn(prior=Normal(0.5, 1.25)).fit((x, y), "exact")
    target = y[:, 0].numpy() - design @ np.full(4, 0.5)
    assert np.allclose(flat_mean(shifted), exact(design, target)[0] + 0.5, rtol=1e-6)


def test_what_is_refused():
    x, y, _ = problem()
    net = nn.Sequential(nn.Linear(3, 6), nn.Tanh(), nn.Linear(6, 1)).double()
    with pytest.raises(NetworkError, match="not linear in its random parameters"):
        BNN(net, Gaussian(std=0.5)).fit((x, y), "exact")
    with pytest.raises(SettingError, match="exact needs a Gaussian likelihood, got 'categorical'"):
        BNN(nn.Linear(3, 2).double(), "categorical").fit((x, (y[:, 0] > 0).long()), "exact")
    with pytest.raises(
        SettingError, match="The closed form needs a normal prior, but 'weight' has Laplace"
    ):
        bnn(prior=Laplace(0.0, 1.0)).fit((x, y), "exact")
    with pytest.raises(
        SettingError, match="The closed form saw 30 examples in one pass, but num_data is 100"
    ):
        bnn().fit((x, y), "exact", num_data=100)


def test_a_learned_prior_is_refused():
    """The closed form has no loop to learn it in; taking its start for the answer would be
    silent.
    """
    x, y, _ = problem()
    with pytest.raises(SettingError, match="exact needs a fixed prior; 'learned scale per layer"):
        bnn(prior="learned").fit((x, y), "exact")
