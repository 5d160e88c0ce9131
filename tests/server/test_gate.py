"""Who gets through to Streamlit, and under which name: requests as a server hands them on, answered or let through."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from streamlit.web.server.starlette.starlette_app_utils import create_signed_value
from streamlit.web.server.starlette.starlette_server_config import USER_COOKIE_NAME

from app.server.gate import Gate
from kvlab.common.lab import People

PROXY = People(way="proxy")


@dataclass
class Answer:
    """What came back; `passed` is what Streamlit would have seen."""

    status: int = 0
    headers: dict[str, str] = field(default_factory=dict)
    body: str = ""
    passed: dict[str, list[str]] | None = None


def ask(
    gate: Gate, path: str = "/", method: str = "GET", peer: str = "127.0.0.1", body: bytes = b"",
    kind: str = "http", **headers: str | list[str],
) -> Answer:  # fmt: skip
    """One request with these headers; a list is a header sent several times."""
    answer = Answer()
    pairs = {"host": "localhost:8501", "accept": "text/html"} | {
        name.replace("_", "-"): value for name, value in headers.items()
    }
    raw = [
        (name.encode(), one.encode())
        for name, value in pairs.items()
        for one in (value if isinstance(value, list) else [value])
    ]
    where, _, query = path.partition("?")
    scope = {
        "type": kind, "path": where, "query_string": query.encode(), "headers": raw, "method": method,
        "client": (peer, 1), "scheme": "http",
    }  # fmt: skip

    async def inside(scope: Any, receive: Any, send: Any) -> None:
        answer.passed = {}
        for name, value in scope["headers"]:
            answer.passed.setdefault(name.decode(), []).append(value.decode())
        if scope["type"] == "http":
            await send({"type": "http.response.start", "status": 200, "headers": [(b"x-frame-options", b"DENY")]})

    async def receive() -> Any:
        return {"type": "http.request", "body": body, "more_body": False}

    async def send(message: Any) -> None:
        answer.status = message.get("status", message.get("code", answer.status))
        answer.headers |= {name.decode(): value.decode() for name, value in message.get("headers", ())}
        answer.body += message.get("body", b"").decode()

    gate.app = inside
    asyncio.run(gate(scope, receive, send))
    return answer


def through(answer: Answer) -> list[str] | None:
    """The names Streamlit is told; None for a request that did not get there."""
    return None if answer.passed is None else answer.passed.get("x-kvlab-name", [])


def test_the_proxys_header_names_the_person() -> None:
    gate = Gate(None, PROXY)
    assert through(ask(gate, x_forwarded_user="anna")) == ["anna"]
    assert through(ask(gate, kind="websocket", path="/_stcore/stream", x_forwarded_user="ben b")) == ["ben%20b"]
    upload = "/_stcore/upload_file/session/file"
    assert through(ask(gate, upload, "PUT", x_forwarded_user="anna")) == ["anna"]


def test_only_the_proxy_is_believed() -> None:
    gate = Gate(None, PROXY)
    assert ask(gate, peer="10.0.0.7", x_forwarded_user="anna").status == 403
    assert ask(gate, peer="10.0.0.7", kind="websocket", x_forwarded_user="anna").status == 1008
    assert ask(gate, peer="10.0.0.7", x_forwarded_user="anna", x_forwarded_for="127.0.0.1").status == 403
    nets = Gate(None, PROXY.model_copy(update={"proxy": ("10.0.0.0/24",)}))
    assert through(ask(nets, peer="::ffff:10.0.0.7", x_forwarded_user="anna")) is not None


@pytest.mark.parametrize("named", ["", [], ["anna", "ben"], "a" * 300])
def test_a_name_that_is_none_or_two_lets_nobody_in(named: str | list[str]) -> None:
    answer = ask(Gate(None, PROXY), x_forwarded_user=named)
    assert (answer.status, answer.passed) == (401, None)


def test_names_a_browser_gives_itself_are_dropped() -> None:
    assert through(ask(Gate(None, None), x_kvlab_name="anna")) == []
    assert through(ask(Gate(None, PROXY), x_forwarded_user="dora", x_kvlab_name="anna")) == ["dora"]
    assert ask(Gate(None, PROXY), x_kvlab_name="anna").status == 401


@pytest.mark.parametrize("path", ["/", "/runs", "/_stcore/stream", "/media/abc.png", "/_stcore/upload_file/a/b"])
@pytest.mark.parametrize("peer", ["10.0.0.7", "::ffff:10.0.0.7", "192.168.0.1", "testclient", ""])
def test_a_header_from_another_address_names_nobody_at_any_path(path: str, peer: str) -> None:
    for people in (PROXY, PROXY.model_copy(update={"proxy": ("10.0.0.8", "172.17.0.0/16")})):
        answer = ask(Gate(None, people), path, peer=peer, x_forwarded_user="anna", x_real_ip="127.0.0.1")
        assert (answer.status, answer.passed) == (403, None)


def test_without_a_proxy_named_its_header_names_nobody() -> None:
    assert through(ask(Gate(None, None), x_forwarded_user="anna")) == []
    assert through(ask(Gate(None, OIDC), "/runs", x_forwarded_user="anna")) == []
    assert ask(Gate(None, OIDC), FILES[0], x_forwarded_user="anna").status == 401


def test_health_is_answered_to_everyone() -> None:
    for people in (PROXY, None):
        assert through(ask(Gate(None, people), "/_stcore/health", peer="9.9.9.9")) == []


def test_alone_only_this_machines_own_names_are_answered() -> None:
    """A page elsewhere that gives its name this machine's address (DNS rebinding) is no page of the dashboard."""
    gate = Gate(None, None, local=True)
    assert [ask(gate, host=host).status for host in ("localhost:1", "127.0.0.1", "[::1]:8501")] == [200] * 3
    assert [ask(gate, host=host).status for host in ("evil.example:8501", "", "[", "localhost.evil")] == [421] * 4


def test_every_answer_has_the_headers() -> None:
    for answer in (ask(Gate(None, None)), ask(Gate(None, PROXY))):
        assert answer.headers["x-content-type-options"] == "nosniff"
        assert answer.headers["referrer-policy"] == "same-origin"
        assert answer.headers["x-frame-options"] in ("SAMEORIGIN", "DENY")  # DENY is what the application said itself
        policy = answer.headers["content-security-policy"]
        scripts = re.search(r"script-src ([^;]*);", policy)
        assert scripts and "unsafe-inline" not in scripts[1] and "'unsafe-eval'" not in scripts[1]
        assert "frame-ancestors 'self'" in policy and "object-src 'none'" in policy


OIDC = People(way="oidc", secrets=Path("secrets.toml"))
FILES = ("/media/abc.png", "/_stcore/upload_file/session/file")


def identity(monkeypatch: pytest.MonkeyPatch, secret: str = "the lab's own", **told: object) -> str:
    """The cookie of somebody who signed in, as Streamlit signs it; the server's secret is `the lab's own`."""
    monkeypatch.setattr("app.session.streamlit_internals.get_cookie_secret", lambda: "the lab's own")
    value = create_signed_value(secret, USER_COOKIE_NAME, json.dumps({"is_logged_in": True} | told))
    return f"{USER_COOKIE_NAME}={value.decode()}"


@pytest.mark.parametrize("path", FILES)
def test_under_oidc_files_behind_a_page_are_those_of_people_of_the_lab(
    path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    gate = Gate(None, OIDC)
    anna = identity(monkeypatch, email="anna@lab.example")
    assert through(ask(gate, path, cookie=anna)) == ["anna%40lab.example"]
    strangers = [
        "", "nothing", f"{USER_COOKIE_NAME}=anna", anna[:-2] + "xx",
        identity(monkeypatch, secret="another", email="anna@lab.example"),
        identity(monkeypatch, sub="anna@lab.example"),
        identity(monkeypatch, email="anna@lab.example", is_logged_in=False),
    ]  # fmt: skip
    for cookie in strangers:
        answer = ask(gate, path, cookie=cookie, x_kvlab_name="anna@lab.example")
        assert (answer.status, answer.passed) == (401, None), cookie


def test_under_oidc_pages_ask_for_themselves() -> None:
    for path, kind in (("/", "http"), ("/runs", "http"), ("/oauth2callback", "http"), ("/_stcore/stream", "websocket")):
        assert through(ask(Gate(None, OIDC), path, kind=kind, x_kvlab_name="anna")) == []


def test_a_lab_file_that_is_broken_lets_nobody_in_at_once(write_lab: Callable[..., Path]) -> None:
    gate = Gate(None, PROXY)
    for text, names in (
        ('[people]\nway = "proxy"', ["ben"]),
        ('[people]\nway = "proxy"\ndefault = "nobody"', None),
        ("people = ", None),
    ):
        write_lab(text)
        assert through(ask(gate, x_forwarded_user="ben")) == names
