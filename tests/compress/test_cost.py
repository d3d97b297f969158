"""Counted from shapes, and measured side by side."""

import time
from types import SimpleNamespace

import pytest
import torch
from torch import nn

from credo.compress import cost
from credo.compress.cost import count, latency, repeated_batch
from credo.core.errors import SettingError


@pytest.mark.parametrize(
    ("layer", "x", "macs"),
    [
        (nn.Linear(5, 3), torch.zeros(4, 5), 15),
        (nn.Linear(5, 3), torch.zeros(4, 7, 5), 7 * 15),
        (nn.Conv1d(2, 3, 4), torch.zeros(4, 2, 10), 7 * 3 * 2 * 4),
        (
            nn.Conv2d(4, 6, 3, stride=2, padding=1, groups=2),
            torch.zeros(2, 4, 8, 8),
            16 * 6 * 2 * 9,
        ),
        (nn.Conv3d(1, 2, 2), torch.zeros(1, 1, 3, 3, 3), 8 * 2 * 8),
        (nn.ConvTranspose2d(3, 5, 2, 2), torch.zeros(2, 3, 4, 4), 16 * 3 * 5 * 4),
        (nn.Embedding(9, 4), torch.zeros(2, 6, dtype=torch.long), 0),
    ],
)
def test_multiply_adds_per_example(layer, x, macs):
    """By hand: each output number is a sum over what its kernel covers; a transposed convolution
    spreads each input number instead.
    """
    found = count(layer, x)
    assert found.macs == macs and found.uncounted == ()
    assert found.parameters == sum(p.numel() for p in layer.parameters())
    assert found.bytes == 4 * found.parameters


def test_zeros_count_as_parameters_but_not_as_nonzero_and_the_network_is_left_as_it_was():
    net = nn.Sequential(
        nn.Linear(4, 4, bias=False), nn.BatchNorm1d(4), nn.Dropout(), nn.Linear(4, 4, bias=False)
    ).train()
    with torch.no_grad():
        net[0].weight.fill_(1.0)[:2] = 0
        net[3].weight.fill_(1.0)
    found = count(net, torch.randn(1, 4))
    assert (found.parameters, found.nonzero, found.macs) == (40, 8 + 4 + 16, 32)
    assert found.bytes == 4 * (40 + 8) + 8  # running statistics, and a count of 8 bytes
    assert (
        net.training
        and net[1].num_batches_tracked == 0
        and not any(m._forward_hooks for m in net.modules())
    )


def test_what_is_not_counted_is_named():
    attention = nn.MultiheadAttention(4, 2, batch_first=True)

    class Attend(nn.Module):
        def __init__(self):
            super().__init__()
            self.attention, self.head = attention, nn.Linear(4, 2)

        def forward(self, x):
            return self.head(self.attention(x, x, x)[0])

    found = count(Attend(), torch.zeros(3, 5, 4))
    assert found.macs == 5 * 8 and found.uncounted == ("attention", "attention.out_proj")


def test_rows_repeat_the_examples_of_every_tensor():
    tree = {
        "a": torch.arange(3),
        "b": (torch.arange(6).reshape(3, 2), "text"),
        "c": torch.tensor(1.0),
    }
    out = repeated_batch(tree, 5)
    assert (
        out["a"].tolist() == [0, 1, 2, 0, 1]
        and out["b"][0].shape == (5, 2)
        and out["b"][1] == "text"
        and out["c"] == 1.0
    )
    assert repeated_batch(tree, 1)["a"].tolist() == [0]


def test_networks_take_turns_on_one_thread():
    order = []

    def pause(name, seconds):
        def run(x):
            assert torch.get_num_threads() == 1 and torch.is_inference_mode_enabled()
            order.append(name)
            time.sleep(seconds)

        return run

    threads = torch.get_num_threads()
    times = latency({"slow": pause("slow", 4e-3), "fast": pause("fast", 2e-3)}, None, rounds=2)
    assert torch.get_num_threads() == threads
    assert {name: row.shape for name, row in times.items()} == {"slow": (2,), "fast": (2,)}
    assert order == ["slow"] * 3 + ["fast"] * 3 + ["slow", "fast"] * 6
    assert (times["slow"] >= 4e-3).all() and (
        times["fast"] >= 2e-3
    ).all()  # sleep never takes less than it was told


def test_quick_networks_are_called_for_a_millisecond_and_an_interruption_does_not_shorten_it(
    monkeypatch,
):
    """A clock of our own: a call takes a microsecond, the second one a hundred milliseconds."""
    now, calls = 0.0, 0

    def quick(x):
        nonlocal now, calls
        calls += 1
        now += 0.1 if calls == 2 else 1e-6

    monkeypatch.setattr(cost, "time", SimpleNamespace(perf_counter=lambda: now))
    times = latency({"quick": quick}, None, rounds=2)
    assert calls == pytest.approx(
        3 + 6 * 1000, abs=6
    )  # rounding of the clock's sums may add a call to a turn
    assert times["quick"].tolist() == pytest.approx([1e-6, 1e-6])


def test_nothing_to_measure_is_refused():
    with pytest.raises(SettingError, match="no networks"):
        latency({}, None)
    with pytest.raises(SettingError, match="rounds=0"):
        latency({"a": nn.Identity()}, torch.zeros(1), rounds=0)
