"""Data: one door for arrays, frames and loaders, tables with a stored schema, and known data
sets.
"""

from credo.data.checks import check_inputs
from credo.data.intake import intake
from credo.data.letters import letters
from credo.data.sets import load, names
from credo.data.source import Source
from credo.data.table import TableSchema, read_table

__all__ = [
    "Source",
    "TableSchema",
    "check_inputs",
    "intake",
    "letters",
    "load",
    "names",
    "read_table",
]
