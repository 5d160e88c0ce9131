"""Views from outside: a frame of a run and the figure drawn from it; the dashboard makes the page around them."""

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
    """A page of the dashboard about one run.

    `frame` reads the run, `figure` draws the frame in a theme, `reading` says in one line what is seen. The page shows
    `title` and `sentence`, the run in view, the figure with its reading, and the frame as CSV. A UserError from `frame`
    is shown as it is. `name` is in the page's address: small letters, digits and underscores.
    """

    name: str
    title: str
    sentence: str
    frame: Callable[[Run], pd.DataFrame]
    figure: Callable[[pd.DataFrame, Theme], go.Figure]
    reading: Callable[[pd.DataFrame], str]


# The dashboard imports only plug-ins that say so, since the others bring the model stack with them.
VIEWS: Registry[View] = Registry("view", only_of_plugins_with="register_view")


def register_view(view: View) -> View:
    """Make a view known; raises UserError where the name is another view's."""
    VIEWS.add(view.name, view)
    return view
