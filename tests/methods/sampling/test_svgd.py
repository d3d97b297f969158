import math

import pytest
import torch
from torch.distributions import Normal
from zoo import regression
from zoo.chains import draws_of, last_layer, noise_error

from credo.core.errors import CredoError, SettingError

NUM = 30


def exact():
    x, y, design = regression.problem(n=NUM)
    mean, cov, _ = (torch.as_tensor(part) for part in regression.exact(design, y[:, 0].numpy()))
    return x, y, mean, cov


def fit(**how):
    x, y, *_ = exact()
    how = {
        "epochs": 400,
        "lr": 0.05,
        "num_particles": 30,
        "batch_size": NUM,
        "progress": False,
    } | how
    return regression.bnn().fit((x, y), "svgd", **how)


def test_one_particle_is_the_mode():
    *_, mean, cov = exact()
    draws = draws_of(fit(num_particles=1, epochs=600))
    assert draws.shape == (1, 1, 4)
    assert float(((draws[0, 0] - mean).abs() / cov.diagonal().sqrt()).max()) < 1e-3


@pytest.mark.parametrize("kernel", ["rbf", "imq"])
def test_particles_keep_apart_around_the_mean(kernel):
    """The mean of a Gaussian is exact; thirty particles in four dimensions have at least a third of
    its variance, and not more than all.
    """
    *_, mean, cov = exact()
    draws = draws_of(fit(kernel=kernel))[0]
    sd = cov.diagonal().sqrt()
    assert ((draws.mean(0) - mean).abs() < 0.1 * sd).all()
    ratio = draws.var(0) / cov.diagonal()
    assert (ratio > 1 / 3).all() and (ratio < 1.1).all()
    assert float(torch.cdist(draws, draws).fill_diagonal_(math.inf).min()) > 0.05 * float(sd.min())


def test_more_particles_have_more_of_the_variance():
    *_, cov = exact()
    few, many = (
        float((draws_of(fit(num_particles=n))[0].var(0) / cov.diagonal()).mean()) for n in (5, 50)
    )
    assert few < many < 1.1


def test_batches_lead_to_the_same_place():
    *_, mean, cov = exact()
    draws = draws_of(fit(batch_size=10, epochs=300))[0]
    assert ((draws.mean(0) - mean).abs() < 0.2 * cov.diagonal().sqrt()).all() and (
        draws.std(0) > 0
    ).all()


def test_a_row_per_epoch_with_the_density_of_every_particle():
    rows = fit(batch_size=10, epochs=7, num_particles=4).history
    assert [row["epoch"] for row in rows] == list(range(7)) and all(
        len(row["log_density"]) == 4 for row in rows
    )


@pytest.mark.parametrize("schedule", ["constant", "cosine"])
def test_schedules_end_near_the_mean(schedule):
    *_, mean, cov = exact()
    draws = draws_of(fit(lr_schedule=schedule))[0]
    assert ((draws.mean(0) - mean).abs() < 0.2 * cov.diagonal().sqrt()).all()


def test_the_first_step_is_of_size_lr():
    """Adam's first step has the size of lr in every direction, whatever the force."""
    starts = {
        "weight": torch.randn(6, 1, 3, generator=torch.Generator().manual_seed(0)).double(),
        "bias": torch.zeros(6, 1).double(),
    }
    moved = draws_of(fit(num_particles=6, epochs=1, init=starts, lr=0.01))[0]
    begin = torch.cat([starts["weight"].flatten(1), starts["bias"]], 1)
    assert torch.allclose((moved - begin).abs(), torch.full_like(moved, 0.01), rtol=1e-4)


def test_particles_that_start_at_one_place_would_stay_one():
    """The force between equal particles is zero for ever: a set of thirty would be MAP thirty
    times, so it is refused.
    """
    start = {
        "weight": torch.zeros(1, 3, dtype=torch.float64),
        "bias": torch.zeros(1, dtype=torch.float64),
    }
    with pytest.raises(CredoError, match="particles|init"):
        fit(init=start, epochs=5)
    assert draws_of(fit(init=start, epochs=5, num_particles=1)).isfinite().all()


def test_starts_from_the_prior():
    assert float(
        draws_of(fit(init="prior", epochs=1, lr=1e-6, num_particles=200))[0].std()
    ) == pytest.approx(regression.PRIOR_STD, rel=0.15)


def test_other_priors_count():
    """A prior as narrow as 0.01 around zero wins over thirty data."""
    x, y, *_ = exact()
    fitted = regression.bnn(prior=Normal(0.0, 0.01)).fit(
        (x, y), "svgd", epochs=300, lr=0.01, num_particles=10, batch_size=NUM, progress=False
    )
    assert float(draws_of(fitted).abs().max()) < 0.1


def test_a_last_layer_alone():
    last_layer("svgd", epochs=150, lr=0.05, num_particles=8, batch_size=10)


def test_learned_noise():
    assert noise_error("svgd", epochs=500, lr=0.05, num_particles=30, batch_size=NUM) < 1


@pytest.mark.parametrize(
    "bad",
    [{"num_particles": 0}, {"kernel": "laplace"}, {"lr_schedule": "step"}, {"init": "pretrained"}],
)
def test_bad_settings_are_named(bad):
    with pytest.raises(SettingError, match=next(iter(bad))):
        fit(**bad)
