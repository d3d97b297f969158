import pytest
import torch
from torch import nn
from torch.distributions import Normal

import credo
from credo import BNN
from credo.core.errors import CredoError, SettingError
from credo.data import intake
from credo.engine.run import CHECKPOINT, DRAWS
from credo.engine.saved_model import POSTERIOR
from credo.likelihoods import Gaussian
from credo.methods import HMC
from credo.methods.sampling.parts.density import Density
from credo.methods.sampling.parts.full_batch import FullBatch

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
    family = fitted.posterior.factors[0]
    return family.flat.reshape(family.chains, -1, family.flat.shape[1])


def rows(history):
    return [{key: value for key, value in row.items() if key != "seconds"} for row in history]


@pytest.mark.parametrize("method", [SHORT, "nuts", "sgld"])
def test_draws_lie_chain_after_chain_and_predictions_use_all_chains(method):
    x, y = data()
    apart = {"weight": torch.tensor([0.0, 50.0, -50.0]).reshape(3, 1, 1).expand(3, 1, 2)}
    fitted = bnn().fit((x, y), method, init=apart, lr=1e-4, **(QUICK | {"num_warmup": 0}))
    family = fitted.posterior.factors[0]
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
    assert again.posterior.factors[0].chains == 3
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
