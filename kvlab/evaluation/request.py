"""The request of an evaluation: tasks, files, methods with budgets, number of prompts. Torch-free."""

import re
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field, JsonValue, RootModel, ValidationError, field_validator

from kvlab.common.atomic_write import replace_text
from kvlab.core import FULL, MethodChoice, Strict, Text, parse_value
from kvlab.requests.compare import ModelRequest
from kvlab.tasks.sample import StyleChoice, check_seed

Depth = Annotated[float, Field(ge=0, le=1)]
# Name of a result folder or file: one path component, not hidden.
ResultName = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,99}$")]


class TaskChoice(Strict):
    """A task with its non-default difficulty parameters."""

    task: str
    difficulty: dict[str, JsonValue] = Field(default_factory=dict)


class FileChoice(Strict):
    """A user's file in one of the formats of `kvlab.tasks.loaders`."""

    form: str
    path: Path
    options: dict[str, JsonValue] = Field(default_factory=dict, description="as `kvlab.tasks.loaders.load_file` takes")

    @property
    def named(self) -> dict[str, JsonValue]:
        """The file as recorded in rows: file names without folders, and the options."""
        return {"file": self.path.name} | {
            name: Path(value).name if name.endswith("_from") and isinstance(value, str) else value
            for name, value in self.options.items()
        }


_FILE = re.compile(r"([^=:/]*)=(.+?)((?::[a-z_]+=[^:]+)*)", re.DOTALL)


def split_file(text: str) -> tuple[str, str, dict[str, JsonValue]]:
    """Split `format=path:option=value` into format, path and options; raises ValueError if it names no file."""
    found = _FILE.fullmatch(text)
    if found is None or not found[1].strip() or not found[2].strip() or "\0" in text:
        raise ValueError("no file")
    pairs = (part.partition("=") for part in found[3].split(":") if part)
    return found[1].strip(), found[2].strip(), {name: parse_value(value) for name, _, value in pairs}


class EvalRequest(ModelRequest):
    """Methods on the same prompts; the full cache is always included, as the reference of paired differences."""

    tasks: tuple[TaskChoice, ...] = ()
    files: tuple[FileChoice, ...] = ()
    choices: tuple[MethodChoice, ...] = ()
    lengths: tuple[int, ...] | None = Field(default=None, description="tokens; None: each task's own default lengths")
    depths: tuple[Depth, ...] | None = Field(default=None, description="None: a random depth per sample")
    samples: int = Field(default=20, ge=1, le=100_000, description="prompts for each task, length and depth")
    seed: int = 0
    question_aware: bool = True
    batch_rows: int | None = Field(default=None, ge=1, le=4096, description="batch size; None: 8 on a GPU, else 1")
    prefill_chunk: int | None = Field(
        default=None, ge=1, lt=2**31, description="prompt tokens per pass; None: the whole prompt in one"
    )
    style: StyleChoice = Field(
        default="auto",
        description="of the tasks' questions: continuation (as mini was trained), chat (the model's turn begins with "
        "the answer's first words) or question; auto: chat for a model with a chat template, else continuation",
    )
    forced: bool = Field(
        default=False,
        description="measure KL against the full cache on the continuation that it generates, in place of scores",
    )
    skip_malformed: bool = False
    max_prompt: int | None = Field(
        default=None,
        ge=8,
        lt=2**31,
        description="tokens allowed per prompt of a file; None: the model's context window",
    )
    cut: Literal["start", "middle", "end"] = Field(
        default="middle", description="which part of longer prompts of files is cut; middle is LongBench's rule"
    )

    _seed_is_for_evaluation = field_validator("seed")(check_seed)

    @property
    def all_choices(self) -> tuple[MethodChoice, ...]:
        """The full cache first, then each requested choice once."""
        return full_first(self.choices)


def full_first(choices: Iterable[MethodChoice]) -> tuple[MethodChoice, ...]:
    """The choices without repeats, with the full cache first."""
    others = [choice for choice in choices if choice.method != FULL.method]
    return (FULL, *{choice.model_dump_json(): choice for choice in others}.values())


class EvalJob(Strict):
    """An evaluation for the queue, with its results in `<runs>/eval/<name>`; existing rows are kept."""

    kind: Literal["evaluate"] = "evaluate"
    name: ResultName
    request: EvalRequest
    title: Text = ""
    private: bool = Field(False, description="on a shared server its owner alone sees it")


class SampleJob(Strict):
    """One prompt of an evaluation as a recorded comparison.

    `content` is the hash of a prompt from a file; it is empty for a generated prompt, the last one of `request`.
    """

    kind: Literal["sample"] = "sample"
    request: EvalRequest
    content: str = ""
    title: Text = ""
    private: bool = Field(False, description="on a shared server its owner alone sees it")
    owner: str = Field("", exclude=True, description="whose run it is on a shared server; the queue says it")


FILE = "files.json"
_Files = RootModel[dict[str, FileChoice]]


def remember_files(folder: Path, files: Sequence[FileChoice]) -> None:
    """Note the files' places in the folder of results; of one name the last counts."""
    if not files:
        return
    known = known_files(folder)
    for file in files:
        # Absolute paths, for processes with another working directory; row keys stay the same.
        options = {
            name: str(Path(value).absolute()) if name.endswith("_from") and isinstance(value, str) else value
            for name, value in file.options.items()
        }
        known[file.path.name] = file.model_copy(update={"path": file.path.absolute(), "options": options})
    replace_text(folder / FILE, _Files(known).model_dump_json())


def known_files(folder: Path) -> dict[str, FileChoice]:
    """The noted files that still exist, by name."""
    try:
        found = _Files.model_validate_json((folder / FILE).read_text(encoding="utf-8")).root
    except (OSError, ValidationError):
        return {}
    return {name: file for name, file in found.items() if file.path.exists()}
