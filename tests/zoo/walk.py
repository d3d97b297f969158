"""The files of credo that one command enters, in order: ``python walk.py credo-arguments...``.

Imports are not counted: every module is imported first. Prints JSON: files in the order in which
they are first entered, below the package.
"""

import importlib
import json
import pkgutil
import sys
from pathlib import Path

SKIPPED = ("<module>", "<lambda>", "<genexpr>", "<listcomp>")


def main(words):
    import credo

    for module in pkgutil.walk_packages(credo.__path__, "credo."):
        if not module.name.endswith("__main__"):
            importlib.import_module(module.name)
    root, entered, known = Path(credo.__file__).parent, {}, {}

    def place(name):
        if name not in known:
            path = Path(name)
            inside = path.is_relative_to(root)
            known[name] = str(path.relative_to(root)) if inside else None
        return known[name]

    def watch(frame, event, _):
        if event == "call" and frame.f_code.co_name not in SKIPPED:
            where = place(frame.f_code.co_filename)
            if where is not None:
                entered.setdefault(where, None)

    from credo.cli import main as command

    sys.argv = ["credo", *words]
    sys.setprofile(watch)
    try:
        command()
    except SystemExit as stop:
        if stop.code:
            raise
    finally:
        sys.setprofile(None)
    print(json.dumps(list(entered)))


if __name__ == "__main__":
    main(sys.argv[1:])
