"""Known data sets by name, found in a folder of npz files, in the cache, or in installed
packages.
"""

from __future__ import annotations

import hashlib
import os
import re
import zipfile
from pathlib import Path

import numpy as np

from credo.core.errors import DataError, nearest
from credo.data.codings import decode
from credo.data.download import SUMS, download, read_sums
from credo.data.packaged import NAMES, packaged

# A set stored as several files reads as one.
_PARTS = {"cifar10": ("cifar10_train20k", "cifar10_test")}


def load(name: str) -> dict[str, np.ndarray]:
    """The arrays of the data set ``name``.

    Looks in ``$CREDO_DATA`` (npz files with a SHA256SUMS beside them), then in the cache, then in
    installed packages (scikit-learn: digits, diabetes, iris, wine, breast_cancer), and last, where
    ``$CREDO_DATA_URL`` is set, downloads into the cache. A file whose checksum differs, or a name
    found nowhere, is a ``DataError``.
    """
    if not re.fullmatch(r"\w+", name):
        raise DataError(
            f"{name!r} is not the name of a data set; expected letters, digits and underscores."
        )
    if name in _PARTS:
        return {key: array for part in _PARTS[name] for key, array in load(part).items()}
    file = f"{name}.npz"
    folders = _folders()
    for folder in folders:
        if (folder / file).is_file():
            return _read(folder / file)
    if name in NAMES:
        return packaged(name)
    base = os.environ.get("CREDO_DATA_URL")
    fetched = download(file, base, _cache()) if base else None
    if fetched is not None:
        return _read(fetched)
    looked = [*map(str, folders), "scikit-learn", *([base] if base else [])]
    unset = [v for v in ("CREDO_DATA", "CREDO_DATA_URL") if not os.environ.get(v)]
    hint = f" Not set: {', '.join('$' + v for v in unset)}." if unset else ""
    raise DataError(f"No data set {name!r} in {', '.join(looked)}.{hint}{nearest(name, names())}")


def names() -> list[str]:
    """Data sets that :func:`load` finds without downloading."""
    stored = {
        path.stem for folder in _folders() if folder.is_dir() for path in folder.glob("*.npz")
    }
    joined = {name for name, parts in _PARTS.items() if stored.issuperset(parts)}
    return sorted(stored | joined | set(NAMES))


def _cache() -> Path:
    return Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser() / "credo"


def _folders() -> list[Path]:
    given = os.environ.get("CREDO_DATA")
    return [*([Path(given).expanduser()] if given else []), _cache()]


def _read(path: Path) -> dict[str, np.ndarray]:
    sums = path.with_name(SUMS)
    wanted = read_sums(sums.read_text()).get(path.name) if sums.is_file() else None
    if wanted is None:
        raise DataError(
            f"{path} has no line in {sums}; add one with sha256sum so that the file can be checked."
        )
    with path.open("rb") as file:
        found = hashlib.file_digest(file, "sha256").hexdigest()
    if found != wanted:
        raise DataError(
            f"{path} has SHA-256 {found}; {SUMS} says {wanted}, so the file is damaged or "
            "altered: replace it."
        )
    try:
        with np.load(path, allow_pickle=False) as arrays:
            return dict(decode(key, arrays[key]) for key in arrays.files)
    except (ValueError, OSError, zipfile.BadZipFile) as error:
        raise DataError(f"{path} is not a readable npz file ({error}); replace it.") from error
