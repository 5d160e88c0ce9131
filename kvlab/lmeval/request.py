"""What one run of the harness is: its tasks, methods with budgets, and how likelihoods are taken. Torch-free."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field, StringConstraints

from kvlab.evaluate.request import full_first
from kvlab.requests.compare import MethodChoice, ModelRequest

Protocol = Literal["decode", "simulated"]
Name = Annotated[str, StringConstraints(min_length=1, strip_whitespace=True)]


class LmEvalRequest(ModelRequest):
    """Every method sees the same requests; the full cache is always among them."""

    tasks: tuple[Name, ...] = Field(min_length=1, description="names of the harness, or of tasks in `include_path`")
    include_path: Path | None = Field(None, description="a folder with tasks of one's own, in the harness's YAML")
    choices: tuple[MethodChoice, ...] = ()
    protocol: Protocol = "decode"
    hold_back: int = Field(1, ge=0, lt=2**31, description="decode: last context tokens that go in after compression")
    limit: int | None = Field(None, ge=1, lt=2**31, description="prompts of each task; None: all")
    num_fewshot: int | None = Field(None, ge=0, le=1000, description="None: as each task has it")
    metric: str = Field("", description="METRIC or METRIC,FILTER of the harness; empty: each task's first")
    seed: int = Field(1234, ge=0, lt=2**31, description="of the choice of worked examples, and of sampling")
    batch_rows: int | None = Field(None, ge=1, le=4096, description="contexts run together; None: 8 on a GPU, else 1")
    prefill_chunk: int | None = Field(None, ge=1, lt=2**31, description="context tokens a pass; None: all in one")

    @property
    def all_choices(self) -> tuple[MethodChoice, ...]:
        """The full cache first, then each asked-for choice once."""
        return full_first(self.choices)

    @property
    def way(self) -> dict[str, object]:
        """How prompts were put and scored, as rows name it beside the task."""
        way: dict[str, object] = {"protocol": self.protocol}
        way |= {"hold_back": self.hold_back} if self.protocol == "decode" else {}
        way |= {} if self.num_fewshot is None else {"shots": self.num_fewshot}
        return way | ({"metric": self.metric} if self.metric else {})

    def task_name(self, task: str) -> str:
        """What rows call a task: the two protocols, or two metrics, are no further prompts of one task."""
        also = [*(["simulated"] if self.protocol == "simulated" else []), *([self.metric] if self.metric else [])]
        return ", ".join([f"lm-eval:{task}", *also])
