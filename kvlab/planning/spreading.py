"""Split a plan over several devices: accelerate gives each whole layers, so weights and caches are split."""

from __future__ import annotations

from collections.abc import Sequence

from kvlab.planning.parts import Part, Phase

PASSING = "weights on their way"
BY_LAYER = ("weights", "full cache", "compressed cache", "tables held to be shown")


def spread_over(phases: Sequence[Phase], devices: int, layers: int) -> list[Phase]:
    """The phases on the fullest of `devices`: its share of per-layer parts, with at most one extra layer."""
    if devices < 2:
        return list(phases)
    return [Phase(phase.name, tuple(_on_one(part, devices, layers) for part in phase.parts)) for phase in phases]


def _on_one(part: Part, devices: int, layers: int) -> Part:
    if part.name == PASSING:
        return Part(part.name, part.place, part.bytes // layers, "accelerate sends each to its device as it is read")
    if part.place != "device" or part.name not in BY_LAYER:
        return part
    largest = min(-(-layers // devices) + 1, layers)  # layers on one device, of which none is split
    return Part(part.name, part.place, part.bytes * largest // layers, f"on the fullest of {devices} devices")
