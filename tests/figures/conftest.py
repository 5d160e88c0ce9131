"""Every figure of the package, drawn from one large synthetic comparison."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import cache
from typing import Any

import pandas as pd
import plotly.graph_objects as go
import pytest

from kvlab.results.sources import Sources
from kvlab.trace import Run, open_run
from kvlab.views import compare, memory, merges, sag, similarity, trade_off
from kvlab.views.frames import compare as compared
from kvlab.views.frames import memory as memories
from kvlab.views.frames.board import places
from kvlab.views.frames.lineage import fold, token_texts
from kvlab.views.frames.trade_off import run_points
from kvlab.views.similarity import merge_sets, outlines
from tests.figures.views import drawn_views
from tests.synthetic.runs import write_synthetic_run

Drawn = tuple[str, Callable[[str], go.Figure], str, pd.DataFrame]
METHODS = (("full", 1.0), ("h2o", 0.1), ("keepkv", 0.1), ("keepkv", 0.2), ("pool", 0.1))


@pytest.fixture(scope="session")
def large_runs(tmp_path_factory: pytest.TempPathFactory) -> list[Run]:
    """Five runs over 1,500 tokens: more than the cells a picture may have on a side."""
    root = tmp_path_factory.mktemp("large")
    options: dict[str, Any] = {"layers": 3, "heads": 2, "prompt_tokens": 1500, "steps": 60}
    return [open_run(write_synthetic_run(root, method=method, budget=budget, **options)) for method, budget in METHODS]


@pytest.fixture(scope="session")
def compared_runs(tmp_path_factory: pytest.TempPathFactory) -> Sources:
    """Runs of every method that an exhibit reads; the one in view merges."""
    root = tmp_path_factory.mktemp("compared")
    methods = ("full", "h2o", "zsmerge", "kvmerger", "keepkv", "gvote", "pyramid-pool")
    runs = [open_run(write_synthetic_run(root, method=method, comparison_id="all")) for method in methods]
    return Sources(root, runs[2], runs)


@pytest.fixture(scope="session")
def figures(large_runs: list[Run]) -> list[Drawn]:
    """(name, how to draw it in a theme, its caption, its frame) of every figure; drawn once a theme."""
    runs = large_runs
    drawn = [*_of_one_run(runs[2]), *_of_a_head(runs[2]), *_of_runs(runs), *drawn_views(runs)]
    return [(name, cache(draw), *told) for name, draw, *told in drawn]


def _of_a_head(run: Run) -> Iterator[Drawn]:
    events, steps, unit = run.select("events", 0, 1), run.select("steps", 0, 1), run.keys(0, 1)[0]
    history = fold(events, steps)
    texts, step = token_texts(run.tokens, history.tokens), int(history.steps[-1])
    whole = (0, len(unit))
    tile, sets = (
        similarity.tile(unit, whole, whole, similarity.MAX_CELLS).frame(),
        outlines(merge_sets(history, step), whole),
    )
    yield (
        "map",
        lambda theme: similarity.similarity_map(tile, texts, theme, sets=sets),
        similarity.caption_similarity_map(tile),
        tile,
    )
    band, near = similarity.diagonal_band(unit), similarity.neighbour_profile(unit, 700)
    yield (
        "band",
        lambda theme: similarity.similarity_band(band, theme, run, 0, 1),
        similarity.caption_similarity_band(band),
        band,
    )
    yield (
        "near",
        lambda theme: similarity.neighbours(near.assign(text=[texts[at] for at in near["position"]]), theme, 700),
        similarity.caption_neighbours(near),
        near,
    )
    thumbnails = {(layer, head): similarity.thumbnail(unit) for layer in range(32) for head in range(8)}
    heads = pd.DataFrame(
        [{"layer": layer, "head": head, "mean": 0.4, **similarity.locality(unit)} for layer, head in [(0, 0), (1, 0)]]
    )
    yield (
        "wall",
        lambda theme: similarity.similarity_wall(thumbnails, theme),
        similarity.caption_similarity_wall(heads),
        heads,
    )


def _of_one_run(run: Run) -> Iterator[Drawn]:
    for module, name, frame in (
        (merges, "events_over_steps", merges.events_over_steps_frame(run)),
        (merges, "events_by_head", merges.events_by_head_frame(run)),
        (merges, "similarity_distribution", merges.similarity_distribution_frame(run)),
        (merges, "votes_distribution", merges.votes_distribution_frame(run)),
        (merges, "mass_balance", merges.mass_balance_frame(run)),
        (sag, "mass_over_steps", sag.over_steps(run)),
        (sag, "sag_over_steps", sag.over_steps(run)),
        (sag, "errors_over_steps", sag.over_steps(run)),
        (sag, "guard_over_steps", sag.over_steps(run)),
        (memory, "memory_over_steps", memories.over_steps(run.memory, run.record)),
        (memory, "slots_by_head", memories.budgets_by_layer(run.steps)),
    ):
        yield _drawn(module, name, frame)
    heads = sag.loss_by_head(run)
    for measure in sag.MEASURES:
        yield (
            f"by_head {measure}",
            lambda theme, measure=measure: sag.measure_by_head(heads, theme, measure),
            sag.caption_measure_by_head(heads, measure),
            heads,
        )


def _of_runs(runs: list[Run]) -> Iterator[Drawn]:
    text = compared.along_text(runs)
    for name in ("kl_along_text", "agreement_along_text", "extra_nll_along_text"):
        yield _drawn(compare, name, text)
    yield _drawn(trade_off, "quality_against_bytes", run_points(compared.headline(runs), places(runs)))
    yield _drawn(compare, "slots_by_layer", compared.slots_by_layer(runs))
    used = compared.memory_over_steps(runs)
    yield (
        "memory",
        lambda theme: compare.memory_over_steps(used, theme=theme),
        compare.caption_memory_over_steps(used),
        used,
    )


def _drawn(module: Any, name: str, frame: pd.DataFrame) -> Drawn:
    return name, lambda theme: getattr(module, name)(frame, theme), getattr(module, f"caption_{name}")(frame), frame
