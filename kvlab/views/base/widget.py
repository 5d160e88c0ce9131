"""Live views in notebooks: the browser modules of the dashboard, mounted by anywidget (extra `notebook`).

Imported only where anywidget is.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import anywidget
import plotly.graph_objects as go
from ipywidgets import VBox
from traitlets import Bytes, Dict, Int, List, Unicode

from kvlab.browser import STATIC, pack_payload, read_static
from kvlab.core.errors import UserError
from kvlab.views.base.palette import HUES, SURFACES, Theme, pick
from kvlab.views.base.template import GRID, INK

Data = Mapping[str, Any]


class BrowserView(anywidget.AnyWidget):
    """A component of `kvlab/browser` in a notebook.

    Attributes:
        step: the step at which the user stopped.
        place: [layer, KV head, position] of a click on the wall, position -1 beside the text; None before one.
        token: the position of a click in the text of one head; None before one.
        was_used: whether there was a click, or the step was changed.
    """

    _esm = read_static("notebook.js")
    component = Unicode().tag(sync=True)
    markup = Unicode().tag(sync=True)
    styles = Unicode().tag(sync=True)
    picture = Unicode().tag(sync=True)
    shared = Dict().tag(sync=True)
    content = Bytes().tag(sync=True)
    step = Int().tag(sync=True)
    place = List(Int(), None, allow_none=True).tag(sync=True)
    token = Int(None, allow_none=True).tag(sync=True)

    def __init__(self, component: str, data_at: Callable[[int | None], Data], theme: Theme, picture: str = "") -> None:
        """Mount what `data_at` gives for a step (None: the one that it begins with).

        Its `shared` are texts and vectors that no step changes: they are sent once. `picture` is the end of the base64
        of the picture that the notebook keeps, which the live view hides.
        """
        first = dict(data_at(None))
        shared = first.pop("shared", {})
        names = ("step-bar.css", f"{component}.css")
        # The properties that Streamlit sets for the components' styles.
        ink = INK[theme]
        paper = SURFACES[theme]
        accent = pick(HUES["blue"], theme)
        of_theme = f""".kv-notebook {{
  --st-text-color: {ink}; --st-background-color: {paper}; --st-border-color: {GRID[theme]};
  --st-secondary-background-color: color-mix(in srgb, {ink} 5%, {paper}); --st-primary-color: {accent};
  padding: 8px; color: {ink}; background: {paper}; font-size: 16px;
}}
"""
        super().__init__(
            component=component,
            markup=read_static(f"{component}.html"),
            styles=of_theme + read_static(*(name for name in names if (STATIC / name).exists())),
            picture=picture,
            shared={
                name: pack_payload(value if isinstance(value, Mapping) else {"value": value})
                for name, value in shared.items()
            },
            content=pack_payload(first),
            step=first["step"],
        )
        self.was_used = False
        self._data_at = data_at
        self.observe(self._answer, ["step", "place", "token"])

    def _answer(self, change: Mapping[str, Any]) -> None:
        self.was_used = True
        if change["name"] == "step":
            data = self._data_at(change["new"])
            self.content = pack_payload({name: value for name, value in data.items() if name != "shared"})


def stepped_figure(
    figure: go.Figure,
    draw_at: Callable[[int], go.Figure],
    step: int,
    steps: Sequence[int],
    events: Sequence[int],
    texts: Sequence[str],
    theme: Theme,
    picture: str = "",
) -> tuple[VBox, BrowserView]:
    """A figure below a scrubber, drawn again at each step at which the user stops; and the scrubber.

    `events` are the steps with evictions or merges, `texts` a word or two about each step.
    """
    chart = go.FigureWidget(figure)

    def data_at(chosen: int | None) -> Data:
        if chosen is not None:
            try:
                drawn = draw_at(chosen)
            except UserError as error:  # such as a slot that is not merged at this step
                drawn = go.Figure(layout={"title": str(error), "template": figure.layout.template})
            with chart.batch_update():
                chart.data = ()
                chart.layout = drawn.layout
                chart.add_traces(drawn.data)
        return {
            "identity": "",
            "step": step if chosen is None else chosen,
            "steps": list(steps),
            "events": list(events),
            "texts": list(texts),
            "why": "",
        }

    scrubber = BrowserView("scrubber", data_at, theme, picture)
    return VBox([scrubber, chart]), scrubber
