"""A live session as one HTML file that plays without a server or network. Torch-free."""

from __future__ import annotations

import html
import json
from collections.abc import Iterable, Mapping
from typing import Any

from kvlab.browser import read_static
from kvlab.core.errors import UserError
from kvlab.views.base.palette import Theme

KINDS = (
    "context_read", "lane_settled", "lane_failed", "held", "merged", "held_changes", "question", "question_again",
    "token", "answer_ended", "went_back",
)  # fmt: skip
KEYS = "Space plays, arrows step, 1 to 6 choose a lane, T the text, F full screen"
HELD = ("no slot", "merged only", "to 10 %", "to 30 %", "to 60 %", "most heads", "all heads")
LEGEND = "".join(f'<span class="word" data-level="{level}">{name}</span>' for level, name in enumerate(HELD))
KL = "".join(f'<span class="kl" data-kl="{level}">{least}</span>' for level, least in enumerate((".01", ".1", "1")))
BODY = f"""<main>
<header><h1></h1><span class="hint">{KEYS}</span></header>
<div class="question"></div>
<div class="lanes"></div>
<div class="legend"><span class="whose"></span><span class="chips">own slot {LEGEND}</span>
<span class="chips">KL from {KL} nats</span></div>
<div class="context" tabindex="0" aria-label="Context"></div>
<footer><button class="play" type="button">Play</button>
<input type="range" min="0" value="0" aria-label="Step"><span class="place"></span>
<button class="full" type="button">Full screen</button></footer>
</main>"""


def replay(events: Iterable[Mapping[str, Any]], title: str, theme: Theme = "light") -> str:
    """The session told by `events` (`kvlab.live.events.read_events`) as HTML; it opens at its end.

    Raises UserError if no context has been read yet.
    """
    told = list(events)
    texts = next((event["texts"] for event in reversed(told) if event.get("kind") == "context_texts"), None)
    if texts is None:
        raise UserError("There is nothing to replay yet: no context has been read.")
    session = {"title": title, "texts": texts, "events": [event for event in told if event.get("kind") in KINDS]}
    # "<" could end the element that holds the data.
    data = json.dumps(session, ensure_ascii=False, separators=(",", ":")).replace("<", "\\u003c")
    return "\n".join(
        (
            f'<!doctype html><html lang="en" data-theme="{theme}"><head><meta charset="utf-8">',
            '<meta name="viewport" content="width=device-width">',
            f"<title>{html.escape(title)}</title><style>{read_static('live-replay.css')}</style></head><body>",
            BODY,
            f'<script type="application/json" id="session">{data}</script>',
            f"<script>{read_static('live-replay.js')}</script></body></html>",
        )
    )
