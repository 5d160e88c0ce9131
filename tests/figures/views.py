"""The figures of the views no paper has, from the same large comparison."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np
import pandas as pd
import plotly.graph_objects as go

from kvlab.core.restore import Restore
from kvlab.trace import Run
from kvlab.trace.restore_results import RestoreResult, SearchResult
from kvlab.views import autopsy as autopsies
from kvlab.views import board as boards
from kvlab.views import bound, heads, health, memory, regret, serving, unread
from kvlab.views import restore as restored
from kvlab.views import wall as wall_figures
from kvlab.views.frames import autopsy, board, facts, run_pages, wall

Drawn = tuple[str, Callable[[str], go.Figure], str, pd.DataFrame]


def drawn_views(runs: list[Run]) -> Iterator[Drawn]:
    """(name, how to draw it in a theme, its caption, its frame) of every figure; `runs` as in `conftest`."""
    merging = runs[2]
    yield from _of_bound(merging)
    yield from _of_regret(runs[1])
    yield from _of_attention(runs[1])
    yield from _of_needle(merging)
    yield from _of_heads(merging)
    yield from _of_board(runs)
    yield from _of_cost(merging)
    yield from _of_restored(runs[1])
    yield from _of_unread(merging)
    yield from _of_serving(runs[1:3])
    table = health.over_steps(runs)
    yield (
        "health",
        lambda theme: health.growth_over_steps(table, theme),
        health.caption_growth_over_steps(table),
        table,
    )


def _of_bound(run: Run) -> Iterator[Drawn]:
    table = bound.bound_by_head_frame(run, (0, 1))
    one = table.query("layer == 0 and head == 1").reset_index(drop=True)
    for name, frame in (("bound head", one), ("bound medians", bound.bound_medians(run, (0, 1)))):
        caption = bound.caption_sag_against_bound(frame)
        yield name, lambda theme, frame=frame: bound.sag_against_bound(frame, theme), caption, frame
    summary = bound.bound_of_heads(run, (0, 1))
    for measure in bound.MEASURES:
        caption = bound.caption_bound_by_head(summary, measure)
        yield measure, lambda theme, m=measure: bound.bound_by_head(summary, theme, m), caption, summary


def _of_regret(run: Run) -> Iterator[Drawn]:
    picture, table = regret.regret_by_layer(run), regret.regret_over_steps_frame(run.steps, run.tokens)
    yield (
        "regret map",
        lambda theme: regret.regret_map(picture, theme, 9),
        regret.caption_regret_map(picture),
        picture,
    )
    yield (
        "regret",
        lambda theme: regret.regret_over_steps(table, theme),
        regret.caption_regret_over_steps(table),
        table,
    )
    budgets = regret.budget_and_regret(run.steps)
    caption = regret.caption_budget_against_regret(budgets)
    yield "scatter", lambda theme: regret.budget_against_regret(budgets, theme), caption, budgets


def _of_attention(a: Run) -> Iterator[Drawn]:
    read = a.attention_row(0, 1, 4)
    masses = pd.DataFrame({"true": read[0], "slot": read[1]}).astype(np.float32).iloc[:40]
    masses = masses.assign(position=range(40), text=a.tokens["text"].iloc[:40])
    caption = wall_figures.caption_attention_along_text(masses)
    yield "attention", lambda theme: wall_figures.attention_along_text(masses, theme, 0, 1), caption, masses


def _of_needle(run: Run) -> Iterator[Drawn]:
    survived = autopsies.survival_of_span(run, (40, 60))
    over = autopsies.fates_of_span_over_steps(run, (40, 60))
    for fate in autopsy.FATES:
        caption = autopsies.caption_survival_by_head(survived)
        yield fate, lambda theme, f=fate: autopsies.survival_by_head(survived, theme, f), caption, survived
    caption = autopsies.caption_fates_over_steps(over)
    yield "fates", lambda theme: autopsies.fates_over_steps(over, theme), caption, over
    mass = autopsies.attention_to_span(run, 0, 1, (40, 60))
    yield "needle", lambda theme: autopsies.needle_mass(mass, theme), autopsies.caption_needle_mass(mass), mass


def _of_board(runs: list[Run]) -> Iterator[Drawn]:
    answer = "".join(board.reference_texts(runs)[4:7]).strip()
    asked = board.check_answer(runs, board.ExpectedAnswer(answer, ((200, 260),), False))
    frame, readers = board.board(runs, asked, board.verdicts(runs, asked)), board.readers(runs, asked)
    yield "board", lambda theme: boards.board(frame, theme), boards.caption_board(frame), frame
    heads_of = facts.fate_shares(facts.fact_fates(runs[2], asked.positions, asked.step), "layer", "head")
    for at in (readers.iloc[:0], readers):
        read = boards.with_reader(heads_of.copy(), at, "")
        for fate in facts.FATES:

            def draw(theme: str, fate: str = fate, read: pd.DataFrame = read) -> go.Figure:
                return boards.fact_by_head(read, theme, runs[2], fate)

            yield f"fact {fate}", draw, boards.describe_fact(read), read


def _of_restored(run: Run) -> Iterator[Drawn]:
    found = SearchResult(search="tokens", returned=Restore(tokens=(3,)), restores=True, complete=True, tried=1, slots=1,
                  kl=(0.1, 0.0), attention=(0.4, 0.1))  # fmt: skip
    known = RestoreResult(
        run_id="a", comparison_id="b", label="c", answer="d", expected=True, reruns=1, most_reruns=2, seconds=1.0,
        fact=(3,), reference=("x", "y"), reader=(0, 1), slots=9, text_before="", kl_before=(1.0, 2.0), tokens=(3, 9),
        attention_full=(0.5, 0.2), attention_before=(0.0, 0.3), found=(found,),
    )  # fmt: skip
    kl, looks = (view(run, result=known) for view in (restored.restored_kl, restored.restored_attention))
    yield "restored kl", lambda theme: restored.kl_before_after(kl, theme), restored.caption_kl_before_after(kl), kl
    caption = restored.caption_attention_before_after(looks)
    yield (
        "restored looks",
        lambda theme: restored.attention_before_after(looks, theme),
        caption,
        looks,
    )


def _of_unread(run: Run) -> Iterator[Drawn]:
    draw, first, step = np.random.default_rng(0), np.arange(0, 1500, 12), np.arange(1, 61)
    table = pd.DataFrame([(one, at, at + 11, 12, read, mass, mass * (read < 12)) for one in step for at, read, mass in
                          zip(first, draw.integers(0, 13, len(first)), draw.random(len(first)) / 60, strict=True)],
                         columns=["step", "first", "last", "held", "read", "true", "missed"])  # fmt: skip
    draw_map = lambda theme: unread.reading_map(table, theme, run, 0, 1)  # noqa: E731
    yield "reading map", draw_map, unread.caption_reading_map(table), table


def _of_serving(runs: list[Run]) -> Iterator[Drawn]:
    held = wall.wall_of(runs[0])
    freed, over = serving.freed_pages(runs, 16), run_pages.pages_over_steps(held, 16)
    stays = run_pages.pages_map(held, 16, 20)
    yield "freed", lambda theme: serving.freed_by_run(freed, theme), serving.caption_freed_by_run(freed), freed
    caption = serving.caption_pages_over_steps(over)
    yield "pages over steps", lambda theme: serving.pages_over_steps(over, theme, 16), caption, over
    yield "pages map", lambda theme: serving.pages_map(stays, theme, 16), serving.caption_pages_map(stays), stays


def _of_heads(run: Run) -> Iterator[Drawn]:
    table = heads.grouped_heads(run, (0, 1, 2), 3)
    yield "plane", lambda theme: heads.heads_plane(table, theme), heads.caption_heads_plane(table), table
    yield "groups", lambda theme: heads.groups_by_head(table, theme), heads.caption_groups_by_head(table), table


def _of_cost(run: Run) -> Iterator[Drawn]:
    stack = memory.memory_stack_frame(run.memory, run.record)
    yield "stack", lambda theme: memory.memory_stack(stack, theme), memory.caption_memory_stack(stack), stack
    layers = memory.memory_by_layer(run, 7)
    yield "layers", lambda theme: memory.layer_bytes(layers, theme), memory.caption_layer_bytes(layers), layers
    timed = Run(run.path, run.record.model_copy(update={"recorded_tokens_per_second": 20.0}))
    table = memory.instrument_cost_frame([timed, run])
    yield "cost", lambda theme: memory.instrument_cost(table, theme), memory.caption_instrument_cost(table), table
