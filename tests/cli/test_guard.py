import errno

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
