"""A report as one self-contained HTML file with interactive figures, and a story as a page of captions with links."""

import html
from urllib.parse import urlencode

from kvlab.report.contents import Report
from kvlab.report.deck import slide_text
from kvlab.report.interactive import passage
from kvlab.trace.stories import Story
from kvlab.views.base import FONT, INK, SURFACES, Theme
from kvlab.views.base.export import figure_html

# width of a figure and of the margin in pixels; the page has the aspect ratio of A4
WIDE = 1080
EDGE = 50
STYLE = """
body {{ font-family: {font}; background: {ground}; color: {ink}; line-height: 1.5;
  max-width: 1120px; margin: 28px auto; padding: 0 14px; }}
h1 {{ margin-bottom: 4px; }}
h2 {{ margin-top: 34px; }}
small, .origin {{ opacity: .75; font-size: 13px; }}
blockquote {{ border-left: 4px solid #8886; margin: 12px 0; padding: 4px 14px;
  white-space: pre-wrap; overflow-wrap: anywhere; }}
table {{ border-collapse: collapse; font-size: 14px; }}
td, th {{ border: 1px solid #8884; padding: 4px 9px; text-align: left; }}
.wide {{ overflow-x: auto; }}
section {{ margin-bottom: 30px; overflow-x: auto; break-inside: avoid; }}
.text {{ white-space: pre-wrap; overflow-wrap: anywhere; border: 1px solid #8884; border-radius: 8px;
  padding: 8px 12px; }}
ins {{ background: rgba(200, 80, 10, .22); text-decoration: none; border-bottom: 2px solid rgb(200, 80, 10); }}
del {{ opacity: .68; }}
details {{ margin: 10px 0; }}
@page {{ size: {paper_width}px {paper_height}px; margin: {paper_edge}px; }}
@media print {{
  body {{ margin: 0; max-width: none; padding: 0; }}
  .wide, section {{ overflow: visible; }}
  h2 {{ break-after: avoid; }}
  article {{ break-inside: avoid; }}
  details, .modebar-container {{ display: none; }}
  .slider-group > :not(.slider-label), [class^="updatemenu"] {{ display: none !important; }}
}}
"""


def page(report: Report, theme: Theme = "light") -> bytes:
    """The report as HTML (UTF-8)."""
    words = html.escape
    style = STYLE.format(
        font=FONT,
        ground=SURFACES[theme],
        ink=INK[theme],
        paper_width=WIDE + 2 * EDGE,
        paper_height=round((WIDE + 2 * EDGE) * 2**0.5),
        paper_edge=EDGE,
    )
    results, caveats = (
        "<ul>" + "".join(f"<li>{words(line)}</li>" for line in lines) + "</ul>"
        for lines in (report.lines, report.distrust)
    )
    runs, settings = (
        f"<div class=wide>{table.to_html(index=False, border=0, escape=True, na_rep='')}</div>"
        for table in (report.table, report.settings.reset_index())
    )
    parts = [
        f'<!doctype html><html lang="en"><meta charset="utf-8"><title>{words(report.title)}</title>',
        f"<style>{style}</style>",
        f"<h1>{words(report.title)}</h1><p class=origin>{words(report.origin)}</p>",
        f"<blockquote>{words(report.question)}</blockquote>",
        results,
        "<h2>Runs</h2>",
        runs,
        f"<h2>Different settings</h2>{settings}" if len(report.settings) else "",
        "<h2>Figures</h2>",
        *(
            f"<section>{figure_html(one.figure, theme, WIDE, not place)}<p>{words(one.caption)}</p></section>"
            for place, one in enumerate(report.figures)
        ),
        "<h2>Generated texts</h2><p><small>Marked: only in this run's text. Struck out: only in the full cache's "
        "text.</small></p>",
        *(passage(label, segments) for label, segments in report.texts),
        "<h2>Caveats</h2>",
        caveats,
        f"<details><summary>The whole prompt</summary><blockquote>{words(report.prompt)}</blockquote></details></html>",
    ]
    return "\n".join(parts).encode()


STORY_STYLE = (
    f"body{{font-family:{FONT};color:#1F2430;background:#FFFFFF;max-width:760px;margin:32px auto;padding:0 16px;"
    "line-height:1.55}li{margin:18px 0}a{color:#0068A8}small{color:#5A6270}"
)


def story_html(story: Story, base: str) -> str:
    """One self-contained HTML page; links lead to the dashboard at `base`."""
    items = ""
    for view in story.views:
        caption = html.escape(slide_text(view)).replace("\n", "<br>") or "<em>no caption</em>"
        query = f"?{urlencode(view.query)}" if view.query else ""
        link = html.escape(f"{base}/{view.page}{query}", quote=True)
        items += f'<li>{caption}<br><small><a href="{link}">{html.escape(view.page)}</a></small></li>'
    title = html.escape(story.name)
    head = f'<!doctype html><html lang="en"><meta charset="utf-8"><title>{title}</title><style>{STORY_STYLE}</style>'
    return f"{head}<h1>{title}</h1><ol>{items}</ol></html>"
