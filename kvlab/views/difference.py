"""Difference of two runs over the same text: the tokens each still holds in every head, and where outputs diverge."""

from collections.abc import Sequence
from typing import NamedTuple, TypeAlias

import numpy as np
import pandas as pd
import plotly.graph_objects as go

from kvlab.core.errors import UserError
from kvlab.trace.reader import Run
from kvlab.views.base.lines import Line, add_lines
from kvlab.views.base.palette import HUES, STATE_COLOURS, Theme, method_look, pick
from kvlab.views.base.template import along_text, finish, log_axis
from kvlab.views.base.view import view
from kvlab.views.base.words import near, part, visible
from kvlab.views.frames.compare import first_divergence
from kvlab.views.frames.wall import Wall, difference_codes
from kvlab.views.wall import open_wall, wall_picture

BOTH, ONLY_A, ONLY_B, NEITHER, UNREAD = range(5)
NAMES = ("in both", "only in A", "only in B", "in neither", "not yet read")
DepartureSteps: TypeAlias = np.ndarray  # see `departure_steps`


FLOOR = 1e-6
Hues = tuple[str, str]  # of A and of B
HUES_OF_TWO: Hues = ("blue", "orange")
# Hues of one family look alike; a colour of another family is far from both.
FAMILIES = (("ink", "grey"), ("blue", "sky"), ("orange", "red", "gold"), ("purple", "wine"), ("green",))
FAMILY = {hue: place for place, family in enumerate(FAMILIES) for hue in family}
REPLACEMENTS = ("blue", "orange", "green", "purple")


@view("difference", title="Difference of two runs: every layer and head", needs="full", page="cache")
def difference(runs: Sequence[Run], step: int | None = None) -> pd.DataFrame:
    """One row per layer and head: share of the tokens read by the step (default: the last) that have a slot of their
    own in A and B, in only one, or in neither; and the Jaccard index (1 if neither has any).

    Raises:
        UserError: they have not read the same tokens in the same steps.
    """
    a, b = walls_of(runs)
    step = int(a.steps[-1]) if step is None else step
    codes = difference_codes(a.fates(step), b.fates(step))
    layer = np.repeat(a.layers, a.heads)
    head = np.tile(np.arange(a.heads), len(a.layers))
    counts = {name: (codes == code).sum(1) for code, name in enumerate(("both", "only_a", "only_b", "neither"))}
    either = codes.shape[1] - counts["neither"]
    jaccard = np.where(either > 0, counts["both"] / np.maximum(either, 1), 1.0)
    shares = {name: count / codes.shape[1] for name, count in counts.items()}
    return pd.DataFrame({"layer": layer, "head": head, "step": step, **shares, "jaccard": jaccard})


@difference.figure
def draw_difference(frame: pd.DataFrame, theme: Theme, runs: Sequence[Run], step: int | None = None) -> go.Figure:
    """The tokens that both, one or neither hold, in every head."""
    first, second = (run.record for run in pair_of(runs))
    a, b = walls_of(runs)
    step = int(a.steps[-1]) if step is None else step
    colours, names, _ = wall_looks(hues_of(first.method, second.method), first.label, second.label, theme)
    when = "the prompt" if step == 0 else f"step {step}"
    title = f"{first.label} and {second.label}: the caches after {when}"
    codes = difference_codes(a.fates(step), b.fates(step))
    return wall_picture(codes, list(a.layers), a.heads, colours, names, title, theme)


@difference.caption
def describe_difference(frame: pd.DataFrame) -> str:
    either = float(frame[["both", "only_a", "only_b"]].sum(axis=1).mean())
    if either <= 0:
        return "Neither run holds anything here."
    step = int(frame["step"].iloc[0])
    share = part(float(frame["both"].mean()) / either)
    when = "the prompt" if step == 0 else f"step {step}"
    return f"After {when}, {share} of the text that A or B holds is held by both."


def pair_of(runs: Sequence[Run]) -> tuple[Run, Run]:
    """A and B: the two runs, or the last two of a comparison; raises UserError if there is only one."""
    if len(runs) < 2:
        raise UserError("A difference is of two runs: choose a second one.")
    return runs[-2], runs[-1]


def walls_of(runs: Sequence[Run]) -> tuple[Wall, Wall]:
    """The walls of A and B; raises UserError if they do not show the same heads and tokens."""
    first, second = pair_of(runs)
    a = open_wall(first)
    b = open_wall(second)
    if (a.layers, a.heads) != (b.layers, b.heads) or not np.array_equal(a.birth, b.birth):
        names = f"{first.record.label} and {second.record.label}"
        raise UserError(f"{names} have not read the same tokens in the same steps: choose two runs of one comparison.")
    return a, b


@view("difference_kl", title="Distance from the full cache, both runs", needs="light", page="cache")
def difference_kl(runs: Sequence[Run]) -> pd.DataFrame:
    """One row per token of the forced continuation: token (from 1), text, KL of A (a) and B (b) in nats."""
    tables = []
    for run in pair_of(runs):
        forced = run.tokens[run.tokens["phase"] == "forced"].sort_values("position")
        tables.append(forced[["text", "kl"]].reset_index(drop=True))
    table = pd.DataFrame({"text": tables[0]["text"], "a": tables[0]["kl"], "b": tables[1]["kl"]})
    return table.assign(token=np.arange(1, len(table) + 1))[["token", "text", "a", "b"]]


@difference_kl.figure
def draw_difference_kl(frame: pd.DataFrame, theme: Theme, runs: Sequence[Run]) -> go.Figure:
    """KL of each run from the full cache at every token of the forced continuation."""
    runs = pair_of(runs)
    hues = hues_of(*(run.record.method for run in runs))
    figure = go.Figure()
    words = [visible(text) for text in frame["text"]]
    drawn = frame[["a", "b"]].clip(lower=FLOOR)
    for line in (
        Line("a", f"A: {runs[0].record.label}", hues[0], "solid", "circle"),
        Line("b", f"B: {runs[1].record.label}", hues[1], "dash", "diamond"),
    ):
        if drawn[line.column].notna().any():
            hover_data = list(zip(words, frame[line.column], strict=True))
            hover = "token %{x} %{customdata[0]}: KL %{customdata[1]:.3g} nats"
            add_lines(figure, frame["token"], drawn, [line], theme, hover, size=5, width=1.6, customdata=hover_data)
    if not figure.data:
        figure.add_scatter(x=frame["token"], y=frame["a"], name="KL", mode="lines")
    title = "Distance from the full cache, both runs"
    finish(figure, title=title, x="token of the continuation", y="KL (nats, log)", theme=theme)
    figure.update_yaxes(**log_axis(drawn.stack())).update_layout(showlegend=True)
    return along_text(figure, offset=runs[0].record.prompt_tokens - 1)


@difference_kl.caption
def describe_difference_kl(frame: pd.DataFrame) -> str:
    known = frame.dropna(subset=["a", "b"])
    if known.empty:
        return "How close the two runs are to the full cache was not recorded."
    a = float(known["a"].mean())
    b = float(known["b"].mean())
    if near(a, b):
        return "A and B are equally close to the full cache."
    return f"{'A' if a < b else 'B'} is closer to the full cache than {'B' if a < b else 'A'}."


def hues_of(method_a: str, method_b: str) -> Hues:
    """Hues of two methods: those they have in all figures, unless B's is like A's, or one is grey.

    Grey marks tokens in neither. Two runs of one method differ in hue here.
    """
    a, b = (method_look(method)[0] for method in (method_a, method_b))
    if a == "grey":
        a = _far_from("grey", b)
    if b == "grey" or FAMILY[a] == FAMILY[b]:
        b = _far_from("grey", a)
    return a, b


def changed_hues(method_a: str, method_b: str) -> str:
    """One sentence if a run has another colour here than in other figures; "" if none has."""
    shown = zip("AB", (method_a, method_b), hues_of(method_a, method_b), strict=True)
    changed = [f"{letter} ({method})" for letter, method, hue in shown if hue != method_look(method)[0]]
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


def _far_from(*hues: str) -> str:
    taken = {FAMILY[hue] for hue in hues}
    return next(hue for hue in REPLACEMENTS if FAMILY[hue] not in taken)


class Kept(NamedTuple):
    """(layers, heads, tokens) bool, whether the slot named by the token is alive; and how many tokens were read."""

    alive: np.ndarray
    tokens_seen: int


def departure_steps(run: Run) -> DepartureSteps:
    """(layers, heads, tokens) int: step at which each token's own slot ended; the dtype's maximum if it stayed.

    Tokens after the last departure are omitted.

    Raises:
        UserError: the run recorded no events.
    """
    if run.record.level != "full":
        raise UserError(f"{run.record.label} was recorded at level {run.record.level}, without events.")
    model = run.record.model
    events = run.select("events", columns=["step", "layer", "head", "source"])
    steps, *places = (events[name].to_numpy() for name in ("step", "layer", "head", "source"))
    kind = np.int16 if steps.max(initial=0) < np.iinfo(np.int16).max else np.int32
    size = int(places[-1].max(initial=-1)) + 1
    gone = np.full((model.num_hidden_layers, model.num_key_value_heads, size), np.iinfo(kind).max, kind)
    np.minimum.at(gone.reshape(-1), np.ravel_multi_index(places, gone.shape), steps.astype(kind))
    return gone


def kept_at(run: Run, step: int, gone: DepartureSteps | None = None) -> Kept:
    """Which tokens still have their own slot after `step`, in all layers and heads.

    `gone` is the result of `departure_steps`, for callers that need many steps.

    Raises:
        UserError: the run recorded no events.
    """
    gone = departure_steps(run) if gone is None else gone
    tokens_seen = run.record.prompt_tokens + step
    alive = np.ones((*gone.shape[:2], tokens_seen), bool)
    alive[..., : gone.shape[2]] = gone[..., :tokens_seen] > step
    return Kept(alive, tokens_seen)


def tokens_read(run: Run) -> int:
    """Number of tokens read by the last step."""
    return int(run.select("steps", columns=["tokens_seen"])["tokens_seen"].max())


def classes(a: Kept, b: Kept, layer: int, head: int, tokens: int) -> np.ndarray:
    """(tokens,) uint8 of one head: an index into `NAMES` for every token of the text."""
    tokens_seen = min(a.tokens_seen, b.tokens_seen)
    first = a.alive[layer, head, :tokens_seen]
    second = b.alive[layer, head, :tokens_seen]
    found = np.full(tokens, UNREAD, np.uint8)
    found[:tokens_seen] = np.select([first & second, first, second], [BOTH, ONLY_A, ONLY_B], NEITHER)
    return found


def divergences(a: Run, b: Run) -> dict[str, int | None]:
    """First differing token (from 1) of the own continuations: `a` and `b` from the full cache, and `each_other`."""
    written = [run.tokens.loc[run.tokens["phase"] == "free", "id"].to_numpy() for run in (a, b)]
    common = min(map(len, written))
    different = np.flatnonzero(written[0][:common] != written[1][:common])
    between = int(different[0]) + 1 if len(different) else None if len(written[0]) == len(written[1]) else common + 1
    return {"a": first_divergence(a.tokens), "b": first_divergence(b.tokens), "each_other": between}
