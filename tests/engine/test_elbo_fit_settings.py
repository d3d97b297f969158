import pytest
import torch
from zoo.regression import bnn, problem

from credo.core.errors import SettingError
from credo.engine.training_loop import DescentSettings
from credo.methods import MAP, MLE, VI, methods


def test_the_methods_that_descend_share_their_settings():
    assert all(issubclass(kind, DescentSettings) for kind in (MLE, MAP, VI))
    assert not issubclass(methods["exact"], DescentSettings)


def test_the_learning_rate_falls_along_its_schedule():
    """With a constant rate the last epoch moves as far as the first; along the cosine it hardly
    moves.
    """
    x, y, _ = problem()
    moved = {}
    for schedule in ("constant", "cosine"):
        ends = [
            bnn()
            .fit(
                (x, y),
                "mle",
                epochs=n,
                lr=1e-3,
                batch_size=100,
                lr_schedule=schedule,
                progress=False,
            )
            .posterior.mean()["weight"]
            for n in (1, 40)
        ]
        moved[schedule] = float((ends[1] - ends[0]).abs().max())
    assert moved["cosine"] < 0.6 * moved["constant"]  # the cosine averages one half


def test_bad_settings_are_named():
    with pytest.raises(SettingError, match="Did you mean 'cosine'"):
        MLE(lr_schedule="cosin")
    with pytest.raises(SettingError, match="init=3"):
        MAP(init=3)


def test_a_start_from_a_state():
    x, y, _ = problem()
    other = torch.nn.Linear(3, 1).double()
    fitted = bnn().fit((x, y), "map", epochs=1, lr=1e-9, init=other.state_dict(), progress=False)
    assert torch.allclose(fitted.posterior.mean()["weight"], other.weight, atol=1e-6)
