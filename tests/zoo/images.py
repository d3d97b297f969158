"""Images in the form of CIFAR-10 and of MNIST."""

import numpy as np


def made_up(name, num_train=60, num_test=30):
    """Ten classes of 32 x 32 images that differ in brightness."""
    assert name == "cifar10"
    source = np.random.default_rng(0)
    out = {}
    for part, count in (("train", num_train), ("test", num_test)):
        y = np.arange(count) % 10
        x = source.integers(0, 60, size=(count, 32, 32, 3)) + 15 * y[:, None, None, None]
        out |= {f"x_{part}": x.astype(np.uint8), f"y_{part}": y.astype(np.uint8)}
    return out


def digits_like(name):
    """Ten classes of 28 x 28 images that differ in brightness."""
    assert name == "mnist"
    source, out = np.random.default_rng(0), {}
    for part, count in (("train", 200), ("test", 100)):
        y = np.arange(count) % 10
        x = source.integers(0, 40, size=(count, 28, 28)) + 20 * y[:, None, None]
        out |= {f"x_{part}": x.astype(np.uint8), f"y_{part}": y.astype(np.uint8)}
    return out
