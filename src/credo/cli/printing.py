"""Tables on stdout."""

from __future__ import annotations

from collections.abc import Sequence


def print_table(title: str, header: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """A table with a title; every column but the first is aligned to the right where all of it
    is numeric.
    """
    from rich import box
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table(box=box.SIMPLE_HEAD)
    for place, name in enumerate(header):
        numeric = place > 0 and all(_is_numeric(row[place]) for row in rows)
        table.add_column(
            name, justify="right" if numeric else "left", no_wrap=numeric or place == 0
        )
    for row in rows:
        # Text, because rich reads square brackets in plain strings as markup.
        table.add_row(*(Text(cell) for cell in row))
    console = Console()
    if not console.is_terminal:
        # A pipe has no width to wrap to.
        console = Console(width=max(console.width, 160))
    # Not the table's own title, which would be wrapped to the width of the table.
    console.print(Text(title, style="bold"))
    console.print(table)


def _is_numeric(text: str) -> bool:
    return (
        text == "–"
        or text.replace(",", "")
        .replace(".", "")
        .replace("e", "")
        .lstrip("-+")
        .replace("-", "")
        .isdecimal()
    )
