"""One sentence on what a form of a comparison would run: methods, budgets, prompts, and whether it fits."""

from __future__ import annotations

from collections.abc import Sequence

from kvlab.common.formatting import join_words, prompts
from kvlab.core.budget import Budget
from kvlab.core.choice import MethodChoice
from kvlab.planning.plan import Plan
from kvlab.requests.compare import CompareRequest


def run_summary(request: CompareRequest, plan: Plan | None = None) -> str:
    """`5 methods at 20 % beside the full cache, fits`; without a plan nothing is said of the fit."""
    compressed = [choice for choice in request.runs if choice.method != "full"]
    parts = [_methods(compressed) if compressed else "the full cache alone"]
    if compressed and len(request.runs) > 1:
        parts[0] += " beside the full cache"
    if request.comparisons > 1:
        parts[0] += f" over {prompts(request.comparisons)}"
    if plan is not None:
        parts.append("fits" if plan.fits else "does not fit")
    return ", ".join(parts)


def _methods(choices: Sequence[MethodChoice]) -> str:
    """`5 methods at 20 %`; methods that take no budget are named on their own."""
    own = [choice.method for choice in choices if Budget(choice.budget).keeps_all]
    budgeted = [choice for choice in choices if choice.method not in own]
    words = list(dict.fromkeys(Budget(choice.budget).words for choice in budgeted))
    names = list(dict.fromkeys(choice.method for choice in budgeted))
    parts = [f"{_count(len(names))} at {join_words(words)}"] if names else []
    if own:
        parts.append(f"{join_words(list(dict.fromkeys(own)))} at {'its' if len(own) == 1 else 'their'} own budget")
    return " and ".join(parts)


def _count(number: int) -> str:
    return f"{number} method{'' if number == 1 else 's'}"
