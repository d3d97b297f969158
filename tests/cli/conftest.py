import numpy as np
import pandas as pd
import pytest
from zoo.shell import Shell


def make_table(rows=60, seed=0):
    """Two numeric columns, one category, and targets that follow from them."""
    rng = np.random.default_rng(seed)
    frame = pd.DataFrame(
        {
            "size": rng.normal(50, 10, rows),
            "age": rng.integers(1, 90, rows),
            "town": rng.choice(["u", "v"], rows),
        }
    )
    frame["price"] = 3 * frame["size"] + 40 * (frame["town"] == "u") + rng.normal(0, 5, rows) + 1000
    frame["dear"] = np.where(frame["price"] > frame["price"].median(), "yes", "no")
    return frame


@pytest.fixture(scope="session")
def table():
    """Makes tables: ``table(rows, seed)``."""
    return make_table


@pytest.fixture(scope="session")
def runs(tmp_path_factory):
    """A regression and a classification run, with the table they were fitted to."""
    folder = tmp_path_factory.mktemp("runs")
    shell = Shell(folder)
    make_table().drop(columns="dear").to_csv(folder / "price.csv", index=False)
    make_table().drop(columns="price").to_csv(folder / "dear.csv", index=False)
    quick = ["--epochs", 30, "--lr", 0.02, "--hidden", "8"]
    for name in ("price", "dear"):
        result = shell(
            "fit", folder / f"{name}.csv", "--target", name, "--out", folder / name, *quick
        )
        assert result.exit_code == 0, (result.stderr, result.exception)
    return folder
