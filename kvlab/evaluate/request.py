"""What one evaluation is: tasks and files, methods with budgets, and how many prompts. Torch-free."""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, JsonValue, field_validator

from kvlab.common.validation import Text
from kvlab.requests.compare import FULL, MethodChoice, ModelRequest
from kvlab.requests.method_spec import parse_value
from kvlab.tasks.sample import check_seed

Depth = Annotated[float, Field(ge=0, le=1)]
# Of a folder or file of results: one part of a path, and none that is hidden.
ResultName = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,99}$")]


class TaskChoice(BaseModel):
    """A task with the difficulty parameters that differ from its defaults."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    task: str
    difficulty: dict[str, JsonValue] = Field(default_factory=dict)


class FileChoice(BaseModel):
    """A user's own file in one of the formats of `kvlab.tasks.loaders`."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    form: str
    path: Path
    options: dict[str, JsonValue] = Field(default_factory=dict, description="as `kvlab.tasks.loaders.load_file` takes")

    @property
    def named(self) -> dict[str, JsonValue]:
        """What rows say of the file: its name and the options, of another file its name too."""
        return {"file": self.path.name} | {
            name: Path(value).name if name.endswith("_from") and isinstance(value, str) else value
            for name, value in self.options.items()
        }

    def with_whole_paths(self) -> FileChoice:
        """The same for processes with another current folder; rows are named as before."""
        options = {
            name: str(Path(value).absolute()) if name.endswith("_from") and isinstance(value, str) else value
            for name, value in self.options.items()
        }
        return self.model_copy(update={"path": self.path.absolute(), "options": options})


_FILE = re.compile(r"([^=:/]*)=(.+?)((?::[a-z_]+=[^:]+)*)", re.DOTALL)


def split_file(text: str) -> tuple[str, str, dict[str, JsonValue]]:
    """Return format, path and options of `format=path:option=value`; raises ValueError where it names no file."""
    found = _FILE.fullmatch(text)
    if found is None or not found[1].strip() or not found[2].strip() or "\0" in text:
        raise ValueError("no file")
    pairs = (part.partition("=") for part in found[3].split(":") if part)
    return found[1].strip(), found[2].strip(), {name: parse_value(value) for name, _, value in pairs}


class EvalRequest(ModelRequest):
    """Every method sees the same prompts; the full cache is always among them: paired differences are taken to it."""

    tasks: tuple[TaskChoice, ...] = ()
    files: tuple[FileChoice, ...] = ()
    choices: tuple[MethodChoice, ...] = ()
    lengths: tuple[int, ...] | None = Field(default=None, description="tokens; None: each task's own default lengths")
    depths: tuple[Depth, ...] | None = Field(default=None, description="None: a random depth a sample")
    samples: int = Field(default=20, ge=1, le=100_000, description="prompts for each task, length and depth")
    seed: int = 0
    question_aware: bool = True
    batch_rows: int | None = Field(
        default=None, ge=1, le=4096, description="prompts run together; None: 8 on a GPU, else 1"
    )
    prefill_chunk: int | None = Field(
        default=None, ge=1, lt=2**31, description="prompt tokens a pass; None: the whole in one"
    )
    skip_malformed: bool = False
    max_prompt: int | None = Field(
        default=None, ge=8, lt=2**31, description="tokens a file's prompt may have; None: the model's window"
    )
    cut: Literal["start", "middle", "end"] = Field(
        default="middle", description="what a longer prompt of a file loses; middle is LongBench's rule"
    )

    _seed_is_for_evaluation = field_validator("seed")(check_seed)

    def with_whole_paths(self) -> EvalRequest:
        """The same for processes with another current folder."""
        return self.model_copy(update={"files": tuple(file.with_whole_paths() for file in self.files)})

    @property
    def all_choices(self) -> tuple[MethodChoice, ...]:
        """Return the full cache first, then each asked-for choice once."""
        return full_first(self.choices)


def full_first(choices: Iterable[MethodChoice]) -> tuple[MethodChoice, ...]:
    """Return the full cache, then each other choice once."""
    others = [choice for choice in choices if choice.method != FULL.method]
    return (FULL, *{choice.model_dump_json(): choice for choice in others}.values())


class EvalJob(BaseModel):
    """An evaluation for the queue: its results lie in `<runs>/eval/<name>`, and what lies there is not made again."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    kind: Literal["evaluate"] = "evaluate"
    name: ResultName
    request: EvalRequest
    title: Text = ""
    private: bool = Field(False, description="on a shared server its owner and administrators alone see it")


class SampleJob(BaseModel):
    """One prompt of an evaluation as a recorded comparison: `request` makes the prompts, `index` and `content` name it.

    `content` is the hash of a prompt from a file; a generated one is the last of its cell, and has none.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    kind: Literal["sample"] = "sample"
    request: EvalRequest
    content: str = ""
    title: Text = ""
    private: bool = Field(False, description="on a shared server its owner and administrators alone see it")
