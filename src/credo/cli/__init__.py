"""The command line: ``credo demo | fit | predict | evaluate | methods``."""

from credo.cli.app import main

__all__ = ["main"]
