"""Options of `kvlab eval` about prefixes: keep compressed contexts, and ask kept ones questions of a file."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import typer

from kvlab.cli.options.signature import Setting
from kvlab.core.errors import UserError
from kvlab.core.method_spec import split_list

QUESTIONS = "questions.jsonl"  # in the folder of results: the questions with the prefix's text


@dataclass(frozen=True)
class PrefixOptions:
    """Whether contexts are kept, and which kept ones are asked what."""

    keep_prefixes: Annotated[
        bool, Setting("yes to keep compressed contexts and open them next time (--question-aware no)")
    ] = False
    prefix: Annotated[
        str | None, typer.Option(help="names from `kvlab prefix ls`, of one text, to ask --questions")
    ] = None
    questions: Annotated[
        Path | None, typer.Option(help="a table of questions and answers: JSON lines, JSON, CSV or Parquet")
    ] = None
    runs: Annotated[Path, typer.Option(help="the folder of runs, next to which prefixes are stored")] = Path("runs")

    @property
    def root(self) -> Path | None:
        """The folder of runs if prefixes are used."""
        return self.runs if self.keep_prefixes or self.prefix else None

    def asked(self, out: Path) -> dict[str, Any]:
        """Fields of the request that asks the named prefixes: model, methods and the questions, as a file in `out`.

        Empty without `prefix`. Raises UserError for prefixes of several texts or models, one that holds more than its
        text, and a file without questions.
        """
        if (self.prefix is None) != (self.questions is None):
            raise UserError("--prefix NAME and --questions FILE belong together: give both.")
        if self.prefix is None or self.questions is None:
            return {}
        from kvlab.evaluation.request import FileChoice
        from kvlab.library.prefixes import find_prefix, loaded_as, read_texts

        files = [find_prefix(self.runs, name) for name in split_list(self.prefix)]
        heads = [file.header for file in files]
        same = {(one.text_sha256, one.model.digest, one.chat, one.system, one.thinking) for one in heads}
        if len(same) != 1 or any(one.tokens != one.context_tokens for one in heads):
            raise UserError("--prefix takes prefixes of one text, model and chat template that hold nothing else.")
        (text,) = read_texts(files[0])
        out.mkdir(parents=True, exist_ok=True)
        written = out / QUESTIONS
        # The rows of a file as JSON lines with the context.
        questions = self.questions
        from kvlab.core.validation import read_file
        from kvlab.tasks.rows import read_rows

        lines = []
        for row in read_rows(str(questions), read_file(questions, "The file of questions", 2**28)):
            value = {"question": row.value} if isinstance(row.value, str) else row.value
            if row.problem or not isinstance(value, dict) or not str(value.get("question") or "").strip():
                raise UserError(
                    f"{questions}:{row.number} has no question: give rows with the columns question and answer."
                )
            lines.append(json.dumps({**value, "context": text.text}, ensure_ascii=False, default=str))
        if not lines:
            raise UserError(f"{questions} has no question: give columns question and answer.")
        written.write_text("\n".join(lines) + "\n", encoding="utf-8")
        placed = loaded_as(heads[0]) | heads[0].model_dump(include={"chat", "system", "thinking"})
        choices = tuple(one.choice for one in heads)
        return {**placed, "choices": choices, "files": (FileChoice(form="prompts", path=written),), "tasks": ()}
