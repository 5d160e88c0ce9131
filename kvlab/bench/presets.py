"""Named benchmark experiments: those of the papers, and what one pass for many methods costs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from kvlab.bench.request import BenchRequest, make_request
from kvlab.core.choice import MethodChoice
from kvlab.core.errors import UserError

SEVEN = "shape:llama2-7b"
THIRTEEN = "shape:llama2-13b"


@dataclass(frozen=True)
class Preset:
    """Requests as dicts of fields."""

    title: str
    requests: tuple[dict[str, Any], ...]
    device: str = "cuda"


# Presets run shapes with random weights, for which no fitted files exist.
ON_RANDOM_WEIGHTS: dict[str, dict[str, Any]] = {
    "less": {"weights": "untrained"},
    "duoattention": {"profile": "even"},
    "headkv": {"profile": "even"},
    "lukv": {"curves": "even"},
    "kvzap": {"heads": "untrained"},
    "kvzap-threshold": {"heads": "untrained"},
    "fast-kvzip": {"gates": "untrained"},
    "triattention": {"queries": "untrained"},
    "qfilter": {"queries": "untrained"},
}


def _at(budget: float | int, *methods: str) -> tuple[MethodChoice, ...]:
    return tuple(
        MethodChoice(method=method, budget=budget, hyper_parameters=ON_RANDOM_WEIGHTS.get(method, {}))
        for method in methods
    )


def _published(budget: float | int, *methods: str, preset: str = "paper") -> tuple[MethodChoice, ...]:
    """Methods with their papers' settings, for the papers' experiments."""
    return tuple(
        choice.model_copy(update={"hyper_parameters": {"preset": preset, **choice.hyper_parameters}})
        for choice in _at(budget, *methods)
    )


_FIGURE_3 = {"model": SEVEN, "contexts": (20000, 28000, 36000, 45000, 54000), "choices": _published(18000, "zsmerge")}
_TABLE_1 = {"mode": "generate", "choices": _published(0.05, "h2o", "less", "zsmerge"), "repeats": 3}
_TABLE_2 = {
    "mode": "memory",
    "contexts": (3900,),
    "new_tokens": 1024,
    "fill": "prefill",
    "choices": (*_published(0.5, "kvmerger"), *_published(0.35, "kvmerger", preset="paper-35")),
}


_TWELVE = {
    "choices": _at(
        0.2, "keepkv", "streaming-llm", "h2o", "snapkv", "zsmerge", "kvmerger", "pyramid-pool", "gvote", "d2o", "kvzip",
        "attention-matching", "exactmerge2",
    )
}  # fmt: skip
PRESETS = {
    "zsmerge-fig3": Preset(
        "ZSMerge, figure 3: memory and decode rate from 20k to 54k tokens at a budget of 18k slots",
        ({"mode": "decode", **_FIGURE_3}, {"mode": "memory", **_FIGURE_3}),
    ),
    "zsmerge-table1": Preset(
        "ZSMerge, table 1: throughput of whole requests at 5 %",
        (
            {"model": SEVEN, "contexts": (4096,), "new_tokens": 4096, "batches": (4, 8), **_TABLE_1},
            {"model": SEVEN, "contexts": (2048,), "new_tokens": 2048, "batches": (16,), **_TABLE_1},
            {"model": THIRTEEN, "contexts": (4096,), "new_tokens": 4096, "batches": (16,), **_TABLE_1},
        ),
    ),
    "keepkv-table1": Preset(
        "KeepKV, table 1: decode rate at 4k tokens and 20 %",
        ({"mode": "decode", "model": SEVEN, "batches": (2, 8), "choices": _published(0.2, "h2o", "d2o", "keepkv")},),
    ),
    "kvmerger-table2": Preset(
        "KVMerger, table 2: cache and peak memory of 3,900 + 1,024 tokens at 100, 50 and 35 %",
        ({"model": SEVEN, **_TABLE_2}, {"model": THIRTEEN, **_TABLE_2}),
    ),
    "one-pass": Preset(
        "What twelve methods cost next to one: a comparison and an evaluation on mini, 1,500 tokens and 32 new ones",
        ({"mode": "together", "model": "mini", "contexts": (1500,), "new_tokens": 32, "repeats": 3, **_TWELVE},),
        device="cpu",
    ),
}


def preset_requests(name: str, **changes: Any) -> tuple[BenchRequest, ...]:
    """The preset's requests with `changes` applied; raises UserError for an unknown preset or an invalid change."""
    preset = find_preset(name)
    return tuple(make_request(**(fields | {"preset": name} | changes)) for fields in preset.requests)


def find_preset(name: str) -> Preset:
    """The named preset; raises UserError if it does not exist."""
    if name not in PRESETS:
        raise UserError(f"There is no preset {name!r}; choose one of {', '.join(PRESETS)}.")
    return PRESETS[name]
