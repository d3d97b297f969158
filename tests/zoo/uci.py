"""Made-up regression sets in the form of the UCI files, in a folder of their own that
``credo.data.load`` reads.
"""

import hashlib

import numpy as np


def made_up(num_data=60, splits=3, seed=0):
    """Arrays of a set: three inputs of which the last is constant, a curved target of size 10, and
    splits of 90 % and 10 %.
    """
    source = np.random.default_rng(seed)
    x = source.normal(size=(num_data, 3)) * [1.0, 5.0, 0.0] + [0.0, 2.0, 7.0]
    y = 10.0 * np.sin(x[:, 0]) + x[:, 1] + source.normal(size=num_data)
    orders = np.stack([source.permutation(num_data) for _ in range(splits)]).astype(np.uint16)
    cut = num_data // 10
    return {"X": x, "y": y, "train_idx": orders[:, cut:], "test_idx": orders[:, :cut]}


def write_set(folder, name, arrays):
    """An npz file, and its line in the list of checksums."""
    path = folder / f"{name}.npz"
    np.savez(path, **arrays)
    sums = folder / "SHA256SUMS"
    lines = (
        [line for line in sums.read_text().splitlines() if not line.endswith(path.name)]
        if sums.is_file()
        else []
    )
    sums.write_text(
        "\n".join([*lines, f"{hashlib.sha256(path.read_bytes()).hexdigest()}  {path.name}"]) + "\n"
    )
