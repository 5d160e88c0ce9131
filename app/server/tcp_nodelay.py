"""What the server sends leaves at once, and does not wait until the browser has confirmed what came before."""

from __future__ import annotations

import contextlib
import os
import socket
from collections.abc import AsyncGenerator
from typing import Any

import psutil


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
