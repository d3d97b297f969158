from credo.methods import names


def test_every_method_is_listed(shell):
    result = shell("methods")
    assert result.exit_code == 0
    assert all(name in result.stdout for name in names())


def test_one_method_shows_settings_and_reference(shell):
    result = shell("methods", "vi")
    assert result.exit_code == 0
    assert (
        "estimator" in result.stdout
        and "Reference:" in result.stdout
        and "flipout" in result.stdout
    )


def test_an_unknown_method_names_the_nearest(shell):
    assert "Unknown method 'mapp'. Did you mean 'map'" in shell.refuses("methods", "mapp")
