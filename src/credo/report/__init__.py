"""Reports: one HTML page made from a plain dictionary of results."""

from credo.report.html import write

__all__ = ["write"]
