"""``python -m credo.conformance [METHOD ...]``: run the suite and print a table; exit 1 if anything
failed.
"""

from __future__ import annotations

import sys

from credo.conformance import check
from credo.methods import names


def main(given: list[str]) -> int:
    """Run and report."""
    failed = 0
    for name in given or names():
        for result in check(name):
            failed += result.status == "failed"
            print(
                f"{result.method:12} {result.check:22} {result.status:9} {result.seconds:6.1f} s  "
                f"{result.reason}",
                flush=True,
            )
    print(f"{failed} failed")
    return min(failed, 1)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
