"""Request for an lm-eval run: tasks, methods with budgets, and the scoring protocol. Torch-free."""

from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field, StringConstraints

from kvlab.core.choice import MethodChoice
from kvlab.evaluation.request import full_first
from kvlab.requests.compare import ModelRequest

Protocol = Literal["decode", "simulated"]
Name = Annotated[str, StringConstraints(min_length=1, strip_whitespace=True)]


class LmEvalRequest(ModelRequest):
    """All methods answer the same requests; the full cache is always included."""

    tasks: tuple[Name, ...] = Field(min_length=1, description="lm-eval's task names, or tasks in `include_path`")
    include_path: Path | None = Field(None, description="a folder with your own tasks in lm-eval's YAML")
    choices: tuple[MethodChoice, ...] = ()
    protocol: Protocol = "decode"
    hold_back: int = Field(1, ge=0, lt=2**31, description="decode: last context tokens fed after compression")
    limit: int | None = Field(None, ge=1, lt=2**31, description="prompts per task; None: all")
    num_fewshot: int | None = Field(None, ge=0, le=1000, description="None: each task's default")
    metric: str = Field("", description="METRIC or METRIC,FILTER of lm-eval; empty: each task's first")
    seed: int = Field(1234, ge=0, lt=2**31, description="for the choice of few-shot examples and for sampling")

    @property
    def all_choices(self) -> tuple[MethodChoice, ...]:
        """The full cache first, then each requested choice once."""
        return full_first(self.choices)

    @property
    def settings(self) -> dict[str, object]:
        """How prompts are built and scored, stored in the rows' column `difficulty`."""
        settings: dict[str, object] = {"protocol": self.protocol}
        settings |= {"hold_back": self.hold_back} if self.protocol == "decode" else {}
        settings |= {} if self.num_fewshot is None else {"shots": self.num_fewshot}
        return settings | ({"metric": self.metric} if self.metric else {})

    def task_name(self, task: str) -> str:
        """The task's name in rows; another protocol or metric makes another task."""
        protocol = self.protocol if self.protocol == "simulated" else ""
        return ", ".join(filter(None, [f"lm-eval:{task}", protocol, self.metric]))
