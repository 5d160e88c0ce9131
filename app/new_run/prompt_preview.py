"""A prompt as escaped HTML: token by token, or with the part that will be cut struck out."""

from __future__ import annotations

import html
from collections.abc import Sequence
from itertools import pairwise

from kvlab.forms.uploads import TruncatedPrompt
from kvlab.report.views import Passages, Text, TokenClass
from kvlab.views.base.palette import HUES
from kvlab.views.frames.textdiff import Segment

AROUND = 400  # characters shown on each side of a cut
TOKENS = (
    TokenClass(name="a token", colour=HUES["blue"], cue="fill"),
    TokenClass(name="the next one", colour=HUES["orange"], cue="under"),
    TokenClass(name="of the chat template", colour=HUES["grey"], cue="dashed"),
)
STYLE = """<style>
.kv-prompt { white-space: pre-wrap; overflow-wrap: anywhere; line-height: 1.6; font-size: 0.92rem; }
.kv-prompt i { font-style: normal; border-radius: 2px; }
.kv-prompt i:nth-child(odd) { background: rgba(0, 104, 168, 0.20); }
.kv-prompt i:nth-child(even) { background: rgba(201, 119, 0, 0.20); border-bottom: 1px solid rgba(201, 119, 0, 0.8); }
.kv-prompt i.around { font-style: italic; font-family: monospace; font-size: 0.82rem; opacity: 0.8; }
.kv-prompt mark { color: inherit; background: rgba(201, 119, 0, 0.28); border-bottom: 2px solid #c97700; }
.kv-prompt del { opacity: 0.8; background: rgba(200, 80, 10, 0.18); }
</style>"""


def tokens_as_html(text: str, spans: list[tuple[int, int]], own: tuple[int, int] | None = None) -> str:
    """The text with every other token shaded and underlined; text outside of tokens is plain.

    `own` (start, stop) is the prompt's place in the text; the chat template's tokens around it are marked.
    """
    first, last = own or (0, len(text))
    parts = []
    end = 0
    for start, stop in spans:
        tag = "<i>" if first <= start < last else '<i class="around" title="of the chat template">'
        parts += [html.escape(text[end:start]), f"{tag}{html.escape(text[max(start, end) : stop])}</i>"]
        end = max(end, stop)
    tokens = "".join([*parts, html.escape(text[end:])])
    return f'{STYLE}<div class="kv-prompt" data-testid="tokens">{tokens}</div>'


def tokens_as_text(text: str, spans: list[tuple[int, int]], own: tuple[int, int] | None = None) -> Text:
    """The same for a slide; characters between two tokens belong to the first."""
    first, last = own or (0, len(text))
    starts = [0, *(start for start, _ in spans[1:]), len(text)]
    codes = tuple(at % 2 if first <= start < last else 2 for at, (start, _) in enumerate(spans))
    return Text(texts=tuple(text[start:stop] for start, stop in pairwise(starts)), codes=codes or (0,), classes=TOKENS)


def facts_as_html(text: str, facts: Sequence[tuple[int, int]]) -> str:
    """The text with its facts (start, stop) marked."""
    parts = []
    end = 0
    for start, stop in sorted(facts):
        parts += [html.escape(text[end:start]), f"<mark>{html.escape(text[max(start, end) : stop])}</mark>"]
        end = max(end, stop)
    return f'{STYLE}<div class="kv-prompt">{"".join(parts)}{html.escape(text[end:])}</div>'


def cut_as_passages(cut: TruncatedPrompt) -> Passages:
    """The text around the cut, and the beginning and end of the removed part."""
    removed = (
        cut.removed
        if len(cut.removed) <= 2 * AROUND
        else f"{cut.removed[:AROUND]} … {len(cut.removed) - 2 * AROUND:,} more characters … {cut.removed[-AROUND:]}"
    )
    parts = (Segment("same", cut.before[-AROUND:]), Segment("missing", removed), Segment("same", cut.after[:AROUND]))
    return Passages(passages=(("", parts),))


def cut_as_html(cut: TruncatedPrompt) -> str:
    """The same as HTML, with the removed part struck out."""
    ((_, (before, removed, after)),) = cut_as_passages(cut).passages
    marked = f"{html.escape(before.text)}<del>{html.escape(removed.text)}</del>{html.escape(after.text)}"
    return f'{STYLE}<div class="kv-prompt">{marked}</div>'
