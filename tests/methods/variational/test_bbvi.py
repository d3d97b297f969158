"""Black-box VI: discrete weights against enumeration, and likelihoods without a gradient."""

import pytest
import torch
from torch import nn
from zoo.binary import enumerated, fit_binary
from zoo.regression import bnn, problem

from credo.core.errors import SettingError


def test_discrete_weights_reach_the_best_elbo_of_the_family():
    """Of the best that ascent on the enumerated ELBO finds, all but the noise of the last steps."""
    fitted = fit_binary("bbvi", std=2.0, train_samples=8, epochs=200, lr=0.1)
    every = enumerated(fitted)
    best, _ = every.best(starts=2, steps=150)
    ours = float(every.elbo_of(fitted.posterior.factors[0].logits))
    assert best - 0.15 < ours <= best + 1e-6 <= float(every.log_evidence) + 1e-6


@pytest.mark.parametrize("posterior", ["low_rank", "kron", "full"])
@pytest.mark.parametrize("control", ["none", "baseline", "leave_one_out"])
def test_every_family_and_control_runs(posterior, control):
    x, y, _ = problem()
    fitted = bnn().fit(
        (x, y), "bbvi", posterior=posterior, control=control, epochs=2, progress=False
    )
    assert len(fitted.history) == 2


def test_leave_one_out_with_one_draw_is_refused():
    x, y, _ = problem()
    with pytest.raises(
        SettingError, match="control='leave_one_out' needs train_samples of at least 2"
    ):
        bnn().fit((x, y), "bbvi", train_samples=1, epochs=1, progress=False)


class Rounding(nn.Module):
    """A network whose output has no useful gradient: it rounds."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(1, 1, bias=False).double()

    def forward(self, x):
        return torch.round(4 * self.layer(x)) / 4


def test_networks_without_a_gradient_learn_all_the_same():
    x = torch.linspace(-2, 2, 40, dtype=torch.float64).unsqueeze(1)
    from credo import BNN
    from credo.likelihoods import Gaussian

    how = {"epochs": 400, "lr": 0.05, "batch_size": 100, "init_std": 0.3, "progress": False}
    start = {"layer.weight": torch.zeros(1, 1).double()}
    ours = BNN(Rounding(), Gaussian(std=0.3)).fit((x, 1.5 * x), "bbvi", init=start, **how)
    theirs = BNN(Rounding(), Gaussian(std=0.3)).fit(
        (x, 1.5 * x), "vi", estimator="weights", init=start, **how
    )
    assert abs(float(ours.posterior.mean()["layer.weight"].detach()) - 1.5) < 0.1
    assert abs(float(theirs.posterior.mean()["layer.weight"].detach())) < 0.5, (
        "the pathwise gradient of rounding is zero"
    )
