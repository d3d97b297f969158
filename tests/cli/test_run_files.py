import pytest
import torch

from credo.cli.run_files import RunFiles, discard
from credo.core.errors import RunError
from credo.data.table import TableSchema
from credo.engine.run import CHECKPOINT, Run


@pytest.fixture
def files(table):
    schema = TableSchema.fit(table().drop(columns="dear"), "price")
    args = {"in_features": schema.num_features, "hidden": [4], "out_features": 1}
    return RunFiles(schema, {"name": "mlp", "args": args})


def begun(path, files):
    """A run in this directory, just begun, with the files of the command line."""
    run = Run(path)
    files.attach(run)
    run.begin({})


def test_round_trip(files, tmp_path):
    begun(tmp_path, files)
    assert RunFiles.read(tmp_path) == files


def test_a_network_is_built_from_the_seed_and_the_global_state_is_left_alone(files):
    before = torch.get_rng_state()
    first, again, other = files.build(1), files.build(1), files.build(2)
    assert torch.equal(first[0].weight, again[0].weight) and not torch.equal(
        first[0].weight, other[0].weight
    )
    assert torch.equal(before, torch.get_rng_state())


def test_directories_that_are_no_run(files, tmp_path):
    with pytest.raises(RunError, match="does not exist"):
        RunFiles.read(tmp_path / "none")
    with pytest.raises(RunError, match=r"has no table\.json"):
        RunFiles.read(tmp_path)
    begun(tmp_path, files)
    (tmp_path / "network.json").write_text("[]")
    with pytest.raises(RunError, match="not the description of a network"):
        RunFiles.read(tmp_path)
    (tmp_path / "network.json").write_text('{"name": "mlp", "args": {"hidden": [3]}}')
    with pytest.raises(RunError, match=r"cannot be built .*'in_features'.*; fit the run again"):
        RunFiles.read(tmp_path).build()
    (tmp_path / "network.json").write_text("{")
    with pytest.raises(RunError, match="truncated or damaged"):
        RunFiles.read(tmp_path)


def test_discard_takes_back_what_a_failed_fit_wrote_but_never_a_checkpoint(files, tmp_path):
    new, empty, going = tmp_path / "new", tmp_path / "empty", tmp_path / "going"
    for run in (new, empty, going):
        begun(run, files)
    (going / CHECKPOINT).write_bytes(b"")
    discard(new, existed=False)
    discard(empty, existed=True)
    discard(going, existed=False)
    discard(tmp_path / "never", existed=False)
    assert not new.exists()
    assert list(empty.iterdir()) == []
    assert (going / CHECKPOINT).exists()
