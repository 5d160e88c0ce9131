"""Streamlit's own scripts, styles and fonts, each sent in one write.

Starlette reads a file in chunks of 64 KB, each in a thread: the fifty files of a first page took a third of a second
with a cold browser cache.
"""

from __future__ import annotations

import contextlib
import os
import socket
from collections.abc import AsyncGenerator
from typing import Any

import psutil
from starlette.responses import FileResponse

from app.session.streamlit_internals import STATIC

IMMUTABLE = {"cache-control": "public, immutable, max-age=31536000"}  # file names contain a hash of the content
PARTIAL = {b"range", b"if-none-match", b"if-modified-since", b"if-range"}


class Files:
    """ASGI middleware: answers plain requests for Streamlit's immutable files; passes all others on."""

    def __init__(self, app: Any) -> None:
        self.app = app
        files = (file for file in STATIC.glob("static/**/*") if file.is_file())
        self.files = {f"/{file.relative_to(STATIC).as_posix()}": file for file in files}

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        file = self.files.get(scope["path"]) if scope["type"] == "http" and scope["method"] == "GET" else None
        if file is None or any(name in PARTIAL for name, _ in scope["headers"]):
            await self.app(scope, receive, send)
            return
        headers = FileResponse(file, headers=IMMUTABLE, stat_result=file.stat()).raw_headers
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        await send({"type": "http.response.body", "body": file.read_bytes()})


@contextlib.asynccontextmanager
async def without_delay(app: Any) -> AsyncGenerator[None]:
    """The server's lifespan: disables Nagle's algorithm before the first connection is accepted."""
    with contextlib.suppress(OSError, psutil.Error):  # only slower then
        disable_nagle()
    yield


def disable_nagle() -> None:
    """Disable Nagle's algorithm on this process's listening sockets, whose connections inherit that.

    asyncio does so only for sockets with an explicit TCP protocol number, which Streamlit's lacks. A response of two
    writes, or a message soon after another, would wait some 40 ms for a delayed acknowledgement.
    """
    for connection in psutil.Process().net_connections("tcp"):
        if connection.status == psutil.CONN_LISTEN and connection.fd >= 0:
            with socket.socket(fileno=os.dup(connection.fd)) as listening:
                listening.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
