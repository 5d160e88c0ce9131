"""`kvlab run` and `kvlab compare`: one prompt, one or several methods, run folders and a table."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

import typer

from kvlab.cli.options.compare_request import AskedOptions, Json, KeptOptions, Level, execute, go_on
from kvlab.cli.options.groups import grouped
from kvlab.cli.options.plan_check import Force
from kvlab.cli.options.repeats import RepeatsOptions, Resume

LevelOfMany = Annotated[str, typer.Option(help="what to record: off, light or full; full, light for several prompts")]


@grouped
def run(
    method: Annotated[str, typer.Argument(help="a method, such as keepkv or keepkv:rule=paper")] = "",
    budget: Annotated[str, typer.Option(help="a fraction of the prompt (0.2, 20%) or slots per KV head (128)")] = "0.2",
    *,
    asked: AskedOptions,
    level: Level = "full",
    kept: KeptOptions,
    force: Force = False,
    as_json: Json = False,
) -> None:
    """Run one method, named or composed, over one prompt, or over each of several, and record it."""
    text, out = asked.text, asked.out
    found = text.read_all(out)
    fields = asked.of(found, level)
    execute(asked.parts.added_to(method), budget, text.title_of(found), out, as_json, force, kept, **fields)


@grouped
def compare(
    methods: Annotated[str, typer.Option(help="comma-separated, such as h2o,keepkv:rule=paper")] = (
        "streaming-llm,h2o,snapkv,zsmerge,keepkv"
    ),
    budgets: Annotated[str, typer.Option(help="comma-separated; each method runs at each")] = "0.2",
    *,
    asked: AskedOptions,
    level: LevelOfMany = "",
    repeats: RepeatsOptions,
    kept: KeptOptions,
    resume: Resume = "",
    force: Force = False,
    as_json: Json = False,
) -> None:
    """Compare several methods and budgets, and the full cache, over one prompt, several, or repeats of a needle."""
    if resume:
        go_on(resume, asked.out, as_json)
        return
    text, out = asked.text, asked.out
    methods, planted = asked.parts.added_to(methods), repeats.plantings(asked.seed)
    found = text.read_all(out)
    fields = asked.of(found, level or level_of(len(found), planted), bool(planted))
    execute(methods, budgets, text.title_of(found), out, as_json, force, kept, repeats=planted, **fields)


def level_of(prompts: int, planted: Sequence[object]) -> str:
    """What is recorded where nothing is said of it: less of several comparisons."""
    return "light" if planted or prompts > 1 else "full"
