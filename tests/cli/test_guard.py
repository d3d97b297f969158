import errno
import subprocess
import sys

import pytest
import typer

from credo.cli.guard import guarded
from credo.core.errors import DataError


def code_of(error):
    @guarded
    def command():
        raise error

    with pytest.raises(typer.Exit) as caught:
        command()
    return caught.value.exit_code


def test_the_users_errors_are_one_line_and_exit_code_2(capsys):
    assert code_of(DataError("row 3\nis bad")) == 2
    assert capsys.readouterr().err == "credo: row 3 is bad\n"


def test_a_full_disk_is_the_users(capsys):
    assert code_of(OSError(errno.ENOSPC, "No space left on device", "run/x")) == 2
    assert capsys.readouterr().err.startswith("credo: No space left on device (run/x)")


@pytest.mark.parametrize("error", [ValueError("odd"), OSError(errno.EIO, "I/O error")])
def test_anything_else_is_ours_with_a_traceback_and_exit_code_1(error, capsys):
    assert code_of(error) == 1
    said = capsys.readouterr().err
    assert "Traceback" in said and "defect in credo" in said


def test_exits_pass_through():
    assert code_of(typer.Exit(5)) == 5


def test_a_reader_that_has_seen_enough_is_no_defect():
    """As ``credo methods | head -1``: the pipe is closed while the list is written."""
    code = "import sys; sys.argv = ['credo', 'methods']; from credo.cli import main; main()"
    command = [sys.executable, "-u", "-c", code]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as run:
        assert run.stdout is not None and run.stderr is not None
        run.stdout.close()
        assert run.stderr.read() == b""
    assert run.returncode in (0, 1)  # 1 where the printer of tables notices it first
