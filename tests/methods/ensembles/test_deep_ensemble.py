import warnings

import pytest
import torch
from torch import nn
from torch.distributions import Normal
from torch.utils.checkpoint import checkpoint
from zoo.classification import QUICK, classes, classifier
from zoo.networks import make
from zoo.regression import bnn, problem

import credo
from credo import BNN
from credo.core.errors import CredoError, NetworkError, SettingError
from credo.core.seeds import isolated
from credo.engine import fit_job
from credo.likelihoods import FullGaussian, Gaussian, Heteroscedastic
from credo.priors import Learned

DOUBLE = torch.float64
LIKELIHOODS = {
    "one": Gaussian,
    "each": lambda: Gaussian(num_outputs=2),
    "full": lambda: FullGaussian(num_outputs=2),
}


def data(n=24):
    generator = torch.Generator().manual_seed(0)
    return torch.randn(n, 5, generator=generator, dtype=DOUBLE), torch.randn(
        n, 2, generator=generator, dtype=DOUBLE
    )


def normalised():
    with isolated(0):
        return nn.Sequential(
            nn.Linear(5, 6), nn.BatchNorm1d(6), nn.Tanh(), nn.Linear(6, 2)
        ).double()


SMALL = {"members": 4, "epochs": 4, "batch_size": 7, "lr": 0.05, "progress": False}


def fit(kind="one", net=None, **how):
    return BNN(net or normalised(), LIKELIHOODS[kind]()).fit(
        data(), "deep_ensemble", **(SMALL | how)
    )


def test_on_a_problem_with_one_mode_every_member_finds_it():
    x, y, _ = problem()
    fitted = bnn().fit(
        (x, y), "deep_ensemble", members=3, epochs=600, lr=0.1, batch_size=1000, progress=False
    )
    single = bnn().fit((x, y), "map", epochs=600, lr=0.1, batch_size=1000, progress=False)
    draws = fitted.posterior.realise(range(3), 0)
    assert torch.allclose(
        draws["weight"], single.posterior.mean()["weight"].expand(3, 1, 3), atol=1e-5
    )


def test_members_disagree_away_from_the_data():
    x = torch.linspace(-1, 1, 16, dtype=DOUBLE).unsqueeze(1)
    with isolated(0):
        net = nn.Sequential(nn.Linear(1, 20), nn.Tanh(), nn.Linear(20, 1)).double()
    how = {"members": 5, "epochs": 200, "lr": 0.02, "batch_size": 16, "progress": False}
    fitted = BNN(net, Gaussian(std=0.1)).fit((x, torch.sin(3 * x)), "deep_ensemble", **how)
    near, far = (
        fitted.predict(p).epistemic.mean() for p in (x, torch.tensor([[-4.0], [4.0]], dtype=DOUBLE))
    )
    assert far > 10 * near


def test_predictions_average_probabilities_not_logits():
    x, y = classes()
    fitted = BNN(classifier(), "categorical").fit((x, y), "deep_ensemble", members=3, **QUICK)
    p = fitted.predict(x)
    assert p.probs.shape == (3, 60, 3) and torch.allclose(
        p.mean, p.outputs.softmax(-1).mean(0), atol=1e-6
    )
    assert not torch.allclose(p.mean, p.outputs.mean(0).softmax(-1), atol=1e-6)


def test_noise_that_depends_on_the_input():
    x, y = data()
    with isolated(0):
        net = nn.Sequential(nn.Linear(5, 8), nn.Tanh(), nn.Linear(8, 4)).double()
    how = {"members": 3, "epochs": 5, "batch_size": 8, "progress": False}
    fitted = BNN(net, Heteroscedastic()).fit((x, y), "deep_ensemble", adversarial=0.01, **how)
    assert fitted.predict(x).aleatoric.std(0).min() > 0


# --- predictions ----------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", LIKELIHOODS)
def test_members_statistics_and_noise_go_through_vmap_and_loop_alike(kind):
    fitted, (x, y) = fit(kind), data()
    loop, vmap = (fitted.predict(x, vectorise=way) for way in (False, True))
    assert torch.allclose(loop.outputs, vmap.outputs, rtol=0, atol=1e-12) and torch.equal(
        loop.aleatoric, vmap.aleatoric
    )
    parts = fitted.predict(x, batch_size=5)
    assert torch.allclose(parts.outputs, loop.outputs, rtol=0, atol=1e-12)
    one_by_one = torch.stack(
        [fitted.predict(x, batch_size=5, vectorise=True).log_prob(y), loop.log_prob(y)]
    )
    assert torch.allclose(*one_by_one)


@pytest.mark.parametrize("kind", LIKELIHOODS)
def test_a_member_predicts_with_its_own_noise_and_statistics(kind):
    net = normalised()
    fitted, (x, y) = fit(kind, net), data()
    draws = fitted.posterior.realise(range(4), 0)
    likelihood, rows = LIKELIHOODS[kind]().double(), []
    name = next(n for n in draws if n.startswith("likelihood/"))
    net.eval()
    for k in range(4):
        likelihood.load_state_dict({name.removeprefix("likelihood/"): draws[name][k]})
        outputs = torch.func.functional_call(
            net, {n: v[k] for n, v in draws.items() if n != name}, (x,)
        )
        rows.append(likelihood.log_prob(outputs, y))
    wanted = torch.logsumexp(torch.stack(rows), 0) - torch.log(torch.tensor(4.0))
    assert torch.allclose(
        fitted.predict(x).log_prob(y), wanted.to(DOUBLE), rtol=0, atol=1e-6
    )  # noise is in single precision


def test_fewer_samples_than_members_are_evenly_spaced_ones():
    fitted, (x, _) = fit(), data()
    whole = fitted.predict(x).outputs
    assert torch.equal(fitted.predict(x, 2).outputs, whole[[0, 2]]) and torch.equal(
        fitted.predict(x, 1).outputs, whole[:1]
    )
    assert fitted.predict(x, 100).outputs.shape[0] == 4 and torch.equal(
        fitted.functions(x, 4), whole
    )


@pytest.mark.parametrize("kind", LIKELIHOODS)
def test_saved_and_loaded_it_is_the_same(kind, tmp_path):
    net = normalised()
    fitted, (x, y) = fit(kind, net), data()
    fitted.save(tmp_path / "model")
    again = credo.load(tmp_path / "model", net)
    assert torch.equal(again.predict(x).outputs, fitted.predict(x).outputs)
    assert torch.equal(again.predict(x).log_prob(y), fitted.predict(x).log_prob(y))
    assert again.evaluate((x, y)) == fitted.evaluate((x, y)) and again.method == fitted.method


# --- interruptions --------------------------------------------------------------------------------


class Killed(Exception):
    pass


def kill_at(epoch):
    def crash(row):
        if row["epoch"] == epoch:
            raise Killed

    return crash


def rows(fitted):
    return [{k: v for k, v in row.items() if k != "seconds"} for row in fitted.history]


@pytest.mark.parametrize("optimizer", ["adam", "sgd"])
@pytest.mark.parametrize("name", ["batchnorm", "checkpointed"])
@pytest.mark.filterwarnings("ignore:Training member by member")
def test_a_fit_killed_after_any_epoch_resumes_to_the_same_bits(
    tmp_path, monkeypatch, optimizer, name
):
    monkeypatch.setattr(fit_job, "CHECKPOINT_SECONDS", 0.0)
    net, _ = make(name)
    straight = fit(net=net, optimizer=optimizer, validation=data(10))
    for epoch in range(4):
        run = tmp_path / f"run{epoch}"
        with pytest.raises(Killed):
            fit(
                net=net,
                optimizer=optimizer,
                validation=data(10),
                run=run,
                callbacks=[kill_at(epoch)],
            )
        resumed = fit(net=net, optimizer=optimizer, validation=data(10), run=run)
        one, two = straight.posterior.state_dict(), resumed.posterior.state_dict()
        assert one.keys() == two.keys() and all(torch.equal(one[n], two[n]) for n in one)
        assert rows(straight) == rows(resumed)
        assert all(torch.equal(b, resumed.buffers[n]) for n, b in straight.buffers.items())
        assert torch.equal(
            next(straight.likelihood.parameters()), next(resumed.likelihood.parameters())
        )


def test_a_callback_ends_it():
    fitted = fit(callbacks=[lambda row: row["epoch"] == 1])
    assert len(fitted.history) == 2 and fitted.posterior.atoms == 4
    assert fitted.predict(data()[0]).outputs.isfinite().all()


def test_a_finished_run_is_taken_over(tmp_path):
    first = fit(run=tmp_path / "run")
    again = fit(run=tmp_path / "run")
    assert torch.equal(first.predict(data()[0]).outputs, again.predict(data()[0]).outputs)


# --- what cannot be asked of points ---------------------------------------------------------------


@pytest.mark.parametrize(
    ("ask", "text"),
    [
        (
            lambda b: b.predict(data()[0], shortcut="mean"),
            "shortcut='mean' is not meaningful for a samples posterior",
        ),
        (
            lambda b: b.predict(data()[0], shortcut="moments"),
            "Moments need a Gaussian posterior .*this one is 'samples'",
        ),
        (
            lambda b: b.update(data(), epochs=1, progress=False),
            "update needs a posterior with a density",
        ),
        (lambda b: b.objective(data()), "no density"),
        (lambda b: b.log_weights(data()), "no importance weights"),
        (lambda b: b.posterior.log_prob(b.posterior.mean()), "no density"),
        (lambda b: credo.audit.diagnose(fit(members=3), data()[0]), "3 draws per chain"),
        (
            lambda b: credo.audit.compare(b, fit(members=3), data()[0]),
            "3 draws and cannot be compared with itself",
        ),
    ],
)
def test_questions_without_an_answer_are_refused(ask, text):
    with pytest.raises(CredoError, match=text):
        ask(fit(epochs=1))


def test_it_can_be_compared_with_a_reference():
    x, y, _ = problem()
    fitted = bnn().fit((x, y), "deep_ensemble", members=3, epochs=20, progress=False)
    reference = bnn().fit((x, y), "exact", progress=False)
    told = credo.audit.compare(fitted, reference, x, y, samples=200)
    assert all(isinstance(value, float) for value in told.values())


def test_validation_sees_every_members_own_noise_and_statistics():
    fitted, (x, y) = fit(validation=data()), data()
    assert len({row["validation_nll"] for row in fitted.history}) == 4
    assert fitted.history[-1]["validation_nll"] == pytest.approx(
        -float(fitted.predict(x).log_prob(y).mean()), rel=1e-10
    )


def test_those_who_watch_see_the_noise_of_their_epoch():
    bnn, seen = BNN(normalised(), Gaussian()), []
    bnn.fit(
        data(),
        "deep_ensemble",
        callbacks=[lambda row: seen.append(float(bnn.likelihood.log_std.detach()))],
        **SMALL,
    )
    assert len(set(seen)) == 4 and seen[-1] == float(bnn.likelihood.log_std.detach())


def test_no_graph_is_left_in_the_network():
    assert all(
        p.grad_fn is None and not p.requires_grad for p in fit().model.shell().module.parameters()
    )


# --- what is refused ------------------------------------------------------------------------------


def test_a_reentrant_checkpoint_is_refused():
    class Reentrant(nn.Module):
        def __init__(self):
            super().__init__()
            self.a, self.b = nn.Linear(5, 6), nn.Linear(6, 2)

        def forward(self, x):
            return checkpoint(self.b, torch.tanh(self.a(x)), use_reentrant=True)

    with warnings.catch_warnings(), pytest.raises(NetworkError, match="reentrant"):
        warnings.simplefilter("ignore")
        fit(net=Reentrant().double())


@pytest.mark.parametrize("members", [1, 2])
def test_parameters_that_reach_no_output_are_refused_by_name(members):
    class Idle(nn.Module):
        def __init__(self):
            super().__init__()
            self.used, self.idle = nn.Linear(5, 2), nn.Linear(5, 2)

        def forward(self, x):
            return self.used(x)

    with pytest.raises(
        NetworkError, match=r"never reach the network's output: idle\.weight, idle\.bias"
    ):
        fit(net=Idle().double(), members=members)


def test_a_learned_prior_is_refused():
    with pytest.raises(SettingError, match="cannot share a learned prior; give it a fixed one"):
        BNN(normalised(), Gaussian(), Learned(Normal(0.0, 1.0))).fit(
            data(), "deep_ensemble", **SMALL
        )


def test_noise_learned_inside_a_part_of_the_likelihood_is_refused_by_name():
    class Inner(Gaussian):
        def __init__(self):
            super().__init__(std=1.0)
            self.part = nn.Linear(1, 1)

    with pytest.raises(SettingError, match=r"learns 'part\.weight' in a module inside it"):
        BNN(normalised(), Inner()).fit(data(), "deep_ensemble", **SMALL)


def test_an_exploding_member_is_reported():
    with pytest.raises(CredoError, match="no longer finite in epoch"):
        fit(net=make("mlp")[0], optimizer="sgd", lr=1e200, epochs=10)


def test_a_graph_on_a_cpu_is_refused():
    with pytest.raises(
        SettingError,
        match="compile='graph' captures the step as a CUDA graph; on a CPU use True or False",
    ):
        fit(compile="graph")


def test_tracing_members_that_take_turns_is_refused():
    with pytest.raises(
        SettingError,
        match="compile=True records passes of all members at once, and these take turns",
    ):
        fit(compile=True, vectorise=False)


@pytest.mark.parametrize("how", [{}, {"adversarial": 0.05}, {"optimizer": "sgd"}, {"members": 1}])
def test_traced_passes_train_like_plain_ones(how):
    plain, recorded = (
        fit(compile=compile, **how).posterior.state_dict() for compile in (False, True)
    )
    assert all(torch.allclose(recorded[n], t, rtol=0, atol=1e-10) for n, t in plain.items())


def test_neighbours_off_is_no_neighbours():
    one, two = fit(adversarial=0.0, epochs=2), fit(epochs=2)
    assert all(
        torch.equal(a, b)
        for a, b in zip(
            one.posterior.state_dict().values(), two.posterior.state_dict().values(), strict=True
        )
    )


def test_prior_predictions_after_a_fit():
    x, y, _ = problem()
    fitted = BNN(nn.Linear(3, 1).double(), Gaussian(), Normal(0.0, 1.0)).fit(
        (x, y), "deep_ensemble", members=2, epochs=1, progress=False
    )
    assert fitted.predict(x, 5, source="prior").outputs.shape == (5, 30, 1)
