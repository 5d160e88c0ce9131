"""Text on heat map cells in a contrasting colour."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np
import plotly.graph_objects as go

DARK_INK = "#12151C"
LIGHT_INK = "#FFFFFF"


def cell_text(heat: go.Heatmap, words: Sequence[Sequence[str]] | np.ndarray, size: int = 11) -> go.Scatter:
    """A trace of the texts over `heat`, whose `zmin`, `zmax`, `x` and `y` must be set; empty texts are skipped.

    Plotly's own cell text uses only grey and white, which are hard to read on middle tones.
    """
    values = np.asarray(heat.z, float)
    table = np.asarray(words, object)
    rows, columns = np.nonzero(table != "")
    shares = np.clip((values[rows, columns] - heat.zmin) / ((heat.zmax - heat.zmin) or 1), 0, 1)
    inks = [ink_on(ground) for ground in colours_at(heat.colorscale, shares)]
    return go.Scatter(
        x=[heat.x[column] for column in columns],
        y=[heat.y[row] for row in rows],
        text=table[rows, columns].tolist(),
        mode="text",
        textfont={"size": size, "color": inks},
        hoverinfo="skip",
        showlegend=False,
    )


def colours_at(scale: Iterable[tuple[float, str]], shares: np.ndarray) -> np.ndarray:
    """(..., 3) RGB from 0 to 255 at `shares` (0 to 1) of a scale of (share, #RRGGBB) stops."""
    places, colours = zip(*scale, strict=True)
    stops = np.array([channels(colour) for colour in colours])
    known = np.nan_to_num(shares)
    return np.stack([np.interp(known, places, stops[:, channel]) for channel in range(3)], axis=-1)


def ink_on(ground: np.ndarray) -> str:
    """The dark or light text colour with the higher WCAG contrast on a background (RGB, 0 to 255)."""
    light = luminance(ground)
    on_dark = 1.05 / (light + 0.05)
    on_light = (light + 0.05) / (luminance(channels(DARK_INK)) + 0.05)
    return LIGHT_INK if on_dark >= on_light else DARK_INK


def luminance(colour: np.ndarray) -> float:
    """Relative luminance (WCAG 2) of RGB values from 0 to 255: 0 is black, 1 white."""
    channels = colour / 255
    linear = np.where(channels <= 0.04045, channels / 12.92, ((channels + 0.055) / 1.055) ** 2.4)
    return float(linear @ [0.2126, 0.7152, 0.0722])


def channels(colour: str) -> np.ndarray:
    """RGB from 0 to 255 of #RRGGBB."""
    return np.array([int(colour[place : place + 2], 16) for place in (1, 3, 5)])
