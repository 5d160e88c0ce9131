"""Every method and every variant: each choice a method offers, one changed at a time. New ones are in it at once."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any, Literal, get_args, get_origin

from kvlab.core.methods import Method, registered
from kvlab.core.stores import STORES
from kvlab.core.stores.kivi import PerChannel

# Stores that pack something of a prompt of two dozen tokens: few slots stay native, and groups are of four.
for _name in ("fp8", "int8", "turbo4", "turbo3", "q5_1", "q4_0"):
    STORES.add(f"short-{_name}", replace(STORES[_name], sinks=1, residual=2, lot=2))
for _name, _bits in (("kivi4", 4), ("kivi2", 2)):
    STORES.add(f"short-{_name}", replace(STORES[_name], keys=PerChannel(_bits, group=4), sinks=1, residual=2, lot=4))
# On a prompt of two dozen tokens, what makes a method do what it does: short windows, and merges that happen.
SHORT: dict[str, dict[str, Any]] = {
    "snapkv": {"window": 3, "kernel": 3, "buffer": 2},
    "pyramidkv": {"window": 2, "kernel": 3, "buffer": 2},
    "adakv": {"window": 2, "kernel": 3, "buffer": 2},
    "exactmerge": {"window": 4, "kernel": 3, "shares": (0.0, 0.3)},
    "gvote": {"recent": 3, "p_nuc": 0.4},
    "keepkv": {"window": 8, "threshold": -1.0, "sinks": 1},
    "kvmerger": {"longest_set": 6, "loosest": -1.0},
    "zsmerge": {"residual": 0.3, "sinks": 1},
    "pyramid-pool": {"sinks": 1, "window": 2},
    "d2o": {"sinks": 1},
    "cam": {"sinks": 1, "merge": 3},
    "pyramidinfer": {"sinks": 1},
    "streaming-llm": {"sinks": 2},
    "less": {"weights": "untrained"},
    "lagkv": {"sinks": 1, "lag": 3, "buffer": 2},
    "expected-attention": {"sinks": 1, "n_future": 8, "buffer": 2},
    "criticalkv": {"window": 3, "kernel": 3, "buffer": 2},
    "defensivekv": {"window": 3, "kernel": 3, "buffer": 2},
    "layer-defensivekv": {"window": 3, "kernel": 3, "buffer": 2},
    "chunkkv": {"window": 3, "length": 4, "buffer": 2},
    # Random weights ask much alike, and a small ridge then makes much of rounding: by up to 1 / (4 ridge^2).
    "grkv": {"window": 3, "kernel": 3, "rows": 4, "buffer": 2, "ridge": 1.0},
    "asymkv": {"window": 3, "sinks": 1, "buffer": 2},
    "kvslimmer": {"window": 3, "sinks": 1, "buffer": 2},
    "kvzip": {"sinks": 1, "piece": 16},
    "kvzap": {"heads": "untrained", "sinks": 1, "recent": 3},
    "kvzap-threshold": {"heads": "untrained", "threshold": 0.3, "sinks": 1, "recent": 3},
    "fast-kvzip": {"gates": "untrained", "sinks": 1, "recent": 3},
    "semanticache": {"longest": 6, "sinks": 1, "recent": 3},
    "duoattention": {"profile": "even", "sinks": 1, "recent": 3},
    "attention-matching": {"profile": "even", "window": 4, "sinks": 1, "recent": 2},
    "exactmerge2": {"heads": "untrained", "window": 4, "newest": 1, "sinks": 1, "recent": 2, "buffer": 2},
    "rkv": {"window": 2, "kernel": 3, "buffer": 2},
    "cap": {"sinks": 1, "n_future": 8},
    "cur": {"sinks": 1, "part": 4},
    "compactor": {"sinks": 1, "recent": 2, "chunk": 8, "sketch": 4},
    "qfilter": {"queries": "untrained"},
    "triattention": {"queries": "untrained", "furthest": 16, "buffer": 2},
    "simlayerkv": {"threshold": 0.5, "sinks": 1, "recent": 3},
    "entropy-gated-chunkkv": {"window": 3, "length": 4, "few": 2, "buffer": 2},
    "morphkv": {"window": 3},
    "kvcompose": {"sinks": 1, "piece": 16},
    "headkv": {"profile": "even", "window": 3, "kernel": 3, "buffer": 2},
    "lukv": {"curves": "even", "n_future": 8, "sinks": 1},
    "nacl": {"window": 3, "drawn": 0.4},
    "vase": {"window": 3, "kernel": 3, "sinks": 1, "buffer": 2},
    "finch": {"window": 3},
    "scissorhands": {"window": 6, "recent": 2, "buffer": 2},
    "raas": {"threshold": 0.05, "window": 4},
    "lazyeviction": {"threshold": 0.05, "window": 4, "buffer": 2, "recent": 2},
}
# What a choice is only allowed, or only felt, together with.
TOGETHER: dict[tuple[str, str, Any], dict[str, Any]] = {
    ("d2o", "spare_layers", True): {"variant": "code"},
    ("zsmerge", "combine_score", "sum"): {"prefill": "similarity"},
    ("keepkv", "mass", "none"): {"rule": "votes"},
    **{("pyramid-pool", "mass", rule): {"pooling": "mean"} for rule in ("alpha", "votes", "exact", "bounded")},
    ("pyramid-pool", "space", "unrotated"): {"pooling": "mean"},
}
# Choices that are numbers, and crossings of choices that are not independent.
FURTHER: list[tuple[str, dict[str, Any]]] = [
    ("keydiff", {"block": 7}),
    ("key-norm", {"skip": 1}),
    ("attention-matching", {"study": 3, "on_policy": True}),
    ("kvmerger", {"theta": 0.2}),
    ("kvmerger", {"sigma_mode": 2.0}),
    ("semanticache", {"theta": 0.2}),
    ("snapkv", {"decay": 0.5, "aggregate": "max", "decode": "budget"}),
    ("h2o", {"decay": 0.0}),
    ("h2o", {"decay": 0.5, "aggregate": "max"}),
    ("random", {"draws": "anew", "prompt": "keep", "buffer": 2}),
    ("adakv", {"skip": 1}),
    ("exactmerge", {"futures": 4}),
    ("cam", {"variant": "simulation", "draw": "expected"}),
    ("d2o", {"variant": "code", "mass": "exact", "space": "unrotated"}),
    ("keepkv", {"rule": "paper", "predict": "current", "space": "unrotated"}),
    ("keepkv", {"rule": "min-norm", "space": "unrotated"}),
    ("zsmerge", {"prefill": "similarity", "similarity": "cosine", "mass": "exact", "space": "unrotated"}),
    ("pyramid-pool", {"variant": "paper", "mass": "votes", "pooling": "mean"}),
    ("pyramid-pool", {"repool": "literal", "pooling": "mean"}),
    ("zsmerge", {"residual": 0}),
    ("zsmerge", {"residual": 3}),
    ("compose", {"score": "snapkv", "allocate": "adakv", "settle": "keepkv", "score_window": 3, "threshold": -1.0}),
    ("compose", {"score": "h2o", "allocate": "variance", "settle": "zsmerge"}),
    ("compose", {"score": "keepkv", "allocate": "pyramid-pool", "settle": "values", "score_window": 8}),
    ("compose", {"score": "gvote", "allocate": "gvote", "settle": "sets", "p_nuc": 0.4}),
    ("compose", {"score": "pyramidinfer", "allocate": "pyramidinfer", "settle": "pool", "settle_window": 2}),
    ("compose", {"score": "decayed", "settle": "less", "settle_weights": "untrained"}),
    ("full", {"store": "short-kivi4"}),
    ("full", {"store": "short-turbo3"}),
    ("snapkv", {"store": "short-fp8"}),
    ("adakv", {"store": "short-kivi2"}),
    ("h2o", {"store": "short-kivi4"}),
    ("h2o", {"store": "short-turbo4"}),
    ("keepkv", {"store": "short-kivi4"}),
    ("zsmerge", {"store": "short-turbo4"}),
    ("cam", {"store": "short-int8"}),
    ("gvote", {"store": "short-kivi4"}),
    ("kvmerger", {"store": "short-fp8"}),
    ("less", {"store": "short-kivi4"}),
    ("exactmerge", {"store": "short-turbo4"}),
    ("exactmerge2", {"store": "short-turbo4"}),
    ("h2o", {"store": "short-q4_0"}),
    ("snapkv", {"store": "short-q5_1"}),
    ("exactmerge2", {"second_pass": False, "decode": "budget"}),
    ("compose", {"score": "snapkv", "settle": "keepkv", "score_window": 3, "store": "short-kivi4"}),
]


@dataclass(frozen=True)
class Variant:
    """A method with settings, named as one would write it on the command line."""

    method: str
    changed: dict[str, Any] = field(default_factory=dict, hash=False)

    def __str__(self) -> str:
        return ":".join([self.method, *(f"{name}={value}" for name, value in self.changed.items())])

    @property
    def settings(self) -> dict[str, Any]:
        """All hyper-parameters for short prompts."""
        return SHORT.get(self.method, {}) | self.changed


def every_variant() -> list[Variant]:
    """All methods as they are, then every other choice of each."""
    found = [Variant(name) for name in registered()]
    for name, method in registered().items():
        for parameter, value in other_choices(method):
            together = TOGETHER.get((name, parameter, value), {})
            found.append(Variant(name, {parameter: value} | together))
        found += [Variant(name, {"preset": preset}) for preset in method.presets]
    found += [Variant(name, options) for name, options in FURTHER]
    return list({str(variant): variant for variant in found}.values())


def other_choices(method: type[Method]) -> list[tuple[str, Any]]:
    """(hyper-parameter, value) of everything a method lets one choose by name or by yes and no, defaults left out."""
    found = []
    for name, information in method.model_fields.items():
        options = [True, False] if information.annotation is bool else _named(information.annotation)
        found += [(name, value) for value in options if value != information.default]
    return found


def _named(annotation: Any) -> list[Any]:
    if get_origin(annotation) is Literal:
        return list(get_args(annotation))
    return [value for part in get_args(annotation) for value in _named(part)]
