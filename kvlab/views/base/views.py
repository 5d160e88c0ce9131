"""Views registered by plug-ins: a frame of a run and the figure drawn from it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import InitVar, dataclass

import pandas as pd
import plotly.graph_objects as go

from kvlab.core.plugins.registry import Registry
from kvlab.trace.reader import Run
from kvlab.views.base.palette import Theme


def _no_words(_: pd.DataFrame) -> str:
    return ""


@dataclass(frozen=True)
class View:
    """A dashboard page about one run.

    `frame` reads the run, `figure` draws the frame in a theme, `caption` describes it in one line. The page shows
    `title` and `sentence`, the current run, the figure with its caption, and the frame as CSV. A UserError from `frame`
    is shown as is. `name` is part of the page's URL: lower-case letters, digits and underscores.
    `reading` is the former name of `caption`, for plug-ins that pass it by name.
    """

    name: str
    title: str
    sentence: str
    frame: Callable[[Run], pd.DataFrame]
    figure: Callable[[pd.DataFrame, Theme], go.Figure]
    caption: Callable[[pd.DataFrame], str] = _no_words
    reading: InitVar[Callable[[pd.DataFrame], str] | None] = None

    def __post_init__(self, reading: Callable[[pd.DataFrame], str] | None) -> None:
        """Take the former name of `caption`."""
        if reading is not None:
            object.__setattr__(self, "caption", reading)


# The dashboard imports only plug-ins that register views, because others import torch and transformers.
VIEWS: Registry[View] = Registry("view", only_of_plugins_with="register_view")


def register_view(view: View) -> View:
    """Register a view; raises UserError if the name is taken."""
    VIEWS.add(view.name, view)
    return view
