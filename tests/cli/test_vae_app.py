import pytest


def test_the_commands_are_listed_with_a_way_to_start(shell):
    result = shell("vae", "--help")
    assert result.exit_code == 0
    assert (
        all(name in result.stdout for name in ("fit", "sample", "report"))
        and "credo vae fit digits" in result.stdout
    )


@pytest.mark.parametrize("command", ["fit", "sample", "report"])
def test_every_command_explains_each_flag(shell, command):
    result = shell("vae", command, "--help")
    assert result.exit_code == 0 and result.stdout.count("--") >= 4


def test_usage_errors_exit_with_2(shell):
    assert shell("vae", "fitt").exit_code == 2
    assert shell("vae", "fit").exit_code == 2
    assert shell("vae", "fit", "digits", "--latent", 0).exit_code == 2
