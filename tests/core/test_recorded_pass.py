import pytest
import torch
import torch.nn.functional as F

from credo.core.errors import SettingError
from credo.core.recorded_pass import RecordedPass, draws, record

W = torch.randn(3, 4, generator=torch.Generator().manual_seed(0), dtype=torch.float64)


def slopes(w, x):
    """The gradient of sum tanh(x w)^2 at w, by autograd."""
    w = w.detach().requires_grad_()
    with torch.enable_grad():
        (grad,) = torch.autograd.grad((x @ w).tanh().square().sum(), [w])
    return [grad]


def test_a_replay_gives_what_the_function_gives_derivatives_included():
    calls = []

    def watched(w, x):
        calls.append(1)
        return slopes(w, x)

    recorded = RecordedPass([W])
    for seed in range(4):
        x = torch.randn(5, 3, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
        assert torch.equal(recorded("key", watched, [x])[0], slopes(W, x)[0])
    assert len(calls) == 1
    recorded("key", watched, [torch.ones(2, 3, dtype=torch.float64)])
    recorded("other", watched, [torch.ones(2, 3, dtype=torch.float64)])
    assert len(calls) == 3, "another shape or key is recorded anew"


def test_fixed_tensors_count_by_what_they_hold_now():
    w, x = W.clone(), torch.ones(5, 3, dtype=torch.float64)
    recorded = RecordedPass([w])
    recorded(0, slopes, [x])
    w.mul_(2.0)
    assert torch.equal(recorded(0, slopes, [x])[0], slopes(w, x)[0])


def test_recording_changes_nothing_and_replaying_does():
    count, state = torch.zeros(1), torch.get_rng_state()

    def noisy(count, x):
        count.add_(1)
        return [F.dropout(x, 0.5, True)]

    recorded = RecordedPass([count])
    x = torch.ones(1000)
    first = recorded(0, noisy, [x])[0]
    assert int(count) == 1, "only the replay counts"
    torch.set_rng_state(state)
    assert torch.equal(first, F.dropout(x, 0.5, True)), "the recording drew nothing"
    assert not torch.equal(first, recorded(0, noisy, [x])[0]) and int(count) == 2


def test_what_cannot_be_traced_is_said_in_one_sentence():
    def branching(x):
        return [x if float(x.sum()) > 0 else -x]

    with pytest.raises(
        SettingError,
        match=r"compile=True: the compiler cannot trace this network \(.*\); use compile=False",
    ):
        RecordedPass([])(0, branching, [torch.ones(2)])


def test_what_follows_from_shapes_is_folded_unless_it_is_returned_or_written_into():
    def function(x):
        ones = torch.ones_like(x)
        return [x + (2 * ones).exp(), torch.zeros_like(x)]

    x = torch.randn(4)
    graph = record(function, [x])
    names = [str(node.target) for node in graph.graph.nodes if node.op == "call_function"]
    assert len(names) == 2, "a sum and what is returned"
    first, second = (graph(x) for _ in range(2))
    assert torch.equal(first[0], x + torch.full_like(x, 2.0).exp())
    first[1].add_(1.0)
    assert not second[1].any() and not graph(x)[1].any()

    def writes(x):
        return [torch.zeros_like(x).add_(x) * 2]

    graph = record(writes, [x])
    assert torch.equal(graph(x)[0], 2 * x) and torch.equal(graph(x)[0], 2 * x)


def test_random_numbers_are_seen_and_never_folded():
    def toss(x):
        return [x * torch.rand_like(torch.ones_like(x)), F.dropout(x, 0.5)]

    x = torch.ones(50)
    graph = record(toss, [x])
    assert draws(graph) and not draws(record(lambda x: [x.sin()], [x]))
    assert not torch.equal(graph(x)[0], graph(x)[0]) and not torch.equal(graph(x)[1], graph(x)[1])
