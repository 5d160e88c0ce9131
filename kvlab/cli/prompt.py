"""Where a prompt on the command line comes from: text, a file, or a sample that ships with kvlab; and its answer."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import typer

from kvlab.assets import asset_path
from kvlab.errors import UserError
from kvlab.given import check_text, read_file
from kvlab.requests import LARGEST_PROMPT_BYTES


@dataclass(frozen=True)
class PromptOptions:
    """Exactly one of these is the prompt."""

    prompt: Annotated[str | None, typer.Option(help="the prompt's text")] = None
    file: Annotated[Path | None, typer.Option(help="a UTF-8 text file with the prompt; - for standard input")] = None
    sample: Annotated[str | None, typer.Option(help="a prompt that ships with kvlab, such as needle_in_a_story")] = None

    @property
    def given(self) -> bool:
        """Whether there is any."""
        return (self.prompt, self.file, self.sample) != (None, None, None)

    def read(self) -> str:
        """The prompt's text. Raises UserError unless exactly one source is given and it can be read."""
        return read_prompt(self.prompt, self.file, self.sample)

    @property
    def title(self) -> str:
        """What a comparison of it is called."""
        named = self.sample or (self.file.stem if self.file is not None else "")
        return named.replace("_", " ").capitalize() if named else " ".join((self.prompt or "").split())[:60]


@dataclass(frozen=True)
class AnswerOptions:
    """What a right continuation holds, and what it needs."""

    answer: Annotated[
        str | None, typer.Option(help="what a right continuation holds, as whole words; a sample has its own")
    ] = None
    fact: Annotated[
        list[str] | None,
        typer.Option(
            "--fact", help="words of the prompt that the answer needs, as written there; give it again for more"
        ),
    ] = None

    def asked(self, prompt: PromptOptions, planted: bool = False) -> dict[str, Any]:
        """`answer` and `facts` as given, else those of the sample; what is planted brings its own.

        Raises UserError for an answer beside repeats, or one that cannot be looked for.
        """
        from kvlab.answers import check_answer
        from kvlab.tasks.shipped_samples import shipped_samples

        name = prompt.sample
        own = next((sample for sample in shipped_samples() if name and sample.name == Path(name).stem), None)
        if planted:
            if self.answer is not None or self.fact or (own is not None and own.answer is not None):
                raise UserError(
                    "Repeats plant their own needle: give a text without --answer, --fact or a sample's question."
                )
            return {"answer": None, "facts": ()}
        answer = own.answer if self.answer is None and own is not None else self.answer
        return {
            "answer": None if answer is None else check_answer(answer),
            "facts": tuple(self.fact or (own.facts if own else ())),
        }


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
