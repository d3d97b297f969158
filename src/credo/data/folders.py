"""A folder of PNG or JPEG files as one array; sub-folders are labels."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from credo.core.errors import DataError, SettingError

SUFFIXES = (".png", ".jpg", ".jpeg")
_GREY = ("1", "L", "LA")  # Pillow's names of modes without colour
_DEEP = ("I", "F")  # and how those begin that do not fit into bytes


def read_folder(
    path: Path, size: tuple[int, int] | None = None
) -> tuple[np.ndarray, np.ndarray | None]:
    """Bytes ``(N, H, W)``, or ``(N, 3, H, W)`` where an image has colour, and the names of the
    sub-folders they lie in ``(N,)``.

    ``size``: (height, width) to resize to. Fails where the images have different sizes and none is
    given, where a file cannot be read, where images lie both in the folder and in its sub-folders,
    and where Pillow is not installed.
    """
    files = sorted(
        file for file in path.rglob("*") if file.suffix.lower() in SUFFIXES and file.is_file()
    )
    if not files:
        raise DataError(
            f"{path} holds no images; expected files ending in {', '.join(SUFFIXES)}, in it or in "
            "its sub-folders."
        )
    places = [file.relative_to(path).parts[:-1] for file in files]
    if len({bool(place) for place in places}) > 1:
        raise DataError(
            f"{path} holds images both in itself and in sub-folders, which are labels; move all "
            "of them into sub-folders."
        )
    pillow = _pillow()
    images = [_open(pillow, file) for file in files]
    mode = "L" if all(image.mode in _GREY for image in images) else "RGB"
    images = [image.convert(mode) for image in images]
    if size is not None:
        images = [image.resize((size[1], size[0]), pillow.Resampling.BILINEAR) for image in images]
    for file, image in zip(files, images, strict=True):
        if image.size != images[0].size:
            (width, height), (first_width, first_height) = image.size, images[0].size
            raise DataError(
                f"{file} has {height} x {width} pixels, but {files[0]} has {first_height} x "
                f"{first_width}; "
                "expected one size: give one (--size HEIGHT,WIDTH) to resize them all."
            )
    x = np.stack([np.asarray(image) for image in images])
    labels = np.array([place[0] for place in places]) if places[0] else None
    return (np.moveaxis(x, -1, 1) if x.ndim == 4 else x), labels


def _pillow() -> Any:
    try:
        from PIL import Image
    except ImportError as error:
        raise SettingError(
            "A folder of images needs the package 'pillow': pip install 'credo-bayes[images]', or "
            "give an array file (.npy, .npz)."
        ) from error
    return Image


def _open(pillow: Any, file: Path) -> Any:
    """A decoded image, with the file closed again."""
    try:
        with pillow.open(file) as image:
            image.load()
    except (OSError, ValueError, SyntaxError) as error:
        raise DataError(
            f"{file} cannot be read as an image ({error}); replace or remove it."
        ) from error
    if image.mode.startswith(_DEEP):
        raise DataError(
            f"{file} has pixels of mode {image.mode}, more than 8 bits; expected grey or colour "
            "images of 8 bits."
        )
    return image
