"""Seconds that the test suite takes, by folder, from a run's own report of durations.

    python -m pytest -n 2 --dist worksteal -m "not slow" --durations=0 > tests.log
    python benchmarks/test_times.py tests.log

Prints a table of Markdown: seconds over all workers, number of tests, and the slowest test of every
folder, and what pytest says of the whole run.
"""

import re
import sys
from collections import defaultdict
from pathlib import Path

LINE = re.compile(r"^([\d.]+)s (call|setup|teardown) +(tests/\S+?)(?:::(.*))?$")


def main(path):
    text = Path(path).read_text()
    seconds, slowest, names = defaultdict(float), {}, defaultdict(set)
    for line in text.splitlines():
        found = LINE.match(line)
        if not found:
            continue
        took, file, name = float(found[1]), found[3], found[4]
        parts = file.split("/")
        folder = "/".join(parts[:-1][:3])
        seconds[folder] += took
        names[folder].add((file, name))
        slowest[folder] = max(slowest.get(folder, (0.0, "")), (took, f"{parts[-1]}::{name}"))
    print("| folder | seconds | tests above 5 ms | slowest test |")
    print("|---|---:|---:|---|")
    for folder, total in sorted(seconds.items(), key=lambda item: -item[1]):
        took, name = slowest[folder]
        print(f"| `{folder}` | {total:.0f} | {len(names[folder])} | {took:.1f} s `{name[:70]}` |")
    print(
        f"\nAll: {sum(seconds.values()):.0f} s of processor time. {text.rstrip().splitlines()[-5:]}"
    )


if __name__ == "__main__":
    main(sys.argv[1])
