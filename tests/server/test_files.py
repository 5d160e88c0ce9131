"""Streamlit's own files are sent whole and for good; whatever is asked for in another way is Streamlit's to answer."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
import streamlit

from app.server.gate import Files

STATIC = Path(streamlit.__file__).parent / "static"
CHART = next((STATIC / "static" / "js").glob("PlotlyChart.*.js"))
ADDRESS = f"/{CHART.relative_to(STATIC).as_posix()}"


def ask(path: str, method: str = "GET", kind: str = "http", **headers: str) -> list[dict[str, Any]] | None:
    """What was sent, or None where the request was passed on."""
    sent: list[dict[str, Any]] = []
    passed = []

    async def inside(scope: Any, receive: Any, send: Any) -> None:
        passed.append(scope)

    async def send(message: dict[str, Any]) -> None:
        sent.append(message)

    raw = [(name.replace("_", "-").encode(), value.encode()) for name, value in headers.items()]
    scope = {"type": kind, "path": path, "method": method, "headers": raw}
    asyncio.run(Files(inside)(scope, None, send))
    return None if passed else sent


def test_a_script_is_sent_in_one_piece_and_may_be_kept() -> None:
    begun, body = ask(ADDRESS, accept="*/*") or []
    headers = dict(begun["headers"])
    assert begun["status"] == 200 and body["body"] == CHART.read_bytes() and not body.get("more_body")
    assert headers[b"content-length"] == str(CHART.stat().st_size).encode()
    assert b"immutable" in headers[b"cache-control"] and b"javascript" in headers[b"content-type"]


@pytest.mark.parametrize(
    "path",
    ["/", "/timeline", "/index.html", "/static", "/static/js/../../index.html", "/static/js/none.js", f"/{ADDRESS}"],
)
def test_all_else_is_passed_on(path: str) -> None:
    assert ask(path) is None


def test_a_part_a_question_whether_it_changed_and_another_method_are_passed_on() -> None:
    assert ask(ADDRESS, range="bytes=0-9") is None
    assert ask(ADDRESS, if_none_match='"abc"') is None
    assert ask(ADDRESS, method="HEAD") is None
    assert ask(ADDRESS, kind="websocket") is None
