"""Live in a low window: the last answers stay in view while words of the text are edited."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from kvlab.live.events import append_event
from tests.pages.test_live import REQUEST, talked

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
    append_event(served, session, {"kind": "held", "branch": 1, "per_mille": [500] * WORDS})
    append_event(served, session, {"kind": "merged", "branch": 1, "per_mille": [0] * WORDS, "into": [-1] * WORDS})
    page = visit(f"live?session={session}&token=9", height=720)
    page.get_by_test_id("stChatInput").wait_for()  # drawn last
    edits = page.locator(".st-key-live-word-edits")
    edits.wait_for()
    edits.evaluate("row => row.scrollIntoView({ block: 'center' })")
    assert page.locator(".answer .label").all_inner_texts() == ["full 100 %", "h2o 20 %"]
    assert page.evaluate(IN_VIEW) == [True, True]


def test_a_link_that_calls_the_branch_a_lane_opens_it(visit: Callable[..., Any], served: Path):
    request = REQUEST.model_copy(update={"choices": REQUEST.choices * 2})
    append_event(served, "links", {"kind": "opened", "owner": "", "request": request.model_dump(mode="json")})
    append_event(served, "links", {"kind": "context_read", "tokens": 3, "seconds": 0.5})
    append_event(served, "links", {"kind": "context_texts", "texts": ["a", " b", " c"]})
    for branch, label in enumerate(("full 100 %", "h2o 20 %", "h2o 10 %")):
        settled = {"branch": branch, "label": label, "live_bytes": 100, "full_bytes": 1000}
        append_event(served, "links", {"kind": "branch_settled", **settled})
        append_event(served, "links", {"kind": "held", "branch": branch, "per_mille": [1000, 0, 0]})
    page = visit("live?session=links&lane=2&token=1")
    page.get_by_test_id("stChatInput").wait_for()  # drawn last
    assert page.get_by_role("radio", name="h2o 10 %").is_checked()
    assert "branch=2" in page.url and "lane=2" not in page.url
