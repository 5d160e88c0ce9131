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
    from kvlab.common.errors import UserError
    from kvlab.evaluate.scoring.metrics import METRICS, register_metric
    from kvlab.evaluate.scoring.metrics import score as score_answer
    from kvlab.figures.base.palette import HUES, STATE_COLOURS, method_style, pick
    from kvlab.figures.base.template import finish
    from kvlab.figures.base.views import View as FigureView
    from kvlab.figures.base.views import register_view
    from kvlab.methods.allocators.adaptive import HeadAdaptive
    from kvlab.methods.allocators.ballots import ChosenSlots
    from kvlab.methods.allocators.cosine import CosineDecay
    from kvlab.methods.allocators.curves import HeadCurves
    from kvlab.methods.allocators.first_layers import FirstLayers
    from kvlab.methods.allocators.lazy_layers import LazyLayers
    from kvlab.methods.allocators.linear import Linear
    from kvlab.methods.allocators.model_wide import ModelWide
    from kvlab.methods.allocators.profile import HeadProfile, HeadShares
    from kvlab.methods.allocators.pyramid import Pyramid
    from kvlab.methods.allocators.threshold import AboveThreshold
    from kvlab.methods.allocators.uniform import EqualHeads, Uniform
    from kvlab.methods.allocators.variance import Variance
    from kvlab.methods.composition.composed import compose
    from kvlab.methods.composition.register import (
        register_allocator,
        register_scorer,
        register_selector,
        register_settler,
    )
    from kvlab.methods.core.contract import Allocator, Capabilities, Scorer, Selector, Settler, Victims
    from kvlab.methods.core.decode_buffer import GoesOn
    from kvlab.methods.core.in_place import InPlace
    from kvlab.methods.core.method import Method, make_method, register, registered
    from kvlab.methods.core.pipeline import Pipeline
    from kvlab.methods.core.plan import Edges, NewKeys, Plan, ValueShift
    from kvlab.methods.core.published_settings import Preset
    from kvlab.methods.core.reading import (
        Chosen,
        Estimate,
        Held,
        PartReading,
        Reading,
        ReadingCapabilities,
        register_reading,
    )
    from kvlab.methods.core.second_pass import Rehearsal
    from kvlab.methods.core.token_scores import ResidualRule, TokenScores
    from kvlab.methods.core.view import Seen, Slots, View
    from kvlab.methods.scorers.attention.accumulated_attention import AccumulatedAttention
    from kvlab.methods.scorers.attention.ema import EmaScore
    from kvlab.methods.scorers.attention.fused_window import FusedWindow
    from kvlab.methods.scorers.attention.last_query import LastQuery
    from kvlab.methods.scorers.attention.pyramidinfer import RecentRows
    from kvlab.methods.scorers.attention.time_stamps import TimeStamps
    from kvlab.methods.scorers.attention.window import WindowAttention
    from kvlab.methods.scorers.epiphany import Epiphany
    from kvlab.methods.scorers.key_value.draws import Draws
    from kvlab.methods.scorers.key_value.key_only import ShortKeys, UnusualKeys
    from kvlab.methods.scorers.key_value.lag import Lag
    from kvlab.methods.scorers.key_value.leverage import ChunkLeverage, SquaredLengths
    from kvlab.methods.scorers.key_value.recency import Recency, Unscored
    from kvlab.methods.scorers.key_value.redundancy import Redundancy
    from kvlab.methods.scorers.lookahead.capacity import Capacity
    from kvlab.methods.scorers.lookahead.expected_attention import ExpectedAttention
    from kvlab.methods.scorers.lookahead.gvote import Ballots
    from kvlab.methods.scorers.lookahead.kvzap import PredictedScore
    from kvlab.methods.scorers.lookahead.kvzip import LayerAttention, RehearsedAttention
    from kvlab.methods.scorers.lookahead.query_statistics import QueryCentres, QueryFilter
    from kvlab.methods.scorers.lookahead.sampled_queries import FutureQueries
    from kvlab.methods.scorers.wrappers.wrapper import PromptOnly, SlotsAlone
    from kvlab.methods.selectors.chunks import Chunks, GatedChunks
    from kvlab.methods.selectors.critical import Critical
    from kvlab.methods.selectors.fifo import Oldest
    from kvlab.methods.selectors.sampled_rest import SampledRest
    from kvlab.methods.selectors.top_k import LowestScore
    from kvlab.methods.settlers.eviction.evict import Evict
    from kvlab.methods.settlers.eviction.interval import ThinInLots
    from kvlab.methods.settlers.eviction.reposition import EvictAndReposition
    from kvlab.methods.settlers.less import Absorb
    from kvlab.methods.settlers.log_mass import Mass
    from kvlab.methods.settlers.merging.cosine_merge import CosineMerge
    from kvlab.methods.settlers.merging.gaussian_sets import GaussianSets
    from kvlab.methods.settlers.merging.group_fit import GroupFit
    from kvlab.methods.settlers.merging.nearest_merge import NearestMerge
    from kvlab.methods.settlers.merging.pair_calibration import PairCalibration
    from kvlab.methods.settlers.merging.pair_merge import PairMerge
    from kvlab.methods.settlers.merging.seed_clusters import SeedClusters
    from kvlab.methods.settlers.merging.value_merge import ValueMerge
    from kvlab.methods.settlers.pooling.pool import Pool
    from kvlab.methods.settlers.refitting.global_ridge import GlobalRidge
    from kvlab.methods.settlers.refitting.matching import MatchAttention
    from kvlab.methods.settlers.refitting.pursuit import Pursuit
    from kvlab.methods.settlers.residuals.exact_residual import ExactResidual
    from kvlab.methods.settlers.residuals.residual import ResidualMerge
    from kvlab.stores.code import Code
    from kvlab.stores.eight_bit import Eight
    from kvlab.stores.kivi import PerChannel, PerToken
    from kvlab.stores.store import STORES, Store
    from kvlab.stores.turbo import Rotated
    from kvlab.tasks.draft import Draft, Task
    from kvlab.tasks.loaders import register_loader
    from kvlab.tasks.loaders.plain_text import load_plain_text
    from kvlab.tasks.registry import TASKS, get_task, register_task
    from kvlab.tasks.sample import Sample

# The module that has each name; where it has another name there, that follows the colon.
_HOME = {
    name: module
    for module, names in {
        "kvlab.common.errors": "UserError",
        # A method: what it is, and what it says.
        "kvlab.methods.core.method": "Method make_method register registered",
        "kvlab.methods.composition.composed": "compose",
        "kvlab.methods.core.decode_buffer": "GoesOn",
        "kvlab.methods.composition.register": "register_allocator register_scorer register_selector register_settler",
        "kvlab.methods.core.contract": "Allocator Capabilities Scorer Selector Settler Victims",
        "kvlab.methods.core.in_place": "InPlace",
        "kvlab.methods.core.pipeline": "Pipeline",
        "kvlab.methods.core.plan": "Edges NewKeys Plan ValueShift",
        "kvlab.methods.core.published_settings": "Preset",
        "kvlab.methods.core.reading": "Chosen Estimate Held PartReading Reading ReadingCapabilities register_reading",
        "kvlab.methods.core.second_pass": "Rehearsal",
        "kvlab.methods.core.token_scores": "ResidualRule TokenScores",
        "kvlab.methods.core.view": "Seen Slots View",
        # Scorers.
        "kvlab.methods.scorers.wrappers.wrapper": "PromptOnly SlotsAlone",
        "kvlab.methods.scorers.attention.accumulated_attention": "AccumulatedAttention",
        "kvlab.methods.scorers.attention.ema": "EmaScore",
        "kvlab.methods.scorers.attention.fused_window": "FusedWindow",
        "kvlab.methods.scorers.attention.last_query": "LastQuery",
        "kvlab.methods.scorers.attention.pyramidinfer": "RecentRows",
        "kvlab.methods.scorers.attention.time_stamps": "TimeStamps",
        "kvlab.methods.scorers.attention.window": "WindowAttention",
        "kvlab.methods.scorers.epiphany": "Epiphany",
        "kvlab.methods.scorers.key_value.draws": "Draws",
        "kvlab.methods.scorers.key_value.key_only": "ShortKeys UnusualKeys",
        "kvlab.methods.scorers.key_value.lag": "Lag",
        "kvlab.methods.scorers.key_value.leverage": "ChunkLeverage SquaredLengths",
        "kvlab.methods.scorers.key_value.recency": "Recency Unscored",
        "kvlab.methods.scorers.key_value.redundancy": "Redundancy",
        "kvlab.methods.scorers.lookahead.capacity": "Capacity",
        "kvlab.methods.scorers.lookahead.gvote": "Ballots",
        "kvlab.methods.scorers.lookahead.expected_attention": "ExpectedAttention",
        "kvlab.methods.scorers.lookahead.sampled_queries": "FutureQueries",
        "kvlab.methods.scorers.lookahead.kvzap": "PredictedScore",
        "kvlab.methods.scorers.lookahead.kvzip": "LayerAttention RehearsedAttention",
        "kvlab.methods.scorers.lookahead.query_statistics": "QueryCentres QueryFilter",
        # Allocators.
        "kvlab.methods.allocators.adaptive": "HeadAdaptive",
        "kvlab.methods.allocators.ballots": "ChosenSlots",
        "kvlab.methods.allocators.cosine": "CosineDecay",
        "kvlab.methods.allocators.first_layers": "FirstLayers",
        "kvlab.methods.allocators.lazy_layers": "LazyLayers",
        "kvlab.methods.allocators.linear": "Linear",
        "kvlab.methods.allocators.model_wide": "ModelWide",
        "kvlab.methods.allocators.profile": "HeadProfile HeadShares",
        "kvlab.methods.allocators.curves": "HeadCurves",
        "kvlab.methods.allocators.pyramid": "Pyramid",
        "kvlab.methods.allocators.threshold": "AboveThreshold",
        "kvlab.methods.allocators.uniform": "EqualHeads Uniform",
        "kvlab.methods.allocators.variance": "Variance",
        # Selectors.
        "kvlab.methods.selectors.chunks": "Chunks GatedChunks",
        "kvlab.methods.selectors.critical": "Critical",
        "kvlab.methods.selectors.sampled_rest": "SampledRest",
        "kvlab.methods.selectors.top_k": "LowestScore",
        "kvlab.methods.selectors.fifo": "Oldest",
        "kvlab.methods.settlers.refitting.pursuit": "Pursuit",
        # Settlers.
        "kvlab.methods.settlers.less": "Absorb",
        "kvlab.methods.settlers.eviction.evict": "Evict",
        "kvlab.methods.settlers.eviction.interval": "ThinInLots",
        "kvlab.methods.settlers.eviction.reposition": "EvictAndReposition",
        "kvlab.methods.settlers.log_mass": "Mass",
        "kvlab.methods.settlers.merging.cosine_merge": "CosineMerge",
        "kvlab.methods.settlers.merging.gaussian_sets": "GaussianSets",
        "kvlab.methods.settlers.merging.group_fit": "GroupFit",
        "kvlab.methods.settlers.merging.nearest_merge": "NearestMerge",
        "kvlab.methods.settlers.merging.pair_calibration": "PairCalibration",
        "kvlab.methods.settlers.merging.pair_merge": "PairMerge",
        "kvlab.methods.settlers.merging.seed_clusters": "SeedClusters",
        "kvlab.methods.settlers.merging.value_merge": "ValueMerge",
        "kvlab.methods.settlers.pooling.pool": "Pool",
        "kvlab.methods.settlers.refitting.global_ridge": "GlobalRidge",
        "kvlab.methods.settlers.refitting.matching": "MatchAttention",
        "kvlab.methods.settlers.residuals.exact_residual": "ExactResidual",
        "kvlab.methods.settlers.residuals.residual": "ResidualMerge",
        # Stores.
        "kvlab.stores.code": "Code",
        "kvlab.stores.eight_bit": "Eight",
        "kvlab.stores.kivi": "PerChannel PerToken",
        "kvlab.stores.store": "STORES Store",
        "kvlab.stores.turbo": "Rotated",
        # Tasks, files and metrics.
        "kvlab.evaluate.scoring.metrics": "METRICS register_metric score_answer:score",
        "kvlab.tasks.draft": "Draft Task",
        "kvlab.tasks.loaders": "register_loader",
        "kvlab.tasks.loaders.plain_text": "load_plain_text",
        "kvlab.tasks.registry": "TASKS get_task register_task",
        "kvlab.tasks.sample": "Sample",
        # Views of the dashboard.
        "kvlab.figures.base.palette": "HUES STATE_COLOURS method_style pick",
        "kvlab.figures.base.template": "finish",
        "kvlab.figures.base.views": "FigureView:View register_view",
    }.items()
    for name in names.split()
}
_NAMES = {name.partition(":")[0]: (module, name.partition(":")[2] or name) for name, module in _HOME.items()}
# Old name -> new name, for one release.
_DEPRECATED: dict[str, str] = {}

__all__ = sorted(_NAMES)


def __getattr__(name: str) -> Any:
    if name in _DEPRECATED:
        new = _DEPRECATED[name]
        warnings.warn(f"kvlab.extend.{name} is now called {new}.", DeprecationWarning, stacklevel=2)
        name = new
    if name not in _NAMES:
        raise AttributeError(f"kvlab.extend has no name {name!r}: see docs/writing-a-method.md")
    module, known_as = _NAMES[name]
    return getattr(import_module(module), known_as)


def __dir__() -> list[str]:
    return __all__
