import numpy as np
import pytest
import torch
from scipy import integrate, stats
from torch.distributions import Laplace, Normal, StudentT, kl_divergence
from zoo.stats import follows, has_mean

from credo.core.errors import CredoError, SettingError
from credo.priors import ScaleMixture, horseshoe, log_uniform
from credo.priors.base import distribution_on

MEMBERS = [
    ScaleMixture("delta", 0.7),
    ScaleMixture("exponential", 0.7),
    ScaleMixture("inverse_gamma", 0.7, df=3.0),
    horseshoe(0.7),
]


def distribution_function(member):
    """By integrating the density over log w, and symmetry; interpolated."""
    t = np.linspace(-30, 30, 6001)
    density = member.log_prob(torch.from_numpy(np.exp(t))).double().exp().numpy() * np.exp(t)
    half = integrate.cumulative_trapezoid(density, t, initial=0.0)
    assert abs(half[-1] - 0.5) < 1e-5  # what lies beyond the grid, and the trapezoids' error
    return lambda w: 0.5 + np.sign(w) * np.interp(np.log(np.abs(w)), t, half)


@pytest.mark.parametrize("member", MEMBERS, ids=str)
def test_draws_follow_the_density_and_it_integrates_to_one(member):
    torch.manual_seed(2)
    draws = member.sample((20000,))
    assert draws.shape == (20000,) and member.sample().shape == ()
    follows(
        draws.double(),
        distribution_function(distribution_on(member, torch.float64, torch.device("cpu"))),
    )


def test_arguments_broadcast_and_carry_gradients():
    scale = torch.linspace(0.5, 2.0, 3).reshape(3, 1).requires_grad_()
    member = ScaleMixture("inverse_gamma", scale, df=torch.tensor(3.0, requires_grad=True))
    w = torch.randn(3, 4, generator=torch.Generator().manual_seed(0))
    assert torch.allclose(member.log_prob(w), StudentT(3.0, 0.0, scale.detach()).log_prob(w))
    assert member.batch_shape == (3, 1) and member.sample((5,)).shape == (5, 3, 1)
    assert (
        torch.allclose(member.variance, 3 * scale**2)
        and ScaleMixture("inverse_gamma", 1.0, df=2.0).variance.isinf()
    )
    assert torch.equal(member.mean, torch.zeros(3, 1)) and horseshoe().variance.isinf()
    member.log_prob(w).sum().backward()
    assert torch.isfinite(scale.grad).all()


def test_closed_form_kls():
    q = Normal(torch.tensor([0.0, 0.5]).double(), torch.tensor([0.3, 1.5]).double())
    assert torch.allclose(
        kl_divergence(q, ScaleMixture("delta", 0.7)), kl_divergence(q, Normal(0.0, 0.7))
    )
    assert torch.allclose(
        kl_divergence(q, ScaleMixture("exponential", 0.7)), kl_divergence(q, Laplace(0.0, 0.7))
    )
    for member in MEMBERS[2:]:
        with pytest.raises(NotImplementedError):
            kl_divergence(q, member)


def test_the_log_uniforms_constant_makes_sampled_and_closed_kl_agree():
    """Where the fit is exact, at mu = 0: KL = 0 by the convention."""
    torch.manual_seed(3)
    q = Normal(torch.tensor(0.0).double(), torch.tensor(0.3).double())
    w = q.sample((200000,))
    has_mean(q.log_prob(w) - log_uniform().log_prob(w), kl_divergence(q, log_uniform()))


def test_improper_members_have_no_draws():
    assert not log_uniform().proper and horseshoe().proper
    with pytest.raises(CredoError, match="log_uniform prior is improper and cannot be sampled"):
        log_uniform().sample((3,))


def test_the_horseshoe_scales():
    w = torch.tensor([0.1, 1.0, 5.0]).double()
    assert torch.allclose(horseshoe(3.0).log_prob(3 * w), horseshoe().log_prob(w) - np.log(3.0))
    assert stats.norm.pdf(5.0) < horseshoe().log_prob(w[2]).exp()


def test_bad_arguments_are_named(monkeypatch):
    # torch's compiler switches the validation of distributions off for the whole process, whichever
    # test it ran in
    monkeypatch.setattr(torch.distributions.Distribution, "_validate_args", True)
    with pytest.raises(
        SettingError, match=r"'log_uniform', scale=2.0\): this member takes no number"
    ):
        ScaleMixture("log_uniform", 2.0)
    with pytest.raises(SettingError, match=r"'half_cauchy', df=3.0\): this member takes scale"):
        ScaleMixture("half_cauchy", df=3.0)
    with pytest.raises(SettingError, match=r"'inverse_gamma'\) needs df="):
        ScaleMixture("inverse_gamma")
    with pytest.raises(
        SettingError, match="Unknown mixing density 'half_cauchi'. Did you mean 'half_cauchy'"
    ):
        ScaleMixture("half_cauchi")
    with pytest.raises(ValueError, match="scale"):
        horseshoe(-1.0)
    assert (
        repr(MEMBERS[2]) == "ScaleMixture(inverse_gamma, scale: 0.7, df: 3)"
        and repr(log_uniform()) == "ScaleMixture(log_uniform)"
    )
