import pytest
import torch
from torch import nn
from torch.distributions import Normal

import credo
from credo import BNN
from credo.core.errors import CredoError, NetworkError, SettingError
from credo.core.seeds import mix
from credo.data import intake
from credo.engine.fit_job import FitJob
from credo.engine.run import CHECKPOINT, DRAWS, POSTERIOR, Run
from credo.likelihoods import Gaussian
from credo.methods import HMC
from credo.methods.sampling.parts.chains import Course, Transition, run_chains, start_values
from credo.methods.sampling.parts.density import Density, FullBatch

DOUBLE = torch.float64
QUICK = {"num_warmup": 6, "num_draws": 5, "num_chains": 3, "progress": False}
SHORT = HMC(num_steps=4)


def data(n=12):
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(n, 2, generator=generator, dtype=DOUBLE)
    return x, x @ torch.tensor([[1.0], [-0.5]], dtype=DOUBLE) + 0.3 * torch.randn(
        n, 1, generator=generator, dtype=DOUBLE
    )


def bnn(likelihood=None, hidden=False, **how):
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(2, 3), nn.Tanh(), nn.Linear(3, 1)) if hidden else nn.Linear(2, 1)
    return BNN(net.double(), likelihood or Gaussian(std=0.3), **({"prior": Normal(0.0, 1.0)} | how))


def flat(fitted):
    """Draws ``(C, D, P)``."""
    family = fitted.posterior.members[0]
    return family.flat.reshape(family.chains, -1, family.flat.shape[1])


def rows(history):
    return [{key: value for key, value in row.items() if key != "seconds"} for row in history]


# --- the loop -------------------------------------------------------------------------------------


class Walk(Transition):
    """A walk whose every number is known: position after move t is start + t + 1 + noise(t);
    something outside the state counts too.
    """

    def __init__(self):
        self.outside = torch.zeros(1, dtype=DOUBLE)

    def start(self, position, source):
        return {"position": position, "first": torch.rand(1, generator=source, dtype=DOUBLE)}

    def move(self, state, index, source):
        self.outside += 1
        moved = (
            state["position"]
            + 1
            + torch.randn(state["position"].shape, generator=source, dtype=DOUBLE)
            + 0 * self.outside
        )
        return {"position": moved, "first": state["first"]}, {
            "log_density": moved[:, 0],
            "extra": self.outside.clone(),
        }

    def record(self):
        return {"outside": self.outside}

    def recall(self, tensors):
        self.outside.copy_(tensors["outside"])


def fit_job(**how):
    return FitJob(**({"source": None, "epochs": 1, "batch_size": None, "lr": 1.0, "seed": 5} | how))


START = torch.tensor([[0.0, 10.0], [100.0, 200.0]], dtype=DOUBLE)


@pytest.mark.parametrize(
    ("warmup", "draws", "thin"), [(0, 1, 1), (0, 4, 1), (7, 3, 1), (7, 3, 4), (0, 3, 5), (1, 2, 3)]
)
def test_draws_are_the_positions_after_every_thin_moves(warmup, draws, thin):
    course = Course("walk", warmup, draws, thin)
    work = fit_job()
    kept = run_chains(course, Walk(), START, work)
    everything = run_chains(Course("walk", 0, course.moves()), Walk(), START, fit_job())
    assert kept.shape == (2, draws, 2) and torch.equal(
        kept, everything[:, warmup + thin - 1 :: thin]
    )
    numbers = [course.draw_after(index) for index in range(course.moves())]
    assert [n for n in numbers if n is not None] == list(range(draws)) and numbers[-1] == draws - 1
    noted = [row for row in work.history if not row["warmup"]]
    assert len(noted) == draws and [row["log_density"] for row in noted] == kept[:, :, 0].T.tolist()
    assert [row["warmup"] for row in work.history] == sorted(
        (row["warmup"] for row in work.history), reverse=True
    )
    assert all(isinstance(row["extra"], float) and row["seconds"] >= 0 for row in work.history)


def test_a_run_interrupted_anywhere_goes_on_with_the_same_numbers(tmp_path, monkeypatch):
    """Checkpoints at moves 2 and 5 only; interrupted after moves 1, 3, 6 and 8.

    Draws since the last checkpoint are made again.
    """

    class Stop(Exception):
        pass

    whole, work = Walk(), fit_job()
    wanted = run_chains(Course("walk", 3, 4, 2), whole, START, work)
    for last in (1, 3, 6, 8):
        run = Run(tmp_path / str(last))
        run.begin({})
        write = run.checkpoint
        monkeypatch.setattr(
            run,
            "checkpoint",
            lambda tensors, index, write=write: write(tensors, index) if index in (2, 5) else None,
        )

        class Dying(Walk):
            def move(self, state, index, source, last=last):
                if index > last:
                    raise Stop
                return super().move(state, index, source)

        with pytest.raises(Stop):
            run_chains(
                Course("walk", 3, 4, 2), Dying(), START, fit_job(run=run, checkpoint_seconds=0.0)
            )
        again, rest = Walk(), fit_job(run=run, checkpoint_seconds=1e9)
        kept = run_chains(Course("walk", 3, 4, 2), again, START, rest)
        assert torch.equal(kept, wanted) and torch.equal(again.outside, whole.outside)
        assert rows(rest.history) == rows(work.history) == rows(run.history())


def test_a_callback_ends_the_run_with_the_draws_made_so_far():
    wanted = run_chains(Course("walk", 2, 6), Walk(), START, fit_job())
    work = fit_job(callbacks=[lambda row: row["epoch"] == 4])
    assert torch.equal(run_chains(Course("walk", 2, 6), Walk(), START, work), wanted[:, :3])
    assert len(work.history) == 5
    with pytest.raises(CredoError, match="stopped walk at move 1, before the first draw"):
        run_chains(
            Course("walk", 2, 6), Walk(), START, fit_job(callbacks=[lambda row: row["epoch"] == 1])
        )


def test_stopping_between_draws_keeps_the_earlier_ones():
    """A cyclical course pauses its draws while it explores; a stop then must not lose what there
    is.
    """

    class Pausing(Course):
        def draw_after(self, index):
            return {2: 0, 3: 1, 8: 2}.get(index)

        def moves(self):
            return 9

        def noted(self, index):
            return True

    wanted = run_chains(Pausing("walk", 0, 3), Walk(), START, fit_job())
    kept = run_chains(
        Pausing("walk", 0, 3), Walk(), START, fit_job(callbacks=[lambda row: row["epoch"] == 5])
    )
    assert torch.equal(kept, wanted[:, :2])


class Broken(Walk):
    """Some chains leave the numbers at move 3."""

    def __init__(self, chains):
        super().__init__()
        self.chains = chains

    def move(self, state, index, source):
        state, info = super().move(state, index, source)
        if index >= 3:
            state["position"][self.chains] = torch.nan
        return state, info | {"log_density": state["position"][:, 0]}


@pytest.mark.parametrize("chains", [[0, 1], [1]], ids=["all", "one"])
def test_chains_that_leave_the_numbers_are_reported_and_never_kept(chains):
    with pytest.raises(
        CredoError, match="walk: the log density of chains .* is not finite at move 3"
    ):
        run_chains(Course("walk", 2, 6), Broken(chains), START.clone(), fit_job())


# --- through fit ----------------------------------------------------------------------------------


@pytest.mark.parametrize("method", [SHORT, "nuts", "sgld"])
def test_draws_lie_chain_after_chain_and_predictions_use_all_chains(method):
    x, y = data()
    apart = {"weight": torch.tensor([0.0, 50.0, -50.0]).reshape(3, 1, 1).expand(3, 1, 2)}
    fitted = bnn().fit((x, y), method, init=apart, lr=1e-4, **(QUICK | {"num_warmup": 0}))
    family = fitted.posterior.members[0]
    assert family.chains == 3 and family.atoms == 15
    draws = flat(fitted)
    values = [row["log_density"] for row in fitted.history]
    if method != "sgld":  # whose rows are of the batch before the step
        target = FullBatch.of(Density(fitted.model, fitted.model.values()), intake((x, y)), None)
        for d in range(5):
            assert torch.allclose(
                target(draws[:, d])[0], torch.tensor(values[d], dtype=DOUBLE), rtol=1e-9
            )
    outputs = fitted.predict(x, samples=6).outputs
    order = [i * 15 // 6 for i in range(6)]
    by_hand = torch.stack([x @ family.flat[i][:2].unsqueeze(-1) + family.flat[i][2] for i in order])
    assert torch.allclose(outputs, by_hand) and {i // 5 for i in order} == {0, 1, 2}
    assert fitted.predict(x, samples=100).outputs.shape[0] == 15


def test_thinning_keeps_every_other_draw_of_the_same_chains():
    one = bnn().fit(data(), SHORT, **(QUICK | {"num_draws": 12}))
    two = bnn().fit(data(), SHORT, **(QUICK | {"num_draws": 4}), thin=3)
    assert torch.equal(flat(two), flat(one)[:, 2::3])


@pytest.mark.parametrize("method", [SHORT, "nuts", "sgld", "psgld", "sghmc"])
def test_seeds_decide_and_nothing_of_the_callers_changes(method):
    model = bnn(hidden=True)
    net = model.net
    net.train()
    before, state = {n: t.clone() for n, t in net.state_dict().items()}, torch.get_rng_state()
    one, two, three = (flat(model.fit(data(), method, seed=seed, **QUICK)) for seed in (0, 0, 1))
    assert torch.equal(one, two) and not torch.equal(one, three)
    assert torch.equal(state, torch.get_rng_state())
    assert net.training and all(torch.equal(before[n], t) for n, t in net.state_dict().items())
    assert all(p.requires_grad and p.grad is None for p in net.parameters())
    assert len({tuple(chain[0].tolist()) for chain in one}) == 3  # chains differ from each other


class Noisy(nn.Module):
    """Random in evaluation mode too."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(2, 1)

    def forward(self, x):
        return self.layer(x) + 0.01 * torch.randn(1, dtype=x.dtype)


@pytest.mark.filterwarnings("ignore:Running chain by chain")
def test_a_network_that_draws_numbers_does_not_touch_the_callers():
    model = BNN(Noisy().double(), Gaussian(std=0.3))
    state = torch.get_rng_state()
    one = model.fit(data(), "sgld", **QUICK)
    assert torch.equal(state, torch.get_rng_state())
    torch.manual_seed(1)
    assert torch.equal(
        flat(one), flat(BNN(model.net, Gaussian(std=0.3)).fit(data(), "sgld", **QUICK))
    )


def test_draws_on_disk_are_those_in_memory(tmp_path):
    x, y = data()
    memory = bnn().fit((x, y), SHORT, **QUICK)
    disk = bnn().fit((x, y), SHORT, store="disk", run=tmp_path / "run", **QUICK)
    assert torch.equal(flat(disk), flat(memory))
    assert torch.equal(disk.predict(x).outputs, memory.predict(x).outputs)
    left = {path.name for path in (tmp_path / "run").iterdir()}
    assert POSTERIOR in left and not {DRAWS, CHECKPOINT} & left
    again = credo.load(tmp_path / "run", disk.net)
    assert torch.equal(flat(again), flat(memory)) and torch.equal(
        again.predict(x).outputs, memory.predict(x).outputs
    )
    assert again.posterior.members[0].chains == 3
    disk.save(tmp_path / "copy")  # the draws outlive the run's own file
    assert torch.equal(flat(credo.load(tmp_path / "copy", disk.net)), flat(memory))
    finished = bnn().fit(
        (x, y), SHORT, store="disk", run=tmp_path / "run", **QUICK
    )  # a finished run is taken over
    assert torch.equal(flat(finished), flat(memory)) and rows(finished.history) == rows(
        memory.history
    )
    with pytest.raises(SettingError, match="store='disk' .* give one with run="):
        bnn().fit((x, y), SHORT, store="disk", **QUICK)


def test_a_run_with_draws_in_memory_does_not_depend_on_its_file(tmp_path):
    fitted = bnn().fit(data(), SHORT, run=tmp_path / "run", **QUICK)
    assert torch.equal(flat(fitted), flat(bnn().fit(data(), SHORT, **QUICK)))
    for path in (tmp_path / "run").iterdir():
        path.write_bytes(b"")
    assert flat(fitted).isfinite().all()


def test_a_stopped_run_is_complete(tmp_path):
    stop = [lambda row: row["epoch"] == 8]
    one = bnn().fit(data(), SHORT, callbacks=stop, run=tmp_path / "run", **QUICK)
    assert flat(one).shape == (3, 3, 3)
    assert torch.equal(flat(credo.load(tmp_path / "run", one.net)), flat(one))


# --- where chains start ---------------------------------------------------------------------------


def test_random_starts_are_the_modules_own_and_differ_by_chain():
    model = bnn(hidden=True, random="last").model
    starts = start_values(model, "random", 3, seed=4)
    for c in range(3):
        own = model.random_values(mix(4, "chain", c))
        assert all(torch.equal(starts[n][c], own[n]) for n in model.random)
    assert all(
        torch.equal(starts[n][0], starts[n][2]) for n in model.point
    )  # point parameters are one for all
    assert not torch.equal(starts["2.weight"][0], starts["2.weight"][1])


def test_pretrained_and_prior_starts():
    model = bnn(prior=Normal(7.0, 0.01)).model
    same = start_values(model, "pretrained", 3, 0)
    assert all(
        torch.equal(same[n][c], p) for n, p in model.net.named_parameters() for c in range(3)
    )
    drawn = start_values(model, "prior", 3, 0)
    assert all((v - 7).abs().max() < 0.1 and not torch.equal(v[0], v[1]) for v in drawn.values())
    assert all(torch.equal(drawn[n], start_values(model, "prior", 3, 0)[n]) for n in drawn)


def test_given_starts_with_and_without_an_axis_of_chains():
    model = bnn().model
    wide = torch.arange(6.0).reshape(3, 1, 2)
    starts = start_values(model, {"weight": wide, "bias": torch.tensor([9.0])}, 3, 0)
    assert torch.equal(starts["weight"], wide.double()) and starts["bias"].tolist() == [[9.0]] * 3
    partly = start_values(model, {"weight": wide}, 3, 0)
    assert torch.equal(partly["bias"], model.net.bias.detach().expand(3, 1))
    with pytest.raises(NetworkError, match="init holds 'wieght', which the network does not have"):
        start_values(model, {"wieght": wide}, 3, 0)
    with pytest.raises(SettingError, match="init gives 'weight' for 2 chains, but there are 3"):
        start_values(model, {"weight": wide[:2]}, 3, 0)


def test_a_start_without_a_density_is_refused():
    """In one chain of three: it would stay there for ever, and take the others' metric with it."""
    for method in (SHORT, "nuts", "sgld"):
        for bad in (torch.nan, 1e200):
            start = torch.zeros(3, 1, 2, dtype=DOUBLE)
            start[1] = bad
            with pytest.raises(CredoError, match="not finite"):
                bnn().fit(data(), method, init={"weight": start}, **QUICK)


def test_settings_that_cannot_be_meant_are_refused():
    with pytest.raises(
        SettingError, match="epochs=3: hmc counts moves; set num_warmup, num_draws and thin"
    ):
        bnn().fit(data(), SHORT, epochs=3, **QUICK)
    for bad in (
        {"num_chains": 0},
        {"num_draws": 0},
        {"thin": 0},
        {"num_warmup": -1},
        {"init": "here"},
        {"store": "cloud"},
    ):
        with pytest.raises(SettingError, match=next(iter(bad))):
            bnn().fit(data(), SHORT, **(QUICK | bad))


def test_validation_data_are_used_or_refused():
    """They must not be ignored without a word."""
    try:
        fitted = bnn().fit(data(), SHORT, validation=data(), **QUICK)
    except SettingError as error:
        assert "validation" in str(error)
    else:
        assert any("validation" in key for key in fitted.history[-1])
