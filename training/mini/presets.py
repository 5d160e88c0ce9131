"""Training phases from `presets.toml`: shapes, lengths, mixtures and the accuracy that ends a phase."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from importlib.resources import files
from types import MappingProxyType
from typing import Any

from training.mini.shape import Shape


@dataclass(frozen=True)
class Phase:
    """One stretch of training at a fixed shape and length.

    It ends when every task in `advance_on` has reached `accuracy` (after `least_steps`), after `steps`, or when its
    `share` of the requested hours is used up. `mixture` gives each kind of row its share of a batch.
    """

    name: str
    shape: Shape
    length: int
    batch: int
    steps: int
    learning_rate: float
    mixture: Mapping[str, float]
    share: float
    optimizer: str = "adamw"
    accuracy: float = 0.9
    advance_on: tuple[str, ...] = ()
    least_steps: int = 100
    needles: int = 2
    pairs: int = 8
    answer_weight: float = 1.0
    final_rate: float = 1.0  # the learning rate falls linearly to this fraction
    places: tuple[int, ...] = field(default=())  # positions of the old layers when depth grows
    continues: bool = False  # keeps the optimizer's state of the phase before, without warm-up
    refines: bool = False  # run by `--start` on a finished model


def _phase(name: str, given: dict[str, Any], shapes: Mapping[str, Shape]) -> Phase:
    lists = {key: tuple(value) for key, value in given.items() if isinstance(value, list)}
    mixture = MappingProxyType(_DATA["mixtures"][given["mixture"]])
    return Phase(**given | lists | {"name": name, "shape": shapes[given["shape"]], "mixture": mixture})


def _on_gpu(phase: Phase, shape: Shape) -> Phase:
    """A phase with larger shapes and batches, without changing its hours (--hours)."""
    factor = _GPU_BATCHES if "text" in phase.mixture else 1
    places = (0, 4) if phase.places else ()
    return replace(phase, shape=shape, batch=phase.batch * factor, places=places, steps=4 * phase.steps)


_GPU_BATCHES = 8  # multiplies the CPU's rows per step once text is in the mixture
_DATA = tomllib.loads(files("training.mini").joinpath("presets.toml").read_text(encoding="utf-8"))
_SHAPES = {device: {name: Shape(**shape) for name, shape in named.items()} for device, named in _DATA["shapes"].items()}

CPU_PHASES = tuple(_phase(name, given, _SHAPES["cpu"]) for name, given in _DATA["phases"].items())
GPU_PHASES = tuple(
    _on_gpu(phase, _SHAPES["gpu"][given["shape"]])
    for phase, given in zip(CPU_PHASES, _DATA["phases"].values(), strict=True)
)
PRESETS: Mapping[str, tuple[Phase, ...]] = MappingProxyType({"cpu": CPU_PHASES, "gpu": GPU_PHASES})
