import pytest
import torch
from zoo.graphs import play

from credo.core.capture import WARM_UP, CapturedGraph


def test_warm_up_and_capture_are_on_a_side_stream_and_nothing_else_is_run(monkeypatch):
    calls = play(monkeypatch)
    CapturedGraph(lambda: calls.append("work"), [], lambda: calls.append("release"))
    assert calls == [
        "release",
        "side waits for main",
        "on side",
        *["work", "release"] * WARM_UP,
        "off side",
        "main waits for side",
        "capture on side",
        "work",
        "captured",
    ]


def test_a_replay_reads_the_static_inputs_and_overwrites_the_result(monkeypatch):
    play(monkeypatch)
    total, x, y = torch.zeros(3), torch.ones(3), torch.full((3,), 2.0)

    def work():
        total.add_(x * y)
        return (x - y).sum()

    graph = CapturedGraph(work, [x, y])
    assert torch.equal(total, torch.full((3,), 2.0 * (WARM_UP + 1))), "these runs are real"
    first, runs = graph.result, []
    for value in (3.0, 5.0):
        graph.load([torch.full((3,), value), torch.ones(3)])
        runs.append((float(graph.replay()), total.clone()))
        assert graph.replay() is first
    assert [gap for gap, _ in runs] == [6.0, 12.0]
    assert torch.equal(runs[1][1] - runs[0][1], torch.full((3,), 3.0 + 5.0))


def test_inputs_must_be_as_many_as_captured(monkeypatch):
    play(monkeypatch)
    graph = CapturedGraph(lambda: None, [torch.zeros(1)])
    with pytest.raises(ValueError, match="shorter"):
        graph.load([])


def test_gradients_of_the_same_parameters_can_be_captured(monkeypatch):
    play(monkeypatch)
    weight, x = torch.nn.Parameter(torch.ones(3)), torch.ones(3)

    def work():
        weight.grad = None
        (weight * x).square().sum().backward()
        return weight.grad

    graph = CapturedGraph(work, [x])
    graph.load([torch.tensor([1.0, 2.0, 3.0])])
    assert graph.replay().tolist() == [2.0, 8.0, 18.0]


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_on_a_gpu_it_is_a_cuda_graph():
    total, x = torch.zeros(3, device="cuda"), torch.ones(3, device="cuda")
    graph = CapturedGraph(lambda: total.add_(x * x).sum(), [x])
    total.zero_()
    graph.load([torch.full((3,), 2.0)])
    assert float(graph.replay()) == 12.0 and float(graph.replay()) == 24.0
