"""Small frames for every caption: by seed, and the extremes of none, all, equal, missing and a single row."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from kvlab.papers.kvmerger.merging_sets import Walkthrough
from kvlab.views.board import with_reader
from kvlab.views.frames.repeats import Batch

NAMES = ("h2o 20 %", "keepkv 20 %", "zsmerge 20 %", "snapkv 20 %", "exactmerge2 20 %", "streaming-llm 20 %")
VARIANTS = ("seed 1", "seed 2", "seed 3", "single", "none", "all", "equal", "missing")
ROWS = 6


class Case(NamedTuple):
    """The arguments of a caption, and whether no name may be singled out, as all values are equal."""

    args: tuple[Any, ...]
    alike: bool


class Values:
    """Columns of one variant: shares, amounts and counts are drawn, or all 0, 1, equal or missing."""

    def __init__(self, variant: str) -> None:
        self.variant = variant
        self.rows = 1 if variant == "single" else ROWS
        self._draws = np.random.default_rng(int(variant[-1]) if variant.startswith("seed") else 1)

    def frame(self, columns: str, **more: Any) -> pd.DataFrame:
        """Columns as `name:kind`: s share, v amount, d signed, n count, i index, b boolean, l label, t text, p pair,
        g label of two rows.
        """
        made = {name: self._column(kind) for name, _, kind in (one.partition(":") for one in columns.split())}
        return pd.DataFrame(made).assign(**more)

    def _column(self, kind: str) -> Any:
        rows, draws, fixed = self.rows, self._draws, self._fixed
        if kind in "ilt":
            return [*{"i": range(rows), "l": NAMES[:rows], "t": [f"word{place}" for place in range(rows)]}[kind]]
        if kind == "g":  # two rows a name
            return [NAMES[place // 2] for place in range(rows)]
        if kind == "p":  # two heads a layer
            return [place % 2 for place in range(rows)]
        if kind == "b":
            return draws.random(rows) < 0.5 if fixed is None else [fixed >= 0.5] * rows
        if kind == "n":
            return draws.integers(0, 9, rows) if fixed is None else [0 if np.isnan(fixed) else int(4 * fixed)] * rows
        drawn = draws.random(rows) * {"s": 1.0, "v": 3.0, "d": 2.0}[kind] - (1.0 if kind == "d" else 0.0)
        return drawn if fixed is None else np.full(rows, fixed)

    @property
    def _fixed(self) -> float | None:
        return {"none": 0.0, "all": 1.0, "equal": 0.37, "missing": np.nan}.get(self.variant)


def _board(values: Values) -> pd.DataFrame:
    frame = values.frame("label:l run_id:l kept:s dropped:s right:b")
    return frame.assign(verdict=np.where(frame["right"], "right", "wrong"), kl_answer=0.1)


def _heads(columns: str) -> Callable[[Values], tuple[Any, ...]]:
    return lambda values: (values.frame(f"layer:i head:p {columns}"),)


def _frame(columns: str, *further: Any, **more: Any) -> Callable[[Values], tuple[Any, ...]]:
    return lambda values: (values.frame(columns, **more), *further)


def _text(measure: str) -> Callable[[Values], tuple[Any, ...]]:
    return lambda values: (values.frame(f"label:l token:i {measure}", method="some"),)


def _lost_heads(values: Values) -> tuple[Any, ...]:
    located = {"none": 0, "all": 4, "missing": 0}.get(values.variant, 2)
    frame = values.frame("layer:i head:p count:n")
    frame.attrs |= {"results": 4, "located": located, "prompts": 7}
    return (frame,)


def _batch(values: Values) -> tuple[Any, ...]:
    return (
        Batch(pd.DataFrame(), values.frame("label:l share:s", n=0 if values.variant == "missing" else 5, traced=5), 5),
    )


def _points(values: Values) -> tuple[Any, ...]:
    same = {"method": "some", "column": "20 %", "measure": "share", "verdict": ""}
    return (values.frame("label:l row:l quality:s live_bytes:v", **same),)


def _counts(values: Values) -> pd.DataFrame:
    return values.frame("own:n pivot:n absorbed:n evicted:n unseen:n", step=3).assign(own=1)


def _parts(values: Values) -> tuple[Any, ...]:
    frame = values.frame("mass:s votes:n")
    return (pd.concat([frame.assign(role="part"), frame.head(1).assign(role="merged slot")]),)


def _density(values: Values) -> tuple[Any, ...]:
    return (values.frame("density:s normal:s", channel="all").assign(deviation=np.arange(values.rows)).pipe(_two), 1)


def _two(frame: pd.DataFrame) -> pd.DataFrame:
    return frame if len(frame) > 1 else pd.concat([frame, frame.assign(deviation=1)], ignore_index=True)


def _walk(values: Values) -> tuple[Any, ...]:
    nothing = np.zeros((0, 0))
    return (Walkthrough(0.7, values.frame("set:p position:i"), nothing, nothing, nothing),)


def _sizes(values: Values) -> tuple[Any, ...]:
    ends = [values.frame("name:l value:v", measure="bytes", status="ok", context=context) for context in (1, 2)]
    return (pd.concat(ends, ignore_index=True),)


def _risk(values: Values) -> tuple[Any, ...]:
    frame = values.frame("arm:l certified:b budget:v", asked="20 %")
    frame.attrs["tolerance"] = 0.05
    return (frame,)


def _walls(values: Values) -> tuple[Any, ...]:
    return (values.frame("kept:s holds:s absorbed:s dropped:s", step=0),)


def _apart(values: Values) -> tuple[Any, ...]:
    return (values.frame("both:s only_a:s only_b:s neither:s jaccard:s", step=0),)


def _series(columns: str) -> Callable[[Values], tuple[Any, ...]]:
    def made(values: Values) -> tuple[Any, ...]:
        frame = values.frame(columns, text="word", token=3)
        return (frame.assign(series=["full cache", *NAMES][: len(frame)]),)

    return made


STEP = "step:i"
OF_SCORES = "label:l arm:l row:l score:s held:s kept:s certified:b level:b frontier:b live_bytes:v"
WITH_BOUNDS = {"score_low": 0.1, "score_high": 0.9, "prompts": 8, "tasks": 1}
SCORED = {"method": "some", "asked": "20 %", "task": "recall"}
# By module and function of the captions: how the arguments are made.
CASES: dict[str, Callable[[Values], tuple[Any, ...]]] = {
    "view wall.attention_along_text": _frame("true:s slot:s text:t position:i"),
    "view sag.attention_by_run": _frame("label:l output_error:v"),
    "view sag.mass_over_steps": _frame(f"{STEP} kept_mass:s merged_true_mass:s regret:s"),
    "view sag.sag_over_steps": _frame(f"{STEP} sag:d merged_true_mass:s"),
    "view sag.errors_over_steps": _frame(f"{STEP} output_error:v"),
    "view sag.guard_over_steps": _frame(f"{STEP} guard_activations:n merged:n"),
    "view sag.measure_by_head": lambda values: (*_heads("sag:d")(values), "sag"),
    "view bound.sag_against_bound": _frame("gamma:v bound:v epsilon:v output_error:v", flag=""),
    "view bound.bound_by_head": lambda values: (*_heads("above:s")(values), "above"),
    "view autopsy.survival_by_head": _heads("dropped:s"),
    "view autopsy.fates_over_steps": _frame(f"{STEP} dropped:s"),
    "view unread.reading_map": _frame(f"{STEP} held:n read:n missed:s"),
    "view autopsy.needle_mass": _frame(f"{STEP} full:s true:s received:s"),
    "view regret.regret_map": lambda values: (values.frame("1:s 2:s"),),
    "view regret.regret_over_steps": _frame(f"{STEP} mean:s text:t kl:v"),
    "view regret.budget_against_regret": _frame("live_slots:n regret:s"),
    "view token_heads.heads_that_hold": _heads("state:n"),
    "view token_heads.attention_to_token": _heads("attention:s"),
    "view restore.kl_before_after": _series("kl:v"),
    "view restore.attention_before_after": _series("mass:s"),
    "view merges.events_over_steps": _frame(f"{STEP} count:n", kind="merge"),
    "view merges.events_by_head": _heads("evict:n merge:n pool:n"),
    "view merges.similarity_distribution": _frame("similarity:s count:n"),
    "view merges.votes_distribution": _frame("votes:i slots:n"),
    "view merges.mass_balance": _frame("mass_before:s sag:d"),
    "view health.growth_over_steps": _frame("label:l non_finite:n key_growth:v value_growth:v"),
    "view decision.describe_decision": _frame("kept:b placed:b score:s rank:i"),
    "view decision.describe_budgets": _heads("needed:v slots:v"),
    "view lineage.describe_river": _frame("source:i"),
    "view lineage.describe_decay": _frame("merges:i share:s"),
    "view lineage.describe_members": _frame("token:i text:t share:s", step=4),
    "view timeline.describe_states": lambda values: (_counts(values),),
    "view compare.kl_along_text": _text("kl:v"),
    "view compare.agreement_along_text": _text("agree:s"),
    "view compare.extra_nll_along_text": _text("extra_nll:d"),
    "view compare.memory_over_steps": _frame("label:l live_bytes:v", step=3, full_bytes=2.0, method="some"),
    "view compare.slots_by_layer": _frame("label:g live_slots:n"),
    "view board.board": lambda values: (_board(values),),
    "view board.describe_fact": lambda values: (with_reader(*_heads("dropped:s")(values), pd.DataFrame(), ""),),
    "view repeats.board": _batch,
    "view trade_off.quality_against_bytes": _points,
    "view lost_heads.lost_heads": _lost_heads,
    "view memory.memory_over_steps": _frame(f"{STEP} allocated_bytes:v", full_bytes=2.0),
    "view memory.memory_stack": _frame(f"{STEP} allocated_bytes:v", full_bytes=2.0, peak_bytes=2.0),
    "view memory.slots_by_head": _heads("live_slots:n share:s"),
    "view memory.layer_bytes": _frame("layer:i live:v slack:v"),
    "view memory.instrument_cost": _frame("label:l overhead:v", doubt=""),
    "view serving.freed_by_run": _frame("label:l dropped:s layer:s"),
    "view serving.pages_over_steps": _frame(f"{STEP} fragmentation:s", sharing="layer"),
    "view serving.pages_map": _frame("page:i kept:n"),
    "view speed.measured": _frame("label:l value:v ratio:v", "tokens/s", True, method="h2o", repeats=3, spread=0.0),
    "view speed.over_length": _sizes,
    "view speed.against_the_paper": _frame("method:l our_ratio:v paper_ratio:v"),
    "view difference.describe_difference_kl": _frame("token:i a:v b:v"),
    "view wall.describe_wall": _walls,
    "view difference.describe_difference": _apart,
    "view spans.describe_spans": _frame("span:l kept:s", method="some"),
    "view needle_map.needle_map": lambda values: (pd.DataFrame(), values.frame(OF_SCORES)),
    "view needle_map.needle_fates": _frame(OF_SCORES),
    "view quality.rank_table": _frame(OF_SCORES, **SCORED),
    "view quality.score_against_bytes": _frame(OF_SCORES, **SCORED),
    "view scores.score_against_budget": _frame(OF_SCORES, **SCORED, **WITH_BOUNDS, difference=-0.1),
    "view scores.score_by_option": _frame("alpha:l score:s", "alpha", **SCORED, **WITH_BOUNDS),
    "view scores.benchmark_table": _frame(OF_SCORES, **SCORED, **WITH_BOUNDS),
    "results risk.describe_risk": _risk,
    "view quality.ours_beside_theirs": _frame("ours_low:s ours_high:v ours:v theirs:s", method="h2o"),
    "view similarity.similarity_map": lambda values: (values.frame("1:s 2:s").fillna(0.4),),
    "view similarity.similarity_band": lambda values: (values.frame("1:s 2:s").fillna(0.4),),
    "view similarity.similarity_wall": _frame("near:s far:s"),
    "view similarity.describe_similarity_of_heads": _frame("layer:p mean:s near:s far:s"),
    "view similarity.neighbours": lambda values: (values.frame("similarity:s offset:i"),),
    "view heads.heads_plane": _frame("group:p"),
    "view heads.groups_by_head": _frame("layer:p group:n"),
    "papers gvote scores.caption_usage_by_task": _frame("task:l kept:s"),
    "papers gvote scores.caption_option_sweep": _frame("alpha:i score:s", "alpha"),
    "papers pyramid_pool recordings.caption_budgets_by_layer": _frame("layer:i asked:v"),
    "papers pyramid_pool recordings.caption_three_axes": _heads("live_slots:n"),
    "papers pyramid_pool recordings.caption_windows": lambda values: ({4: values.frame("tokens:n")}, 3, 4),
    "papers keepkv merging.caption_where_attention_goes": _frame("label:l sag:s regret:s", method="some"),
    "papers keepkv merging.caption_slot_before_and_after": _frame("label:l lost:d", 3),
    "papers keepkv merging.caption_change_by_rule": _frame("label:l total:d"),
    "papers keepkv merging.caption_candidate_similarity": _frame("similarity:s chosen:b", 3, None),
    "papers keepkv merging.caption_parts_of_merge": _parts,
    "papers keepkv merging.caption_influence_over_steps": _frame("mass:s true_mass:s"),
    "papers benchmarks.caption_cache_share": _frame("row:l ours:v paper:v"),
    "papers pyramid_pool calculator.caption_kv_sizes": _frame("name:l bytes:v"),
    "papers pyramid_pool tasks.caption_task_lengths": _frame("task:l shortest:n longest:n"),
    "papers kvmerger explainers.caption_three_ways": _walk,
    "papers kvmerger explainers.caption_merging_pipeline": _walk,
    "papers verdict_figure.caption_card": _frame("value:v"),
    "papers keepkv attention.caption_attention_map": lambda values: (values.frame("1:s 2:s 3:s"),),
    "papers keepkv attention.caption_distance_by_layer": _frame("layer:i distance:v", 9, 9),
    "papers keepkv attention.caption_cumulative_mass": _frame("mass:s", 0, 0, 0.2, share=0.2),
    "papers keepkv attention.caption_returning_over_steps": _frame("ever:s", step=3),
    "papers keepkv attention.caption_returning_by_head": _heads("ever:s"),
    "papers keepkv attention.caption_variance_by_token": lambda values: (
        pd.DataFrame(), float(values.frame("a:s")["a"].iloc[0]), 0.9,
    ),
    "papers keepkv attention.caption_error_by_step": _frame("predictor:l error:v", "keys", kind="keys"),
    "papers gvote probe_figures.caption_histograms": _density,
    "papers gvote probe_figures.caption_quantile_pairs": _frame("channel:l quantile:d", 1, normal=0.0),
    "papers gvote probe_figures.caption_moments_by_layer": _frame("close:b"),
    "papers gvote probe_figures.caption_overlap_and_usage": _frame("overlap:s"),
    "papers gvote probe_figures.caption_growth_by_samples": _frame("samples:i covered:s"),
    "papers gvote probe_figures.caption_coverage_ahead": _frame("covered:s"),
    "papers gvote probe_figures.caption_attention_strips": lambda values: (
        values.frame("true:s synthetic:s position:i").fillna(0.5), [f"word{place}" for place in range(ROWS)],
    ),
    "papers gvote probe_figures.caption_scatter_of_rows": lambda values: (
        float(values.frame("a:s")["a"].iloc[0]), 0.5, 9,
    ),
    "papers kvmerger compression.caption_kernel_in_sigmas": _frame("relative_weight:s kernel:s"),
    "papers kvmerger compression.caption_kernel_curves": _frame("distance:s"),
    "papers kvmerger compression.caption_ratio_by_layer": _frame("layer:i ratio:s"),
    "papers kvmerger compression.caption_ratio_by_threshold": lambda values: (
        values.frame("ratio:s", threshold=0.75), 0.75,
    ),
    "papers zsmerge contents.caption_cache_contents": _frame("votes:n", step=3, region="residual"),
    "papers zsmerge contents.caption_regions_over_steps": _frame("slots:v", tokens=2.0),
    "papers zsmerge contents.caption_fates": lambda values: (
        {}, {name: _counts(values).iloc[[place]] for place, name in enumerate(NAMES[: values.rows])},
    ),
    "papers kvmerger similarity.caption_cosine_by_distance": _frame("kind:l cosine:s any_pair:s"),
    "papers kvmerger similarity.caption_neighbours_of_heads": lambda values: (*_heads("similarity:s")(values), 9),
}  # fmt: skip


def cases(name: str) -> Iterator[tuple[str, Case]]:
    """(variant, arguments) of one function."""
    for variant in VARIANTS:
        args = CASES[name](Values(variant))
        if name == "papers kvmerger similarity.caption_neighbours_of_heads":
            args = (args[0].assign(offset=1), *args[1:])
        yield variant, Case(args, variant in ("none", "all", "equal", "single"))
