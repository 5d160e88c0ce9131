"""A package index on this machine that can break off, forget ranges, and ask for a password."""

from __future__ import annotations

import json
import threading
from base64 import b64encode
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

PAGE = '<a href="../../files/{0}#sha256=00">{0}</a>'


@dataclass
class Index:
    """A package index with one wheel and a chosen fault; `asked` are the Range headers of the requests it got."""

    wheel: str
    content: bytes
    drops_after: int | None = None  # bytes of each answer, then the connection ends
    has_ranges: bool = True
    has_json: bool = False
    password: str = ""
    asked: list[str | None] = field(default_factory=list)
    url: str = ""


class Handler(BaseHTTPRequestHandler):
    """Answers /simple/PACKAGE/ and /files/WHEEL."""

    def __init__(self, index: Index, *given: object) -> None:
        self.index = index
        super().__init__(*given)

    def do_GET(self) -> None:
        index = self.index
        if index.password and self.headers["Authorization"] != f"Basic {b64encode(index.password.encode()).decode()}":
            self.send_error(401)
        elif self.path == "/simple/some-model/":
            made = {"files": [{"url": f"../../files/{index.wheel}"}]}
            text = json.dumps(made) if index.has_json else PAGE.format(index.wheel)
            kind = "application/vnd.pypi.simple.v1+json" if index.has_json else "text/html"
            self._send(200, text.encode(), {"Content-Type": kind})
        elif self.path == f"/files/{index.wheel}":
            index.asked.append(self.headers["Range"])
            self._send_wheel()
        else:
            self.send_error(404)

    def _send_wheel(self) -> None:
        index, asked = self.index, self.headers["Range"]
        start = int(asked.removeprefix("bytes=").rstrip("-")) if asked and index.has_ranges else 0
        size = len(index.content)
        told = {"Content-Range": f"bytes {start}-{size - 1}/{size}"} if start else {}
        self._send(206 if start else 200, index.content[start:], told, index.drops_after)

    def _send(self, status: int, body: bytes, headers: dict[str, str], at_most: int | None = None) -> None:
        self.send_response(status)
        for name, value in (headers | {"Content-Length": str(len(body))}).items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(body[:at_most])

    def log_message(self, format: str, *values: object) -> None:
        """Print nothing."""


@contextmanager
def served(index: Index) -> Iterator[Index]:
    """The index, answering at its `url` until the end of the block."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), partial(Handler, index))
    threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True).start()
    index.url = f"http://127.0.0.1:{server.server_port}/simple"
    yield index
    server.shutdown()
    server.server_close()
