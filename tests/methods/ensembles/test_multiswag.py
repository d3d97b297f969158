import warnings

import pytest
import torch
from torch import nn
from zoo.networks import make
from zoo.regression import bnn, problem
from zoo.stats import Z

import credo
from credo import BNN
from credo.core.errors import CredoError, SettingError
from credo.core.seeds import isolated
from credo.engine import fit_job
from credo.likelihoods import FullGaussian, Gaussian
from credo.methods import MultiSWAG
from credo.methods.ensembles.parts.members import member_seeds
from credo.posteriors import Mixture

DOUBLE = torch.float64
SMALL = {"start": 0.25, "epochs": 8, "batch_size": 7, "lr": 0.05, "num_draws": 7, "progress": False}


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


def fit(net=None, method="multiswag", likelihood=None, random="all", **how):
    chosen = SMALL | ({"num_members": 3} if method == "multiswag" else {"init": "random"})
    bnn = BNN(net or network(), likelihood or Gaussian().double(), random=random)
    return bnn.fit(data(), method, **(chosen | how))


def close(one, two):
    return one.keys() == two.keys() and all(
        torch.allclose(one[n], two[n], rtol=0, atol=1e-10) for n in one
    )


@pytest.mark.parametrize(
    "how",
    [{}, {"covariance": "diagonal"}, {"average": "exponential", "optimizer": "adam"}, {"rank": 3}],
)
def test_it_is_the_mixture_of_its_members_swags(how):
    fitted = fit(seed=2, **how)
    parts = fitted.posterior.components()
    assert isinstance(fitted.posterior.factors[0], Mixture) and len(parts) == 3
    for part, seed in zip(parts, member_seeds(2, 3), strict=True):
        single = fit(method="swag", seed=seed, **how)
        gaussian, noise = part.factors
        assert close(gaussian.state_dict(), single.posterior.factors[0].state_dict())
        assert torch.allclose(
            noise.mean()["likelihood/log_std"],
            single.likelihood.log_std.detach(),
            rtol=0,
            atol=1e-10,
        )


@pytest.mark.parametrize("normalise", [False, True])
def test_one_member_is_swag(normalise):
    one, single = (
        fit(network(normalise), num_members=1, seed=5),
        fit(network(normalise), "swag", seed=5),
    )
    assert close(one.posterior.state_dict(), single.posterior.state_dict())
    assert torch.equal(one.predict(data()[0], 5).outputs, single.predict(data()[0], 5).outputs)


def test_draws_come_from_all_members_alike():
    """A third of 600 draws each, within five standard deviations of a binomial count."""
    fitted = fit()
    means = torch.stack([part.mean()["0.weight"] for part in fitted.posterior.components()])
    draws = fitted.posterior.sample(600)["0.weight"]
    counts = torch.bincount(
        (draws.unsqueeze(1) - means).flatten(2).norm(dim=-1).argmin(1), minlength=3
    )
    assert ((counts - 200).abs() < Z * (600 * 2 / 9) ** 0.5).all()


def test_a_draw_has_the_noise_and_the_points_of_its_member():
    fitted = fit(random="last")
    draws = fitted.posterior.sample(50)
    parts = [part.mean() for part in fitted.posterior.components()]
    for i in range(50):
        owner = [torch.equal(draws["0.weight"][i], part["0.weight"]) for part in parts]
        assert sum(owner) == 1
        assert torch.equal(
            draws["likelihood/log_std"][i], parts[owner.index(True)]["likelihood/log_std"]
        )


@pytest.mark.parametrize(("members", "draws", "each"), [(3, 7, 2), (2, 8, 4), (4, 2, 1)])
def test_with_batch_norm_every_member_gives_draws(members, draws, each):
    fitted = fit(network(True), num_members=members, num_draws=draws)
    found = fitted.posterior.realise(range(members * each), 0)
    assert fitted.posterior.atoms == members * each
    noise = found["likelihood/log_std"].reshape(members, each)
    assert len(set(noise[:, 0].tolist())) == members and torch.equal(
        noise, noise[:, :1].expand(members, each)
    )
    apart = (found["0.weight"].reshape(members, each, -1).mean(1, keepdim=True)).squeeze(1)
    assert torch.cdist(apart, apart).fill_diagonal_(1.0).min() > 0.1
    assert (found["1.running_mean"].std(0) > 0).all()


def test_draws_of_neighbouring_seeds_share_no_noise():
    """The second member's noise is not that of the first member of the next seed: 46 correlations
    over 100 draws, by z-test.
    """
    first, second = (
        fit(network(True), num_members=2, num_draws=200, seed=seed, covariance="diagonal", epochs=3)
        for seed in (0, 1)
    )
    a, b = (
        torch.cat(
            [each.posterior.realise(range(200), 0)[n].flatten(1) for n in ("0.weight", "3.weight")],
            1,
        )
        for each in (first, second)
    )
    white = [(rows - rows.mean(0)) / rows.std(0, correction=0) for rows in (a[100:], b[:100])]
    correlation = (white[0] * white[1]).mean(0)
    assert correlation.abs().max() < Z / 100**0.5 < 1.0


@pytest.mark.parametrize("normalise", [False, True])
@pytest.mark.parametrize(
    "likelihood", [Gaussian, lambda: Gaussian(num_outputs=2), lambda: FullGaussian(num_outputs=2)]
)
def test_predictions_do_not_depend_on_how_they_are_made(tmp_path, normalise, likelihood):
    net = network(normalise)
    fitted, (x, y) = fit(net, likelihood=likelihood()), data()
    whole = fitted.predict(x, 6, vectorise=False)
    for how in ({"vectorise": True}, {"batch_size": 5}):
        other = fitted.predict(x, 6, **how)
        assert torch.allclose(other.outputs, whole.outputs, rtol=0, atol=1e-12) and torch.allclose(
            other.log_prob(y), whole.log_prob(y)
        )
    fitted.save(tmp_path / "model")
    again = credo.load(tmp_path / "model", net)
    assert torch.equal(again.predict(x, 6, vectorise=False).log_prob(y), whole.log_prob(y))


def test_the_mixture_has_a_density_and_an_objective():
    fitted, (x, y) = fit(), data()
    draws = fitted.posterior.sample(4)
    parts = torch.stack([part.log_prob(draws) for part in fitted.posterior.components()])
    assert torch.allclose(
        fitted.posterior.log_prob(draws),
        torch.logsumexp(parts, 0) - torch.log(torch.tensor(3.0, dtype=DOUBLE)),
    )
    told = fitted.objective((x, y), samples=10)
    assert (
        told["elbo"] == pytest.approx(-told["nll"] - told["kl"])
        and fitted.log_weights((x, y), 5).isfinite().all()
    )
    assert fitted.evaluate((x, y), 10)["nll"] > 0


@pytest.mark.parametrize(
    ("ask", "text"),
    [
        (
            lambda b: b.predict(data()[0], shortcut="mean"),
            "shortcut='mean' is not meaningful for a mixture",
        ),
        (lambda b: b.predict(data()[0], shortcut="moments"), "Moments need a Gaussian posterior"),
        (lambda b: credo.audit.diagnose(b), "nothing to diagnose"),
        (
            lambda b: b.update(data(), progress=False),
            "has no elementwise prior: the earlier posterior is 'mixture'",
        ),
    ],
)
def test_questions_without_an_answer_are_refused(ask, text):
    with pytest.raises(CredoError, match=text):
        ask(fit())


def test_an_update_has_the_mixture_as_its_prior():
    x, y, _ = problem()
    fitted = bnn().fit(
        (x, y),
        "multiswag",
        num_members=2,
        epochs=40,
        batch_size=5,
        lr=0.05,
        start=0.5,
        progress=False,
    )
    fitted.update(
        (x[:6], y[:6]), epochs=4, batch_size=3, lr=1e-6, init="pretrained", progress=False
    )
    assert fitted.updated and fitted.predict(x, 4).outputs.isfinite().all()


def test_audits():
    x, y, _ = problem()
    fitted = bnn().fit((x, y), "multiswag", num_members=2, epochs=20, batch_size=5, progress=False)
    told = credo.audit.compare(
        fitted, bnn().fit((x, y), "exact", progress=False), x, y, samples=100
    )
    assert all(isinstance(value, float) for value in told.values())


@pytest.mark.parametrize("normalise", [False, True])
def test_a_fit_killed_after_any_epoch_resumes_to_the_same_bits(tmp_path, monkeypatch, normalise):
    monkeypatch.setattr(fit_job, "CHECKPOINT_SECONDS", 0.0)
    straight = fit(network(normalise))

    class Killed(Exception):
        pass

    for epoch in range(0, 8, 2):

        def crash(row, epoch=epoch):
            if row["epoch"] == epoch:
                raise Killed

        run = tmp_path / f"run{epoch}"
        with pytest.raises(Killed):
            fit(network(normalise), run=run, callbacks=[crash])
        resumed = fit(network(normalise), run=run)
        one, two = straight.posterior.state_dict(), resumed.posterior.state_dict()
        assert one.keys() == two.keys() and all(torch.equal(one[n], two[n]) for n in one)


def test_refusals():
    with pytest.raises(SettingError, match="num_members=0"):
        MultiSWAG(num_members=0)
    with pytest.raises(SettingError, match="compile='graph'"):
        fit(compile="graph")
    with pytest.raises(CredoError, match="callback stopped the fit after 1 gathered epochs"):
        fit(start=0.5, callbacks=[lambda row: row["epoch"] == 4])


def test_members_that_take_turns():
    net, _ = make("lstm")
    x = torch.cat([make("lstm", seed=s)[1] for s in range(4)])
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        fitted = BNN(net, Gaussian(std=1.0)).fit(
            (x, data(12)[1]), "multiswag", **(SMALL | {"num_members": 2})
        )
    assert sum("member by member" in str(w.message) for w in told) == 1
    assert fitted.predict(x, 3).outputs.isfinite().all()
