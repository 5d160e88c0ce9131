"""KL along the text and attention of the reading head, before and after restoring tokens."""

import pandas as pd
import plotly.graph_objects as go

from kvlab.core.errors import UserError
from kvlab.trace.reader import Run
from kvlab.trace.restore_results import RestoreResult, SearchResult, load_result
from kvlab.views.base import HUES, Theme, add_line, finish, join_names, near, pick, token_text, visible
from kvlab.views.base.view import view
from kvlab.views.frames.lineage import SINKS
from kvlab.views.frames.restore import LEAST_MASS, cheapest

LOOK = (("grey", "dot", "circle"), ("blue", "solid", "diamond"))
BARS = {"full cache": ("ink", ""), "as it ran": ("grey", "/")}
CHANGED = 0.1  # a relative change of a token's attention that is told as one


def find_search(
    run: Run, search: str | None, result: RestoreResult | None
) -> tuple[RestoreResult, SearchResult | None]:
    """The result of searching what restores the run's answer, and the search of this name in it.

    Without such a name, the cheapest that restores the answer, else the first. Raises UserError if it was not searched.
    """
    found = result or load_result(run.path.parent, run.record.comparison_id, run.record.run_id)
    if found is None:
        raise UserError(
            f"What would restore the answer of {run.record.label} is not searched yet: `kvlab restore "
            f"{run.record.run_id}` does it."
        )
    named = [one for one in found.found if one.search == search]
    return found, next(iter(named), cheapest(found) or next(iter(found.found), None))


@view("restored_kl", title="KL from the full cache along its text", page="why_wrong")
def restored_kl(run: Run, search: str | None = None, result: RestoreResult | None = None) -> pd.DataFrame:
    """Columns series (`as it ran`, and the change), token (of the full cache's continuation), text, kl."""
    result, found = find_search(run, search, result)
    series = {"as it ran": result.kl_before} | ({} if found is None else {found.returned.description: found.kl})
    parts = [
        pd.DataFrame({"series": name, "token": range(len(kl)), "text": list(result.reference[: len(kl)]), "kl": kl})
        for name, kl in series.items()
    ]
    return pd.concat(parts, ignore_index=True)


@restored_kl.figure
def kl_before_after(frame: pd.DataFrame, theme: Theme = "light") -> go.Figure:
    """KL from the full cache at every token of its continuation, from `restored_kl`."""
    figure = go.Figure()
    for (name, part), (hue, dash, symbol) in zip(frame.groupby("series", sort=False), LOOK, strict=False):
        hover = f"token %{{x}} “%{{customdata}}”<br>{name}: %{{y:.4g}} nats"
        words = part["text"].map(visible).tolist()
        add_line(
            figure,
            part["token"],
            part["kl"],
            str(name),
            pick(HUES[hue], theme),
            dash,
            hover,
            marker=symbol,
            size=5,
            customdata=words,
        )
    title = "KL from the full cache along its text"
    finish(figure, title=title, x="token of the continuation", y="KL (nats)", theme=theme)
    return figure.update_yaxes(rangemode="tozero")


@restored_kl.caption
def caption_kl_before_after(frame: pd.DataFrame) -> str:
    """Whether the predictions come closer to the full cache's."""
    means = frame.groupby("series", sort=False)["kl"].mean().dropna()
    if len(means) < 2:
        return "Only one run is shown, without anything restored."
    first = float(means.iloc[0])
    best = float(means.iloc[1:].min())
    if near(first, best):
        return "What was restored changes the predictions hardly at all."
    way = "closer to" if best < first else "further from"
    return f"With what was restored, the predictions are {way} the full cache's."


@view("restored_attention", title="Attention of the answer's queries", page="why_wrong")
def restored_attention(run: Run, search: str | None = None, result: RestoreResult | None = None) -> pd.DataFrame:
    """Columns series, token, text, mass (attention of the answer's queries), layer and head (which reads the fact).

    Covers the tokens the full cache attends to most and the fact's tokens, except those with negligible attention.
    Empty where no head reads the fact.
    """
    result, found = find_search(run, search, result)
    read = run.tokens[run.tokens["phase"] == "prompt"].set_index("position")["text"].fillna("")
    series = {"full cache": result.attention_full, "as it ran": result.attention_before}
    series |= {} if found is None else {found.returned.description: found.attention}
    texts = [read.get(token, "") for token in result.tokens]
    parts = [
        pd.DataFrame({"series": name, "token": result.tokens, "text": texts, "mass": mass})
        for name, mass in series.items()
        if mass
    ]
    if result.reader is None:
        return pd.DataFrame(columns=["series", "token", "text", "mass"])
    if not parts:
        return pd.DataFrame(columns=["series", "token", "text", "mass", "layer", "head"])
    table = pd.concat(parts, ignore_index=True)
    table = table[table.groupby("token")["mass"].transform("max") >= LEAST_MASS].reset_index(drop=True)
    return table.assign(layer=result.reader[0], head=result.reader[1])


@restored_attention.figure
def attention_before_after(frame: pd.DataFrame, theme: Theme = "light") -> go.Figure:
    """Attention of the answer's queries in the head that reads the fact, from `restored_attention`."""
    figure = go.Figure()
    for name, part in frame.groupby("series", sort=False):
        hue, pattern = BARS.get(str(name), ("blue", ""))
        # Text first: a position before a number could be read as part of it.
        labels = [f"“{visible(text, 12)}” at {token}" for token, text in zip(part["token"], part["text"], strict=True)]
        figure.add_bar(
            x=labels,
            y=part["mass"],
            name=str(name),
            marker={"color": pick(HUES[hue], theme), "pattern": {"shape": pattern, "size": 5, "solidity": 0.3}},
            hovertemplate=f"token %{{x}}<br>{name}: %{{y:.3~p}}<extra></extra>",
        )
    title = "Attention of the answer's queries: layer {layer}, head {head}".format(**frame.iloc[0])
    finish(figure, title=title, x="token of the prompt", y="share of attention", theme=theme)
    return figure.update_yaxes(tickformat=".3~p", rangemode="tozero").update_xaxes(type="category", tickangle=-45)


@restored_attention.caption
def caption_attention_before_after(frame: pd.DataFrame) -> str:
    """What the token that the full cache reads most, attention sinks aside, gets in the other runs."""
    full = frame[frame["series"] == "full cache"]
    if full.empty or not full["mass"].notna().any() or full["mass"].max() <= 0:
        return "The attention of the answer was not recorded."
    # The token of most attention that is no attention sink; a sink only if no other token has any.
    apart = full[(full["token"] >= SINKS) & (full["mass"] >= LEAST_MASS)]
    top = full.loc[(full if apart.empty else apart)["mass"].idxmax()]
    others = frame[(frame["token"] == top["token"]) & (frame["series"] != "full cache")]
    word = f"The full cache looks most at “{token_text(top['text'].strip())}”"
    if top["token"] < SINKS:
        word += ", an attention sink, which says nothing about the text"
    elif full.loc[full["mass"].idxmax(), "token"] < SINKS:
        word = f"Apart from the attention sink, the{word.removeprefix('The')}"
    if others.empty:
        return f"{word}."
    masses = others.set_index("series")["mass"]
    less = masses.index[masses < (1 - CHANGED) * top["mass"]].tolist()
    if less:
        return f"{word}; it gets less attention with {join_names(less)}."
    more = masses.index[masses > (1 + CHANGED) * top["mass"]].tolist()
    return f"{word}; it gets more attention with {join_names(more)}." if more else f"{word}, the others about as much."
