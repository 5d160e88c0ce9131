"""Terminal output that shows the user's text literally, without rich's markup or terminal codes."""

import re
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, ProgressColumn, TextColumn, TimeRemainingColumn
from rich.table import Table
from rich.text import Text

WIDTH = 150  # of tables without a terminal
CONTROLS = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")  # all but tab and line feed


class PlainConsole(Console):
    """A console that prints every string literally: in tables, titles, captions and messages."""

    def __init__(self, **options: Any) -> None:
        super().__init__(markup=False, emoji=False, **options)

    def render_str(self, text: str, **options: Any) -> Text:
        """The text with its control characters made visible, so that no title moves the cursor."""
        return super().render_str(without_controls(text), **options)


def without_controls(text: str) -> str:
    """The text with each control character as its Unicode picture, or as a question mark."""
    return CONTROLS.sub(lambda match: chr(0x2400 + ord(match[0])) if match[0] < " " else "?", text)


def standard_output(piped_width: int) -> Console:
    """Standard output: as wide as the terminal; when piped, `piped_width` or COLUMNS, whichever is larger."""
    console = PlainConsole()
    return console if console.is_terminal else PlainConsole(width=max(console.width, piped_width))


def print_wide(table: Table, piped_width: int = WIDTH) -> None:
    """Print at the terminal's width, or wide enough for all columns without a terminal."""
    standard_output(piped_width).print(table)


def standard_error() -> Console:
    """Standard error."""
    return PlainConsole(stderr=True)


def progress_columns() -> tuple[ProgressColumn, ...]:
    """A bar, its count, the remaining time and the current step."""
    return BarColumn(), MofNCompleteColumn(), TimeRemainingColumn(), TextColumn("{task.description}", markup=False)
