"""Views registered by plug-ins: a frame of a run and the figure drawn from it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import pandas as pd
import plotly.graph_objects as go

from kvlab.figures.base.palette import Theme
from kvlab.plugins.registry import Registry
from kvlab.trace.reader import Run


@dataclass(frozen=True)
class View:
    """A dashboard page about one run.

    `frame` reads the run, `figure` draws the frame in a theme, `reading` describes it in one line. The page shows
    `title` and `sentence`, the current run, the figure with its reading, and the frame as CSV. A UserError from `frame`
    is shown as is. `name` is part of the page's URL: lower-case letters, digits and underscores.
    """

    name: str
    title: str
    sentence: str
    frame: Callable[[Run], pd.DataFrame]
    figure: Callable[[pd.DataFrame, Theme], go.Figure]
    reading: Callable[[pd.DataFrame], str]


# The dashboard imports only plug-ins that register views, because others import torch and transformers.
VIEWS: Registry[View] = Registry("view", only_of_plugins_with="register_view")


def register_view(view: View) -> View:
    """Register a view; raises UserError if the name is taken."""
    VIEWS.add(view.name, view)
    return view
