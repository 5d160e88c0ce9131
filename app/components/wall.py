"""The cache wall: all heads of a run at once, drawn, zoomed and scrubbed by the browser."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from app.base.component import component
from app.components.payload import SentTexts, SharedData, share
from kvlab.browser import pack_payload, read_static

_component = component("wall", read_static("wall.html"), "step-bar.css", "wall.css")


def cache_wall(
    data: SharedData,
    other: SharedData | None,
    texts: SentTexts,
    content: Mapping[str, Any],
    *,
    key: str,
    on_step: Callable[[], None],
    on_place: Callable[[], None],
) -> Any:
    """Mount the wall; with `other` it shows the difference of two runs. `content` is `kvlab.views.wall.wall_content`.

    The result's `step` is where the user stopped and `place` the [layer, head, position] just clicked, position -1
    beside the text.
    """
    shared: dict[str, SharedData | SentTexts] = {"wall": data, "texts": texts}
    if other is not None:
        shared["other"] = other
    payload = pack_payload({**share(key, **shared), **content})
    return _component(key=key, data=payload, on_step_change=on_step, on_place_change=on_place)
