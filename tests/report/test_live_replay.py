"""The replay of a live session: what its file holds."""

from __future__ import annotations

import json
import re

import pytest

from kvlab.common.errors import UserError
from kvlab.report.live_replay import replay

EVENTS = [
    {"kind": "opened", "owner": "ada", "request": {"context": "secret"}},
    {"kind": "context_texts", "texts": ["a", "</script><b>"]},
    {"kind": "lane_settled", "lane": 0, "label": "full 100 %", "live_bytes": 10, "full_bytes": 10},
    {"kind": "question", "turn": 0, "text": "Who?"},
    {"kind": "token", "turn": 0, "lane": 0, "token": 1, "text": "</script>", "kl": None, "leaves": False},
]


def test_the_file_holds_the_session_and_no_markup_of_its_texts() -> None:
    page = replay(EVENTS, "mini: <i>a</i>")
    assert "<title>mini: &lt;i&gt;a&lt;/i&gt;</title>" in page
    assert len(re.findall("</script>", page)) == 2, "only its own"
    (data,) = re.findall(r'<script type="application/json" id="session">(.*?)</script>', page, re.DOTALL)
    session = json.loads(data)
    assert session["texts"] == ["a", "</script><b>"]
    assert session["events"] == EVENTS[2:], "without its owner and request"
    assert not re.search(r"(src|href)=", page), "nothing is fetched"


def test_a_session_without_a_context_is_refused_in_one_sentence() -> None:
    with pytest.raises(UserError, match="no context has been read"):
        replay(EVENTS[:1], "x")
