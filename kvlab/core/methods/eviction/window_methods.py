"""Hyper-parameters shared by methods that score with SnapKV's observation window."""

from __future__ import annotations

from dataclasses import replace
from typing import Annotated, Literal

from pydantic import AfterValidator, Field

from kvlab.core.contract.decode_buffer import GoesOn
from kvlab.core.contract.method import Method
from kvlab.core.methods.scorers.attention.window import Edges, WindowAttention


def _check_odd(kernel: int) -> int:
    if kernel % 2 == 0:
        raise ValueError("the kernel must be odd")
    return kernel


Odd = Annotated[int, AfterValidator(_check_odd)]  # width of a pooling centred on each slot


class WindowScored(Method):
    """A method scored by the pooled attention of the prompt's last queries."""

    window: int = Field(32, ge=1, description="last prompt queries that vote; these tokens always stay")
    kernel: Odd = Field(7, ge=1, le=1025, description="width of the pooling over neighbours, odd")
    pooling: Literal["max", "average"] = Field("max", description="pooling over neighbours")

    def window_attention(self) -> WindowAttention:
        """The scorer described by these hyper-parameters."""
        return WindowAttention(self.window, self.kernel, self.pooling)


class WindowEvicting(WindowScored, GoesOn):
    """A window-scored method that evicts, such as SnapKV and methods that allocate its budgets."""

    edges: Edges = Field(
        "tokens", description="average pooling at the ends of the text: real tokens only, or zeros beyond them too"
    )

    def window_attention(self) -> WindowAttention:
        """The scorer described by these hyper-parameters."""
        return replace(super().window_attention(), edges=self.edges)

    @property
    def own_window(self) -> int:
        """The observation window, whose tokens always stay."""
        return self.window
