import subprocess
import sys

import pytest

from credo.cli import main
from credo.cli.app import app


@pytest.mark.parametrize(
    "command", ["demo", "fit", "predict", "evaluate", "audit", "methods", "reproduce", "vae"]
)
def test_every_command_explains_each_flag(shell, command):
    result = shell(command, "--help")
    assert result.exit_code == 0
    assert result.stdout.count("\n") > 5


def test_version_and_entry_point(shell, monkeypatch, capsys):
    assert shell("--version").stdout.startswith("credo ")
    monkeypatch.setattr(sys, "argv", ["credo", "--version"])
    with pytest.raises(SystemExit) as caught:
        main()
    assert caught.value.code == 0
    assert capsys.readouterr().out.startswith("credo ")
    assert app.info.name == "credo"


def test_an_unknown_command_exits_with_2():
    done = subprocess.run(
        [sys.executable, "-c", "from credo.cli import main; main()", "fitt"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 2 and "Traceback" not in done.stderr
