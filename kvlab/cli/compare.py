"""`kvlab run` and `kvlab compare`: run one or several methods on prompts, and print a table."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

import typer

from kvlab.cli.options.compare_request import Json, LabelOptions, Level, RequestOptions, execute, resume_comparison
from kvlab.cli.options.groups import grouped
from kvlab.cli.options.plan_check import Force
from kvlab.cli.options.repeats import RepeatsOptions, Resume

LevelOfMany = Annotated[
    str, typer.Option(help="what to record: off, light or full; default: full, light for several prompts")
]


@grouped
def run(
    method: Annotated[str, typer.Argument(help="a method, such as keepkv or keepkv:rule=paper")] = "",
    budget: Annotated[str, typer.Option(help="a fraction of the prompt (0.2, 20%) or slots per KV head (128)")] = "0.2",
    *,
    options: RequestOptions,
    level: Level = "full",
    labels: LabelOptions,
    force: Force = False,
    as_json: Json = False,
) -> None:
    """Run one method, named or composed, on one or several prompts, and record it."""
    text, out = options.text, options.out
    prompts = text.read_all(out)
    fields = options.fields(prompts, level)
    execute(options.parts.added_to(method), budget, text.title_of(prompts), out, as_json, force, labels, **fields)


@grouped
def compare(
    methods: Annotated[str, typer.Option(help="comma-separated, such as h2o,keepkv:rule=paper")] = (
        "streaming-llm,h2o,snapkv,zsmerge,keepkv"
    ),
    budgets: Annotated[str, typer.Option(help="comma-separated; each method runs at each")] = "0.2",
    *,
    options: RequestOptions,
    level: LevelOfMany = "",
    repeats: RepeatsOptions,
    labels: LabelOptions,
    resume: Resume = "",
    force: Force = False,
    as_json: Json = False,
) -> None:
    """Compare methods and budgets with the full cache on one or several prompts, or on repeats of a needle."""
    if resume:
        resume_comparison(resume, options.out, as_json)
        return
    text, out = options.text, options.out
    methods, planted = options.parts.added_to(methods), repeats.plantings(options.seed)
    prompts = text.read_all(out)
    fields = options.fields(prompts, level or level_of(len(prompts), planted), bool(planted))
    execute(methods, budgets, text.title_of(prompts), out, as_json, force, labels, repeats=planted, **fields)


def level_of(prompts: int, planted: Sequence[object]) -> str:
    """The default recording level: `light` for several comparisons."""
    return "light" if planted or prompts > 1 else "full"
