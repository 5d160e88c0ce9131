"""Budgets of heads by the loss that later text would notice, measured beforehand (LU-KV)."""

from __future__ import annotations

from dataclasses import dataclass

from kvlab.core.methods.allocators.profile import HeadProfile


@dataclass(frozen=True)
class HeadCurves(HeadProfile):
    """Split the model's budget over heads as one cut of their loss curves did on other texts (LU-KV, arXiv 2602.08585).

    `profile` names a file of `kvlab fit --method lukv`: the shares of the slots at 99 budgets, 1 to 99 % of a prompt,
    measured for one score. Between them shares are interpolated; the original takes the nearest (kvpress,
    lukv_press.py). Counts are rounded over the model, so that its budget is met; the original rounds by layer.
    """
