"""Fetch one file and its checksum from a configured address; nothing is fetched unless
``$CREDO_DATA_URL`` is set.
"""

from __future__ import annotations

import hashlib
import urllib.error
import urllib.request
from pathlib import Path

from credo.core.atomic import write_atomic
from credo.core.errors import DataError

SUMS = "SHA256SUMS"
_TIMEOUT_S = 60.0


def download(file: str, base: str, folder: Path) -> Path | None:
    """Copy ``base/file`` into ``folder`` and return its path, or None where ``base/SHA256SUMS``
    does not list it.

    The file is written beside its place, checked, and renamed, so a broken transfer leaves nothing
    behind.
    """
    base = base.rstrip("/")
    wanted = read_sums(_fetch(f"{base}/{SUMS}").decode()).get(file)
    if wanted is None:
        return None
    content = _fetch(f"{base}/{file}")
    found = hashlib.sha256(content).hexdigest()
    if found != wanted:
        raise DataError(
            f"{base}/{file} has SHA-256 {found}; {SUMS} says {wanted}, so the transfer or the "
            "file is damaged: try again."
        )
    folder.mkdir(parents=True, exist_ok=True)
    write_atomic(folder / file, lambda beside: beside.write_bytes(content))
    sums = folder / SUMS
    known = read_sums(sums.read_text()) if sums.exists() else {}
    lines = [f"{digest}  {name}\n" for name, digest in sorted((known | {file: wanted}).items())]
    write_atomic(sums, lambda beside: beside.write_text("".join(lines)))
    return folder / file


def read_sums(text: str) -> dict[str, str]:
    """File name to SHA-256, from lines of ``digest  name`` as sha256sum writes them."""
    rows = (line.split(maxsplit=1) for line in text.splitlines() if line.strip())
    return {row[1].strip().lstrip("*"): row[0].lower() for row in rows if len(row) == 2}


def _fetch(address: str) -> bytes:
    try:
        with urllib.request.urlopen(address, timeout=_TIMEOUT_S) as answer:
            return answer.read()
    except (urllib.error.URLError, OSError, ValueError) as error:
        raise DataError(
            f"{address} cannot be fetched ({error}); check $CREDO_DATA_URL and the connection."
        ) from error
