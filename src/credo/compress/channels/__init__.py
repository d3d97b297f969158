"""Which channels of a network belong together, which are constant, and which its output needs: the
analysis behind slimming.

``units`` has the layouts of channels and what follows from them, ``rules`` the table from
operations to rules. Rules: ``mixing_layers``, ``per_channel``, ``moved_channels``, with
``operands`` for what a rule reads of an operation.
"""

from credo.compress.channels.rules import analyse

__all__ = ["analyse"]
