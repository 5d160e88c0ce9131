"""History of a head as a GIF, one frame per step."""

from __future__ import annotations

import io
from collections.abc import Callable

import numpy as np
from PIL import Image

from kvlab.analysis.lineage.tables import event_steps
from kvlab.common.errors import UserError
from kvlab.figures.base.export import ImageWriter
from kvlab.figures.base.palette import Theme
from kvlab.figures.base.words import byte_size
from kvlab.report.pictures import ROOM, WIDTH, history_picture
from kvlab.report.views import History

MOST_FRAMES = 64
COLOURS = 64
FRAME_MS, LAST_MS = 250, 2500
# Measured on runs of 17 steps over 80 tokens and 48 over 1,723, on two cores.
BYTES_A_PIXEL, SECONDS_A_FRAME = 0.06, 0.35


def frames_of(history: History, most: int = MOST_FRAMES) -> list[int]:
    """The steps drawn: all, or an even sample plus, if there is room, steps with departures."""
    steps = np.array(history.steps)
    if len(steps) <= most:
        return steps.tolist()
    chosen = set(steps[np.linspace(0, len(steps) - 1, most // 2).round().astype(int)].tolist())
    events = [step for step in event_steps(history.lineage()).tolist() if step not in chosen]
    room = most - len(chosen)
    chosen.update(events[:: max(1, -(-len(events) // room))])
    return sorted(chosen)


def estimate_gif(steps: int) -> str:
    """Estimated size and duration of a GIF with this many steps, as text."""
    count = min(steps, MOST_FRAMES)
    size = byte_size(round(count * WIDTH * ROOM * BYTES_A_PIXEL, -4))
    every = f" of {steps:,} steps" if steps > count else ""
    return f"{count} frames{every}, {WIDTH:,} pixels wide, about {size}, about {count * SECONDS_A_FRAME:.0f} s"


def animation(
    history: History, writer: ImageWriter, theme: Theme = "light", on_frame: Callable[[int, int], None] | None = None
) -> bytes:
    """The looping GIF; `on_frame` is called with each frame's number (from 1) and the total.

    Raises:
        UserError: the head has only one step, or there is no Chromium.
    """
    steps = frames_of(history)
    if len(steps) < 2:
        raise UserError("This head has only one step, so there is nothing to animate: export a picture instead.")
    drawn: list[Image.Image] = []
    for place, step in enumerate(steps, 1):
        picture = writer.picture(history_picture(history, step, theme), "png", scale=1)
        drawn.append(Image.open(io.BytesIO(picture)).convert("RGB"))
        if on_frame is not None:
            on_frame(place, len(steps))
    # One palette, from the last frame, which has every state, so that only differences between frames are stored.
    palette = drawn[-1].quantize(COLOURS, dither=Image.Dither.NONE)
    small = [one.quantize(palette=palette, dither=Image.Dither.NONE) for one in drawn]
    file = io.BytesIO()
    times = [*[FRAME_MS] * (len(small) - 1), LAST_MS]
    small[0].save(file, "gif", save_all=True, append_images=small[1:], duration=times, loop=0, optimize=False)
    return file.getvalue()
