"""The command line: ``credo demo | fit | predict | evaluate | audit | methods | reproduce |
vae``.
"""

from credo.cli.app import main

__all__ = ["main"]
