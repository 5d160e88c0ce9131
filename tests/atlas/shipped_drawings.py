"""Exhibits drawn from what ships, each once in a process: they are the same for every folder of runs."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import cache
from pathlib import Path

import pytest

from kvlab.atlas import shipped_exhibits
from kvlab.atlas.exhibit import Drawn, Exhibit, Needs
from kvlab.requests.measurement import Measurement
from kvlab.results.shipped_folder import Shipped
from kvlab.results.sources import Sources
from kvlab.views.base.palette import Theme

NOWHERE = Path("nowhere")
_draw = shipped_exhibits.draw_shipped


@cache
def _sources(root: Path, shipped: Shipped, named: str) -> Sources:
    """Exhibits drawn in one process share the tables and verdicts they read."""
    return Sources(root, shipped=shipped, named=named)


@cache
def _drawn(root: Path, exhibit: Exhibit, theme: Theme) -> tuple[Drawn, ...] | Needs:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(shipped_exhibits, "Sources", _sources)
        return _draw(Shipped(root), exhibit, Sources(NOWHERE), theme)


def draw_shipped(ships: Shipped, exhibit: Exhibit, sources: Sources, theme: Theme) -> tuple[Drawn, ...] | Needs:
    """As kvlab's function of this name, from the drawing of before; its commands write to the folder of `sources`."""
    found = _drawn(ships.root, exhibit, theme)
    if isinstance(found, Needs):
        return _needs_at(found, sources.root)
    return tuple(
        replace(
            one,
            claim=one.claim and replace(one.claim, settle=_at(one.claim.settle, sources.root)),
            further=one.further and _needs_at(one.further, sources.root),
        )
        for one in found
    )


def _needs_at(needs: Needs, root: Path) -> Needs:
    return replace(needs, measurement=_at(needs.measurement, root))


def _at(measurement: Measurement | None, root: Path) -> Measurement | None:
    return measurement and replace(measurement, out=root / measurement.out.relative_to(NOWHERE))


@pytest.fixture(scope="session", autouse=True)
def drawn_once() -> Iterator[None]:
    """For all tests of a folder whose `conftest.py` imports this."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(shipped_exhibits, "draw_shipped", draw_shipped)
        yield
