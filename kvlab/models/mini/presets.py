"""What is trained when: shapes, lengths, mixtures and the accuracy that opens the next phase."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType

from kvlab.models.mini.shape import Shape

SMALL = Shape(hidden_size=128, num_hidden_layers=2, intermediate_size=352)
DEEP = Shape(hidden_size=128, num_hidden_layers=6, intermediate_size=352)
WIDE = Shape(hidden_size=256, num_hidden_layers=6, intermediate_size=704)


@dataclass(frozen=True)
class Phase:
    """One stretch of training at a fixed shape and length.

    It ends when every task in `advance_on` has passed `accuracy` (after `least_steps`), after `steps`, or when its
    `share` of the hours asked for is used up. `mixture` gives each kind of row its share of a batch.
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
    final_rate: float = 1.0  # the learning rate falls linearly to this fraction of itself
    places: tuple[int, ...] = field(default=())  # where the old layers go when depth grows
    continues: bool = False  # keeps the optimizer's state of the phase before, without warm-up
    refines: bool = False  # one of those that `--start` runs on a finished model


FIRST_WORDS = MappingProxyType(
    {
        "text": 0.15,
        "needle": 0.4,
        "repeat": 0.05,
        "natural_repeat": 0.05,
        "pairs": 0.1,
        "key_value": 0.15,
        "variables": 0.05,
        "labels": 0.05,
    }
)
ALL_TASKS = MappingProxyType(
    {
        "text": 0.34,
        "mixed": 0.28,
        "needle": 0.08,
        "multi_query": 0.03,
        "multi_value": 0.03,
        "key_value": 0.06,
        "variables": 0.05,
        "labels": 0.02,
        "words": 0.03,
        "copy": 0.02,
        "arithmetic": 0.01,
        "natural_repeat": 0.04,
        "repeat": 0.01,
    }
)
MOSTLY_TEXT = MappingProxyType(
    {
        "text": 0.44,
        "mixed": 0.22,
        "needle": 0.1,
        "multi_query": 0.02,
        "multi_value": 0.02,
        "key_value": 0.05,
        "variables": 0.04,
        "labels": 0.02,
        "words": 0.03,
        "copy": 0.02,
        "natural_repeat": 0.04,
    }
)
MORE_CHAINS = MappingProxyType(
    {
        "text": 0.25,
        "mixed": 0.2,
        "needle": 0.05,
        "multi_query": 0.02,
        "key_value": 0.14,
        "variables": 0.3,
        "labels": 0.02,
        "arithmetic": 0.02,
    }
)
CHAINS_AND_PAIRS = MappingProxyType(
    {
        "text": 0.2,
        "mixed": 0.14,
        "needle": 0.04,
        "key_value": 0.2,
        "variables": 0.32,
        "labels": 0.02,
        "copy": 0.04,
        "multi_value": 0.04,
    }
)
LONG_TEXT = MappingProxyType(
    {
        "text": 0.5,
        "mixed": 0.14,
        "needle": 0.05,
        "multi_query": 0.03,
        "key_value": 0.16,
        "variables": 0.08,
        "labels": 0.02,
        "copy": 0.02,
    }
)
FAR_TEXT = MappingProxyType(
    {
        "text": 0.74,
        "needle": 0.04,
        "multi_query": 0.02,
        "key_value": 0.1,
        "variables": 0.08,
        "labels": 0.02,
    }
)
CIRCUIT = MappingProxyType({"repeat": 0.5, "pairs": 0.5})

CPU_PHASES = (
    Phase(
        "circuit",
        SMALL,
        length=64,
        batch=32,
        steps=8000,
        learning_rate=3e-3,
        mixture=CIRCUIT,
        share=0.03,
        accuracy=0.98,
        advance_on=("repeat", "pairs"),
    ),
    Phase(
        "needles-128",
        DEEP,
        length=128,
        batch=32,
        steps=6000,
        learning_rate=2e-3,
        mixture=FIRST_WORDS,
        share=0.04,
        advance_on=("needle",),
        places=(0, 3),
    ),
    Phase(
        "needles-512",
        DEEP,
        length=512,
        batch=8,
        steps=6000,
        learning_rate=2e-3,
        mixture=FIRST_WORDS,
        share=0.03,
        advance_on=("needle",),
        needles=4,
        pairs=24,
    ),
    Phase(
        "wide-1024",
        WIDE,
        length=1024,
        batch=8,
        steps=8000,
        learning_rate=3e-3,
        mixture=ALL_TASKS,
        share=0.18,
        optimizer="muon",
        answer_weight=2.0,
        needles=8,
        pairs=64,
    ),
    Phase(
        "wide-2048",
        WIDE,
        length=2048,
        batch=4,
        steps=8000,
        learning_rate=3e-3,
        mixture=MOSTLY_TEXT,
        share=0.09,
        optimizer="muon",
        answer_weight=2.0,
        final_rate=0.6,
        needles=10,
        pairs=80,
    ),
    Phase(
        "wide-4096",
        WIDE,
        length=4096,
        batch=1,
        steps=8000,
        learning_rate=1.8e-3,
        mixture=MOSTLY_TEXT,
        share=0.12,
        optimizer="muon",
        answer_weight=2.0,
        needles=12,
        pairs=96,
        final_rate=0.44,
    ),
    Phase(
        "chains-4096",
        WIDE,
        length=4096,
        batch=1,
        steps=8000,
        learning_rate=8e-4,
        mixture=MORE_CHAINS,
        share=0.11,
        optimizer="muon",
        answer_weight=3.0,
        needles=12,
        pairs=96,
        final_rate=0.02,
        continues=True,
    ),
    Phase(
        "tasks-1024",
        WIDE,
        length=1024,
        batch=4,
        steps=20000,
        learning_rate=1.2e-3,
        mixture=CHAINS_AND_PAIRS,
        share=0.14,
        optimizer="muon",
        answer_weight=3.0,
        needles=8,
        pairs=72,
        final_rate=0.8,
        refines=True,
    ),
    Phase(
        "long-4096",
        WIDE,
        length=4096,
        batch=1,
        steps=20000,
        learning_rate=9e-4,
        mixture=LONG_TEXT,
        share=0.16,
        optimizer="muon",
        answer_weight=2.0,
        needles=12,
        pairs=96,
        final_rate=0.5,
        continues=True,
        refines=True,
    ),
    Phase(
        "text-4096",
        WIDE,
        length=4096,
        batch=1,
        steps=20000,
        learning_rate=6e-4,
        mixture=FAR_TEXT,
        share=0.1,
        optimizer="muon",
        answer_weight=2.0,
        needles=12,
        pairs=96,
        final_rate=0.02,
        refines=True,
    ),
)

GPU_SHAPES = MappingProxyType(
    {
        SMALL: Shape(hidden_size=192, num_hidden_layers=2, intermediate_size=512),
        DEEP: Shape(hidden_size=192, num_hidden_layers=8, intermediate_size=512),
        WIDE: Shape(hidden_size=384, num_hidden_layers=8, intermediate_size=1024),
    }
)
_GPU_BATCHES = 8  # times the CPU's rows a step, once text is in the mixture


def _on_gpu(phase: Phase) -> Phase:
    """Return a phase with larger shapes and batches; its hours are another matter (--hours)."""
    factor = _GPU_BATCHES if "text" in phase.mixture else 1
    places = (0, 4) if phase.places else ()
    return replace(
        phase, shape=GPU_SHAPES[phase.shape], batch=phase.batch * factor, places=places, steps=4 * phase.steps
    )


GPU_PHASES = tuple(_on_gpu(phase) for phase in CPU_PHASES)

PRESETS: Mapping[str, tuple[Phase, ...]] = MappingProxyType({"cpu": CPU_PHASES, "gpu": GPU_PHASES})
