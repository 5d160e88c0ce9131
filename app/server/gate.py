"""ASGI middleware in front of Streamlit (authentication, allowed hosts, security headers), and the current user.

The gate takes the user's name from the header of a proxy that the settings name, and passes it on in a header of its
own, which `server.trustedUserHeaders` puts into `st.user`. Headers of this name sent by a browser are dropped.
Unauthorised requests are refused here.
"""

from __future__ import annotations

import base64
import contextlib
import hashlib
import ipaddress
import os
import re
import socket
from collections.abc import AsyncGenerator
from dataclasses import dataclass
from http.cookies import CookieError, SimpleCookie
from typing import Any
from urllib.parse import quote, unquote, urlsplit

import psutil
import streamlit as st
from starlette.responses import FileResponse

from app.base.text import plain
from app.session.open_runs import runs_root
from app.session.streamlit_internals import STATIC, claim_in_cookie
from kvlab.common.binding import OPEN, OPEN_TO_EVERYONE
from kvlab.common.lab import ALONE, People, User, lab, set_current_user
from kvlab.core.errors import UserError
from kvlab.jobs import access_check as disk_space
from kvlab.trace.index import index_note

# Streamlit's own scripts, styles and fonts, each sent in one write.
#
# Starlette reads a file in chunks of 64 KB, each in a thread: the fifty files of a first page took a third of a second
# with a cold browser cache.

IMMUTABLE = {"cache-control": "public, immutable, max-age=31536000"}  # file names contain a hash of the content
PARTIAL = {b"range", b"if-none-match", b"if-modified-since", b"if-range"}
BY_PATH = {f"/{file.relative_to(STATIC).as_posix()}": file for file in STATIC.glob("static/**/*") if file.is_file()}


@dataclass(frozen=True)
class Files:
    """ASGI middleware: answers plain requests for Streamlit's immutable files; passes all others on."""

    app: Any

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        file = BY_PATH.get(scope["path"]) if scope["type"] == "http" and scope["method"] == "GET" else None
        if file is None or any(name in PARTIAL for name, _ in scope["headers"]):
            await self.app(scope, receive, send)
            return
        headers = FileResponse(file, headers=IMMUTABLE, stat_result=file.stat()).raw_headers
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        await send({"type": "http.response.body", "body": file.read_bytes()})


@contextlib.asynccontextmanager
async def without_delay(app: Any) -> AsyncGenerator[None]:
    """The server's lifespan: disables Nagle's algorithm before the first connection is accepted.

    Connections inherit that from the listening sockets. asyncio does so only for sockets with an explicit TCP protocol
    number, which Streamlit's lacks. A response of two writes, or a message soon after another, would wait some 40 ms
    for a delayed acknowledgement.
    """
    with contextlib.suppress(OSError, psutil.Error):  # only slower then
        for connection in psutil.Process().net_connections("tcp"):
            if connection.status == psutil.CONN_LISTEN and connection.fd >= 0:
                with socket.socket(fileno=os.dup(connection.fd)) as listening:
                    listening.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    yield


NAME = "x-kvlab-name"
HEALTH = "/_stcore/health"
FILES = ("/media/", "/_stcore/upload_file")
LOCAL_HOSTS = frozenset(("localhost", "127.0.0.1", "::1"))
# Streamlit needs inline styles, WebAssembly for its tables, and blobs for the scripts of components. Its one inline
# script is allowed by hash.
POLICY = (
    "default-src 'self'; script-src 'self' 'wasm-unsafe-eval' blob: {inline}; style-src 'self' 'unsafe-inline'; "
    "img-src 'self' data: blob:; font-src 'self' data:; media-src 'self' data: blob:; connect-src 'self' data: blob:; "
    "worker-src 'self' blob:; frame-src 'self' data: blob:; object-src 'none'; base-uri 'self'; form-action 'self'; "
    "frame-ancestors 'self'"
)


# The inline scripts in Streamlit's index.html, whose hashes the policy allows.
SCRIPTS = re.findall(r"<script>(.*?)</script>", (STATIC / "index.html").read_text(encoding="utf-8"), re.DOTALL)
DIGESTS = [base64.b64encode(hashlib.sha256(script.encode()).digest()).decode() for script in SCRIPTS]
HEADERS = {
    "content-security-policy": POLICY.format(inline=" ".join(f"'sha256-{digest}'" for digest in DIGESTS)),
    "x-content-type-options": "nosniff",
    "x-frame-options": "SAMEORIGIN",
    "referrer-policy": "same-origin",
    "permissions-policy": "camera=(), microphone=(), geolocation=()",
    "cross-origin-opener-policy": "same-origin",
}


class Gate:
    """ASGI middleware; `people` is None for a single user, and `local` restricts it to requests to localhost."""

    def __init__(self, app: Any, people: People | None, local: bool = False) -> None:
        self.app = app
        self.people = people
        self.local = local
        self.proxies = [ipaddress.ip_network(network, strict=False) for network in people.proxy] if people else []

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] not in ("http", "websocket"):
            await self.app(scope, receive, send)
            return
        respond = Respond(scope, send)
        if self.local and _host(scope) not in LOCAL_HOSTS:
            # DNS rebinding: another site may resolve its own name to this machine.
            await respond.refuse(421, "This dashboard is only served at localhost: open it under that name.")
        elif scope["path"] == HEALTH or self.people is None:
            await self.app(_with(scope), receive, respond.with_headers)
        elif self.people.way == "oidc":
            # Media files and uploads, for which Streamlit does not check the sign-in; pages check it themselves.
            if not scope["path"].startswith(FILES):
                await self.app(_with(scope), receive, respond.with_headers)
                return
            cookies = {}
            with contextlib.suppress(CookieError):
                jar = SimpleCookie("; ".join(_all(scope, "cookie")))
                cookies = {name: cookie.value for name, cookie in jar.items()}
            if name := claim_in_cookie(cookies, self.people.claim):
                await self._let_in(name, scope, receive, respond)
            else:
                await respond.refuse(401, "Sign in first.")
        else:
            client = scope.get("client") or ("",)
            is_proxy = False
            with contextlib.suppress(ValueError):
                peer = ipaddress.ip_address(client[0].removeprefix("::ffff:"))
                is_proxy = any(peer in network for network in self.proxies)
            named = _all(scope, self.people.header)
            name = named[0].strip() if len(named) == 1 else ""
            if not is_proxy:
                await respond.refuse(403, "This dashboard can only be reached through the lab's proxy.")
            elif not name or len(name) > 200:
                await respond.refuse(401, "The lab's proxy did not send your name: sign in there.")
            else:
                await self._let_in(name, scope, receive, respond)

    async def _let_in(self, name: str, scope: Any, receive: Any, respond: Respond) -> None:
        try:
            lab()
        except UserError:
            await respond.refuse(403, "The lab file of this server has a mistake: nobody is let in until it is mended.")
        else:
            await self.app(_with(scope, name), receive, respond.with_headers)


@dataclass
class Respond:
    """The gate's own responses, and the headers of every response."""

    scope: Any
    send: Any

    async def with_headers(self, message: Any) -> None:
        if message["type"] == "http.response.start":
            headers = message.get("headers", ())
            present = {key for key, _ in headers}
            missing = ((key.encode(), text.encode()) for key, text in HEADERS.items() if key.encode() not in present)
            message = message | {"headers": [*headers, *missing]}
        await self.send(message)

    async def refuse(self, status: int, sentence: str) -> None:
        if self.scope["type"] == "websocket":
            await self.send({"type": "websocket.close", "code": 1008})
        else:
            headers = [(b"content-type", b"text/plain; charset=utf-8"), (b"cache-control", b"no-store")]
            await self.with_headers({"type": "http.response.start", "status": status, "headers": headers})
            await self.send({"type": "http.response.body", "body": f"{sentence}\n".encode()})


def _with(scope: Any, name: str = "") -> Any:
    """The request with the gate's header for the user of this name, and without any that the browser sent."""
    headers = [(key, value) for key, value in scope["headers"] if key.lower().decode("latin-1") != NAME]
    if name:
        headers.append((NAME.encode(), quote(name).encode()))
    return scope | {"headers": headers}


def _all(scope: Any, name: str) -> list[str]:
    """All values of a header; ASGI gives names in lower case."""
    return [value.decode("utf-8", "replace") for key, value in scope["headers"] if key == name.lower().encode()]


def _host(scope: Any) -> str:
    try:
        return urlsplit(f"//{''.join(_all(scope, 'host'))}").hostname or ""
    except ValueError:
        return ""


def disk_warning() -> None:
    """Show the warning, if there is one."""
    root = runs_root()
    if not root.is_dir():
        return
    try:
        warning = index_note(root) or disk_space.disk_warning(root)
    except OSError:
        return  # pages show errors of the folder
    if warning:
        st.warning(plain(warning), icon=":material/hard_drive:")


USER_NAME = "kvlab_name"  # in `st.user`, from the header that the gate sets


def current_person() -> User:
    """The authenticated user, or the only one of a single-user server. Raises UserError if nobody has signed in."""
    settings = lab()
    if settings is None:
        return ALONE
    if settings.people.way == "oidc":
        name = st.user.get(settings.people.claim) if st.user.get("is_logged_in") else None
        missing = f"Sign in first: no {settings.people.claim!r} came from the identity provider."
    else:
        name = unquote(str(st.user.get(USER_NAME) or ""))
        missing = "Sign in first: no name came from the lab's proxy."
    if not name:
        raise UserError(missing)
    return User(str(name))


def let_in() -> bool:
    """Whether the user may see the page; draws the sign-in, or why access is denied, if not."""
    try:
        settings = lab()
        if settings is not None and settings.people.way == "oidc" and not st.user.get("is_logged_in"):
            st.title("kvlab")
            if st.button("Sign in", type="primary"):
                st.login()
            return False
        person = current_person()
    except UserError as error:
        st.error(plain(str(error)))
        if st.user.get("is_logged_in") and st.button("Sign out"):
            st.logout()
        return False
    if settings is None:
        if os.environ.get(OPEN):
            st.sidebar.warning(f"{OPEN_TO_EVERYONE} Start it with `--lab`.", icon=":material/lock_open:")
        return True
    with st.sidebar.container(horizontal=True, vertical_alignment="center", key="who"):
        st.caption(plain(person.name))
        if settings.people.way == "oidc" and st.button("Sign out", type="tertiary"):
            st.logout()
    return True


set_current_user(current_person)
