"""Tables the command line is tried on."""

import numpy as np
import pandas as pd


def table(rows=60, seed=0):
    """Two numeric columns, one category, and targets that follow from them."""
    rng = np.random.default_rng(seed)
    frame = pd.DataFrame(
        {"size": rng.normal(50, 10, rows), "age": rng.integers(1, 90, rows), "town": rng.choice(["u", "v"], rows)}
    )
    frame["price"] = 3 * frame["size"] + 40 * (frame["town"] == "u") + rng.normal(0, 5, rows) + 1000
    frame["dear"] = np.where(frame["price"] > frame["price"].median(), "yes", "no")
    return frame
