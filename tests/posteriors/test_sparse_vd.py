import math

import pytest
import torch
from torch.distributions import Normal

from credo.core.seeds import Ambient
from credo.posteriors import SparseVD, families, sampled_kl
from credo.posteriors.sparse_vd import LIMIT
from credo.priors import Factorised, log_uniform

SHAPES = {"w": (3, 4)}


def family(mean=0.5, log_alpha=None, threshold=3.0, dtype=torch.float64):
    """Means around ``mean``, log alpha from -6 to 12 unless given."""
    values = torch.linspace(-1, 1, 12, dtype=dtype).reshape(3, 4) + mean
    made = SparseVD.start({"w": values}, threshold=threshold)
    wanted = (
        torch.linspace(-6, 12, 12, dtype=dtype)
        if log_alpha is None
        else torch.full((12,), log_alpha, dtype=dtype)
    )
    with torch.no_grad():
        made.raw_std.copy_(0.5 * wanted + made.flat_mean.abs().log())
    return made


def prior():
    return Factorised({"w": log_uniform()}, {"w": torch.Size((3, 4))})


def test_log_alpha_is_held_from_above_only():
    made = family()
    found = made.log_alpha()["w"].reshape(-1)
    assert torch.allclose(found, torch.linspace(-6, 12, 12, dtype=torch.float64).clamp_max(LIMIT))
    assert torch.allclose(
        made.std()["w"], made.marginals()[0]["w"].abs() * (made.log_alpha()["w"] / 2).exp()
    )


def test_the_unpruned_mean_is_that_of_all_weights():
    family = SparseVD.start({"w": torch.tensor([1.0, 1e-6])}, init_std=0.1)
    assert family.mean()["w"].tolist() == [1.0, 0.0]
    assert torch.equal(family.unpruned_mean()["w"], torch.tensor([1.0, 1e-6]))


def test_pruned_weights_have_mean_zero_and_keep_their_noise():
    made = family()
    kept = made.keep_mask()["w"]
    assert torch.equal(kept, made.log_alpha()["w"] < 3.0) and 0 < int(kept.sum()) < 12
    assert not made.mean()["w"][~kept].any() and torch.equal(
        made.mean()["w"][kept], made.marginals()[0]["w"][kept]
    )
    torch.manual_seed(0)
    made.requires_grad_(False)
    draws = made.draw(Ambient((20_000,)))["w"]
    z = (draws.mean(0) - made.mean()["w"]) / (made.std()["w"] / math.sqrt(20_000))
    assert float(z.abs().max()) < 4.5  # twelve weights: a failure rate of 1e-4
    ratio = draws.var(0) / made.std()["w"] ** 2
    assert float((ratio - 1).abs().max()) < 4.5 * math.sqrt(2 / 20_000)
    assert made.monitor()["sparsity"] == pytest.approx(1 - float(kept.double().mean()))
    assert (
        int(made.keep_mask(0.0)["w"].sum()) < int(kept.sum()) < int(made.keep_mask(7.0)["w"].sum())
    )


@pytest.mark.parametrize("log_alpha", [-6.0, -2.0, 0.0, 2.0])
def test_the_kl_is_that_of_the_integral_within_the_fit(log_alpha):
    """KL[N(1, alpha), 1 / |w|] = 1/2 E log w^2 - log sd + constant: by quadrature, the constant by
    alpha = infinity.
    """
    from scipy.integrate import quad

    def expected(alpha):
        sd = math.sqrt(alpha)
        inner = quad(
            lambda e: (
                math.exp(-e * e / 2) / math.sqrt(2 * math.pi) * math.log((1 + sd * e) ** 2 + 1e-300)
            ),
            -12,
            12,
            limit=2000,
            points=[-1 / sd] if sd > 0.1 else None,
        )[0]
        return 0.5 * inner - 0.5 * math.log(alpha)

    limit = 0.5 * (-math.log(2) - 0.5772156649015329)  # of 1/2 E log e^2
    made = family(log_alpha=log_alpha)
    found = made.kl(prior())
    assert found is not None and float(found) / 12 == pytest.approx(
        expected(math.exp(log_alpha)) - limit, abs=0.012
    )


def test_the_kl_falls_as_noise_grows_and_is_small_where_weights_are_pruned():
    found = [float(family(log_alpha=a).kl(prior())) / 12 for a in (-4.0, 0.0, 3.0, 8.0)]
    assert found == sorted(found, reverse=True) and 0 < found[2] < 0.03 and 0 <= found[3] < 1e-3


def test_under_a_normal_prior_the_kl_is_the_usual_one():
    made, normal = (
        family(log_alpha=-1.0),
        Factorised({"w": Normal(0.0, 1.0)}, {"w": torch.Size((3, 4))}),
    )
    mean, var = (part["w"] for part in made.marginals())
    wanted = 0.5 * (mean**2 + var - 1 - var.log()).sum()
    assert float(made.kl(normal)) == pytest.approx(float(wanted))
    torch.manual_seed(0)
    draws = sampled_kl(made, normal, Ambient((20_000,)))
    assert abs(float(draws.mean() - wanted)) < 4.5 * float(draws.std()) / math.sqrt(20_000)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_weights_at_zero_have_finite_gradients(dtype):
    made = family(dtype=dtype)
    with torch.no_grad():
        made.flat_mean[:4] = torch.tensor([0.0, 1e-40, 1e-30, -1e-20], dtype=dtype)
    weights = made.draw(Ambient())["w"]
    (
        weights.square().sum()
        + made.kl(prior())
        + sum(m["w"].sum() for m in made.begin(Ambient()).moments())
    ).backward()
    assert made.flat_mean.grad.isfinite().all() and made.raw_std.grad.isfinite().all()


def test_a_deviation_that_starts_small_can_grow():
    made = family(mean=2.0, log_alpha=-20.0)
    made.kl(prior()).backward()
    assert (made.raw_std.grad < -0.4).all()


def test_density_and_entropy_are_those_of_the_draws():
    made = family()
    torch.manual_seed(0)
    draws = made.draw(Ambient((4000,)))
    log_q = made.log_prob(draws)
    assert abs(float(log_q.mean() + made.entropy())) < 4.5 * float(log_q.std()) / math.sqrt(4000)
    assert torch.allclose(
        sum(v.flatten(1).sum(1) for v in made.log_prob_each(draws).values()), log_q
    )


def test_it_comes_back_from_its_config():
    made = family(threshold=1.5)
    again = families[made.config()["name"]].from_config(made.config())
    again.load_state_dict(made.state_dict())
    assert again.threshold == 1.5 and torch.equal(again.mean()["w"], made.mean()["w"])
