"""Chains of known quality."""

import math

import pytest
import torch
from torch import nn
from torch.distributions import Normal

import credo
from credo import audit
from credo.audit.diagnostics import chains_of
from credo.likelihoods import Gaussian
from credo.metrics.chain_diagnostics import bfmi, rhat
from credo.posteriors import Samples


class Tent(nn.Module):
    """f(x) = v tanh(w x): the same function for (w, v) and (-w, -v)."""

    def __init__(self):
        super().__init__()
        self.w, self.v = nn.Parameter(torch.ones(1)), nn.Parameter(torch.ones(1))

    def forward(self, x):
        return self.v * torch.tanh(self.w * x)


X = torch.linspace(-2.0, 2.0, 5).unsqueeze(1)


def sampled(draws, net=None):
    """A fitted BNN whose chains are ``draws (C, D, P)``, with a record of uneventful moves."""
    bnn = credo.BNN(net or Tent(), Gaussian(std=1.0), prior=Normal(0.0, 1.0))
    bnn.fit((X, X), "hmc", num_warmup=1, num_draws=1, num_chains=2, num_steps=1, progress=False)
    shapes = {name: site.shape for name, site in bnn.random.items()}
    bnn.posterior.families[0] = Samples.hold(draws.flatten(0, 1), shapes, len(draws))
    noise = torch.randn(draws.shape[1], len(draws), generator=torch.Generator().manual_seed(9))
    bnn.history = [
        {"warmup": True, "divergent": [1.0] * len(draws), "energy": [0.0] * len(draws)}
    ] + [
        {
            "warmup": False,
            "divergent": [0.0] * len(draws),
            "energy": row.tolist(),
            "acceptance": 0.75,
        }
        for row in noise
    ]
    return bnn


def good(chains=4, draws=250, seed=0):
    return 1.5 + 0.2 * torch.randn(chains, draws, 2, generator=torch.Generator().manual_seed(seed))


def test_independent_draws_pass():
    verdict = audit.converged(sampled(good()), X)
    assert (
        verdict.ok
        and verdict.rhat < 1.02
        and min(verdict.ess_bulk, verdict.ess_tail) > 500
        and verdict.divergences == 0
    )
    assert "Converged." in verdict.text and "4 chains of 250 draws" in verdict.text


def test_symmetric_modes_are_told_from_disagreement():
    """Two chains with both signs changed: every weight disagrees, no function does."""
    draws = good()
    draws[:2] *= -1
    verdict = audit.converged(sampled(draws), X)
    assert verdict.ok and verdict.rhat < 1.02 and verdict.rhat_parameters > 1.5
    draws = good()
    draws[:2, :, 0] *= -1  # one sign alone is another function
    other = audit.converged(sampled(draws), X)
    assert not other.ok and other.rhat > 1.5 and "R-hat is not below 1.05" in other.text


def test_slow_chains_fail_for_too_few_effective_draws():
    draws = good(draws=50).repeat_interleave(5, 1)
    assert not (verdict := audit.converged(sampled(draws), X, rhat=2.0, ess=400)).ok
    assert "ESS is not above 400" in verdict.text and "R-hat is not" not in verdict.text


def test_divergences_low_energy_change_and_bad_outputs_fail():
    bnn = sampled(good())
    for row in bnn.history[1:7]:
        row["divergent"] = [1.0, 1.0, 0.0, 0.0]
    verdict = audit.converged(bnn, X)
    assert not verdict.ok and verdict.divergences == 12 and "diverged" in verdict.text  # of 1000
    slow = sampled(good())
    for place, row in enumerate(slow.history[1:]):
        row["energy"] = [float(place)] * 4
    assert (
        not (verdict := audit.converged(slow, X)).ok
        and verdict.bfmi < 0.3
        and "E-BFMI is below" in verdict.text
    )
    draws = good()
    draws[0, 3, 1] = math.inf
    assert "not finite" in audit.converged(sampled(draws), X).text


def test_a_diagnosis_holds_the_worst_of_each_parameter_and_of_the_functions():
    draws = good()
    draws[0, :, 1] += 0.5
    found = audit.diagnose(sampled(draws), X)
    rows = {row["name"]: row for row in found.rows()}
    assert list(rows) == ["w", "v", "functions"] and found.chains == 4 and found.draws == 250
    assert (
        rows["v"]["rhat"] == pytest.approx(float(rhat(draws[..., 1])))
        and rows["v"]["rhat"] > 1.3 > rows["w"]["rhat"]
    )
    outputs = draws[..., 1:] * torch.tanh(draws[..., :1] * X[:, 0])
    assert rows["functions"]["rhat"] == pytest.approx(
        float(rhat(outputs).nan_to_num(0.0).max()), abs=1e-3
    )
    assert rows["functions"]["size"] == 5  # of which the one at x = 0 never moves, and has no say
    assert found.divergences == 0 and found.acceptance == pytest.approx(0.75)
    energy = torch.tensor(
        [row["energy"] for row in sampled(draws).history[1:]], dtype=torch.float64
    )
    assert found.bfmi == pytest.approx(tuple(bfmi(energy.mT).tolist()))


def test_without_a_record_of_moves_there_is_none():
    bnn = sampled(good())
    bnn.history = []
    found = audit.diagnose(bnn)
    assert found.functions is None and found.divergences is found.acceptance is found.bfmi is None
    verdict = audit.converged(bnn, X)
    assert verdict.ok and math.isnan(verdict.bfmi) and "E-BFMI" not in verdict.text


def test_large_parameters_are_looked_at_in_part_and_say_so():
    net = nn.Linear(1, 300)
    draws = torch.randn(2, 20, 600, generator=torch.Generator().manual_seed(0))
    bnn = sampled_linear(net, draws)
    rows = audit.diagnose(bnn, elements=100).rows()
    assert [(row["size"], row["checked"]) for row in rows] == [(300, 100), (300, 100)]
    assert [row["checked"] for row in audit.diagnose(bnn).rows()] == [300, 300]
    with pytest.raises(credo.SettingError, match="elements=0"):
        audit.diagnose(bnn, elements=0)


def sampled_linear(net, draws):
    bnn = credo.BNN(net, Gaussian(std=1.0), prior=Normal(0.0, 1.0))
    bnn.fit(
        (X, X.expand(-1, 300)),
        "hmc",
        num_warmup=1,
        num_draws=1,
        num_chains=2,
        num_steps=1,
        progress=False,
    )
    bnn.posterior.families[0] = Samples.hold(
        draws.flatten(0, 1), {n: s.shape for n, s in bnn.random.items()}, len(draws)
    )
    return bnn


def test_functions_come_chain_by_chain():
    draws = good(3, 6)
    outputs = audit.function_draws(sampled(draws), X)
    expected = draws[..., 1:] * torch.tanh(draws[..., :1] * X[:, 0])
    torch.testing.assert_close(outputs, expected.unsqueeze(-1))


def test_a_saved_sampler_keeps_its_record(tmp_path, truth, problem):
    truth.save(tmp_path / "truth")
    loaded = credo.load(tmp_path / "truth", truth.net)
    assert audit.diagnose(loaded, problem.x) == audit.diagnose(truth, problem.x)


def test_other_posteriors_are_refused_by_name(exact, problem):
    with pytest.raises(credo.CredoError, match="'exact' is no set of chains"):
        audit.diagnose(exact)
    with pytest.raises(credo.CredoError, match="holds 3 draws per chain"):
        chains_of(sampled(good(2, 3)))
