import errno
import json
import os

import pytest
import torch

from credo.core.atomic import read_tensors, replace_directory, write_json, write_tensors
from credo.core.errors import RunError
from credo.engine.run import CHECKPOINT, Run, write_atomic
from credo.engine.saved_model import CONFIG, FORMAT, HISTORY, POSTERIOR
from credo.engine.training_loop import pack_optimizer, unpack_optimizer

TENSORS = {"a/b": torch.arange(6.0).reshape(2, 3), "c": torch.tensor(3, dtype=torch.int64)}


def listing(folder):
    return {p.name: p.read_bytes() for p in folder.iterdir() if p.is_file()}


def test_tensors_and_metadata_round_trip(tmp_path):
    write_tensors(tmp_path / "t.safetensors", TENSORS, {"epoch": "3"})
    tensors, meta = read_tensors(tmp_path / "t.safetensors")
    assert meta == {"epoch": "3"} and all(torch.equal(tensors[n], TENSORS[n]) for n in TENSORS)


def test_a_failed_write_changes_nothing_and_leaves_no_litter(tmp_path):
    path = tmp_path / "file"
    path.write_text("old")

    def fail(beside):
        beside.write_text("half")
        raise OSError(errno.ENOSPC, "No space left on device")

    with pytest.raises(
        RunError, match="Cannot write .*file: No space left on device. Nothing was changed"
    ):
        write_atomic(path, fail)
    assert listing(tmp_path) == {"file": b"old"}


def test_a_full_disk_is_one_clear_sentence(tmp_path, monkeypatch):
    def full(*args, **kwargs):
        raise OSError(errno.ENOSPC, "No space left on device")

    run = Run(tmp_path / "run")
    run.begin({"a": 1})
    run.checkpoint(TENSORS, 0)
    before = listing(tmp_path / "run")
    monkeypatch.setattr(os, "fsync", full)
    for write in (
        lambda: run.checkpoint(TENSORS, 1),
        lambda: run.finish(TENSORS, {"a": 1}),
        lambda: write_json(tmp_path / "x", 1),
    ):
        with pytest.raises(RunError, match="No space left on device"):
            write()
    assert listing(tmp_path / "run") == before


def test_a_full_disk_inside_safetensors_is_one_clear_sentence(tmp_path, monkeypatch):
    """safetensors writes from Rust and raises its own error."""
    import safetensors.torch
    from safetensors import SafetensorError

    def full(*args, **kwargs):
        raise SafetensorError(
            "Error while serializing: I/O error: No space left on device (os error 28)"
        )

    monkeypatch.setattr(safetensors.torch, "save_file", full)
    with pytest.raises(RunError, match="No space left on device"):
        write_tensors(tmp_path / "t.safetensors", TENSORS)
    assert listing(tmp_path) == {}


def test_a_directory_that_cannot_be_written(tmp_path, monkeypatch):
    def refuse(*args, **kwargs):
        raise PermissionError(errno.EACCES, "Permission denied")

    run = Run(tmp_path / "run")
    run.begin({"a": 1})
    monkeypatch.setattr("os.replace", refuse)
    with pytest.raises(RunError, match="Permission denied"):
        run.checkpoint(TENSORS, 0)


def test_begin_writes_once_and_checks_afterwards(tmp_path):
    run = Run(tmp_path / "deep" / "run")
    assert not (tmp_path / "deep").exists(), "nothing is created before begin"
    run.begin({"lr": 0.1, "shape": (2, 3)})
    assert json.loads((tmp_path / "deep" / "run" / CONFIG).read_text()) == {
        "lr": 0.1,
        "shape": [2, 3],
        "format": FORMAT,
    }
    run.begin({"lr": 0.1, "shape": (2, 3)})
    with pytest.raises(
        RunError,
        match=r"holds another run \(lr: there 0\.1, now 0\.2\)\. Choose another directory, or the "
        r"same settings",
    ):
        run.begin({"lr": 0.2, "shape": (2, 3)})


def test_attached_files_join_the_run_once_it_has_a_directory(tmp_path):
    run = Run(tmp_path / "run")
    run.attach("early.json", [1])
    assert not run.path.exists()
    run.begin({"a": 1})
    run.attach("late.json", {"b": 2})
    assert json.loads((run.path / "early.json").read_text()) == [1]
    assert json.loads((run.path / "late.json").read_text()) == {"b": 2}


def test_attached_files_of_a_resumed_run_stay_and_missing_ones_are_added(tmp_path):
    first = Run(tmp_path / "run")
    first.attach("kept.json", 1)
    first.begin({"a": 1})
    again = Run(tmp_path / "run")
    again.attach("kept.json", 2)
    again.attach("new.json", 3)
    assert not (again.path / "new.json").exists()
    again.begin({"a": 1})
    assert (again.path / "kept.json").read_text() == "1\n"
    assert (again.path / "new.json").read_text() == "3\n"


def test_nothing_is_attached_to_the_run_of_another(tmp_path):
    Run(tmp_path / "run").begin({"a": 1})
    other = Run(tmp_path / "run")
    other.attach("mine.json", 1)
    with pytest.raises(RunError, match="holds another run"):
        other.begin({"a": 2})
    assert not (other.path / "mine.json").exists()


def test_a_stored_config_may_be_put_into_the_words_of_today(tmp_path):
    Run(tmp_path / "run").begin({"old": 1})
    Run(tmp_path / "run").begin({"new": 1}, lambda config: {"new": config["old"]})
    with pytest.raises(RunError, match="holds another run"):
        Run(tmp_path / "run").begin({"new": 1})


def test_a_run_is_made_of_a_path_or_is_one_already(tmp_path):
    run = Run.of(tmp_path)
    assert run.path == tmp_path and Run.of(run) is run


def test_nested_settings_are_named_by_their_path(tmp_path):
    run = Run(tmp_path / "run")
    run.begin({"fit": {"lr": 0.1, "seed": 0}, "deep": {"a": {"b": [1, 2]}}, "none": {}})
    run.begin({"fit": {"lr": 0.1, "seed": 0}, "deep": {"a": {"b": (1, 2)}}, "none": {}})
    for config, words in [
        ({"fit": {"lr": 0.2, "seed": 0}}, r"\(fit\.lr: there 0\.1, now 0\.2\)"),
        (
            {"fit": {"lr": 0.2, "seed": 3}},
            r"\(fit\.lr: there 0\.1, now 0\.2; fit\.seed: there 0, now 3\)",
        ),
        ({"deep": {"a": {"b": [1]}}}, r"deep\.a\.b: there \[1, 2\], now \[1\]"),
        ({"deep": {"a": {"b": [1, 2], "c": 4}}}, r"deep\.a\.c: there None, now 4"),
        ({"fit": {}}, r"fit"),
        ({"none": {"x": 1}}, r"none\.x: there None, now 1"),
    ]:
        with pytest.raises(RunError, match=words):
            run.begin(config)


def test_a_nested_setting_that_is_gone_is_a_difference_too(tmp_path):
    """A network with a parameter less is another network."""
    run = Run(tmp_path / "run")
    run.begin({"parameters": {"0.weight": [2, 3], "1.weight": [3, 3]}, "deep": {"a": {"b": 1}}})
    with pytest.raises(RunError, match=r"parameters\.1\.weight: there \[3, 3\]"):
        run.begin({"parameters": {"0.weight": [2, 3]}, "deep": {"a": {"b": 1}}})
    with pytest.raises(RunError, match=r"deep"):
        run.begin({"parameters": {"0.weight": [2, 3], "1.weight": [3, 3]}, "deep": {}})


def test_what_a_finished_run_adds_is_no_difference(tmp_path):
    run = Run(tmp_path / "run")
    run.begin({"a": {"b": 1}})
    run.finish(TENSORS, {"a": {"b": 1}, "posterior": {"families": []}})
    run.begin({"a": {"b": 1}})


def test_strange_directories_are_refused(tmp_path):
    (tmp_path / "file").write_text("x")
    with pytest.raises(RunError, match="is a file; a run needs a directory"):
        Run(tmp_path / "file")
    with pytest.raises(RunError, match="not empty and holds no run"):
        Run(tmp_path).config()
    for text, words in [
        ('{"format": 99}', "written by a newer credo .format 99, this one reads 1.; upgrade"),
        ("[]", "is not a run's config"),
        ('{"a": 1', "truncated or damaged"),
        ('{"format": "1"}', "is not a run's config"),
    ]:
        folder = tmp_path / str(abs(hash(text)))
        folder.mkdir()
        (folder / CONFIG).write_text(text)
        with pytest.raises(RunError, match=words):
            Run(folder).config()


@pytest.mark.parametrize("keep", [0, 5, 60, -4])
def test_a_truncated_checkpoint_is_refused(tmp_path, keep):
    run = Run(tmp_path / "run")
    run.begin({})
    run.checkpoint(TENSORS, 4)
    path = tmp_path / "run" / CHECKPOINT
    path.write_bytes(path.read_bytes()[:keep])
    with pytest.raises(RunError, match="truncated or damaged .*; delete it to start over"):
        run.restore()


def test_checkpoints_restore_with_their_epoch(tmp_path):
    run = Run(tmp_path / "run")
    run.begin({})
    assert run.restore() is None
    run.checkpoint(TENSORS, 4)
    run.checkpoint(TENSORS, 7)
    tensors, epoch = run.restore()
    assert epoch == 7 and torch.equal(tensors["a/b"], TENSORS["a/b"])
    run.finish(TENSORS, {"x": 1})
    assert (
        run.restore() is None
        and run.config()["complete"] is True
        and (tmp_path / "run" / POSTERIOR).exists()
    )


def test_history_drops_what_a_crash_left(tmp_path):
    run = Run(tmp_path / "run")
    run.begin({})
    assert run.history() == []
    for epoch in range(4):
        run.record({"epoch": epoch, "elbo": -1.5 * epoch})
    with open(tmp_path / "run" / HISTORY, "a") as file:
        file.write('{"epoch": 4, "el')
    assert [row["epoch"] for row in run.history()] == [0, 1, 2, 3]
    assert [row["epoch"] for row in run.history(1)] == [0, 1]
    run.record({"epoch": 2, "elbo": 0.0})
    assert [row["epoch"] for row in run.history()] == [0, 1, 2]


def test_replacing_a_directory_is_all_or_nothing(tmp_path):
    target = tmp_path / "model"
    with replace_directory(target) as beside:
        (beside / "a").write_text("1")
    assert listing(target) == {"a": b"1"}
    with pytest.raises(ZeroDivisionError), replace_directory(target) as beside:
        (beside / "a").write_text("2")
        _ = 1 / 0
    assert listing(target) == {"a": b"1"}
    with replace_directory(target) as beside:
        (beside / "b").write_text("3")
    assert listing(target) == {"b": b"3"} and [p.name for p in tmp_path.iterdir()] == ["model"]
    (tmp_path / "file").write_text("")
    with (
        pytest.raises(RunError, match="is a file; expected a directory"),
        replace_directory(tmp_path / "file"),
    ):
        pass


def test_optimizer_state_round_trips():
    def trained():
        torch.manual_seed(0)
        parameter = torch.nn.Parameter(torch.ones(3))
        optimizer = torch.optim.Adam([parameter], lr=0.1)
        parameter.square().sum().backward()
        optimizer.step()
        return parameter, optimizer

    (_, one), (p, two) = trained(), trained()
    packed = pack_optimizer(one)
    fresh = torch.optim.Adam([p], lr=0.1)
    unpack_optimizer(fresh, packed | {"elbo/x": torch.ones(1)})
    for a, b in zip(two.state[p].values(), fresh.state[p].values(), strict=True):
        assert torch.equal(torch.as_tensor(a), torch.as_tensor(b))
