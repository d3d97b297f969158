import warnings

import pytest
import torch

from credo.core.vectorise import VmapOrLoop


def fails(kind=RuntimeError):
    def at_once():
        raise kind("no batching rule\nwith a long story")

    return at_once


def test_what_vmap_can_run_is_run_at_once_and_silently():
    run = VmapOrLoop("Going one by one")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert run(lambda: "at once", lambda: "in turn") == "at once"
    assert not run.looped


@pytest.mark.parametrize("kind", [RuntimeError, NotImplementedError, ValueError])
def test_what_vmap_cannot_run_is_looped_over_from_then_on_and_said_once(kind):
    run, calls = VmapOrLoop("Going one by one"), []
    with pytest.warns(
        UserWarning,
        match=r"^Going one by one: vmap cannot run this network \(no batching rule\)\.$",
    ) as told:
        assert run(fails(kind), lambda: "in turn") == "in turn"
    assert [each.filename for each in told] == [__file__] or told[0].filename.endswith("python.py")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert run(lambda: calls.append(1), lambda: "in turn") == "in turn"
    assert run.looped and not calls


def test_it_may_loop_from_the_start_or_silently():
    assert VmapOrLoop("", looped=True)(fails(), lambda: 1) == 1
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert VmapOrLoop(None)(fails(), lambda: 1) == 1


def test_other_errors_are_raised_and_so_is_that_of_the_loop():
    run = VmapOrLoop("Going one by one")
    with pytest.raises(KeyError):
        run(fails(KeyError), lambda: 1)
    assert not run.looped

    def wrong():
        raise IndexError("the network's own")

    with warnings.catch_warnings(), pytest.raises(IndexError, match="the network's own"):
        warnings.simplefilter("error")
        run(fails(), wrong)


def test_a_full_memory_is_a_reason_to_loop_only_where_asked():
    full = fails(torch.cuda.OutOfMemoryError)
    with pytest.raises(torch.cuda.OutOfMemoryError):
        VmapOrLoop("Going one by one")(full, lambda: 1)
    with pytest.warns(UserWarning, match="no batching rule"):
        assert VmapOrLoop("Going one by one", out_of_memory=True)(full, lambda: 1) == 1


def test_a_failed_attempt_is_undone_before_the_loop():
    values, run = [0], VmapOrLoop(None)

    def snapshot():
        before = list(values)
        return lambda: values.__setitem__(slice(None), before)

    def half_way():
        values[0] += 5
        raise RuntimeError("half way")

    def in_turn():
        values[0] += 1
        return values[0]

    assert run(half_way, in_turn, snapshot) == 1


def test_after_a_success_nothing_is_noted_and_errors_are_raised():
    run, noted = VmapOrLoop(None), []

    def snapshot():
        noted.append(1)
        return lambda: None

    assert run(lambda: 1, lambda: 2, snapshot) == 1
    assert run(lambda: 3, lambda: 2, snapshot) == 3 and len(noted) == 1
    with pytest.raises(RuntimeError, match="no batching rule"):
        run(fails(), lambda: 2, snapshot)
    assert run(fails(), lambda: 2) == 2, "without a snapshot every call may fall back"
