"""Small frames for every caption: by seed, and the extremes of none, all, equal, missing and a single row."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from importlib import import_module
from itertools import cycle
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
import pytest

from kvlab.papers import evidence
from kvlab.papers.exhibit import Choice, Drawn
from kvlab.papers.gvote.probe_figures import ALL
from kvlab.papers.keepkv.merge_effects import OneMerge
from kvlab.papers.kvmerger.merging_sets import Walkthrough
from kvlab.results.score_tables import PROMPT
from kvlab.results.sources import Sources
from kvlab.views.base.provenance import Provenance
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
    frame = values.frame("token:i text:t mass:s votes:n ema_before:s ema_after:s")
    return (pd.concat([frame.assign(role="part"), frame.head(1).assign(role="merged slot")]),)


def _merges(values: Values) -> tuple[Any, ...]:
    """A merge of two parts with equal attention for each run; without attention where values are missing."""
    frame = values.frame("label:l lost:d")
    mass = 0.0 if values.variant == "missing" else 1.0
    after = [2 * mass * (1 - lost) for lost in frame["lost"].fillna(0.0)]
    names = ("source", "mass_source", "mass_target", "mass_after", "votes_after", "perturbation")
    events = [pd.DataFrame([(4, mass, mass, one, 2, 0.1)], columns=names) for one in after]
    merges = [OneMerge(0, 0, 3, 5, table) for table in events]
    return ([(label, "some", merge) for label, merge in zip(frame["label"], merges, strict=True)],)


def _density(values: Values) -> tuple[Any, ...]:
    pooled = values.frame("density:s normal:s", channel=ALL).assign(deviation=np.arange(values.rows)).pipe(_two)
    return (pd.concat([pooled, pooled.assign(channel="channel 1")], ignore_index=True), 1)


def _two(frame: pd.DataFrame) -> pd.DataFrame:
    return frame if len(frame) > 1 else pd.concat([frame, frame.assign(deviation=1)], ignore_index=True)


def _walk(values: Values) -> Walkthrough:
    tokens = values.frame("set:p position:i attention:s", weight=1.0)
    keys = np.ones((values.rows, 4))
    return Walkthrough(0.7, tokens.assign(pivot=tokens["position"]), np.ones((values.rows, values.rows)), keys, keys)


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
OF_SWEEP = {"kept_low": 0.1, "kept_high": 0.9, "seconds_low": 0.1, "seconds_high": 9.0}
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
    "papers gvote scores.usage_by_task": lambda values: (
        values.frame("task:l kept:s"), values.frame("task:l kept:s", kept_low=0.1, kept_high=0.9, prompts=8),
    ),
    "papers gvote scores.option_sweep": lambda values: (
        values.frame("alpha:i task:l score:s kept:s seconds:v", **WITH_BOUNDS, **OF_SWEEP),
        values.frame("alpha:i score:s"), "alpha",
    ),
    "papers pyramid_pool recordings.three_axes": lambda values: (
        values.frame("head:p live_slots:n").assign(layer=lambda frame: frame.index // 2),
    ),
    "papers pyramid_pool recordings.windows": lambda values: (
        {4: values.frame("position:i first:i last:i tokens:n", generation=1)}, 4,
    ),
    "papers pyramid_pool recordings.attention_map": lambda values: (values.frame("1:s 2:s 3:s"),),
    "papers keepkv merging.where_attention_goes": _frame(
        "label:l merged:s sag:s regret:s kept:s output_error:v votes:n", "layer 0", method="some",
    ),
    "papers keepkv merging.slot_before_and_after": _merges,
    "papers keepkv merging.change_by_rule": _frame(
        "label:l total:d q05:d q25:d q50:d q75:d q95:d", method="h2o", rule="convex",
    ),
    "papers keepkv merging.candidate_similarity": _frame(
        "similarity:s chosen:b position:i", 3, [f"word{place}" for place in range(ROWS)], None,
    ),
    "papers keepkv merging.influence_over_steps": _frame(f"{STEP} mass:s true_mass:s votes:n"),
    "papers verdict_figure.caption_card": _frame("value:v"),
    "papers gvote probe_figures.histograms": _density,
    "papers gvote probe_figures.quantile_pairs": lambda values: (values.frame("channel:l quantile:d", normal=0.0), 1),
    "papers gvote probe_figures.overlap_and_usage": lambda values: (*_heads("overlap:s usage:s")(values), ""),
    "papers gvote probe_figures.growth_by_samples": _frame(
        "samples:i covered:s covered_low:s covered_high:s kept:s kept_low:s kept_high:s",
    ),
    "papers gvote probe_figures.scatter_of_rows": lambda values: (
        values.frame("true:s synthetic:s position:i"), [f"word{place}" for place in range(ROWS)],
        float(values.frame("a:s")["a"].iloc[0]),
    ),
    "papers zsmerge contents.cache_contents": _frame(
        "position:i votes:n", [f"word{place}" for place in range(ROWS)], step=3, tokens=9, slots=ROWS,
        region="residual",
    ),
    "papers kvmerger similarity.cosine_by_distance": _frame(
        "kind:l cosine:s any_pair:s low:s high:s", "", offset=1,
    ),
}  # fmt: skip


def cases(name: str) -> Iterator[tuple[str, Case]]:
    """(variant, arguments) of one function."""
    for variant in VARIANTS:
        args = CASES[name](Values(variant))
        yield variant, Case(args, variant in ("none", "all", "equal", "single"))


def _varying(values: Values) -> dict[str, Any]:
    """Attention that never varies where values are missing."""
    varies = 0.0 if values.variant == "missing" else 1.0
    within = values.frame("token:i window_variance:s").fillna(0.0)
    return {"variances": within.assign(mean=0.5, variance=varies, shuffled=0.9 * varies)}


def _probed_rows(values: Values) -> dict[str, Any]:
    rows = values.frame("true:s synthetic:s ballots:n").fillna(0.5)
    heads = pd.DataFrame({"layer": [0], "head": [0], "correlation": [0.5]})
    arrays = {name: rows[name].to_numpy()[None] for name in rows}
    return {"figures.by_head": heads, "Run.probe": arrays}


def _of_methods(values: Values) -> dict[str, Any]:
    blocks = pd.DataFrame(np.zeros((2, 1), np.uint8), columns=[3])
    states = _counts(values)
    return {"mosaic": blocks, "state_counts": [states.iloc[[place % len(states)]] for place in (0, 1)]}


def _neighbours(values: Values) -> dict[str, Any]:
    frame = values.frame("position:i similarity:s", offset=1)
    return {"maps.neighbour_profile": [frame.iloc[[place]] for place in range(values.rows)]}


def _sizes_of_caches(values: Values) -> dict[str, Any]:
    """The claim's model is the first."""
    frame = values.frame("name:l tokens:n bytes:v")
    return {"cache_sizes": [frame.iloc[:1], frame.iloc[1:]]}


def _evaluated(values: Values) -> dict[str, Any]:
    names = NAMES[: values.rows]
    rows = pd.DataFrame(dict.fromkeys(PROMPT, 0) | {"task": names, "prompt_tokens": 5, "name": "x"})
    table = values.frame("task:l shortest:n longest:n", mean=5.0, prompts=1, metric="f1")
    return {"sources.model_evaluations": rows, "evaluated_tasks": table}


def _measured(values: Values) -> dict[str, Any]:
    rows = pd.DataFrame(
        {"preset": ["kvmerger-table2"], "status": "ok", "method": "kvmerger", "timestamp": 0, "repeats": 1}
    )
    shares = values.frame("row:l ours:v paper:v")
    return {
        "sources.benchmarks": rows, "memory_shares": shares, "bench_origin": Provenance("x"), "shapes_of": "the shapes",
    }  # fmt: skip


OF_PROBE = ("future", "union", "covered")
# By module and function of the exhibits that draw what they read, and if not all, the figure: what stands in for what
# they read. A list has one value a call.
DRAWINGS: dict[str, Callable[[Values], dict[str, Any]]] = {
    "keepkv attention.draw_concentration": lambda values: {
        "concentration_of_heads": values.frame("layer:i head:p mass:s", share=0.2),
    },
    "keepkv attention.draw_return": lambda values: {
        "returning_of_heads": values.frame("layer:i head:p share:s ever:s", step=3, kind="ranked"),
    },
    "keepkv attention.draw_variance": _varying,
    "keepkv attention.draw_prediction": lambda values: {
        "prediction_errors_of_heads": values.frame("predictor:l error:v", kind="mass", step=1),
    },
    "gvote probe.draw_gaussian#by layer": lambda values: {
        "figures.channels": values.frame("layer:i close:b skew:d kurtosis:d"),
    },
    "gvote probe.draw_overlap": lambda values: {
        "figures.by_head": values.frame("layer:i head:p overlap:s usage:s inner_overlap:s inner_usage:s"),
        "Run.probe": {name: values.frame("first:s second:s").to_numpy().T for name in OF_PROBE},
    },
    "gvote probe.draw_correlation": _probed_rows,
    "kvmerger compression.draw_ratios": lambda values: {
        "ratios": values.frame("layer:i head:p ratio:s", threshold=0.75),
    },
    "kvmerger compression.draw_kernel": lambda values: {
        "merged_pairs": values.frame(
            "layer:i head:p source:i target:i distance:s relative_weight:s kernel:s others:n", sigma=1.0,
        ),
    },
    "kvmerger explainers.draw_three_ways": lambda values: {"merging_sets.walkthrough": _walk(values)},
    "kvmerger explainers.draw_pipeline": lambda values: {"merging_sets.walkthrough": _walk(values)},
    "pyramid_pool recordings.draw_layers": lambda values: {
        "pyramid.layer_budgets": values.frame("layer:i asked:v live:v line:v"),
    },
    "pyramid_pool recordings.draw_attention#layers": lambda values: {
        "pyramid.layer_means": values.frame("layer:i distance:v share:s sink_mass:s local_mass:s lowest:s highest:s"),
    },
    "pyramid_pool tasks.draw_tasks": _evaluated,
    "zsmerge contents.draw_strategies": _of_methods,
    "zsmerge contents.draw_contents#regions": lambda values: {
        "region_counts": values.frame("step:i slots:v residual:n context:n proximity:n", tokens=2.0),
    },
    "benchmarks.draw_memory": _measured,
    "keepkv merging.draw_workflow#votes and scores": lambda values: {"merge_effects.merge_parts": _parts(values)[0]},
    "kvmerger similarity.draw_neighbours": _neighbours,
    "pyramid_pool calculator.draw_sizes": _sizes_of_caches,
}  # fmt: skip


def draw_with(patch: pytest.MonkeyPatch, name: str, instead: dict[str, Any], runs: Sources) -> tuple[Drawn, ...]:
    """What an exhibit's function draws with values in place of what it reads, and without evidence for its claims."""
    place, _, function = name.rpartition(".")
    module = import_module(".".join(("kvlab.papers", *place.split())))
    sources = Sources(runs.root, runs.run, runs.runs)
    for target, value in {"gather": pd.DataFrame(columns=evidence.NAMES), **instead}.items():
        owner, _, attribute = target.rpartition(".")
        if owner == "sources":
            sources.__dict__[attribute] = value
        elif owner or hasattr(module, attribute):
            patch.setattr(getattr(module, owner) if owner else module, attribute, _stand_in(value))
        else:
            patch.setattr(evidence, attribute, _stand_in(value))
    drawn = getattr(module, function)(sources, Choice(), "light")
    assert isinstance(drawn, tuple), drawn
    return drawn


def _stand_in(value: Any) -> Callable[..., Any]:
    values = cycle(value if isinstance(value, list) else [value])
    return lambda *_, **__: next(values)
