"""Where a prompt on the command line comes from: text, a file, or a sample that ships with kvlab."""

from __future__ import annotations

import sys
from pathlib import Path

from kvlab.assets import asset_path
from kvlab.errors import UserError
from kvlab.given import check_text, read_file
from kvlab.requests import LARGEST_PROMPT_BYTES


def read_prompt(prompt: str | None, file: Path | None, sample: str | None) -> str:
    """The prompt's text. Raises UserError unless exactly one source is given and it can be read."""
    if sum(source is not None for source in (prompt, file, sample)) != 1:
        raise UserError("Give exactly one prompt: --prompt TEXT, --file PATH, or --sample NAME.")
    if prompt is not None:
        return check_text(prompt)
    path = file if file is not None else _sample(str(sample))
    try:
        raw = _standard_input() if str(path) == "-" else read_file(path, "The prompt file", LARGEST_PROMPT_BYTES)
        return check_text(raw.decode("utf-8"), "The prompt file")
    except UnicodeDecodeError as error:
        raise UserError(f"The prompt file is not UTF-8 text (byte {error.start:,}); save it as UTF-8.") from None


def _standard_input() -> bytes:
    data = sys.stdin.buffer.read(LARGEST_PROMPT_BYTES + 1)
    if len(data) > LARGEST_PROMPT_BYTES:
        raise UserError(f"Standard input is too large: give at most {LARGEST_PROMPT_BYTES:,} bytes.")
    return data


def _sample(name: str) -> Path:
    folder = asset_path("prompts/samples")
    path = folder / f"{Path(name).stem}.txt"
    if not path.exists():
        known = ", ".join(sorted(file.stem for file in folder.glob("*.txt")))
        raise UserError(f"There is no sample prompt {name!r}; choose one of {known}.")
    return path
