"""Options for prompts (text, files, a sample, the user's library) and their answers."""

from __future__ import annotations

import re
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from kvlab.cli.options.signature import Setting
from kvlab.core import UserError, check_text, decode_text, plain_text, read_file
from kvlab.requests.compare import LARGEST_PROMPT_BYTES, OnePrompt
from kvlab.requests.facts import check_answer, find_facts

if TYPE_CHECKING:
    from kvlab.forms.uploads import Upload


@dataclass(frozen=True)
class PromptOptions:
    """The source of the prompt or prompts, exactly one; several files or the rows of a table make a batch."""

    prompt: Annotated[str | None, typer.Option(help="the prompt's text")] = None
    file: Annotated[
        list[Path] | None,
        typer.Option(
            help="a text, PDF, DOCX or HTML file or a notebook with the prompt, - for standard input; a table of "
            "prompts as .jsonl, .json, .csv or .parquet; or a conversation as .json; repeatable"
        ),
    ] = None
    sample: Annotated[str | None, typer.Option(help="a prompt that ships with kvlab, such as needle_in_a_story")] = None
    saved: Annotated[str | None, typer.Option(help="a saved prompt, by its name in `kvlab prompts ls`")] = None
    field: Annotated[str, Setting("the column of a table that is the prompt")] = ""
    rows: Annotated[str, typer.Option(help="rows of a table, such as 3 or 1-20; empty for all")] = ""

    @property
    def given(self) -> int:
        """How many sources are given."""
        sources = (self.prompt, self.file or None, self.sample, self.saved)
        return sum(source is not None for source in sources)

    def read(self) -> str:
        """The prompt's text. Raises UserError unless exactly one source with one readable prompt is given."""
        found = self.read_all(Path("runs"))
        if len(found) > 1:
            raise UserError(f"There are {len(found)} prompts, and one is needed: choose it with --rows.")
        return found[0].prompt

    def read_all(self, root: Path) -> list[OnePrompt]:
        """All prompts; omitted parts of documents and rows are reported on standard error.

        Raises UserError unless exactly one source is given and can be read.
        """
        from kvlab.forms.uploads import check_count, notes_of, prompts_of
        from kvlab.library.prompts import load_prompt

        if self.given != 1:
            raise UserError("Give exactly one prompt: --prompt TEXT, --file PATH, --sample NAME, or --saved NAME.")
        if self.prompt is not None:
            return [OnePrompt(prompt=check_text(plain_text(self.prompt.lstrip("\ufeff"))))]
        if self.sample is not None:
            from kvlab.tasks.shipped_samples import shipped_sample

            sample = shipped_sample(Path(self.sample).stem)
            return [OnePrompt(prompt=sample.text, answer=sample.answer, facts=sample.facts)]
        if self.saved is not None:
            return [load_prompt(root, self.saved).asked]
        rows = slice(None)
        if self.rows.strip():  # counted from 1
            span = re.fullmatch(r"\s*(\d{1,9})\s*(?:-\s*(\d{1,9})\s*)?", self.rows)
            first, last = (int(span[1]), int(span[2] or span[1])) if span else (0, 0)
            if not 1 <= first <= last:
                raise UserError(f"Rows cannot be {self.rows[:40]!r}: write 3 or 1-20, counted from 1.")
            rows = slice(first - 1, last)
        found = []
        for path in self.file or []:
            upload = _uploaded(path)
            ours = prompts_of([upload], self.field, rows)
            for sentence in notes_of(ours):
                typer.echo(f"{upload.name}: {sentence}", err=True)
            found += ours
        check_count(found)
        return found


@dataclass(frozen=True)
class AnswerOptions:
    """The right answer, and the facts it needs."""

    answer: Annotated[
        str | None, typer.Option(help="text that a right continuation contains, as whole words; samples have their own")
    ] = None
    fact: Annotated[
        list[str] | None,
        typer.Option("--fact", help="words of the prompt that the answer needs, as written there; repeatable"),
    ] = None

    def fields(self, prompts: Sequence[OnePrompt], is_planted: bool = False) -> dict[str, Any]:
        """The request's fields for prompts and answer; a planted needle has its own answer.

        Raises UserError for an answer together with repeats or several prompts, or an invalid one.
        """
        one = prompts[0]
        has_answer = self.answer is not None or bool(self.fact)
        if is_planted:
            if has_answer or one.answer is not None:
                raise UserError(
                    "Repeats plant their own needle: give a text without --answer, --fact or a sample's question."
                )
            if len(prompts) > 1 or one.turns:
                raise UserError("A needle is planted in one text: give one text, not a conversation.")
            return {"prompt": one.prompt, "notes": one.notes}
        if len(prompts) > 1:
            if has_answer:
                raise UserError(
                    "Several prompts have their own answers, in the field answer: leave out --answer and --fact."
                )
            return {"prompts": tuple(prompts)}
        text = {"turns": one.turns} if one.turns else {"prompt": one.prompt}
        return text | {
            "answer": one.answer if self.answer is None else check_answer(self.answer),
            "other_answers": one.other_answers if self.answer is None else (),
            "notes": one.notes,
            "facts": find_facts(one.prompt, self.fact or one.facts),
        }


def _uploaded(path: Path) -> Upload:
    """A file as read by `kvlab.forms.uploads`; files with an unknown suffix are read as text."""
    from kvlab.forms.uploads import Upload, read_upload
    from kvlab.tasks.documents.document import LARGEST_BYTES
    from kvlab.tasks.documents.read import is_document
    from kvlab.tasks.rows import is_table

    most = LARGEST_BYTES if is_document(path.name) else LARGEST_PROMPT_BYTES
    if str(path) == "-":
        raw = sys.stdin.buffer.read(most + 1)
        if len(raw) > most:
            raise UserError(f"Standard input is too large: give at most {most:,} bytes.")
    else:
        raw = read_file(path, "The prompt file", most)
    if is_table(path.name) or is_document(path.name):
        return read_upload(path.name, raw)
    return Upload(path.name, text=decode_text(raw, "The prompt file"))
