"""A story as one HTML page of captions with links to their views."""

from __future__ import annotations

import html
from urllib.parse import urlencode

from kvlab.figures.base.template import FONT
from kvlab.trace.stories import Story, View

STYLE = (
    f"body{{font-family:{FONT};color:#1F2430;background:#FFFFFF;max-width:760px;margin:32px auto;padding:0 16px;"
    "line-height:1.55}li{margin:18px 0}a{color:#0068A8}small{color:#5A6270}"
)


def story_html(story: Story, base: str) -> str:
    """One self-contained HTML page; links lead to the dashboard at `base`."""
    items = "".join(f"<li>{_item(view, base)}</li>" for view in story.views)
    title = html.escape(story.name)
    head = f'<!doctype html><html lang="en"><meta charset="utf-8"><title>{title}</title><style>{STYLE}</style>'
    return f"{head}<h1>{title}</h1><ol>{items}</ol></html>"


def view_url(view: View, base: str) -> str:
    """URL of a view in the dashboard at `base`."""
    query = f"?{urlencode(view.query)}" if view.query else ""
    return f"{base}/{view.page}{query}"


def _item(view: View, base: str) -> str:
    caption = html.escape(view.caption).replace("\n", "<br>") or "<em>no caption</em>"
    link = html.escape(view_url(view, base), quote=True)
    return f'{caption}<br><small><a href="{link}">{html.escape(view.page)}</a></small>'
