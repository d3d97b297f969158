"""Reports: one HTML page made from a plain dictionary of results."""

from credo.report.html import require, write

__all__ = ["require", "write"]
