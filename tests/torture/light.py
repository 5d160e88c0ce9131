"""A reader without a browser: it speaks Streamlit's own protocol, so that the server does all that it does for one.

It fetches what the page's first address does, opens the web socket, asks for a page as the browser does, reads every
message until the script has ended, and fetches the pictures the page names. What it leaves out is drawing them.
"""

from __future__ import annotations

import asyncio
import re
import time
import urllib.parse
import urllib.request
from types import TracebackType
from typing import Any

import websockets
from streamlit.proto.BackMsg_pb2 import BackMsg
from streamlit.proto.ForwardMsg_pb2 import ForwardMsg

FIRST_FETCHED = ("/", "/_stcore/health", "/_stcore/host-config")
NAMED = re.compile(rb"/(?:media|_stcore/bidi-components)/[\w./-]+")
IN_INDEX = re.compile(rb'(?:src|href)="\./(static/[\w./-]+)"')
LARGEST_MESSAGE = 1 << 28
PATIENCE_SECONDS = 120.0
ENDED = (
    ForwardMsg.FINISHED_SUCCESSFULLY, ForwardMsg.FINISHED_FRAGMENT_RUN_SUCCESSFULLY,
    ForwardMsg.FINISHED_WITH_COMPILE_ERROR,
)  # fmt: skip


class Light:
    """One session of a dashboard at `address`, in an asyncio loop."""

    def __init__(self, address: str) -> None:
        self.address = address
        self.pages: dict[str, str] = {}  # the menu: script hash by path
        self.cached = set[str]()  # large messages the server need not send again
        self.fetched = set[bytes]()
        self.renewed: dict[str, tuple[float, float]] = {}  # parts that renew themselves: every so often, and when next
        self.exceptions: list[str] = []

    async def __aenter__(self) -> Light:
        index = await self._fetch(FIRST_FETCHED[0])
        for path in (*FIRST_FETCHED[1:], *(f"/{name.decode()}" for name in IN_INDEX.findall(index))):
            await self._fetch(path)
        self.socket = await websockets.connect(
            self.address.replace("http", "ws", 1) + "/_stcore/stream",
            subprotocols=["streamlit"],
            max_size=LARGEST_MESSAGE,
        )
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None
    ) -> None:
        await self.socket.close()

    async def open(self, page: str, **query: str) -> float:
        """Open a page as a link does; returns the seconds until it is all there."""
        return await self._run(page_name=page, query_string=urllib.parse.urlencode(query))

    async def go_on(self, page: str) -> float:
        """Go to another page by the menu, in the same session; returns the seconds until it is all there."""
        return await self._run(page_script_hash=self.pages[page])

    async def rest(self, seconds: float) -> None:
        """Stay on the page for a while, whose parts that renew themselves are asked for as a browser does."""
        until = time.monotonic() + seconds
        while (left := until - time.monotonic()) > 0:
            part = min(self.renewed, key=lambda part: self.renewed[part][1], default="")
            due = self.renewed[part][1] - time.monotonic() if part else left
            await asyncio.sleep(min(left, max(due, 0.0)))
            if part and due <= left:
                self.renewed[part] = (self.renewed[part][0], time.monotonic() + self.renewed[part][0])
                await self._run(fragment_id=part, is_auto_rerun=True)

    async def _run(self, **state: Any) -> float:
        begun = time.monotonic()
        asked = BackMsg()
        if "fragment_id" not in state:
            self.renewed = {}
        for name, value in state.items():
            setattr(asked.rerun_script, name, value)
        asked.rerun_script.cached_message_hashes.extend(self.cached)
        asked.rerun_script.context_info.url = self.address
        await self.socket.send(asked.SerializeToString())
        async with asyncio.timeout(PATIENCE_SECONDS):
            named = await self._until_finished()
            for path in named - self.fetched:
                await self._fetch(path.decode())
        self.fetched |= named
        return time.monotonic() - begun

    async def _until_finished(self) -> set[bytes]:
        """Reads what the server says until the script has ended; returns the files it named."""
        named: set[bytes] = set()
        while True:
            data = await self.socket.recv()
            assert isinstance(data, bytes)
            named |= set(NAMED.findall(data))
            message = ForwardMsg.FromString(data)
            kind = message.WhichOneof("type")
            if kind == "navigation":
                self.pages = {page.url_pathname: page.page_script_hash for page in message.navigation.app_pages}
            elif kind == "auto_rerun":
                every = message.auto_rerun.interval
                self.renewed[message.auto_rerun.fragment_id] = (every, time.monotonic() + every)
            elif kind == "delta":
                self._look_at(message)
            elif kind == "script_finished" and message.script_finished in ENDED:
                return named

    def _look_at(self, message: Any) -> None:
        if message.metadata.cacheable:
            self.cached.add(message.hash)
        if message.delta.new_element.WhichOneof("type") == "exception":
            told = message.delta.new_element.exception
            self.exceptions.append(f"{told.type} {told.message}")

    async def _fetch(self, path: str) -> bytes:
        asked = urllib.request.Request(self.address + path, headers={"Accept-Encoding": "gzip"})
        return await asyncio.to_thread(_read, asked)


def _read(asked: urllib.request.Request) -> bytes:
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    with opener.open(asked, timeout=120) as answer:
        return bytes(answer.read())
