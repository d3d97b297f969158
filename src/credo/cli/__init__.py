"""The command line: ``credo demo | fit | predict | evaluate | audit | compress | methods``,
``credo task ...``, ``credo vae ...``, and what packages beside credo add.
"""

from credo.cli.app import main

__all__ = ["main"]
