"""Survival of hidden tokens beside the closed form of random draws at a method's own decisions: a table and a view."""

import json

import numpy as np
import pandas as pd
import plotly.graph_objects as go
from plotly.subplots import make_subplots

from kvlab.common.intervals import mean_over_groups, wilson
from kvlab.core.errors import UserError
from kvlab.results.score_tables import NAMES, with_names
from kvlab.views.base import QUIET, Theme, arm_text, finish, interval_bars, join_names, legend_room, number, run_styles
from kvlab.views.base.view import view

GROUP = ["task", "difficulty", "depth", *NAMES]
IN_ONE, IN_ANY = "in one head", "in at least one head"
CURVE_POINTS = 80
LEAST_SHARE = 1e-9  # drawn as none


def survival_table(rows: pd.DataFrame) -> pd.DataFrame:
    """Two rows per task, depth, method and budget, `where` `IN_ONE` and `IN_ANY`, of rows whose decisions were counted.

    Prompts of several lengths count together. Columns: task, difficulty, depth, `NAMES`, samples, evictions (E, mean
    decisions that evicted since a token of the statement was read), kept (K) and dropped (W) slots of those that
    compete at each, heads (H), where, survived (share of the statement's tokens) with `_low` and `_high` (95 % interval
    over prompts), trials (prompts x tokens, in one head x heads), binomial_low and binomial_high (95 % interval of as
    many independent trials), expected (the closed form, mean over trials), within (that lies in the binomial interval).
    """
    known = (rows[rows["draws"].notna()] if "draws" in rows else rows.iloc[:0]).reset_index(drop=True)
    if known.empty:
        return pd.DataFrame(columns=[*GROUP, "samples", "where", "survived", "expected"])
    draws = pd.DataFrame([json.loads(text) for text in known["draws"]], index=known.index)
    shares = {
        IN_ONE: (known["hidden_own"] + known["hidden_merged"], draws["one_head"], draws["tokens"] * draws["heads"]),
        IN_ANY: (1 - known["unreachable"], draws["any_head"], draws["tokens"]),
    }
    lines = []
    for names, group in with_names(known).groupby(GROUP, dropna=False, sort=False):
        counted = draws.loc[group.index]
        means = {name: counted[name].mean() for name in ("evictions", "kept", "dropped", "heads")}
        for where, (survived, expected, trials) in shares.items():
            found = mean_over_groups(survived[group.index].tolist(), None)
            count = int(trials[group.index].sum())
            share, low, high = wilson(float((survived * trials)[group.index].sum()), count)
            line = dict(zip(GROUP, names, strict=True)) | {"samples": len(group)} | means
            line |= {"where": where, "survived": share, "survived_low": found.low, "survived_high": found.high}
            line |= {"trials": count, "binomial_low": low, "binomial_high": high}
            line["expected"] = float((expected * trials)[group.index].sum() / count)
            lines.append(line | {"within": low <= line["expected"] <= high})
    return pd.DataFrame(lines)


@view("survival", title="Survival beside random draws", page="quality")
def survival(rows: pd.DataFrame) -> pd.DataFrame:
    """`survival_table`.

    Raises:
        UserError: no rows have a hidden statement whose evictions were counted.
    """
    table = survival_table(rows)
    if table.empty:
        raise UserError(
            "No rows have a hidden statement whose evictions were counted: evaluate needle or needle_decoded."
        )
    return table


@survival.figure
def draw_survival(frame: pd.DataFrame, theme: Theme) -> go.Figure:
    """A panel for one head and one for all: marks are measured, dotted lines the closed form; open: less budget."""
    named = [f"{arm_text(arm)} {asked}" for arm, asked in zip(frame["arm"], frame["asked"], strict=True)]
    words = [
        f"{number(line.survived)} survives {line.evictions:.0f} evictions (n = {line.samples}); of random draws of "
        f"{line.kept:.0f} out of {line.kept + line.dropped:.0f} slots {number(line.expected)}"
        for line in frame.itertuples()
    ]
    frame = frame.assign(name=named, words=words, left=frame["evictions"] * frame["dropped"]).sort_values("left")
    pairs = frame[["name", "method"]].drop_duplicates().itertuples(index=False)
    styles = run_styles(((str(name), str(method)) for name, method in pairs), theme)
    largest = frame.groupby("arm")["budget"].max()
    figure = make_subplots(1, 2, horizontal_spacing=0.1)
    quiet = {"color": QUIET[theme], "dash": "dot", "width": 1.4}
    for (where, name), group in frame.groupby(["where", "name"], sort=False):
        style = styles[str(name)]
        ending = "" if group["budget"].iloc[0] == largest[group["arm"].iloc[0]] else "-open"
        panel = {"row": 1, "col": 1 + (where == IN_ANY), "legendgroup": name}
        figure.add_scatter(
            x=group["left"],
            y=group["survived"],
            name=str(name),
            showlegend=where == IN_ONE,
            mode="markers",
            marker={"symbol": f"{style.marker}{ending}", "size": 9, "color": style.colour},
            error_y=interval_bars(group, "survived"),
            customdata=group["words"],
            hovertemplate=f"{name}: %{{customdata}}<extra></extra>",
            **panel,
        )
        # The closed form at every mark, with the decay of one head between them.
        heads = float(group["heads"].mean())
        at = group["expected"].to_numpy(float)
        alone = at if where == IN_ONE else 1 - (1 - at) ** (1 / heads)
        evicted = np.linspace(0, float(group["left"].max()), CURVE_POINTS)
        decay = np.interp(evicted, [0, *group["left"]], [0, *np.log(alone.clip(min=LEAST_SHARE))])
        left = np.exp(decay) if where == IN_ONE else 1 - (1 - np.exp(decay)) ** heads
        line = quiet | {"color": style.colour}
        figure.add_scatter(x=evicted, y=left, mode="lines", showlegend=False, hoverinfo="skip", line=line, **panel)
    figure.add_scatter(x=[None], y=[None], mode="lines", hoverinfo="skip", line=quiet, name="random draws, closed form")
    height = 380 + legend_room(figure)
    evicted_slots = "slots evicted in a head since the tokens came"
    finish(figure, title=survival.title, x=evicted_slots, y="", theme=theme, height=height)
    figure.update_yaxes(range=[-0.04, 1.04], tickformat=".2~f").update_xaxes(rangemode="tozero")
    for column, where in enumerate((IN_ONE, IN_ANY), start=1):
        figure.update_yaxes(title_text=f"share of the hidden tokens {where}", col=column)
    return figure


@survival.caption
def describe_survival(frame: pd.DataFrame) -> str:
    """Which methods keep more of the statement in a head than random draws would, and which less."""
    alone = frame[frame["where"] == IN_ONE]
    sides: dict[str, list[str]] = {"more": [], "fewer": []}
    for arm, group in alone.groupby("arm", sort=False):
        if (group["survived_low"] > group["expected"]).all():
            sides["more"].append(arm_text(str(arm)))
        elif (group["survived_high"] < group["expected"]).all():
            sides["fewer"].append(arm_text(str(arm)))
    words = [
        f"{join_names(names)} {'keeps' if len(names) == 1 else 'keep'} {side}" for side, names in sides.items() if names
    ]
    if not words:
        return "In one head, no method differs at every point from random draws at the same decisions."
    return f"Of the hidden tokens, {' and '.join(words)} in a head than random draws at the same decisions would."
