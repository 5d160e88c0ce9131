"""HTML of views that are not charts, using the dashboard's own scripts so that talks behave like the pages."""

import html
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from kvlab.browser import read_static
from kvlab.report.pictures import picture
from kvlab.report.views import History, Passages, Shown, Table, Text
from kvlab.views.base.palette import Theme, pick
from kvlab.views.timeline import history_data, state_looks

STYLES: dict[type[Shown], tuple[str, ...]] = {Text: ("tokentext.css",), History: ("step-bar.css", "tokenstrip.css")}
PARTS: dict[type[Shown], str] = {Text: "tokentext", History: "tokenstrip"}
MARKS = {"same": "{}", "own": "<ins>{}</ins>", "missing": "<del>{}</del>"}
SHORT = 12  # characters of a cell that stay on one line
HINT = "Hover over a word to see its fate."


def markup(shown: Shown, theme: Theme) -> str:
    """Initial HTML of a slide, with a static picture for printing."""
    if isinstance(shown, Table):
        head = "".join(f"<th>{html.escape(name)}</th>" for name in shown.columns)
        rows = ""
        for row in shown.rows:
            cells = (f"<td{' class=short' if len(text) <= SHORT else ''}>{html.escape(text)}</td>" for text in row)
            rows += f"<tr>{''.join(cells)}</tr>"
        more = f"<p class=more>and {shown.left_out:,} more rows</p>" if shown.left_out else ""
        return f'<div class="scroll"><table><thead><tr>{head}</tr></thead><tbody>{rows}</tbody></table>{more}</div>'
    if isinstance(shown, Passages):
        return f'<div class="scroll passages">{"".join(passage(*one) for one in shown.passages)}</div>'
    svg = picture(shown, theme).decode()
    return f'<div class="alive">{read_static(f"{PARTS[type(shown)]}.html")}</div><div class="paper">{svg}</div>'


def data(shown: Shown, theme: Theme, identity: str) -> dict[str, Any] | None:
    """Data of the component as JSON; None if it needs no script."""
    if isinstance(shown, Text):
        classes = [{"name": one.name, "colour": pick(one.colour, theme), "cue": one.cue} for one in shown.classes]
        given: Mapping[str, Any] = {
            "texts": shown.texts,
            "codes": shown.codes,
            "classes": classes,
            "identity": identity,
            "hint": HINT,
            "chosen": shown.chosen,
            "choosing": False,
            "scroll": shown.chosen[0] if shown.chosen else None,
        }
    elif isinstance(shown, History):
        given = (
            history_data(shown.lineage())
            | state_looks(theme)
            | {
                "texts": shown.texts,
                "identity": identity,
                "step": shown.step,
                "selected": shown.selected,
                "why": "",
                "phases": shown.phases,
                "massesStep": None,
            }
        )
    else:
        return None
    # The script expects the states as a flat, row-major list.
    plain = {name: value.ravel().tolist() if isinstance(value, np.ndarray) else value for name, value in given.items()}
    return {"view": PARTS[type(shown)]} | plain


def passage(label: str, segments: Sequence[tuple[str, str]]) -> str:
    """A text with marked differences."""
    marked = "".join(MARKS[kind].format(html.escape(text)) for kind, text in segments)
    return f"<article><b>{html.escape(label)}</b><div class=text>{marked}</div></article>"
