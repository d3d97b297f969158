"""Data sets that come with scikit-learn and so are always there."""

from __future__ import annotations

from typing import Any

import numpy as np

NAMES = ("digits", "diabetes", "iris", "wine", "breast_cancer")


def packaged(name: str) -> dict[str, np.ndarray]:
    """``x (N, D)`` and ``y (N,)``, with ``feature_names`` and, for classes, ``class_names``.
    Diabetes is in its raw units.
    """
    from sklearn import datasets

    options: dict[str, Any] = {"scaled": False} if name == "diabetes" else {}
    bunch = getattr(datasets, f"load_{name}")(**options)
    arrays = {"x": bunch.data, "y": bunch.target, "feature_names": np.array(bunch.feature_names)}
    if "target_names" in bunch:
        arrays["class_names"] = np.array(bunch.target_names)
    return arrays
