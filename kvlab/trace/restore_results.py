"""What restores the answer of a run: one JSON file a run, in its comparison's folder beside the runs, never in them."""

from __future__ import annotations

from pathlib import Path

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from kvlab.common.atomic_write import replace_text
from kvlab.common.errors import UserError
from kvlab.requests.restore import Restore

FOLDER = "killed"


class Found(BaseModel):
    """What a search for one kind of return came to. Where it `restores`, no smaller set that was tried does."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    search: str = Field(description="what was looked for, such as `tokens`")
    returned: Restore
    restores: bool
    complete: bool = Field(description="bisection came to its end, and not to that of its reruns")
    tried: int = Field(ge=0, description="reruns of this search")
    slots: int = Field(description="more than the run held after the prompt, over all layers and heads")
    text: str = ""
    kl: tuple[float, ...] = Field((), description="from the full cache, nats, of each token of its continuation")
    attention: tuple[float, ...] = Field((), description="as `Rescue.attention_before`")


class Rescue(BaseModel):
    """Why a run does not answer, as far as reruns can tell."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    run_id: str
    comparison_id: str
    label: str
    answer: str = Field(description="what a right continuation holds, or the full cache's own text that is held to")
    expected: bool = Field(description="whether the answer was given, and is not the full cache's text")
    ending: str = Field("", description="why the search ended before its end; empty where it did not")
    reruns: int = Field(ge=0)
    most_reruns: int = Field(ge=1)
    seconds: float = Field(ge=0, description="all reruns together, the prompt's pass and loading the model left out")
    fact: tuple[int, ...] = Field(description="positions of the fact's tokens; none where no fact is known")
    reference: tuple[str, ...] = Field(description="the tokens of the full cache's continuation")
    reader: tuple[int, int] | None = Field(None, description="layer and KV head whose answer queries read the fact")
    slots: int = Field(description="slots held after the prompt, over all layers and heads")
    text_before: str
    kl_before: tuple[float, ...]
    tokens: tuple[int, ...] = Field((), description="positions that the attention is given of")
    attention_full: tuple[float, ...] = Field((), description="of the reader's answer queries, for each of `tokens`")
    attention_before: tuple[float, ...] = ()
    found: tuple[Found, ...] = ()


def rescue_path(root: Path, comparison_id: str, run_id: str) -> Path:
    """The file of a run's rescue, there or not."""
    return Path(root) / FOLDER / comparison_id / f"{run_id}.json"


def load_rescue(root: Path, comparison_id: str, run_id: str) -> Rescue | None:
    """What was found for a run; None where nobody looked.

    Raises:
        UserError: its file is damaged.
    """
    file = rescue_path(root, comparison_id, run_id)
    if not file.exists():
        return None
    try:
        return Rescue.model_validate_json(file.read_bytes())
    except (OSError, ValidationError) as error:
        raise UserError(f"{file} is damaged: remove it, and look for what killed the answer again.") from error


def save_rescue(root: Path, rescue: Rescue) -> Path:
    """Write it, whole or not at all; returns its file."""
    file = rescue_path(root, rescue.comparison_id, rescue.run_id)
    replace_text(file, rescue.model_dump_json(indent=1))
    return file
