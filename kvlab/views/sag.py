"""Effect of compression on attention, by step and by head: mass, sag, regret, output error and guard activations."""

from collections.abc import Mapping, Sequence

import numpy as np
import pandas as pd
import plotly.graph_objects as go

from kvlab.core.choice import FULL
from kvlab.trace.reader import Run
from kvlab.views.base.head_map import Place, head_map
from kvlab.views.base.lines import Line, add_area, add_line, add_lines, hatch
from kvlab.views.base.palette import DIVERGING, HUES, LOSS, MASS_COLOURS, Theme, pick
from kvlab.views.base.template import finish, log_axis
from kvlab.views.base.view import view
from kvlab.views.base.words import closeness, contrast, near, part, percent, sentence
from kvlab.views.frames.compare import unique_labels

MASS_COLUMNS = ("kept_mass", "merged_true_mass", "merged_mass", "sag", "regret")
ERROR_COLUMNS = ("output_error", "score_error")
COUNT_COLUMNS = ("guard_activations", "evicted", "merged")
MEASURES = {
    "sag": ("Sag by head", "sag (share of attention)"),
    "regret": ("Regret by head", "regret (share of attention)"),
    "output_error": ("Output error by head", "relative output error"),
    "guard_activations": ("Guard activations by head", "activations"),
    "max_votes": ("Largest votes by head", "votes"),
}
SHARES = ("sag", "regret", "output_error")  # shown as percentages
MASSES = (
    Line("merged_true_mass", "true mass of merged tokens", "ink", "solid"),
    Line("merged_mass", "mass received by their slots", "purple", "dash"),
    Line("sag", "sag (the difference)", "red", "dot"),
)
ERRORS = (
    Line("output_error", "output error", "blue", "solid"),
    Line("regret", "regret", "grey", "dash"),
    Line("sag", "absolute sag", "red", "dot"),
)
SLIGHT = 0.01  # a relative change that is told as almost none
MEASURE_WORDS = {
    "sag": "attention lost by merging", "regret": "attention lost by dropping", "output_error": "change of the output",
    "guard_activations": "number of refused merges", "max_votes": "number of tokens in one slot",
}  # fmt: skip


def over_steps(run: Run, layer: int | None = None, head: int | None = None) -> pd.DataFrame:
    """One row per step: masses and errors averaged over a layer and head, or over all, counts summed."""
    groups = run.select("steps", layer, head).groupby("step")
    return groups[[*MASS_COLUMNS, *ERROR_COLUMNS]].mean().join(groups[list(COUNT_COLUMNS)].sum()).reset_index()


mass = view("mass", title="Attention with nothing dropped, by fate of the token", needs="full", page="attention")(
    over_steps
)
sag_by_step = view("sag", title="Attention sag", needs="full", page="attention")(over_steps)
errors = view("output_error", title="Error of the attention output", needs="full", page="attention")(over_steps)
guards = view("guard", title="Guard activations", needs="full", page="attention")(over_steps)


@view("loss_by_head", title="Loss by head", needs="full", page="attention")
def loss_by_head(run: Run) -> pd.DataFrame:
    """One row per layer and KV head: masses and errors averaged over steps, counts summed, largest votes."""
    groups = run.steps.groupby(["layer", "head"])
    table = groups[[*MASS_COLUMNS, *ERROR_COLUMNS]].mean().join(groups[list(COUNT_COLUMNS)].sum())
    return table.join(groups["max_votes"].max()).reset_index()


def has_shadow(steps: pd.DataFrame) -> bool:
    """Whether the run was measured against its own attention with nothing dropped (recording level `full`)."""
    return bool(steps[["kept_mass", "sag", "output_error"]].notna().any(axis=None)) if len(steps) else False


def totals(steps: pd.DataFrame) -> dict[str, float]:
    """Totals of the run: mean output error, sag, regret and masses, and summed counts."""
    means = {name: float(steps[name].mean()) for name in (*MASS_COLUMNS, "output_error")}
    return means | {name: float(steps[name].sum()) for name in COUNT_COLUMNS}


@mass.figure
def mass_over_steps(frame: pd.DataFrame, theme: Theme = "light") -> go.Figure:
    """Attention with nothing dropped, on kept tokens, merged tokens and dropped tokens, which sum to one."""
    figure = go.Figure()
    parts = (
        ("kept", frame["kept_mass"], "tokens with their own slot", ""),
        ("merged", frame["merged_true_mass"], "tokens in merged slots", ""),
        ("regret", frame["regret"], "dropped tokens (regret)", "/"),
    )
    for key, values, name, pattern in parts:
        colour = pick(MASS_COLOURS[key], theme)
        hover = f"step %{{x}}: %{{y:.3f}} to {name}"
        add_area(figure, frame["step"], values, name, colour, hover, hatch(pattern, colour, theme, pale=0.5))
    received = frame["kept_mass"] + frame["merged_mass"]
    if frame["merged_true_mass"].fillna(0).max() > 0:
        name = "kept + received by merged slots"
        ink = pick(HUES["ink"], theme)
        add_line(figure, frame["step"], received, name, ink, "dot", "step %{x}: %{y:.3f}", width=1.6)
    title = "Attention with nothing dropped, by fate of the token"
    finish(figure, title=title, x="step", y="share of attention", theme=theme)
    return figure.update_yaxes(range=[0, 1.02], tickformat=".0%")


@mass.caption
def caption_mass_over_steps(frame: pd.DataFrame) -> str:
    """Say where the attention goes with nothing dropped."""
    if not frame["regret"].notna().any():
        return "The attention with nothing dropped was not recorded."
    return sentence(
        f"with nothing dropped, {part(1 - frame['regret'].mean())} of the attention would be on tokens still held here"
    )


@sag_by_step.figure
def sag_over_steps(frame: pd.DataFrame, theme: Theme = "light") -> go.Figure:
    """True mass of merged tokens, mass received by their slots, and the difference: sag."""
    figure = add_lines(go.Figure(), frame["step"], frame, MASSES, theme, "step %{x}: {name} %{y:.4f}")
    finish(figure, title="Attention sag", x="step", y="share of attention", theme=theme)
    return figure.update_yaxes(tickformat=".3~p")


@sag_by_step.caption
def caption_sag_over_steps(frame: pd.DataFrame) -> str:
    """Whether merged slots get the attention of their tokens."""
    apart = float(frame["merged_true_mass"].mean())
    if not frame["merged_true_mass"].fillna(0).any():
        return "Nothing was merged, so nothing was lost by merging."
    mean = float(frame["sag"].mean())
    if not np.isfinite(mean):
        return "What merging lost was not recorded."
    if abs(mean) <= SLIGHT * apart:
        return "Merged slots get about the attention that their tokens would get apart."
    way = "less" if mean > 0 else "more"
    return f"On average over the steps, merged slots get {way} attention than their tokens would get apart."


@errors.figure
def errors_over_steps(frame: pd.DataFrame, theme: Theme = "light") -> go.Figure:
    """Output error, regret and sag on one log axis."""
    sizes = frame[[line.column for line in ERRORS]].abs()
    sizes = sizes.where(sizes > 0)
    known = [line for line in ERRORS if sizes[line.column].notna().any()]
    figure = add_lines(go.Figure(), frame["step"], sizes, known, theme, "step %{x}: {name} %{y:.2e}")
    title = "Error of the attention output"
    y = "relative error, share of attention"
    if not known:
        figure.add_scatter(x=frame["step"], y=frame["output_error"], name="output error", mode="lines")
        return finish(figure, title=title, x="step", y=y, theme=theme)
    finish(figure, title=title, x="step", y=f"{y} (log)", theme=theme)
    return figure.update_yaxes(**log_axis(sizes.stack())).update_layout(showlegend=True)


@errors.caption
def caption_errors_over_steps(frame: pd.DataFrame) -> str:
    """How far the output is from that with nothing dropped."""
    error = float(frame["output_error"].mean())
    if not np.isfinite(error):
        return "The change of the heads' output was not measured."
    return f"On average, the heads' output {closeness(error)} follows what it would be with nothing dropped."


@guards.figure
def guard_over_steps(frame: pd.DataFrame, theme: Theme = "light") -> go.Figure:
    """Guard activations in each step."""
    marker = {"color": pick(HUES["gold"], theme), "line": {"width": 0}}
    hover = "step %{x}: %{y:,} activations"
    figure = go.Figure().add_bar(
        x=frame["step"], y=frame["guard_activations"], marker=marker, hovertemplate=f"{hover}<extra></extra>"
    )
    return finish(figure, title="Guard activations", x="step", y="activations", theme=theme, height=300, legend=False)


@guards.caption
def caption_guard_over_steps(frame: pd.DataFrame) -> str:
    """Whether the safeguard intervened."""
    if not frame["guard_activations"].sum():
        return "No merge was refused as harmful."
    return "The method's safeguard stepped in where a merge would have been unstable."


@loss_by_head.figure
def measure_by_head(
    frame: pd.DataFrame, theme: Theme = "light", measure: str = "output_error", focus: Place | None = None
) -> go.Figure:
    """One measure by layer and KV head, averaged over the steps; `measure` is a key of `MEASURES`."""
    title, unit = MEASURES[measure]
    table = frame.pivot(index="layer", columns="head", values=measure)
    values = table.to_numpy(np.float32)
    largest = float(np.nanmax(np.abs(values))) if np.isfinite(values).any() else 1.0
    signed = measure == "sag"
    share = measure in SHARES
    return head_map(
        table,
        title,
        theme,
        bar=unit,
        hover=f"<br>{unit} %{{z:.3~{'p' if share else 'g'}}}",
        low=-largest if signed else 0,
        high=largest or 1.0,
        colours=DIVERGING[theme][::-1] if signed else LOSS[theme],
        bar_options={"tickformat": ".3~p"} if share else None,
        focus=focus,
    )


@loss_by_head.caption
def caption_measure_by_head(frame: pd.DataFrame, measure: str = "output_error") -> str:
    """The head with the largest value."""
    values = frame[measure].abs()
    what = MEASURE_WORDS.get(measure, "value")
    if not values.notna().any():
        return sentence(f"the {what} was not measured")
    if not values.any():
        return sentence(f"the {what} is 0 in every head")
    if near(float(values.min()), float(values.max())):
        return sentence(f"the {what} is the same in every head")
    top = frame.loc[values.idxmax()]
    return sentence(f"the {what} is largest in layer {int(top['layer'])}, head {int(top['head'])}")


@view("attention_by_run", title="Attention with nothing dropped, by fate of its token", page="attention")
def attention_by_run_frame(runs: Sequence[Run]) -> pd.DataFrame:
    """One row per compressed run that measured it: label, run_id, and means of kept, merged, dropped and output_error.

    `kept`, `merged` and `dropped` share out the attention with nothing dropped by the fate of its token; the run with
    the smallest output error is first.
    """
    rows = []
    for run, label in zip(runs, unique_labels(runs), strict=True):
        steps = run.select("steps", columns=["kept_mass", "merged_true_mass", "regret", "output_error"])
        if run.record.method != FULL.method and steps["output_error"].notna().any():
            means = steps.mean()
            shares = {"kept": means["kept_mass"], "merged": means["merged_true_mass"], "dropped": means["regret"]}
            rows.append({"label": label, "run_id": run.record.run_id, **shares, "output_error": means["output_error"]})
    columns = ["label", "run_id", "kept", "merged", "dropped", "output_error"]
    return pd.DataFrame(rows, columns=columns).sort_values("output_error", kind="stable").reset_index(drop=True)


@attention_by_run_frame.figure
def attention_by_run(frame: pd.DataFrame, theme: Theme = "light") -> go.Figure:
    """Attention with nothing dropped by the fate of its token, a bar a run, with its output error beside it."""
    figure = go.Figure()
    for column, name, pattern in (
        ("kept", "tokens with their own slot", ""),
        ("merged", "tokens in merged slots", "."),
        ("dropped", "dropped tokens", "/"),
    ):
        colour = pick(MASS_COLOURS["regret" if column == "dropped" else column], theme)
        figure.add_bar(
            y=frame["label"],
            x=frame[column],
            orientation="h",
            name=name,
            marker={"color": colour, "pattern": hatch(pattern, colour, theme, pale=0.5) if pattern else {}},
            hovertemplate=f"%{{y}}: %{{x:.1%}} on {name}<extra></extra>",
        )
    figure.add_scatter(
        x=[1.01] * len(frame),
        y=frame["label"],
        mode="text",
        text=[f"output error {percent(error)}" for error in frame["output_error"]],
        textposition="middle right",
        textfont={"size": 12},
        cliponaxis=False,
        showlegend=False,
        hoverinfo="skip",
    )
    title = "Attention with nothing dropped, by fate of its token"
    x = "share of attention, mean over heads and steps"
    finish(figure, title=title, x=x, y="run", theme=theme, height=170 + 34 * len(frame))
    figure.update_xaxes(range=[0, 1.28], tickvals=[0, 0.25, 0.5, 0.75, 1], tickformat=".0%")
    return figure.update_layout(barmode="stack").update_yaxes(autorange="reversed", type="category", showgrid=False)


@attention_by_run_frame.caption
def caption_attention_by_run(frame: pd.DataFrame) -> str:
    """The runs with the smallest and the largest output error."""
    if frame.empty:
        return "No run of this comparison measured its attention with nothing dropped."
    return contrast(
        frame.set_index("label")["output_error"],
        "The heads' output stays closest to that with nothing dropped with {least}, and gets furthest with {most}.",
        "The heads' output is equally close to that with nothing dropped with all runs.",
        "Only {only} measured its attention with nothing dropped.",
    )


def verdict(total: Mapping[str, float], label: str) -> str:
    """What merging and dropping cost a run, from `totals`."""
    if not np.isfinite(total["output_error"]):
        return f"{label} did not record the attention with nothing dropped."
    lost = f"{label} loses {percent(total['regret'])} of the attention by dropping tokens"
    off = f"Its heads' output is off by {percent(total['output_error'])}."
    if not total["merged_true_mass"] > 0:
        return f"{lost}, and merges nothing. {off}"
    share = total["sag"] / total["merged_true_mass"]
    of_them = f"{percent(abs(share))} {'less' if share >= 0 else 'more'} attention than apart"
    return f"{lost}; its merged tokens ({percent(total['merged_true_mass'])} of it) get {of_them}. {off}"


def place_among(frame: pd.DataFrame, run_id: str) -> str:
    """The run's place by output error in `attention_by_run_frame`, smallest first; "" if it is alone or not there."""
    if len(frame) < 2 or run_id not in set(frame["run_id"]):
        return ""
    here = frame["run_id"].tolist().index(run_id) + 1
    best = frame.iloc[0]
    if here == 1:
        return f"Smallest output error of {len(frame)} runs."
    first = f"{best['label']}, {percent(best['output_error'])}"
    return f"By output error it is number {here} of {len(frame)}; best is {first}."
