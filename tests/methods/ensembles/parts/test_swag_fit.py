import numpy as np
import pytest
import torch
from torch import nn
from zoo.models import make_model
from zoo.networks import make
from zoo.stats import Z, has_covariance, has_mean

from credo import BNN
from credo.core.errors import CredoError, SettingError
from credo.core.seeds import isolated
from credo.data import intake
from credo.engine.batchnorm import statistics
from credo.engine.fit_job import FitJob
from credo.estimators import LIKELIHOOD
from credo.likelihoods import Gaussian
from credo.methods import SWAG
from credo.methods.ensembles.parts.swag_fit import _gaussians, swag_schedule
from credo.methods.ensembles.parts.training_path import PathMoments
from credo.posteriors import Delta, LowRank, MeanField, Posterior, Samples

DOUBLE = torch.float64


def draw(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=DOUBLE)


def data(n=20):
    return draw(n, 5), draw(n, 2, seed=1)


def fit(net=None, method="swag", likelihood=None, random="all", callbacks=(), **how):
    bnn = BNN(
        make("mlp")[0] if net is None else net, likelihood or Gaussian(std=0.5), random=random
    )
    settings = {"epochs": 12, "batch_size": 5, "lr": 0.05, "progress": False}
    return bnn.fit(data(), method, callbacks=callbacks, **(settings | how))


def linear_moments(columns, seed=0):
    model = make_model(nn.Linear(2, 1).double(), likelihood=Gaussian(std=1.0))
    shapes = {n: s.shape for n, s in model.random.items()}
    values = {n: draw(*s, seed=seed) for n, s in shapes.items()}
    variances = {n: 0.1 + draw(*s, seed=seed + 1).square() for n, s in shapes.items()}
    return model, PathMoments(
        values, {}, variances, {n: draw(columns, *s, seed=seed + 2) for n, s in shapes.items()}
    )


def flat(params):
    return torch.cat([params["weight"].flatten(1), params["bias"]], 1)


@pytest.mark.parametrize("columns", [2, 5])
def test_draws_have_half_the_variance_and_half_the_deviations(columns):
    """cov = diag(var) / 2 + D D^T / (2 (R - 1)), entry by entry, with power against leaving either
    half out.
    """
    model, moments = linear_moments(columns)
    (family,) = _gaussians(model, moments)
    draws = flat(Posterior([family]).sample(20_000))
    deviations = torch.cat([moments.deviations["weight"].flatten(1), moments.deviations["bias"]], 1)
    variances = torch.cat([moments.variances["weight"].flatten(), moments.variances["bias"]])
    low = deviations.T @ deviations / (2 * (columns - 1))
    mean = torch.cat([moments.values["weight"].flatten(), moments.values["bias"]])
    assert isinstance(family, LowRank) and family.rank == columns
    has_mean(draws, mean)
    has_covariance(draws, variances.diag() / 2 + low)
    for wrong in (variances.diag() + low, low, variances.diag() / 2 + 2 * low):
        with pytest.raises(AssertionError):
            has_covariance(draws, wrong, Z)


def test_without_deviations_the_variances_count_fully():
    model, moments = linear_moments(0)
    (family,) = _gaussians(model, moments)
    assert isinstance(family, MeanField)
    assert torch.allclose(family.std()["weight"].square(), moments.variances["weight"])


def test_mixed_types_get_a_gaussian_each():
    net = nn.Sequential(nn.Linear(2, 2).double(), nn.Linear(2, 1))
    model = make_model(net, likelihood=Gaussian(std=1.0))
    values = model.values()
    moments = PathMoments(
        values,
        {},
        {n: v.square() for n, v in values.items()},
        {n: torch.stack([v, -v]) for n, v in values.items()},
    )
    families = _gaussians(model, moments)
    assert [f.factor.dtype for f in families] == [DOUBLE, torch.float32]


def weights_after(net=None, **how):
    """Weights and noise after each epoch, read off by fits whose last gathered average is one
    epoch: newest=1 keeps the newest.
    """
    seen = []
    for last in range(1, how["epochs"]):
        found = fit(
            net,
            start=0.0,
            average="exponential",
            newest=1.0,
            callbacks=[lambda row, last=last: row["epoch"] == last],
            **how,
        )
        seen.append(found.posterior.mean())
    return seen


@pytest.mark.parametrize("covariance", ["low_rank", "diagonal"])
def test_a_real_paths_moments(covariance):
    how = {"epochs": 8, "swa_lr": 1.0, "lr_schedule": "constant"}
    rows = weights_after(covariance="diagonal", **how)[2:]  # after epochs 3 to 7
    fitted = fit(start=3 / 8, rank=3, covariance=covariance, **how)
    (family,) = fitted.posterior.factors
    mean, var = family.marginals()
    for name in fitted.random:
        stack = torch.stack([row[name] for row in rows]).numpy()
        assert np.allclose(mean[name].numpy(), stack.mean(0), atol=1e-12)
        if covariance == "diagonal":
            assert np.allclose(var[name].numpy(), stack.var(0), atol=1e-12)
            continue
        averages = np.stack([stack[: n + 1].mean(0) for n in range(len(stack))])
        low = ((stack - averages)[-3:] ** 2).sum(0) / (2 * 2)
        assert np.allclose(var[name].numpy(), stack.var(0) / 2 + low, atol=1e-12)


def test_fewer_gathered_epochs_than_rank():
    (family,) = fit(epochs=8, start=0.5, rank=20).posterior.factors
    assert family.rank == 4


def test_the_learning_rate_falls_to_a_constant():
    def schedule(**how):
        method = SWAG(**how)
        factor = swag_schedule(method, method.lr_schedule)
        return [factor(epoch / 8) for epoch in range(8)]

    found = schedule(start=0.5, swa_lr=0.25)
    cosine = [0.25 + 0.75 * (0.5 + 0.5 * np.cos(np.pi * e / 4)) for e in range(4)]
    assert np.allclose(found, [*cosine, *[0.25] * 4])
    assert schedule(start=0.5, swa_lr=0.25, lr_schedule="constant") == [1.0] * 4 + [0.25] * 4
    assert schedule(start=0.0, swa_lr=0.5) == [0.5] * 8


@pytest.mark.parametrize(("epochs", "start", "count"), [(4, 0.99, 0), (4, 0.75, 1), (1, 0.0, 1)])
def test_too_little_to_gather_is_said_before_training(epochs, start, count):
    with pytest.raises(
        SettingError,
        match=rf"epochs={epochs} with start={start} leaves {count} to gather; it takes 2",
    ):
        fit(epochs=epochs, start=start)


def test_a_fit_stopped_too_early_says_so_and_one_stopped_later_is_what_was_gathered():
    with pytest.raises(
        CredoError, match="callback stopped the fit after 1 gathered epochs; it takes 2"
    ):
        fit(start=0.5, callbacks=[lambda row: row["epoch"] == 6])
    assert fit(start=0.5, callbacks=[lambda row: row["epoch"] == 8]).posterior.factors[0].rank == 3


@pytest.mark.parametrize(
    ("given", "text"),
    [
        ({"rank": 1}, "rank=1"),
        ({"start": 1.0}, "start=1.0"),
        ({"swa_lr": 0.0}, "swa_lr=0.0"),
        ({"covariance": "full"}, "covariance='full'"),
        ({"average": "median"}, "average='median'"),
        ({"newest": 0.0}, "newest=0.0"),
        ({"num_draws": 1}, "num_draws=1"),
    ],
)
def test_bad_settings_are_named(given, text):
    with pytest.raises(SettingError, match=text):
        SWAG(**given)


def test_learned_noise_is_averaged_over_the_path():
    how = {"epochs": 6, "swa_lr": 1.0, "lr_schedule": "constant", "start": 0.5}
    seen, bnn = [], BNN(make("mlp")[0], Gaussian().double())
    watch = [lambda row: seen.append(float(bnn.likelihood.log_std.detach()))]
    bnn.fit(data(), "swag", batch_size=5, lr=0.05, progress=False, callbacks=watch, **how)
    assert float(bnn.likelihood.log_std.detach()) == pytest.approx(sum(seen[3:]) / 3, rel=1e-12)
    assert not any(name.startswith(LIKELIHOOD) for name in bnn.posterior.names)


def test_points_are_averaged_and_have_no_covariance():
    fitted = fit(random="last", start=0.5)
    assert [type(f) for f in fitted.posterior.factors] == [LowRank, Delta]
    draws = fitted.posterior.sample(3)
    assert torch.equal(draws["0.weight"][0], draws["0.weight"][1]) and not torch.equal(
        draws["2.weight"][0], draws["2.weight"][1]
    )


# --- batch normalisation --------------------------------------------------------------------------


def normalised():
    with isolated(0):
        return nn.Sequential(
            nn.Linear(5, 6), nn.BatchNorm1d(6), nn.Tanh(), nn.Linear(6, 2)
        ).double()


def test_every_draw_has_the_statistics_of_its_weights_and_predicts_with_them():
    net = normalised()
    fitted = fit(net, num_draws=4, start=0.25, epochs=8)
    assert fitted.posterior.atoms == 4 and all(
        isinstance(f, Samples) for f in fitted.posterior.factors
    )
    draws = fitted.posterior.realise(range(4), 0)
    rows = [{n: draws[n][i] for n in fitted.random} for i in range(4)]
    wanted = statistics(fitted.model, FitJob(intake(data()), 8, 5, 0.05, 0), rows)
    x, outputs = data()[0], fitted.predict(data()[0], 4).outputs
    for i, values in enumerate(rows):
        assert torch.equal(draws["1.running_mean"][i], wanted["1.running_mean"][i])
        state = values | {n: wanted[n][i] for n in wanted}
        net.eval()
        assert torch.allclose(
            outputs[i], torch.func.functional_call(net, state, (x,)), rtol=0, atol=1e-12
        )
    assert (draws["1.running_var"].std(0) > 0).all()


def test_draws_with_statistics_are_draws_of_the_gaussian():
    """z-tests of the mean and of every covariance against the path's own, read off epoch by
    epoch.
    """
    how = {"epochs": 8, "swa_lr": 1.0, "lr_schedule": "constant", "covariance": "diagonal"}
    rows = weights_after(normalised(), num_draws=2, **how)[1:]  # after epochs 2 to 7
    fitted = fit(normalised(), num_draws=2000, start=0.25, **how)
    draws = fitted.posterior.realise(range(2000), 0)
    flat_draws = torch.cat([draws[n].flatten(1) for n in fitted.random], 1)
    stack = torch.stack([torch.cat([row[n].flatten() for n in fitted.random]) for row in rows])
    white = (flat_draws - stack.mean(0)) / stack.std(0, correction=0)
    has_mean(white, torch.zeros(white.shape[1]))
    has_covariance(white, torch.eye(white.shape[1], dtype=DOUBLE))
