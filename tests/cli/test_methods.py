import pytest

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


@pytest.fixture
def prices(table, tmp_path):
    table().drop(columns="dear").to_csv(tmp_path / "price.csv", index=False)
    return tmp_path / "price.csv"


def test_the_plan_of_a_fit_to_a_table_follows_the_page(shell, prices):
    result = shell("methods", "vi", "--for", prices, "--target", "price", "--hidden", "8")
    assert result.exit_code == 0, result.stderr
    page, plan = result.stdout.split(f"For {prices}:\n")
    assert "Reference:" in page
    assert plan.startswith("vi on 60 examples, 49 random weights\n")
    assert "all 60, 1 batch per epoch" in plan and "at most 8,000 epochs, 8,000 steps" in plan
    assert "the objective has settled" in plan


def test_what_a_method_refuses_is_refused(shell, prices):
    said = shell.refuses("methods", "exact", "--for", prices, "--target", "price")
    assert "linear" in said


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--for", "a.csv"], "--for a.csv needs the name of a method too"),
        (["--for", "a.csv", "--target", "y"], "--for a.csv needs the name of a method too"),
        (["vi", "--for", "a.csv"], "--for a.csv needs --target COLUMN too"),
        (["vi", "--target", "y"], "--target y is a column of a table"),
    ],
    ids=["no name", "no name but a target", "no target", "no table"],
)
def test_what_goes_with_a_table(shell, words, message):
    assert message in shell.refuses("methods", *words)


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("vi", "epochs until the objective has settled, 8,000 steps at most on few data; "),
        ("swag", "epochs for 3,000 steps, on few data; --batch-size 128; --lr by the size"),
        ("map", "--lr by the size of the network"),
        ("sgld", "as many moves as its settings say; --batch-size all where"),
        ("exact", "Defaults: one pass over the data, without steps"),
    ],
)
def test_defaults_that_depend_on_the_problem_are_said_in_words(shell, name, says):
    assert says in shell("methods", name).stdout
