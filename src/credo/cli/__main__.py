"""``python -m credo.cli``."""

from credo.cli.app import main

main()
