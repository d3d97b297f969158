"""A VAE with a posterior over its decoder's weights: closed forms and quadrature over one weight,
families, estimators, dropout.
"""

import math

import numpy as np
import pytest
import torch
from torch import nn
from torch.distributions import Normal
from zoo.latent import QUICK, STILL, binary, coder, real, vae
from zoo.stats import Z, has_mean, log_mean_exp

from credo.core.errors import CredoError, NetworkError, SettingError
from credo.generative import VAE
from credo.likelihoods import Gaussian
from credo.posteriors import Delta


class Scalar:
    """x = w z + std e with one number each, and q(w) = N(w0, s^2): everything is a one-dimensional
    integral.
    """

    w0, std, x = 1.3, 0.5, torch.tensor([[0.7], [-1.9], [0.1]], dtype=torch.float64)

    def fit(self, init_std=0.4, **settings):
        encoder, decoder = nn.Linear(1, 2).double(), nn.Linear(1, 1, bias=False).double()
        with torch.no_grad():
            encoder.weight.copy_(torch.tensor([[0.6], [0.0]]))
            encoder.bias.copy_(torch.tensor([0.0, -0.5]))
            decoder.weight.fill_(self.w0)
        model = VAE(encoder, decoder, 1, Gaussian(std=self.std), weight_prior=Normal(0.0, 1.0))
        return model.fit(self.x, **{"method": "vi", "init_std": init_std, **STILL, **settings})

    def elbo(self, init_std=0.4):
        """E_q(w)[ELBO(x; w)] of each datum."""
        mean, std = 0.6 * self.x[:, 0], math.log1p(math.exp(-0.5))
        second = (self.w0**2 + init_std**2) * (mean.square() + std**2)
        square = self.x[:, 0].square() - 2 * self.x[:, 0] * self.w0 * mean + second
        fit = -0.5 * square / self.std**2 - math.log(self.std) - 0.5 * math.log(2 * math.pi)
        return fit - (0.5 * (mean.square() + std**2 - 1) - math.log(std))

    def kl(self, init_std=0.4):
        return float(torch.distributions.kl_divergence(Normal(self.w0, init_std), Normal(0.0, 1.0)))

    def log_evidence(self, init_std=0.4, nodes=80):
        """log of int N(x; 0, w^2 + std^2) q(w) dw."""
        points, mass = (torch.from_numpy(a) for a in np.polynomial.hermite_e.hermegauss(nodes))
        w = self.w0 + init_std * points
        log_p = Normal(0.0, (w.square() + self.std**2).sqrt()).log_prob(self.x)
        return torch.logsumexp(log_p + (mass / mass.sum()).log(), -1)


def test_elbo_with_random_weights_averages_over_them():
    problem = Scalar()
    model = problem.fit()
    has_mean(
        torch.stack([model.elbo(problem.x, samples=4, seed=s) for s in range(300)]), problem.elbo()
    )


def test_objective_is_the_expected_bounds_less_the_kl_of_the_weights():
    problem = Scalar()
    model = problem.fit()
    parts = [model.objective(problem.x, samples=8, seed=s) for s in range(200)]
    assert parts[0]["kl"] == pytest.approx(problem.kl()) and parts[0]["elbo"] == pytest.approx(
        -parts[0]["nll"] - parts[0]["kl"]
    )
    has_mean(
        torch.tensor([[p["elbo"]] for p in parts]), [float(problem.elbo().sum()) - problem.kl()]
    )


def test_bits_are_given_only_where_data_have_them():
    assert "bits_total" not in Scalar().fit().objective(Scalar.x), (
        "a density of real numbers has no length in bits"
    )
    assert "bits_total" in vae("bernoulli").fit(binary(), **STILL).objective(binary())


@pytest.mark.parametrize("estimator", ["local", "weights", "per_example", "flipout", "score"])
def test_history_is_the_expected_bounds_less_the_kl_of_the_weights(estimator):
    problem = Scalar()
    rows = problem.fit(estimator=estimator, epochs=400).history
    assert rows[0]["kl"] == pytest.approx(problem.kl(), rel=1e-5)
    has_mean(
        torch.tensor([[r["elbo"] + problem.kl()] for r in rows], dtype=torch.float64),
        [float(problem.elbo().sum())],
    )
    has_mean(
        torch.tensor([[r["bound"]] for r in rows], dtype=torch.float64),
        [float(problem.elbo().mean())],
    )


def test_log_marginal_with_random_weights_against_quadrature():
    problem = Scalar()
    model = problem.fit()
    rows = torch.stack([model.log_marginal(problem.x, k=20, samples=20, seed=s) for s in range(80)])
    has_mean((rows - problem.log_evidence()).exp(), torch.ones(3, dtype=torch.float64))
    low = torch.stack([model.log_marginal(problem.x, k=20, samples=1, seed=s) for s in range(150)])
    assert (low.mean(0) < rows.mean(0) + Z * low.std(0) / 150**0.5).all()
    torch.testing.assert_close(log_mean_exp(low), problem.log_evidence(), rtol=0, atol=0.3)


def test_annealed_with_random_weights_against_quadrature():
    problem = Scalar()
    model = problem.fit()
    rows = torch.stack(
        [
            model.annealed(problem.x, chains=8, steps=4, leapfrog=2, samples=4, seed=s)
            for s in range(25)
        ]
    )
    has_mean((rows - problem.log_evidence()).exp(), torch.ones(3, dtype=torch.float64))


def test_samples_spread_over_weights():
    x = Scalar().fit(init_std=2.0).sample(4000, samples=4000)
    var = (Scalar.w0**2 + 4.0) * 1.0
    has_mean(x.square(), [var])


def test_encoder_noise_and_prior_are_points():
    fitted = vae(Gaussian(), prior="mixture").fit(real(60), "vi", **QUICK)
    spread = {n for f in fitted.bnn.posterior.factors if not isinstance(f, Delta) for n in f.names}
    fixed = {n for f in fitted.bnn.posterior.factors if isinstance(f, Delta) for n in f.names}
    assert spread == {f"decoder.{n}" for n, _ in fitted.decoder.named_parameters()}
    assert {"likelihood.log_std", "prior.means"} <= fixed and any(
        n.startswith("encoder.") for n in fixed
    )


@pytest.mark.parametrize("family", ["mean_field", "low_rank", "kron", "full"])
def test_families_of_weights(family):
    fitted = vae().fit(real(), "vi", posterior=family, **QUICK)
    one, two = fitted.elbo(real(), samples=2), fitted.elbo(real(), samples=2)
    assert torch.equal(one, two) and torch.isfinite(one).all() and fitted.history[-1]["kl"] > 0
    assert torch.isfinite(fitted.log_marginal(real(), k=3, samples=2)).all()


@pytest.mark.parametrize(
    "method", ["map", "bbvi", "ivon", "flow", "last_layer", "bnn_ensemble", "weight_noise"]
)
def test_other_methods(method):
    fitted = vae().fit(real(), method, **QUICK)
    assert torch.isfinite(fitted.elbo(real(), samples=2)).all() and fitted.sample(3).shape == (3, 6)


def test_map_pulls_the_decoder_and_leaves_the_encoder():
    x = real()
    settings = QUICK | {"epochs": 30, "lr": 0.05}
    loose, tight = (
        vae(weight_prior=Normal(0.0, std)).fit(x, "map", **settings).bnn.posterior.mean()
        for std in (100.0, 0.01)
    )
    assert float(tight["decoder.2.weight"].norm()) < 0.2 * float(loose["decoder.2.weight"].norm())
    assert float(tight["encoder.2.weight"].norm()) > 0.3 * float(loose["encoder.2.weight"].norm())


def dropped():
    return nn.Sequential(nn.Linear(2, 5), nn.Tanh(), nn.Dropout(0.5), nn.Linear(5, 6))


def test_mc_dropout_masks_the_decoder():
    model = VAE(coder(6, 4), dropped(), 2, "gaussian").fit(real(), "mc_dropout", **QUICK)
    z = torch.zeros(3, 2)
    one, two = model.decode(z, seed=0), model.decode(z, seed=1)
    assert not torch.equal(one, two), "another seed, another mask"
    torch.testing.assert_close(one[0], one[1])  # one mask for all data of a draw
    assert model.bnn.posterior.noisy_modules == frozenset(), "the draws of z are no dropout"


def test_mc_dropout_without_dropout_modules_masks_hidden_units():
    """The draws of z are no noise of the weights: they must not be taken for it."""
    model = vae().fit(real(), "mc_dropout", p=0.5, **QUICK)
    assert not torch.equal(
        model.decode(torch.ones(3, 2), seed=0), model.decode(torch.ones(3, 2), seed=1)
    )


@pytest.mark.parametrize(
    "method", ["mc_dropout", "concrete_dropout", "gaussian_dropout", "variational_dropout"]
)
def test_dropout_methods_on_a_plain_decoder(method):
    fitted = vae().fit(real(), method, **QUICK)
    assert not torch.equal(
        fitted.decode(torch.ones(3, 2), seed=0), fitted.decode(torch.ones(3, 2), seed=1)
    )


def test_dropout_in_the_encoder_is_not_the_decoders_posterior():
    encoder = nn.Sequential(nn.Linear(6, 5), nn.Dropout(0.5), nn.Linear(5, 4))
    for method in ("mc_dropout", "stochastic"):
        with pytest.raises(SettingError, match="encoder's dropout"):
            VAE(encoder, dropped(), 2, "gaussian").fit(real(), method, **QUICK)
    model = VAE(encoder, dropped(), 2, "gaussian").fit(
        real(), **QUICK
    )  # as plain noise of training it is fine
    one, two = (model.encode(real()).mean for _ in range(2))
    assert torch.equal(one, two)


def test_annealing_refuses_a_decoder_that_is_random_by_itself():
    """Its density changes from call to call, which no Hamiltonian step can follow."""
    model = VAE(coder(6, 4), dropped(), 2, "gaussian").fit(real(), "stochastic", **QUICK)
    with pytest.raises(CredoError, match="random"):
        model.annealed(real(), 2, 2, 2)


@pytest.mark.parametrize("estimator", ["local", "per_example", "flipout"])
def test_several_draws_of_z_need_one_draw_of_weights(estimator):
    with pytest.raises(
        SettingError, match=f"draws=3 with vi and estimator='{estimator}'.*use estimator='weights'"
    ):
        vae().fit(real(), "vi", draws=3, estimator=estimator, **QUICK)
    vae().fit(real(), "vi", draws=3, estimator="weights", **QUICK)


def test_several_draws_of_z_meet_the_same_weights():
    """IWAE under random weights, E_w[log mean_k w_k], by quadrature over w and many draws of z."""
    problem = Scalar()
    rows = problem.fit(estimator="weights", bound="iwae", draws=5, epochs=800).history
    points, mass = (torch.from_numpy(a) for a in np.polynomial.hermite_e.hermegauss(24))
    mean, std = 0.6 * problem.x[:, 0], math.log1p(math.exp(-0.5))
    z = mean + std * torch.randn(
        4000, 5, 3, generator=torch.Generator().manual_seed(0), dtype=torch.float64
    )
    total = 0.0
    for w, m in zip(problem.w0 + 0.4 * points, mass / mass.sum(), strict=True):
        log_w = (
            Normal(w * z, problem.std).log_prob(problem.x[:, 0])
            + Normal(0.0, 1.0).log_prob(z)
            - Normal(mean, std).log_prob(z)
        )
        total = total + m * (torch.logsumexp(log_w, 1) - math.log(5)).sum(-1)
    found = torch.tensor([3 * r["bound"] for r in rows], dtype=torch.float64)
    error = (found.var() / 800 + total.var() / 4000).sqrt()
    assert abs(float((found.mean() - total.mean()) / error)) < Z


def test_bfloat16_is_for_matrix_products_and_not_for_the_bound():
    x = real(40, 60)
    rows = [
        VAE(coder(60, 4), coder(2, 60), 2, Gaussian(std=0.1))
        .fit(x, "vi", autocast=a, **STILL)
        .history[0]["bound"]
        for a in (False, True)
    ]
    # The decoder's outputs are off by 2^-8 relative at most; a sum of 60 squares kept in bfloat16
    # would be off by more than that.
    assert rows[1] == pytest.approx(rows[0], rel=2**-8)


def test_moments_are_refused_in_a_sentence():
    for settings in ({"method": "moments"}, {"method": "vi", "estimator": "moments"}):
        with pytest.raises((NetworkError, SettingError)):
            vae().fit(real(), **settings, **QUICK)


@pytest.mark.parametrize("method", ["mc_dropout", "concrete_dropout", "stochastic"])
def test_several_draws_of_z_under_a_decoders_own_dropout_are_refused(method):
    with pytest.raises(
        SettingError,
        match=f"draws=3 with {method} would give every draw of z other noise; use draws=1",
    ):
        VAE(coder(6, 4), dropped(), 2, "gaussian").fit(real(), method, draws=3, **QUICK)
