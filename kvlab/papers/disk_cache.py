"""Keep on disk what was computed from recorded runs, by the state of its data and of the code that computed it.

Files are in the hidden folder `.atlas` of the runs. A file of another state counts as missing; one that cannot be
written, as in a folder that is read only, is left out.
"""

from __future__ import annotations

import hashlib
import io
import json
import logging
from collections.abc import Sequence
from functools import cache
from pathlib import Path

import pandas as pd

from kvlab.common.atomic_write import replace_file
from kvlab.core.errors import UserError

FOLDER = ".atlas"
MOST_FILES = 6000  # of one kind: some 30 comparisons in both themes
CODE = ("papers", "analysis", "figures", "views", "results", "common")
log = logging.getLogger(__name__)


class DiskCache:
    """Values of one `kind` in a folder of runs, one file per key with the state that it was computed from."""

    def __init__(self, root: Path, kind: str) -> None:
        self._folder = root / FOLDER / kind

    def read_text(self, key: Sequence[str], state: str) -> str | None:
        """The text; None if there is none of this state."""
        found = self._read(key)
        head, _, body = (found or b"").partition(b"\n")
        return body.decode() if found is not None and head.decode() == _stamp(state) else None

    def write_text(self, key: Sequence[str], state: str, text: str) -> None:
        """Keep the text in place of what the key had."""
        self._write(key, f"{_stamp(state)}\n{text}".encode())

    def read_table(self, key: Sequence[str], state: str) -> pd.DataFrame | None:
        """The table; None if there is none of this state."""
        found = self._read(key)
        if found is None:
            return None
        try:
            table = pd.read_parquet(io.BytesIO(found))
        except (OSError, ValueError):  # cut off
            return None
        return table if table.attrs.get("state") == _stamp(state) else None

    def write_table(self, key: Sequence[str], state: str, table: pd.DataFrame) -> None:
        """Keep the table in place of what the key had."""
        body = io.BytesIO()
        kept = table.copy()
        kept.attrs = {"state": _stamp(state)}
        kept.to_parquet(body, compression="zstd", index=False)
        self._write(key, body.getvalue())

    def _path(self, key: Sequence[str]) -> Path:
        return self._folder / hashlib.sha256(json.dumps(list(key)).encode()).hexdigest()[:32]

    def _read(self, key: Sequence[str]) -> bytes | None:
        try:
            return self._path(key).read_bytes()
        except OSError:
            return None

    def _write(self, key: Sequence[str], body: bytes) -> None:
        path = self._path(key)
        try:
            if not path.exists():
                self._make_room()
            replace_file(path, lambda file: file.write_bytes(body))
        except (OSError, UserError) as error:
            log.info("%s could not be kept: %s", path, error)

    def _make_room(self) -> None:
        """Remove the oldest quarter of the files if there are too many."""
        files = list(self._folder.glob("*"))
        if len(files) >= MOST_FILES:
            for file in sorted(files, key=lambda file: file.stat().st_mtime)[: MOST_FILES // 4]:
                file.unlink(missing_ok=True)


def _stamp(state: str) -> str:
    return f"{_code()} {state}"


@cache
def _code() -> str:
    """Digest of the code that draws and judges: a changed rule must not show an old verdict."""
    root = Path(__file__).parents[1]
    files = sorted(
        file for name in CODE for file in (root / name).rglob("*") if file.suffix in (".py", ".toml", ".csv")
    )
    return hashlib.sha256(b"".join(file.read_bytes() for file in files)).hexdigest()[:16]
