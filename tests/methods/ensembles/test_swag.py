import pytest
import torch
from torch import nn
from torch.distributions import Normal
from zoo.regression import bnn, exact, flat_mean, problem

import credo
from credo import BNN
from credo.core.errors import CredoError, SettingError
from credo.core.seeds import isolated
from credo.engine import fit_job
from credo.likelihoods import Gaussian
from credo.posteriors import LowRank, MeanField

DOUBLE = torch.float64


def data(n=24):
    generator = torch.Generator().manual_seed(0)
    return torch.randn(n, 5, generator=generator, dtype=DOUBLE), torch.randn(
        n, 2, generator=generator, dtype=DOUBLE
    )


def network(normalise=False):
    with isolated(0):
        layers = [
            nn.Linear(5, 6),
            *([nn.BatchNorm1d(6)] if normalise else []),
            nn.Tanh(),
            nn.Linear(6, 2),
        ]
        return nn.Sequential(*layers).double()


def fit(net=None, likelihood=None, **how):
    settings = {
        "start": 0.25,
        "epochs": 8,
        "batch_size": 7,
        "lr": 0.05,
        "num_draws": 6,
        "progress": False,
    }
    return BNN(net or network(), likelihood or Gaussian()).fit(data(), "swag", **(settings | how))


def test_it_starts_where_the_network_is():
    net = network()
    fitted = fit(net, lr=1e-12)
    assert all(
        torch.allclose(fitted.posterior.mean()[n], p, atol=1e-9) for n, p in net.named_parameters()
    )


def test_its_mean_is_near_the_mode_and_its_spread_grows_with_the_rate():
    x, y, design = problem()
    mode, cov, _ = (torch.as_tensor(part) for part in exact(design, y[:, 0].numpy()))
    spreads = []
    for lr in (0.02, 0.08):
        fitted = bnn().fit(
            (x, y),
            "swag",
            epochs=200,
            batch_size=10,
            lr=lr,
            optimizer="sgd",
            momentum=0.0,
            start=0.5,
            progress=False,
        )
        assert ((flat_mean(fitted) - mode).abs() < cov.diagonal().sqrt()).all()
        spreads.append(
            float(
                torch.cat(
                    [v.flatten() for v in fitted.posterior.factors[0].marginals()[1].values()]
                ).mean()
            )
        )
    assert spreads[1] > 2 * spreads[0]


def test_all_data_in_one_batch_leave_no_spread():
    x, y, _ = problem()
    fitted = bnn().fit(
        (x, y), "swag", epochs=300, batch_size=30, lr=0.05, start=0.9, progress=False
    )
    assert fitted.posterior.sample(20)["weight"].std(0).max() < 1e-6
    assert fitted.predict(x, 5).outputs.isfinite().all() and torch.isfinite(
        fitted.posterior.log_prob(fitted.posterior.mean())
    )


@pytest.mark.parametrize(("covariance", "kind"), [("low_rank", LowRank), ("diagonal", MeanField)])
def test_the_posterior_is_a_gaussian_and_has_a_density(covariance, kind):
    fitted, (x, y) = fit(covariance=covariance), data()
    (family,) = fitted.posterior.factors
    assert isinstance(family, kind)
    draws = fitted.posterior.sample(5)
    flat = torch.cat([draws[n].flatten(1) for n in family.names], 1)
    var = torch.cat([v.flatten() for v in family.marginals()[1].values()])
    if covariance == "diagonal":
        mean = torch.cat([v.flatten() for v in family.mean().values()])
        assert torch.allclose(
            fitted.posterior.log_prob(draws), Normal(mean, var.sqrt()).log_prob(flat).sum(1)
        )
    assert torch.isfinite(fitted.posterior.log_prob(draws)).all()
    told = fitted.objective((x, y), samples=20)
    assert told["elbo"] == pytest.approx(-told["nll"] - told["kl"]) and fitted.log_weights(
        (x, y), 5
    ).shape == (5,)


def test_the_mean_shortcut_is_stochastic_weight_averaging():
    net = network()
    fitted, x = fit(net), data()[0]
    outputs = torch.func.functional_call(net, fitted.posterior.mean(), (x,))
    assert torch.allclose(fitted.predict(x, shortcut="mean").outputs[0], outputs)
    assert fitted.predict(x, 10, shortcut="moments").outputs.shape == (10, 24, 2)


@pytest.mark.parametrize("normalise", [False, True])
def test_predictions_do_not_depend_on_how_they_are_made(normalise):
    fitted, x = fit(network(normalise)), data()[0]
    whole = fitted.predict(x, 6, vectorise=False).outputs
    for how in ({"vectorise": True}, {"batch_size": 5}, {"batch_size": 5, "vectorise": True}):
        assert torch.allclose(fitted.predict(x, 6, **how).outputs, whole, rtol=0, atol=1e-12)
    assert torch.equal(fitted.functions(x, 6), whole)
    assert fitted.predict(x, 3).outputs.shape[0] == 3


@pytest.mark.parametrize("covariance", ["low_rank", "diagonal"])
def test_an_update_has_the_gaussian_as_its_prior(covariance):
    """With little new data and a small step it stays; the history's KL is -log q(w) of the earlier
    posterior.
    """
    x, y, _ = problem()
    fitted = bnn().fit(
        (x, y),
        "swag",
        epochs=60,
        batch_size=5,
        lr=0.05,
        start=0.5,
        covariance=covariance,
        progress=False,
    )
    earlier, before = fitted.posterior, flat_mean(fitted)
    fitted.update((x[:4], y[:4]), epochs=4, batch_size=2, lr=1e-6, progress=False)
    assert fitted.updated and torch.allclose(flat_mean(fitted), before, atol=1e-3)
    at_mean = -float(earlier.log_prob({n: v.detach() for n, v in fitted.posterior.mean().items()}))
    assert fitted.history[-1]["kl"] == pytest.approx(at_mean, rel=1e-3)


def test_an_update_moves_towards_new_data_and_no_further_than_they_alone_would():
    x, y, _ = problem()
    fitted = bnn().fit(
        (x, y),
        "swag",
        epochs=60,
        batch_size=5,
        lr=0.05,
        optimizer="sgd",
        start=0.5,
        covariance="diagonal",
        progress=False,
    )
    before = flat_mean(fitted)
    fitted.update(
        (x, y + 1.0), epochs=400, batch_size=30, lr=0.02, optimizer="adam", progress=False
    )
    moved = flat_mean(fitted)[-1] - before[-1]
    assert 0.02 < float(moved) < 1.0  # the bias, of which the new data say one more


@pytest.mark.parametrize(
    ("ask", "text"),
    [
        (lambda b: b.update(data(), progress=False), "update needs a posterior with a density"),
        (lambda b: b.objective(data()), "no density"),
        (lambda b: b.predict(data()[0], shortcut="mean"), "shortcut='mean' is not meaningful"),
        (lambda b: b.posterior.log_prob(b.posterior.mean()), "no density"),
    ],
)
def test_draws_with_statistics_have_no_density(ask, text):
    with pytest.raises(CredoError, match=text):
        ask(fit(network(True)))


def test_audits():
    x, y, _ = problem()
    fitted = bnn().fit((x, y), "swag", epochs=20, batch_size=5, progress=False)
    told = credo.audit.compare(
        fitted, bnn().fit((x, y), "exact", progress=False), x, y, samples=100
    )
    assert all(isinstance(value, float) for value in told.values())
    with pytest.raises(CredoError, match="no set of chains and has nothing to diagnose"):
        credo.audit.diagnose(fitted)


@pytest.mark.parametrize("normalise", [False, True])
def test_saved_and_loaded_it_is_the_same(tmp_path, normalise):
    net = network(normalise)
    fitted, (x, y) = fit(net), data()
    fitted.save(tmp_path / "model")
    again = credo.load(tmp_path / "model", net)
    assert again.evaluate((x, y), 6) == fitted.evaluate((x, y), 6) and torch.equal(
        again.predict(x, 6).outputs, fitted.predict(x, 6).outputs
    )


@pytest.mark.parametrize(
    "how",
    [{}, {"average": "exponential", "rank": 2}, {"covariance": "diagonal", "optimizer": "adam"}],
)
@pytest.mark.parametrize("normalise", [False, True])
def test_a_fit_killed_after_any_epoch_resumes_to_the_same_bits(
    tmp_path, monkeypatch, normalise, how
):
    monkeypatch.setattr(fit_job, "CHECKPOINT_SECONDS", 0.0)
    straight = fit(network(normalise), validation=data(10), **how)

    class Killed(Exception):
        pass

    for epoch in range(8):

        def crash(row, epoch=epoch):
            if row["epoch"] == epoch:
                raise Killed

        run = tmp_path / f"run{epoch}"
        with pytest.raises(Killed):
            fit(network(normalise), validation=data(10), run=run, callbacks=[crash], **how)
        resumed = fit(network(normalise), validation=data(10), run=run, **how)
        one, two = straight.posterior.state_dict(), resumed.posterior.state_dict()
        assert one.keys() == two.keys() and all(torch.equal(one[n], two[n]) for n in one)
        assert torch.equal(straight.likelihood.log_std, resumed.likelihood.log_std)


def test_a_graph_on_a_cpu_and_learned_priors_are_refused():
    with pytest.raises(SettingError, match="compile='graph'"):
        fit(compile="graph")
    with pytest.raises(SettingError, match="learned prior"):
        BNN(network(), Gaussian(), "learned").fit(
            data(), "swag", epochs=4, start=0.0, progress=False
        )


def test_a_network_hard_for_one_network_is_no_harder_for_a_path():
    """Recurrent layers, words as inputs."""
    from zoo.networks import make

    for name in ("lstm", "embedding", "tied"):
        net, _ = make(name)
        x = torch.cat([make(name, seed=s)[1] for s in range(4)])
        fitted = BNN(net, Gaussian(std=1.0)).fit(
            (x, data(12)[1]), "swag", epochs=4, start=0.25, batch_size=5, progress=False
        )
        assert fitted.predict(x, 3).outputs.isfinite().all()
