"""What fills the atlas, as work for the queue or for `kvlab atlas fill`, made from the commands its exhibits name.

Comparisons of several exhibits become one a text, over several texts, so that claims can be judged; evaluations share a
folder, so that what two exhibits ask for is measured once.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from kvlab.bench.request import BenchJob
from kvlab.catalogue.methods import MethodEntry
from kvlab.evaluate.request import EvalJob
from kvlab.forms.command_to_request import Ordered, order
from kvlab.requests.compare import CompareRequest, MethodChoice
from kvlab.tasks.shipped_samples import excerpts

FOLDER = "atlas"  # of the evaluations, in the runs' `eval`
NEW_TOKENS = 32
USUAL = 20  # prompts a task that an exhibit asks for


@dataclass(frozen=True)
class Small:
    """How much is measured: texts that are recorded, prompts a task, and their tokens.

    `over_lengths` and `over_depths` are the lengths of evaluations over these; the latter have 3 prompts a cell.
    """

    prompts: int = 8
    samples: int = 5
    lengths: tuple[int, ...] = (384,)
    over_lengths: tuple[int, ...] = (384, 512, 1024)
    over_depths: tuple[int, ...] = (256, 512, 768)


def small_evaluation(work: EvalJob, small: Small) -> EvalJob:
    """The evaluation at few prompts and short lengths; one over lengths or depths keeps their number.

    One that asks for more prompts than the others gets as many times more.
    """
    asked = work.request
    lengths = small.over_depths if asked.depths else small.over_lengths if asked.lengths else small.lengths
    depths = asked.depths[:: max(1, len(asked.depths) // 2)] if asked.depths else None
    times = max(1, asked.samples // USUAL)
    samples = min(3, small.samples) if asked.depths else times * small.samples
    request = asked.model_copy(update={"samples": samples, "lengths": lengths, "depths": depths})
    return work.model_copy(update={"name": FOLDER, "request": request})


def comparisons(ordered: Iterable[Ordered], small: Small) -> list[Ordered]:
    """One comparison a text with every method that any of the ordered comparisons asks for."""
    works = [(one, one.work) for one in ordered if isinstance(one.work, CompareRequest)]
    if not works:
        return []
    choices: dict[str, MethodChoice] = {}
    entries: dict[str, MethodEntry] = {}
    for one, work in works:
        choices |= {choice.model_dump_json(): choice for choice in work.choices}
        entries |= {entry.name: entry for entry in one.chosen}
    first = works[0][1].model_copy(
        update={"choices": tuple(choices.values()), "answer": None, "other_answers": (), "facts": ()}
    )
    made = {"max_new_tokens": NEW_TOKENS, "level": "full"}
    return [
        Ordered(first.model_copy(update={"prompt": text, "title": title, **made}), tuple(entries.values()), "0.2")
        for title, text in excerpts(small.prompts)
    ]


def filling(commands: Sequence[str], small: Small) -> list[Ordered]:
    """All work behind the commands: comparisons first, then evaluations (plain arms first), then benchmarks.

    Raises:
        UserError: a command is one for a terminal.
    """
    ordered = [order(command) for command in dict.fromkeys(commands)]
    evaluations = [
        Ordered(small_evaluation(one.work, small), one.chosen, one.budgets)
        for one in ordered
        if isinstance(one.work, EvalJob)
    ]
    benches = [one for one in ordered if isinstance(one.work, BenchJob)]
    return [*comparisons(ordered, small), *sorted(evaluations, key=_options), *benches]


def _options(ordered: Ordered) -> int:
    """How many options its methods have: a method as it stands is measured under its own name first."""
    assert isinstance(ordered.work, EvalJob)
    return max(len(set(choice.hyper_parameters) - {"preset"}) for choice in ordered.work.request.choices)
