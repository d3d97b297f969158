import torch
from zoo import regression

from credo.data import intake
from credo.methods.sampling.parts import proposal as module
from credo.methods.sampling.parts.density import Density
from credo.methods.sampling.parts.full_batch import FullBatch
from credo.methods.sampling.parts.proposal import Proposal
from credo.posteriors import Full, Posterior

DOUBLE = torch.float64


def proposal():
    tril = torch.tensor([[1.0, 0, 0, 0], [0.3, 1, 0, 0], [0, 0.2, 2, 0], [0, 0, 0, 0.5]])
    full = Full({"weight": (1, 3), "bias": (1,)}, "float64").set(
        torch.arange(4.0, dtype=DOUBLE), tril.double()
    )
    model = regression.bnn().model
    return Proposal(Posterior([full]), Density(model, model.values()), 50, seed=3)


def test_draws_are_made_again_by_number_whatever_the_blocks(monkeypatch):
    given = proposal()
    numbers = torch.tensor([49, 0, 7, 7, 31])
    whole = given.take(torch.arange(50))
    assert torch.equal(given.take(numbers), whole[numbers])
    monkeypatch.setattr(module, "_TOGETHER", 4 * 7)  # seven draws at a time
    assert torch.equal(given.take(numbers), whole[numbers])


def test_weights_are_the_target_over_the_proposal():
    given = proposal()
    x, y, _ = regression.problem()
    target = FullBatch.of(given.density, intake((x, y)), None)
    draws = given.take(torch.arange(50))
    mean, tril = torch.arange(4.0, dtype=DOUBLE), given.posterior.factors[0].scale_tril().detach()
    own = torch.distributions.MultivariateNormal(mean, scale_tril=tril).log_prob(draws)
    assert torch.allclose(given.log_weights(target), target(draws)[0] - own)
