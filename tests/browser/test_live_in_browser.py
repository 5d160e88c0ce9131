"""Live in a low window: the last answers stay in view while words of the text are edited."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from kvlab.live.events import append_event
from tests.pages.test_live import talked

WORDS = 600
IN_VIEW = """() => {
  const box = (name) => document.querySelector(name).getBoundingClientRect();
  return [...document.querySelectorAll(".st-key-live-last-turn .answer")].map((answer) => {
    const { top, bottom } = answer.getBoundingClientRect();
    return box(".st-key-live-word-edits").bottom <= top && bottom <= box("[data-testid=stChatInput]").top;
  });
}"""


def test_answers_are_in_view_where_words_are_edited(visit: Callable[..., Any], served: Path):
    session = talked(served)
    append_event(served, session, {"kind": "context_texts", "texts": [f" word{number}" for number in range(WORDS)]})
    append_event(served, session, {"kind": "held", "lane": 1, "per_mille": [500] * WORDS})
    append_event(served, session, {"kind": "merged", "lane": 1, "per_mille": [0] * WORDS, "into": [-1] * WORDS})
    page = visit(f"live?session={session}&token=9", height=720)
    page.get_by_test_id("stChatInput").wait_for()  # drawn last
    edits = page.locator(".st-key-live-word-edits")
    edits.wait_for()
    edits.evaluate("row => row.scrollIntoView({ block: 'center' })")
    assert page.locator(".answer .label").all_inner_texts() == ["full 100 %", "h2o 20 %"]
    assert page.evaluate(IN_VIEW) == [True, True]
