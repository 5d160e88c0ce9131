"""A `kvlab` command of the atlas as work for the queue, so that a button can do what the card names."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd

from kvlab.bench.request import BenchJob, preset_seconds
from kvlab.catalogue.methods import MethodEntry, methods
from kvlab.catalogue.tasks import task_list
from kvlab.common.errors import UserError
from kvlab.common.validation import read_json
from kvlab.evaluate.request import EvalJob, EvalRequest, TaskChoice
from kvlab.forms import compare_form, eval_form, plan_preview
from kvlab.jobs.work import Work
from kvlab.model_info.chat_template import Manner
from kvlab.model_info.names import EMBEDDED
from kvlab.model_info.token_count import count_tokens
from kvlab.requests.compare import CompareRequest, MethodChoice
from kvlab.tasks.shipped_samples import shipped_samples

ALL_TASKS = "all"
CHANGES = ("--scale", "--shorten", "--device", "--repeats")  # that a preset of a benchmark may have


@dataclass(frozen=True)
class Ordered:
    """Work, the methods in it, and the budgets as written; what an estimate needs."""

    work: Work
    chosen: tuple[MethodEntry, ...]
    budgets: str


def order(command: str) -> Ordered:
    """The work that a `kvlab compare`, `eval` or `bench --preset` command of the atlas asks for.

    Raises:
        UserError: a button cannot do this command.
    """
    words = shlex.split(command)
    options = dict(zip(words[2::2], words[3::2], strict=False))
    known = {"compare": _compare, "eval": _evaluate, "bench": _bench}
    if words[:1] != ["kvlab"] or words[1] not in known:
        raise UserError(f"This is for a terminal: {command}")
    if "--data" in options or options.get("--model", EMBEDDED) != EMBEDDED:
        raise UserError("This needs a model and files of your own: run the command in a terminal.")
    return known[words[1]](options)


def estimate(ordered: Ordered, rows: pd.DataFrame, root: Path) -> tuple[float, float] | None:
    """Seconds it takes, from and to; None where nothing is known. `rows` are those of earlier evaluations."""
    work = ordered.work
    if isinstance(work, EvalJob):
        found = eval_form.cost(work, task_list(), rows, ordered.chosen, ordered.budgets, root)
        return None if found.low is None or found.high is None else (found.low, found.high)
    if isinstance(work, BenchJob):
        return preset_seconds(work.preset, work.changes) if work.preset else None
    if not isinstance(work, CompareRequest):
        return None
    tokens = count_tokens(work.prompt, Manner.of(work))[0]
    options = {"level": work.level, "max_new_tokens": work.max_new_tokens}
    plan = plan_preview.plan_of(tokens, work.model, ordered.chosen, ordered.budgets, {}, options, root)
    return None if plan is None or plan.seconds is None else (plan.seconds.low, plan.seconds.high)


def _compare(options: Mapping[str, str]) -> Ordered:
    sample = next((one for one in shipped_samples() if one.name == options["--sample"]), None)
    if sample is None:
        raise UserError(f"There is no sample {options['--sample']!r}: run the command in a terminal.")
    chosen, choices = _choices(options)
    request = compare_form.make_request(
        sample.text, EMBEDDED, choices, max_new_tokens=sample.max_new_tokens, title=sample.title, answer=sample.answer,
        facts=sample.facts, level=options.get("--level", "full"),
    )  # fmt: skip
    return Ordered(request, chosen, options["--budgets"])


def _evaluate(options: Mapping[str, str]) -> Ordered:
    chosen, choices = _choices(options)
    asked = options["--tasks"]
    names = [task.name for task in task_list().tasks] if asked == ALL_TASKS else asked.split(",")
    name = Path(options["--out"]).name
    request = EvalRequest(
        model=EMBEDDED,
        tasks=tuple(TaskChoice(task=task) for task in names),
        choices=choices,
        samples=int(options["--samples"]),
        question_aware=options.get("--question-aware", "yes") == "yes",
        lengths=eval_form.numbers(options.get("--lengths", ""), "Lengths", int) or None,
        depths=eval_form.numbers(options.get("--depths", ""), "Depths", float) or None,
    )
    return Ordered(EvalJob(name=name, request=request, title=f"Evaluation {name}"), chosen, options["--budgets"])


def _bench(options: Mapping[str, str]) -> Ordered:
    preset = options.get("--preset")
    if preset is None:
        raise UserError("Benchmarks of your own are asked for on the page Speed.")
    changes = {name.removeprefix("--"): _value(value) for name, value in options.items() if name in CHANGES}
    return Ordered(BenchJob(name=preset, preset=preset, changes=changes, title=f"Benchmark {preset}"), (), "")


def _choices(options: Mapping[str, str]) -> tuple[tuple[MethodEntry, ...], tuple[MethodChoice, ...]]:
    """The methods written as on the command line, such as `keepkv:preset=paper:rule=votes`, with every budget."""
    registered = {entry.name: entry for entry in methods()}
    budgets = compare_form.parse_budgets(options["--budgets"])
    entries: list[MethodEntry] = []
    choices: list[MethodChoice] = []
    for word in options["--methods"].split(","):
        name, *parts = word.split(":")
        if name not in registered:
            raise UserError(f"There is no method {name!r} here: run the command in a terminal to see why.")
        values: dict[str, Any] = {key: _value(value) for key, _, value in (part.partition("=") for part in parts)}
        entries.append(registered[name])
        choices += compare_form.choices([registered[name]], budgets, {name: values})
    return tuple({entry.name: entry for entry in entries}.values()), tuple(choices)


def _value(text: str) -> Any:
    try:
        return read_json(text)
    except ValueError:
        return text
