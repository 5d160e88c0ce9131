"""Everything a plug-in needs, under one import: methods and their parts, stores, tasks, loaders, metrics and views.

The modules behind these names may move; the names stay. A name leaves only after one release with a
`DeprecationWarning`. Each is loaded when first used, so that a file of views loads no model stack.
"""

# ruff: noqa: F401 (the names below are for type checkers and editors; `_HOME` loads them)
from __future__ import annotations

import warnings
from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from kvlab.core.choice import Preset
    from kvlab.core.contract.in_place import InPlace
    from kvlab.core.contract.method import DecodeCompression, Method, make_method, register, registered
    from kvlab.core.contract.parts import Allocator, Scorer, Selector, Settler, Victims
    from kvlab.core.contract.parts import PluginCapabilities as Capabilities
    from kvlab.core.contract.pipeline import EqualHeads, Evict, LowestScore, Oldest, Pipeline, Uniform
    from kvlab.core.contract.plan import Edges, NewKeys, Plan, ValueShift
    from kvlab.core.contract.second_pass import SecondPassRequest
    from kvlab.core.contract.sparse_attention import (
        Chosen,
        Estimate,
        Held,
        SparseAttention,
        SparseCapabilities,
        SparseShare,
        register_sparse_attention,
    )
    from kvlab.core.contract.view import AttentionPass, Slots, View
    from kvlab.core.errors import UserError
    from kvlab.core.methods.allocators.adaptive import HeadAdaptive
    from kvlab.core.methods.allocators.cosine import CosineDecay
    from kvlab.core.methods.allocators.model_wide import ModelWide
    from kvlab.core.methods.allocators.profile import HeadProfile, HeadShares
    from kvlab.core.methods.allocators.pyramid import Pyramid
    from kvlab.core.methods.composition.composed import compose
    from kvlab.core.methods.composition.register import (
        register_allocator,
        register_scorer,
        register_selector,
        register_settler,
    )
    from kvlab.core.methods.eviction.cap import Capacity
    from kvlab.core.methods.eviction.compactor import ChunkLeverage
    from kvlab.core.methods.eviction.criticalkv import Critical
    from kvlab.core.methods.eviction.cur import SquaredLengths
    from kvlab.core.methods.eviction.gvote import Ballots, ChosenSlots
    from kvlab.core.methods.eviction.key_norm import FirstLayers, ShortKeys
    from kvlab.core.methods.eviction.keydiff import UnusualKeys
    from kvlab.core.methods.eviction.kvzap import AboveThreshold
    from kvlab.core.methods.eviction.lagkv import Lag
    from kvlab.core.methods.eviction.lukv import HeadCurves
    from kvlab.core.methods.eviction.morphkv import FusedWindow
    from kvlab.core.methods.eviction.nacl import SampledRest
    from kvlab.core.methods.eviction.pyramidinfer import RecentRows
    from kvlab.core.methods.eviction.random import Draws
    from kvlab.core.methods.eviction.rkv import Redundancy
    from kvlab.core.methods.eviction.simlayerkv import LazyLayers
    from kvlab.core.methods.eviction.streaming_llm import EvictAndReposition
    from kvlab.core.methods.eviction.tova import LastQuery
    from kvlab.core.methods.merging.asymkv import PairMerge
    from kvlab.core.methods.merging.attention_matching import Pursuit
    from kvlab.core.methods.merging.cam import ValueMerge
    from kvlab.core.methods.merging.d2o import CosineMerge, Variance
    from kvlab.core.methods.merging.exactmerge import ExactResidual
    from kvlab.core.methods.merging.keepkv import GroupFit, NearestMerge
    from kvlab.core.methods.merging.less import Absorb
    from kvlab.core.methods.merging.pyramid_pool import Linear, Pool
    from kvlab.core.methods.merging.semanticache import SeedClusters
    from kvlab.core.methods.merging.simcalkv import PairCalibration
    from kvlab.core.methods.merging.zsmerge import ResidualMerge
    from kvlab.core.methods.scorers.accumulated_attention import AccumulatedAttention
    from kvlab.core.methods.scorers.ema import EmaScore
    from kvlab.core.methods.scorers.expected_attention import ExpectedAttention
    from kvlab.core.methods.scorers.kvzap import PredictedScore
    from kvlab.core.methods.scorers.kvzip import LayerAttention, SecondPassAttention
    from kvlab.core.methods.scorers.query_statistics import QueryCentres, QueryFilter
    from kvlab.core.methods.scorers.recency import Recency, Unscored
    from kvlab.core.methods.scorers.sampled_queries import FutureQueries
    from kvlab.core.methods.scorers.time_stamps import TimeStamps
    from kvlab.core.methods.scorers.window import WindowAttention
    from kvlab.core.methods.scorers.wrapper import PromptOnly, SlotsAlone
    from kvlab.core.methods.selectors.chunks import Chunks, GatedChunks
    from kvlab.core.methods.settlers.gaussian_sets import GaussianSets
    from kvlab.core.methods.settlers.global_ridge import GlobalRidge
    from kvlab.core.methods.settlers.log_mass import Mass
    from kvlab.core.methods.settlers.matching import MatchAttention
    from kvlab.core.stores.code import Code
    from kvlab.core.stores.eight_bit import Eight
    from kvlab.core.stores.kivi import PerChannel, PerToken
    from kvlab.core.stores.store import STORES, Store
    from kvlab.core.stores.turbo import Rotated
    from kvlab.evaluation.scoring.metrics import METRICS, register_metric
    from kvlab.evaluation.scoring.metrics import score as score_answer
    from kvlab.tasks.draft import Draft, Task
    from kvlab.tasks.loaders import register_loader
    from kvlab.tasks.loaders.plain_text import load_plain_text
    from kvlab.tasks.registry import TASKS, get_task, register_task
    from kvlab.tasks.sample import Sample
    from kvlab.views.base.palette import HUES, STATE_COLOURS, method_style, pick
    from kvlab.views.base.template import finish
    from kvlab.views.base.view import FigureView, register_view, view

# The module that has each name; where it has another name there, that follows the colon.
_HOME = {
    name: module
    for module, names in {
        "kvlab.core.errors": "UserError",
        # A method: what it is, and what it says.
        "kvlab.core.contract.method": "DecodeCompression Method make_method register registered",
        "kvlab.core.methods.composition.composed": "compose",
        "kvlab.core.methods.composition.register": (
            "register_allocator register_scorer register_selector register_settler"
        ),
        "kvlab.core.contract.parts": "Allocator Capabilities:PluginCapabilities Scorer Selector Settler Victims",
        "kvlab.core.contract.in_place": "InPlace",
        "kvlab.core.contract.pipeline": "EqualHeads Evict LowestScore Oldest Pipeline Uniform",
        "kvlab.core.contract.plan": "Edges NewKeys Plan ValueShift",
        "kvlab.core.choice": "Preset",
        "kvlab.core.contract.sparse_attention": (
            "Chosen Estimate Held SparseAttention SparseCapabilities SparseShare register_sparse_attention"
        ),
        "kvlab.core.contract.second_pass": "SecondPassRequest",
        "kvlab.core.contract.view": "AttentionPass Slots View",
        # Scorers.
        "kvlab.core.methods.scorers.wrapper": "PromptOnly SlotsAlone",
        "kvlab.core.methods.scorers.accumulated_attention": "AccumulatedAttention",
        "kvlab.core.methods.scorers.ema": "EmaScore",
        "kvlab.core.methods.eviction.morphkv": "FusedWindow",
        "kvlab.core.methods.eviction.tova": "LastQuery",
        "kvlab.core.methods.eviction.pyramidinfer": "RecentRows",
        "kvlab.core.methods.scorers.time_stamps": "TimeStamps",
        "kvlab.core.methods.scorers.window": "WindowAttention",
        "kvlab.core.methods.eviction.random": "Draws",
        "kvlab.core.methods.eviction.key_norm": "FirstLayers ShortKeys",
        "kvlab.core.methods.eviction.keydiff": "UnusualKeys",
        "kvlab.core.methods.eviction.lagkv": "Lag",
        "kvlab.core.methods.eviction.compactor": "ChunkLeverage",
        "kvlab.core.methods.eviction.cur": "SquaredLengths",
        "kvlab.core.methods.scorers.recency": "Recency Unscored",
        "kvlab.core.methods.eviction.rkv": "Redundancy",
        "kvlab.core.methods.eviction.cap": "Capacity",
        "kvlab.core.methods.eviction.gvote": "Ballots ChosenSlots",
        "kvlab.core.methods.scorers.expected_attention": "ExpectedAttention",
        "kvlab.core.methods.scorers.sampled_queries": "FutureQueries",
        "kvlab.core.methods.scorers.kvzap": "PredictedScore",
        "kvlab.core.methods.scorers.kvzip": "LayerAttention SecondPassAttention",
        "kvlab.core.methods.scorers.query_statistics": "QueryCentres QueryFilter",
        # Allocators.
        "kvlab.core.methods.allocators.adaptive": "HeadAdaptive",
        "kvlab.core.methods.allocators.cosine": "CosineDecay",
        "kvlab.core.methods.eviction.simlayerkv": "LazyLayers",
        "kvlab.core.methods.merging.pyramid_pool": "Linear Pool",
        "kvlab.core.methods.allocators.model_wide": "ModelWide",
        "kvlab.core.methods.allocators.profile": "HeadProfile HeadShares",
        "kvlab.core.methods.eviction.lukv": "HeadCurves",
        "kvlab.core.methods.allocators.pyramid": "Pyramid",
        "kvlab.core.methods.eviction.kvzap": "AboveThreshold",
        "kvlab.core.methods.merging.d2o": "CosineMerge Variance",
        # Selectors.
        "kvlab.core.methods.selectors.chunks": "Chunks GatedChunks",
        "kvlab.core.methods.eviction.criticalkv": "Critical",
        "kvlab.core.methods.eviction.nacl": "SampledRest",
        "kvlab.core.methods.merging.attention_matching": "Pursuit",
        # Settlers.
        "kvlab.core.methods.merging.less": "Absorb",
        "kvlab.core.methods.eviction.streaming_llm": "EvictAndReposition",
        "kvlab.core.methods.settlers.log_mass": "Mass",
        "kvlab.core.methods.settlers.gaussian_sets": "GaussianSets",
        "kvlab.core.methods.merging.keepkv": "GroupFit NearestMerge",
        "kvlab.core.methods.merging.simcalkv": "PairCalibration",
        "kvlab.core.methods.merging.asymkv": "PairMerge",
        "kvlab.core.methods.merging.semanticache": "SeedClusters",
        "kvlab.core.methods.merging.cam": "ValueMerge",
        "kvlab.core.methods.settlers.global_ridge": "GlobalRidge",
        "kvlab.core.methods.settlers.matching": "MatchAttention",
        "kvlab.core.methods.merging.exactmerge": "ExactResidual",
        "kvlab.core.methods.merging.zsmerge": "ResidualMerge",
        # Stores.
        "kvlab.core.stores.code": "Code",
        "kvlab.core.stores.eight_bit": "Eight",
        "kvlab.core.stores.kivi": "PerChannel PerToken",
        "kvlab.core.stores.store": "STORES Store",
        "kvlab.core.stores.turbo": "Rotated",
        # Tasks, files and metrics.
        "kvlab.evaluation.scoring.metrics": "METRICS register_metric score_answer:score",
        "kvlab.tasks.draft": "Draft Task",
        "kvlab.tasks.loaders": "register_loader",
        "kvlab.tasks.loaders.plain_text": "load_plain_text",
        "kvlab.tasks.registry": "TASKS get_task register_task",
        "kvlab.tasks.sample": "Sample",
        # Views of the dashboard.
        "kvlab.views.base.palette": "HUES STATE_COLOURS method_style pick",
        "kvlab.views.base.template": "finish",
        "kvlab.views.base.view": "FigureView register_view view",
    }.items()
    for name in names.split()
}
_NAMES = {name.partition(":")[0]: (module, name.partition(":")[2] or name) for name, module in _HOME.items()}
# Old name -> new name, for one release.
_DEPRECATED = {
    "GoesOn": "DecodeCompression",
    "Rehearsal": "SecondPassRequest",
    "RehearsedAttention": "SecondPassAttention",
    "Seen": "AttentionPass",
    "PartReading": "SparseShare",
    "Reading": "SparseAttention",
    "ReadingCapabilities": "SparseCapabilities",
    "register_reading": "register_sparse_attention",
}
# What version 0.1 had, and the method that alone used it.
_GONE = {"Epiphany": "epikv", "ResidualRule": "epikv", "TokenScores": "epikv", "ThinInLots": "pyramidinfer:decode=lots"}

__all__ = sorted(_NAMES)


def __getattr__(name: str) -> Any:
    if name in _DEPRECATED:
        new = _DEPRECATED[name]
        warnings.warn(f"kvlab.extend.{name} is now called {new}.", DeprecationWarning, stacklevel=2)
        name = new
    if name in _GONE:
        raise AttributeError(f"kvlab no longer has {name}, which only {_GONE[name]} used: take another part.")
    if name not in _NAMES:
        raise AttributeError(f"kvlab.extend has no name {name!r}: see docs/writing-a-method.md")
    module, known_as = _NAMES[name]
    return getattr(import_module(module), known_as)


def __dir__() -> list[str]:
    return __all__
