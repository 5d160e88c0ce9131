"""Results of restore searches: one JSON file per run in its comparison's folder, next to the runs."""

from pathlib import Path

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from kvlab.common.atomic_write import replace_text
from kvlab.core import Restore, UserError

FOLDER = "killed"  # as folders of runs made by earlier versions have it


class SearchResult(BaseModel):
    """Result of one kind of search. If it `restores`, no smaller tried set does."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    search: str = Field(description="what was looked for, such as `tokens`")
    returned: Restore
    restores: bool
    complete: bool = Field(description="bisection finished within its reruns")
    tried: int = Field(ge=0, description="reruns of this search")
    slots: int = Field(description="extra slots after the prompt, over all layers and heads")
    text: str = ""
    kl: tuple[float, ...] = Field((), description="from the full cache, nats, of each token of its continuation")
    attention: tuple[float, ...] = Field((), description="as `RestoreResult.attention_before`")


class NeededBudget(BaseModel):
    """The smallest budget at which the run answers right, found by reruns at budgets between its own and all tokens."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    right_at: float = Field(gt=0, le=1, description="smallest share of the tokens that was right; 1: no smaller")
    wrong_at: float = Field(ge=0, lt=1, description="largest share below it that was tried or run, and wrong")
    of_head: float | None = Field(None, description="slots of the reading head at `right_at`, as a share of the tokens")
    tried: int = Field(ge=0)


class RestoreResult(BaseModel):
    """Why a run does not answer, as far as reruns can tell."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    run_id: str
    comparison_id: str
    label: str
    answer: str = Field(description="the expected answer, or the full cache's own text")
    expected: bool = Field(description="whether the answer was given by the user or task")
    ending: str = Field("", description="why the search stopped early; empty if it did not")
    reruns: int = Field(ge=0)
    most_reruns: int = Field(ge=1)
    seconds: float = Field(ge=0, description="all reruns, without prompt pass and model loading")
    fact: tuple[int, ...] = Field(description="positions of the fact's tokens; empty if unknown")
    reference: tuple[str, ...] = Field(description="the tokens of the full cache's continuation")
    reader: tuple[int, int] | None = Field(None, description="layer and KV head whose answer queries read the fact")
    slots: int = Field(description="slots held after the prompt, over all layers and heads")
    text_before: str
    kl_before: tuple[float, ...]
    tokens: tuple[int, ...] = Field((), description="positions of the attention values")
    attention_full: tuple[float, ...] = Field((), description="of the reader's answer queries, for each of `tokens`")
    attention_before: tuple[float, ...] = ()
    found: tuple[SearchResult, ...] = ()
    budget: NeededBudget | None = Field(None, description="None: not searched, as for a method without a budget")


def result_path(root: Path, comparison_id: str, run_id: str) -> Path:
    """The file of a run's result, which may not exist."""
    return Path(root) / FOLDER / comparison_id / f"{run_id}.json"


def load_result(root: Path, comparison_id: str, run_id: str) -> RestoreResult | None:
    """The result for a run; None if there is none. Raises UserError if its file is damaged."""
    file = result_path(root, comparison_id, run_id)
    if not file.exists():
        return None
    try:
        return RestoreResult.model_validate_json(file.read_bytes())
    except (OSError, ValidationError) as error:
        raise UserError(f"{file} is damaged: remove it and run the search again.") from error


def save_result(root: Path, result: RestoreResult) -> Path:
    """Atomically write the result; returns its file."""
    file = result_path(root, result.comparison_id, result.run_id)
    replace_text(file, result.model_dump_json(indent=1))
    return file
