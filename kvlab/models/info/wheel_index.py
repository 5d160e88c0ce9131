"""Find a wheel's URL in pip's package indexes, and open it from a byte on, with what the standard library can do."""

from __future__ import annotations

import ast
import base64
import json
import ssl
import subprocess
import sys
from collections.abc import Iterator, Mapping
from html.parser import HTMLParser
from http.client import HTTPException, HTTPResponse
from urllib.parse import unquote, urldefrag, urljoin, urlsplit
from urllib.request import HTTPSHandler, ProxyHandler, Request, build_opener

from kvlab.core.errors import UserError

PYPI = "https://pypi.org/simple"
JSON = "application/vnd.pypi.simple.v1+json"
SECTIONS = ("global", "download", ":env:")  # of pip's settings, each above the one before
SECONDS = 30.0  # without an answer or a byte
LARGEST_PAGE = 20_000_000
UNREACHABLE = (OSError, HTTPException, ValueError)  # URLError is an OSError; bad JSON and URLs are ValueErrors


class WheelIndex:
    """pip's indexes, asked by HTTP with pip's certificates and proxy. Passwords of a keyring are pip's alone."""

    def __init__(self, settings: Mapping[str, str]) -> None:
        self.settings = settings

    @classmethod
    def of_pip(cls) -> WheelIndex:
        """With the settings of pip's files and variables; raises UserError if pip prints none."""
        command = (sys.executable, "-m", "pip", "config", "list")
        try:
            printed = subprocess.run(command, capture_output=True, text=True, timeout=SECONDS, check=True).stdout
        except (OSError, subprocess.SubprocessError):
            raise UserError("pip does not tell its settings: run `pip config list` to see why.") from None
        return cls(parse_settings(printed))

    def pages(self, package: str) -> list[str]:
        """URLs that list a package's files (normalised name), without those of folders."""
        indexes = [self.settings.get("index-url") or PYPI, *self.settings.get("extra-index-url", "").split()]
        if self.settings.get("no-index", "").lower() in ("1", "true", "yes", "on"):
            indexes = []
        listed = [*(f"{url.rstrip('/')}/{package}/" for url in indexes), *self.settings.get("find-links", "").split()]
        return [url for url in listed if url.startswith(("http://", "https://"))]

    def find(self, package: str, wheel: str) -> str | None:
        """The URL of the file `wheel` of a package; None where no index that answers has it."""
        for page in self.pages(package):
            try:
                with self.open(page, {"Accept": f"{JSON}, text/html;q=0.5"}) as answer:
                    text = answer.read(LARGEST_PAGE).decode("utf-8", "replace")
                    links = _links(text, answer.headers.get_content_type() == JSON, answer.url)
                    found = next((url for url in links if unquote(urlsplit(url).path).endswith(f"/{wheel}")), None)
            except UNREACHABLE:
                continue
            if found is not None:
                return found
        return None

    def open(self, url: str, headers: Mapping[str, str]) -> HTTPResponse:
        """Open a URL; the name and password of an index go to its own host only. Raises OSError or HTTPException."""
        parts = urlsplit(url)
        host = parts.netloc.rpartition("@")[2]
        request = Request(parts._replace(netloc=host).geturl(), headers=dict(headers))
        for known in map(urlsplit, (url, *self.pages(""))):
            if known.username and known.netloc.rpartition("@")[2] == host:
                pair = f"{unquote(known.username)}:{unquote(known.password or '')}"
                # Not sent on to the host of a redirection.
                request.add_unredirected_header("Authorization", f"Basic {base64.b64encode(pair.encode()).decode()}")
                break
        proxy = self.settings.get("proxy")
        proxies = ProxyHandler({"http": proxy, "https": proxy} if proxy else None)
        return build_opener(
            proxies, HTTPSHandler(context=ssl.create_default_context(cafile=self.settings.get("cert")))
        ).open(request, timeout=SECONDS)


def parse_settings(printed: str) -> dict[str, str]:
    """The settings that `pip config list` prints and `pip download` would use, by name."""
    found: dict[str, dict[str, str]] = {section: {} for section in SECTIONS}
    for line in printed.splitlines():
        name, _, value = line.partition("=")
        section, _, option = name.strip().rpartition(".")
        if section in found:
            found[section][option] = _literal(value)
    return {name: value for section in SECTIONS for name, value in found[section].items()}


def _literal(value: str) -> str:
    try:
        return str(ast.literal_eval(value))
    except (SyntaxError, ValueError):
        return value


def _links(text: str, is_json: bool, base: str) -> Iterator[str]:
    """Absolute URLs of the files of an index's page (PEP 503 or 691), without fragments."""
    if is_json:
        found = [str(file["url"]) for file in json.loads(text)["files"]]
    else:
        parser = _Anchors()
        parser.feed(text)
        found = parser.links
    return (urldefrag(urljoin(base, link)).url for link in found)


class _Anchors(HTMLParser):
    """The `href` of every anchor."""

    def __init__(self) -> None:
        super().__init__()
        self.links: list[str] = []

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        self.links += [value for name, value in attributes if tag == "a" and name == "href" and value]
