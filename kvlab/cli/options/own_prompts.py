"""Options of one's own prompts: files and folders, tasks, benchmarks' files, and saved prompts."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer

from kvlab.cli.options.signature import Setting
from kvlab.common.atomic_write import replace_text
from kvlab.core.errors import UserError

ALL_SAVED = "all"


@dataclass(frozen=True)
class OwnPrompts:
    """The prompts, wherever they are."""

    prompts: Annotated[
        list[Path] | None,
        typer.Option(
            help="your prompts: a text, PDF, DOCX, HTML, notebook, JSONL, CSV or Parquet file, or a folder of such; "
            "repeatable"
        ),
    ] = None
    tasks: Annotated[str, typer.Option(help="kvlab's tasks, such as needle,key_value:pairs=64")] = ""
    data: Annotated[list[str] | None, typer.Option(help="a benchmark's file, as for kvlab eval")] = None
    saved: Annotated[str, typer.Option(help="saved prompts with these words in name or text; 'all' for every one")] = ""
    new_tokens: Annotated[int | None, Setting("tokens per answer for prompts of files")] = None
    runs: Annotated[Path, typer.Option(help="the folder of runs, next to which prompts are saved")] = Path("runs")

    @property
    def is_given(self) -> bool:
        """Whether any prompts are named."""
        return bool(self.prompts or self.tasks or self.data or self.saved)

    def files(self) -> list[str]:
        """The files as `kvlab eval --data` takes them; saved prompts become one. Raises UserError for missing ones."""
        option = "" if self.new_tokens is None else f":max_new_tokens={self.new_tokens}"
        paths = self.prompts or []
        for path in paths:
            if not path.exists():
                raise UserError(
                    f"There is no file or folder {path}: give a text, a document, a table of prompts, or a folder of "
                    "these."
                )
        own = [f"prompts={path.absolute()}{option}" for path in paths]
        return [*own, *(self.data or []), *_saved_file(self.runs, self.saved, option)]


def _saved_file(runs: Path, words: str, option: str) -> list[str]:
    """Saved prompts as a file of rows, which an evaluation can find again."""
    from kvlab.library.prompts import FOLDER, saved_prompts

    if not words:
        return []
    found = saved_prompts(runs, "" if words == ALL_SAVED else words)
    if not found:
        raise UserError(f"No saved prompt matches {words!r}: `kvlab prompts ls` lists them.")
    lines = []
    for one in found:
        answers = [answer for answer in (one.answer, *one.other_answers) if answer]
        text = (
            {"messages": [turn.model_dump(mode="json") for turn in one.turns]} if one.turns else {"prompt": one.prompt}
        )
        lines.append(json.dumps(text | {"answer": answers, "name": one.name}, ensure_ascii=False))
    content = "\n".join(lines) + "\n"
    file = runs / FOLDER / "sets" / f"saved-{hashlib.sha256(content.encode()).hexdigest()[:8]}.jsonl"
    replace_text(file, content)
    return [f"prompts={file.absolute()}{option}"]
