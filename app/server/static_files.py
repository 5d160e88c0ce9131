"""Streamlit's own scripts, styles and fonts, each sent in one write.

Starlette reads a file in pieces of 64 KB, each in a thread: the fifty that a page begins with kept a browser that was
never here waiting, and the server busy, for a third of a second.
"""

from __future__ import annotations

import contextlib
import os
import socket
from collections.abc import AsyncGenerator
from pathlib import Path
from typing import Any

import psutil
import streamlit
from starlette.responses import FileResponse

STATIC = Path(streamlit.__file__).with_name("static")
FOR_GOOD = {"cache-control": "public, immutable, max-age=31536000"}  # names have a hash of what is in them
NOT_WHOLE = {b"range", b"if-none-match", b"if-modified-since", b"if-range"}


class Files:
    """ASGI middleware: plain requests for files of Streamlit's that never change; all others are passed on."""

    def __init__(self, app: Any) -> None:
        self.app = app
        found = (file for file in STATIC.glob("static/**/*") if file.is_file())
        self.known = {f"/{file.relative_to(STATIC).as_posix()}": file for file in found}

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        file = self.known.get(scope["path"]) if scope["type"] == "http" and scope["method"] == "GET" else None
        if file is None or any(name in NOT_WHOLE for name, _ in scope["headers"]):
            await self.app(scope, receive, send)
            return
        headers = FileResponse(file, headers=FOR_GOOD, stat_result=file.stat()).raw_headers
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        await send({"type": "http.response.body", "body": file.read_bytes()})


@contextlib.asynccontextmanager
async def at_once(app: Any) -> AsyncGenerator[None]:
    """A lifespan of the server: its connections are told before the first of them is accepted."""
    with contextlib.suppress(OSError, psutil.Error):  # then it is as slow as it would be
        send_at_once()
    yield


def send_at_once() -> None:
    """Turn Nagle's algorithm off on this process's listening sockets, whose connections inherit that.

    asyncio does so where a socket says that it speaks TCP; the one that Streamlit binds does not say. Each answer of
    two writes, and each message soon after another, would then wait some 40 ms for a delayed acknowledgement.
    """
    for connection in psutil.Process().net_connections("tcp"):
        if connection.status == psutil.CONN_LISTEN and connection.fd >= 0:
            with socket.socket(fileno=os.dup(connection.fd)) as listening:
                listening.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
