"""Images from a known data set, a folder or an array file, with pixels as floats in [0, 1]."""

from __future__ import annotations

import re
import zipfile
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import final

import numpy as np

from credo.core.errors import DataError, SettingError
from credo.data.folders import read_folder
from credo.data.sets import load, names

# Sets stored as rows of whole numbers in floats: the images they are, and their top level.
_KNOWN: dict[str, tuple[tuple[int, int], int]] = {"digits": ((8, 8), 16)}
_TOP = 255


@final
@dataclass(frozen=True)
class Images:
    """Training images ``x (N, *shape)`` as float32 in [0, 1] with their labels ``(N,)``, and test
    images where the source has any.

    ``levels``: how many values a pixel could have where it was stored, 256 for bytes and for
    floats.
    """

    x: np.ndarray
    labels: np.ndarray | None = None
    test_x: np.ndarray | None = None
    test_labels: np.ndarray | None = None
    levels: int = _TOP + 1

    @property
    def shape(self) -> tuple[int, ...]:
        """Of one datum: (H, W), (3, H, W), or (D,) where the rows are no images."""
        return self.x.shape[1:]

    @property
    def binary(self) -> bool:
        """Whether every pixel is 0 or 1."""
        return all(
            bool(((part == 0) | (part == 1)).all())
            for part in (self.x, self.test_x)
            if part is not None
        )

    def held_out(self, share: float = 0.1, seed: int = 0) -> Images:
        """The same with a random share set aside as test images, unless there are some already; the
        seed says which.
        """
        if self.test_x is not None:
            return self
        if not 0.0 < share < 1.0:
            raise SettingError(
                f"share={share!r} is not valid; expected a share of the images above 0 and below "
                "1, such as 0.1."
            )
        count = max(1, round(share * len(self.x)))
        if count >= len(self.x):
            raise DataError(
                f"There are {len(self.x)} images, too few to set {count} aside for testing; give "
                "more."
            )
        order = np.random.default_rng(seed).permutation(len(self.x))
        test_rows, train_rows = np.sort(order[:count]), np.sort(order[count:])
        labels, test_labels = (
            None if self.labels is None else self.labels[rows] for rows in (train_rows, test_rows)
        )
        return replace(
            self,
            x=self.x[train_rows],
            labels=labels,
            test_x=self.x[test_rows],
            test_labels=test_labels,
        )

    def limited(self, most: int | None) -> Images:
        """The same with at most so many training images, evenly spread over all of them: folders
        are sorted by label.
        """
        if most is None or most >= len(self.x):
            return self
        if most < 1:
            raise SettingError(f"limit={most!r} is not valid; expected a whole number above 0.")
        rows = evenly(len(self.x), most)
        return replace(
            self, x=self.x[rows], labels=None if self.labels is None else self.labels[rows]
        )


def read_images(
    source: str | Path, size: tuple[int, int] | None = None, labels: str | Path | None = None
) -> Images:
    """Images from the name of a data set (see ``credo.data.names``), a folder, or an array file
    (.npy, .npz, .safetensors).

    Names win over paths; ``./digits`` is always a path. Array files hold ``x``, or ``x_train`` and
    ``x_test``, with labels ``y``, ``y_train``, ``y_test``; channels may come first or last. A
    folder holds PNG or JPEG files, in sub-folders where they have labels, and below ``train`` and
    ``test`` where they are split. ``size``: (height, width) to which images of a folder are
    resized, and as which flat rows are read. ``labels``: a .npy file with one label per image,
    those of test images last. Fails on pixels outside [0, 1] or 0 to 255.
    """
    name, path = str(source), Path(source)
    if re.fullmatch(r"\w+", name) and (name in names() or not path.exists()):
        shape, top = _KNOWN.get(name, (None, None))
        found = _from_arrays(load(name), f"The data set {name!r}", size or shape, top)
    elif path.is_dir():
        found = _from_folder(path, size)
    else:
        found = _from_arrays(_read_arrays(path), str(path), size, None)
    return found if labels is None else _relabelled(found, Path(labels))


def evenly(count: int, most: int) -> np.ndarray:
    """Up to ``most`` of the places 0..count-1, evenly spaced."""
    return np.arange(count) if most >= count else (np.arange(most) * count) // most


def _from_folder(path: Path, size: tuple[int, int] | None) -> Images:
    split = (path / "train").is_dir()
    arrays: dict[str, np.ndarray] = {}
    for part in [name for name in ("train", "test") if (path / name).is_dir()] if split else [""]:
        x, labels = read_folder(path / part, size)
        arrays |= {f"x_{part or 'train'}": x} | (
            {} if labels is None else {f"y_{part or 'train'}": labels}
        )
    return _from_arrays(arrays, str(path), None, _TOP)


def _read_arrays(path: Path) -> dict[str, np.ndarray]:
    """The arrays of a file; a single one is ``x`` whatever its name."""
    if not path.exists():
        raise DataError(
            f"{path} does not exist; expected a folder of images, an array file, or a data set's "
            "name such as digits."
        )
    reader = _READERS.get(path.suffix.lower())
    if reader is None:
        raise DataError(
            f"{path} ends in {path.suffix!r}; expected {', '.join(_READERS)}, a folder of images, "
            "or a data set's name."
        )
    try:
        arrays = reader(path)
    except Exception as error:  # what a damaged file raises depends on where it is damaged
        raise DataError(
            f"{path} is not a readable {path.suffix} file ({error}); replace it."
        ) from error
    return {"x": next(iter(arrays.values()))} if len(arrays) == 1 else arrays


def _npy(path: Path) -> dict[str, np.ndarray]:
    return {"x": np.load(path, allow_pickle=False)}


def _npz(path: Path) -> dict[str, np.ndarray]:
    if not zipfile.is_zipfile(path):
        raise ValueError("it is no zip archive")
    with np.load(path, allow_pickle=False) as arrays:
        return {key: arrays[key] for key in arrays.files}


def _safetensors(path: Path) -> dict[str, np.ndarray]:
    from safetensors.numpy import load_file

    return load_file(path)


_READERS = {".npy": _npy, ".npz": _npz, ".safetensors": _safetensors}


def _from_arrays(
    arrays: Mapping[str, np.ndarray], owner: str, size: tuple[int, int] | None, top: int | None
) -> Images:
    key, target = ("x_train", "y_train") if "x_train" in arrays else ("x", "y")
    if key not in arrays:
        found = ", ".join(list(arrays)[:6]) + (", ..." if len(arrays) > 6 else "")
        raise DataError(
            f"{owner} holds {found or 'nothing'}; expected images under x, or under x_train and "
            "x_test."
        )
    keys = [name for name in (key, "x_test") if name in arrays]
    parts = [_framed(arrays[name], f"{owner}: {name}", size) for name in keys]
    if len({part.shape[1:] for part in parts}) > 1:
        raise DataError(
            f"{owner}: {key} has images of shape {parts[0].shape[1:]}, x_test of "
            f"{parts[1].shape[1:]}; expected one shape."
        )
    top = _top(parts, owner, top)
    units = [(part / np.float32(top or 1)).astype(np.float32) for part in parts]
    labels = [
        _labels(arrays.get(name), part)
        for name, part in zip((target, "y_test"), parts, strict=False)
    ]
    test = (units[1], labels[1]) if len(units) > 1 else (None, None)
    return Images(units[0], labels[0], *test, levels=(top or _TOP) + 1)


def _framed(x: np.ndarray, owner: str, size: tuple[int, int] | None) -> np.ndarray:
    """``(N, H, W)``, ``(N, 3, H, W)`` or ``(N, D)``: channels first, a single one dropped, flat
    rows as images of ``size``.
    """
    if x.dtype.kind not in "biuf":
        raise DataError(f"{owner} has dtype {x.dtype}; expected numbers.")
    if x.ndim < 2 or x.ndim > 4 or x.size == 0:
        raise DataError(
            f"{owner} has shape {x.shape}; expected (N, H, W), (N, C, H, W), (N, H, W, C) or flat "
            "rows (N, D)."
        )
    if x.ndim == 2 and size is not None:
        if size[0] * size[1] != x.shape[1]:
            raise DataError(
                f"{owner} has rows of {x.shape[1]} numbers, which are no images of {size[0]} x "
                f"{size[1]}; change the size."
            )
        return x.reshape(-1, *size)
    if x.ndim == 4:
        if x.shape[1] not in (1, 3) and x.shape[-1] in (1, 3):
            x = np.moveaxis(x, -1, 1)
        if x.shape[1] not in (1, 3):
            raise DataError(
                f"{owner} has shape {x.shape}; expected 1 or 3 channels, first or last in each "
                "image."
            )
        x = x[:, 0] if x.shape[1] == 1 else x
    if size is not None and x.shape[-2:] != size:
        raise DataError(
            f"{owner} has images of {x.shape[-2]} x {x.shape[-1]}, not {size[0]} x {size[1]}; "
            "only a folder's can be resized."
        )
    return x


def _top(parts: list[np.ndarray], owner: str, known: int | None) -> int | None:
    """The level that stands for white: 255, or 1 where there are only 0 and 1; None for floats that
    are in [0, 1] already.
    """
    low, high = (float(edge([edge(part) for part in parts])) for edge in (np.min, np.max))
    floats = any(part.dtype.kind == "f" for part in parts) and known is None
    if not (
        low >= 0 and high <= (1 if floats else known or _TOP)
    ):  # written so that a NaN is refused too
        raise DataError(
            f"{owner} has values from {low:g} to {high:g}; expected pixels, floats in [0, 1] or "
            "whole numbers from 0 to "
            f"{known or _TOP}: scale them first. For other data than images use "
            "credo.generative.VAE with a likelihood that suits them."
        )
    return known or (None if floats else _TOP if high > 1 else 1)


def _labels(y: np.ndarray | None, x: np.ndarray) -> np.ndarray | None:
    """One label per image, or none: a map of labels per pixel is none."""
    return y if y is not None and y.shape == (len(x),) else None


def _relabelled(images: Images, path: Path) -> Images:
    if not path.is_file():
        raise DataError(f"{path} does not exist; expected a .npy file with one label per image.")
    given = _read_arrays(path).get("x")
    first, rest = len(images.x), 0 if images.test_x is None else len(images.test_x)
    if given is None or given.shape != (first + rest,):
        what = "holds several arrays" if given is None else f"has shape {given.shape}"
        more = f" ({first} for training, then {rest} for testing)" if rest else ""
        raise DataError(
            f"{path} {what}; expected shape ({first + rest},), one label for each of the "
            f"{first + rest} images{more}."
        )
    return replace(images, labels=given[:first], test_labels=given[first:] if rest else None)
