"""Difference of two runs: colours of the tokens that both, one or neither hold, and KL from the full cache."""

from __future__ import annotations

import pandas as pd
import plotly.graph_objects as go

from kvlab.analysis.comparison.difference import NAMES
from kvlab.figures.simple import comparison as simple
from kvlab.views.base.caption import with_simple
from kvlab.views.base.lines import Line, add_lines
from kvlab.views.base.palette import HUES, STATE_COLOURS, Theme, method_hue, pick
from kvlab.views.base.template import finish, log_axis
from kvlab.views.base.words import number, plural, visible

FLOOR = 1e-6
Hues = tuple[str, str]  # of A and of B
HUES_OF_TWO: Hues = ("blue", "orange")
# Hues of one family look alike; a colour of another family is far from both.
FAMILIES = (("ink", "grey"), ("blue", "sky"), ("orange", "red", "gold"), ("purple", "wine"), ("green",))
REPLACEMENTS = ("blue", "orange", "green", "purple")


def hues_of(method_a: str, method_b: str) -> Hues:
    """Hues of two methods: those they have in all figures, unless B's is like A's, or one is grey.

    Grey marks tokens in neither. Two runs of one method differ in hue here.
    """
    a, b = (method_hue(method) for method in (method_a, method_b))
    if a == "grey":
        a = _far_from("grey", b)
    if b == "grey" or _family(a) == _family(b):
        b = _far_from("grey", a)
    return a, b


def caption_hues(method_a: str, method_b: str) -> str:
    """One sentence if a run has another colour here than in other figures; "" if none has."""
    shown = zip("AB", (method_a, method_b), hues_of(method_a, method_b), strict=True)
    changed = [f"{letter} ({method})" for letter, method, hue in shown if hue != method_hue(method)]
    if not changed:
        return ""
    verb = "has" if len(changed) == 1 else "have"
    return f"{' and '.join(changed)} {verb} another colour here than on other pages, to tell A and B apart."


def class_looks(hues: Hues = HUES_OF_TWO) -> dict[str, tuple[str, str]]:
    """(hue, pattern) of each class of `NAMES`; the pattern is a second cue besides colour."""
    return {
        "in both": (_far_from(*hues) if "ink" in hues else "ink", ""),
        "only in A": (hues[0], "/"),
        "only in B": (hues[1], "\\"),
        "in neither": ("grey", "."),
    }


def wall_looks(hues: Hues, a: str, b: str, theme: Theme) -> tuple[list[str], list[str], list[str]]:
    """(colours, names, meanings) of the codes of a wall of two runs labelled `a` and `b`; the last is not yet read."""
    looks = class_looks(hues)
    colours = [pick(HUES[looks[name][0]], theme) for name in NAMES[:3]]
    colours += [pick(STATE_COLOURS[state], theme) for state in ("evicted", "unseen")]
    meanings = [f"slot of its own in {place}" for place in ("both runs", a, b)] + ["slot of its own in neither run"]
    return colours, ["in both", f"only in {a}", f"only in {b}", "in neither", NAMES[4]], [*meanings, NAMES[4]]


def _family(hue: str) -> int:
    return next(place for place, family in enumerate(FAMILIES) if hue in family)


def _far_from(*hues: str) -> str:
    taken = {_family(hue) for hue in hues}
    return next(hue for hue in REPLACEMENTS if _family(hue) not in taken)


def kl_of_both(
    frame: pd.DataFrame, labels: tuple[str, str], theme: Theme = "light", hues: Hues = HUES_OF_TWO
) -> go.Figure:
    """KL of each run from the full cache at every token of the forced continuation."""
    figure = go.Figure()
    words = [visible(text) for text in frame["text"]]
    drawn = frame[["a", "b"]].clip(lower=FLOOR)
    for line in (
        Line("a", f"A: {labels[0]}", hues[0], "solid", "circle"),
        Line("b", f"B: {labels[1]}", hues[1], "dash", "diamond"),
    ):
        if drawn[line.column].notna().any():
            told = list(zip(words, frame[line.column], strict=True))
            hover = "token %{x} %{customdata[0]}: KL %{customdata[1]:.3g} nats"
            add_lines(figure, frame["token"], drawn, [line], theme, hover, size=5, width=1.6, customdata=told)
    if not figure.data:
        figure.add_scatter(x=frame["token"], y=frame["a"], name="KL", mode="lines")
    title = "Distance from the full cache, both runs"
    finish(figure, title=title, x="token of the continuation", y="KL (nats, log)", theme=theme)
    return figure.update_yaxes(**log_axis(drawn.stack())).update_layout(showlegend=True)


@with_simple(simple.kl_of_both)
def caption_kl_of_both(frame: pd.DataFrame) -> str:
    """Means, and the token with the largest difference."""
    known = frame.dropna(subset=["a", "b"])
    if known.empty:
        return f"KL was not recorded for both runs at any of {plural(len(frame), 'token')}."
    gap = (known["b"] - known["a"]).abs()
    top = known.loc[gap.idxmax()]
    means = f"A {number(float(known['a'].mean()))}, B {number(float(known['b'].mean()))} nats per token"
    most = f"token {int(top['token'])} “{top['text'].strip()}”"
    low = bool((frame[["a", "b"]] < FLOOR).any(axis=None))
    drawn = f" Values below {number(FLOOR)} are drawn at {number(FLOOR)}." if low else ""
    return f"Mean KL over {plural(len(known), 'token')}: {means}; largest difference at {most}.{drawn}"
