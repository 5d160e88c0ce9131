"""Slider and play button for figures with frames."""

from collections.abc import Sequence
from typing import Any

import plotly.graph_objects as go

from kvlab.views.base.palette import SURFACES, Theme
from kvlab.views.base.template import GRID, HEIGHT, INK

AT_ONCE = {"mode": "immediate", "frame": {"duration": 0, "redraw": True}, "transition": {"duration": 0}}
PLAYED = AT_ONCE | {"frame": {"duration": 350, "redraw": True}, "fromcurrent": True}  # milliseconds a frame


def with_slider(figure: go.Figure, prefix: str, active: int = 0, theme: Theme = "light", below: int = 74) -> go.Figure:
    """Add a slider over the figure's named frames and play/pause buttons.

    `active` is the first frame; `below` is room for the axis in pixels. The figure grows by the controls' height.
    """
    names = [frame.name for frame in figure.frames]
    button = {"label": "play", "method": "animate", "args": [None, PLAYED]}
    pause = {"label": "pause", "method": "animate", "args": [[None], AT_ONCE]}
    look = {"font": {"size": 12, "color": INK[theme]}, "bgcolor": SURFACES[theme], "bordercolor": GRID[theme]}
    figure.update_layout(
        sliders=[
            {
                "active": active,
                "steps": [{"label": name, "method": "animate", "args": [[name], AT_ONCE]} for name in names],
                "x": 0,
                "len": 1,
                "y": 0,
                "yanchor": "top",
                "pad": {"t": below, "b": 8},
                "currentvalue": {"prefix": prefix, "xanchor": "left"},
                "font": look["font"],
                "bordercolor": GRID[theme],
            }
        ],
        updatemenus=[
            {
                "type": "buttons",
                "direction": "left",
                "x": 0,
                "xanchor": "left",
                "y": 0,
                "yanchor": "top",
                "pad": {"t": below + 92},
                "buttons": [button, pause],
                "showactive": False,
                **look,
            }
        ],
        margin_b=below + 140,
        height=(figure.layout.height or HEIGHT) + below + 84,
    )
    return figure


def frames_of(names: Sequence[Any], traces: Sequence[Sequence[Any]]) -> list[go.Frame]:
    """Frames that replace the first traces of a figure, one per name."""
    return [
        go.Frame(data=list(data), traces=list(range(len(data))), name=str(name))
        for name, data in zip(names, traces, strict=True)
    ]
