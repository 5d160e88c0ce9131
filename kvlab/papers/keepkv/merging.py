"""KeepKV, figures 1 and 3: effect of eviction and merging on attention, and one merge step by step, with the claims."""

from collections.abc import Sequence

import numpy as np
import pandas as pd
import plotly.graph_objects as go

from kvlab.common.intervals import Interval
from kvlab.papers.attention_rows import heads_with_attention
from kvlab.papers.evidence import Evidence, basis_of, comparison, gather, interval_of, mean_text
from kvlab.papers.exhibit import Choice, Drawn, Needs, draws
from kvlab.papers.keepkv import merge_effects
from kvlab.papers.keepkv.merge_effects import LEAST_MASS, OneMerge, merge_groups, rule_of
from kvlab.results.sources import Sources
from kvlab.results.verdict import OPEN, Claim, Threshold, decisive, judge
from kvlab.trace.reader import Run
from kvlab.views.base import words
from kvlab.views.base.lines import Line, add_lines, add_points, hatch
from kvlab.views.base.palette import HUES, MASS_COLOURS, STATE_COLOURS, SURFACES, Theme, method_style, mix, pick
from kvlab.views.base.provenance import Provenance, of_run
from kvlab.views.base.template import QUIET, finish
from kvlab.views.frames.compare import unique_labels
from kvlab.views.frames.lineage import fold, token_texts

WIDE = 0.01  # smaller relative changes of attention count as none


RECEIVED = (
    Line("true_mass", "with nothing dropped: all its tokens", "ink", "solid", "circle"),
    Line("mass", "the merged slot", "purple", "dash", "diamond"),
)
RULES = {
    "exact": "exact at this query",
    "grouped": "at this query, query heads share the slot",
    "predicted": "at predicted scores, exact for no query",
    "votes": "votes alone",
    "convex": "convex, no votes",
    "other": "another mass rule",
}


def where_attention_goes(frame: pd.DataFrame, place: str, origin: Provenance, theme: Theme) -> Drawn:
    """Destination of the attention on tokens without their own slot, from `merge_effects.where_attention_goes`."""
    figure = go.Figure()
    for column, name, key, pattern in (
        ("merged", "received by merged slots", "merged", ""),
        ("sag", "lost by sag (left: gained)", "sag", "x"),
        ("regret", "lost by eviction", "regret", "/"),
    ):
        colour = pick(MASS_COLOURS[key], theme)
        figure.add_bar(
            y=frame["label"],
            x=frame[column],
            name=name,
            orientation="h",
            marker={"color": colour, "pattern": {"shape": pattern, "size": 5}, "line": {"width": 0}},
            customdata=frame[["kept", "output_error", "votes"]].to_numpy(),
            hovertemplate=f"%{{y}}: {name} %{{x:.3%}}<br>tokens with their own slot %{{customdata[0]:.2%}}, output "
            "off by %{customdata[1]:.2%}, largest votes %{customdata[2]:.4g}<extra></extra>",
        )
    for row in frame.itertuples():
        figure.add_annotation(
            x=1,
            xref="paper",
            y=row.label,
            text=f" output off by {words.percent(row.output_error)}",
            showarrow=False,
            xanchor="left",
            font={"size": 11, "color": QUIET[theme]},
        )
    finish(
        figure,
        title=f"Attention to tokens that lost their own slot ({place})",
        x="share of attention, nothing dropped",
        y="",
        theme=theme,
        height=140 + 38 * len(frame),
    )
    figure.update_layout(barmode="relative", bargap=0.3, margin={"r": 160})
    figure.update_yaxes(autorange="reversed").update_xaxes(tickformat=".3~p")
    caption = words.contrast(
        frame[frame["method"] != "full"].set_index("label")[["sag", "regret"]].sum(axis=1),
        "The least attention is lost with {least}, the most with {most}.",
        "All runs lose the same attention.",
        "Only {only} is shown beside the full cache.",
        "There is no compressed run.",
    )
    return Drawn("where attention goes", figure, frame, caption, origin)


def slot_before_and_after(
    merges: Sequence[tuple[str, str, OneMerge]], origin: Provenance, claim: Claim | None, theme: Theme
) -> Drawn:
    """One slot per (label, method, merge): its attention after the merge relative to the sum of its parts', at the same
    query. Without attention the share that is `lost` is NaN."""
    rows = [
        {
            "label": label,
            "method": method,
            "step": merge.step,
            "slot": merge.target,
            "own": merge.events["mass_target"].iloc[0],
            "sources": merge.events["mass_source"].sum(),
            "after": merge.mass_after,
            "lost": (merge.mass_before - merge.mass_after) / merge.mass_before if merge.mass_before > 0 else np.nan,
            "votes": merge.events["votes_after"].iloc[0],
            "perturbation": merge.events["perturbation"].iloc[0],
        }
        for label, method, merge in merges
    ]
    frame = pd.DataFrame(rows)
    names = [
        f"{row.label}<br>step {row.step}, slot {row.slot}, {words.number(row.votes)} votes"
        for row in frame.itertuples()
    ]
    colours = (STATE_COLOURS["kept"], HUES["purple"], STATE_COLOURS["pivot"])
    kept, absorbed, pivot = (pick(pair, theme) for pair in colours)
    whole = frame["own"] + frame["sources"]
    whole = whole.where(whole > 0)
    figure = go.Figure()
    for column, name, colour, pattern, group in (
        ("own", "the slot before", kept, "", "before"),
        ("sources", "what was merged into it", absorbed, "/", "before"),
        ("after", "the merged slot after", pivot, "", "after"),
    ):
        figure.add_bar(
            y=names,
            x=frame[column] / whole,
            name=name,
            offsetgroup=group,
            orientation="h",
            base=frame["own"] / whole if column == "sources" else None,
            customdata=frame[[column, "perturbation"]].to_numpy(),
            marker={"color": colour, "pattern": hatch(pattern, colour, theme), "line": {"width": 0}},
            hovertemplate=f"%{{y}}<br>{name}: %{{customdata[0]:.3g}} of the attention<br>output of the head changed by "
            "%{customdata[1]:.2%} in this step<extra></extra>",
        )
    # Bars lie across, because the names of many runs have no room side by side.
    finish(
        figure,
        title="One slot before and after its merge",
        x="attention (parts = 100 %)",
        y="one merge of each run",
        theme=theme,
        height=150 + 44 * len(frame),
    )
    figure.update_yaxes(autorange="reversed", tickfont={"size": 11})
    figure.update_layout(barmode="group", bargap=0.35).update_xaxes(tickformat=".0%")
    # Who loses attention with the merge.
    known = frame[np.isfinite(frame["lost"])]
    less = int((known["lost"] > WIDE).sum())
    caption = words.sentence(f"the merge costs the slot attention in {words.some_of(less, len(known), 'run')}")
    if known.empty:
        caption = "The merged slots had no attention that could be lost."
    return Drawn("one slot", figure, frame, caption, origin, claim)


def change_by_rule(frame: pd.DataFrame, origin: Provenance, claim: Claim | None, theme: Theme) -> Drawn:
    """Share of attention lost in merges (left of 0: gained): 5 % to 95 % of each run's merges, from `sag_of_runs`."""
    figure = go.Figure()
    for row in frame.itertuples():
        style = method_style(row.method, theme)
        name = f"{row.label}<br>{RULES[row.rule]}"
        figure.add_box(
            y=[name],
            q1=[row.q25],
            median=[row.q50],
            q3=[row.q75],
            lowerfence=[row.q05],
            upperfence=[row.q95],
            orientation="h",
            name=row.label,
            showlegend=False,
            line={"color": style.colour, "width": 1.6},
            fillcolor=mix(style.colour, SURFACES[theme], 0.7),
        )
        figure.add_scatter(
            x=[row.total],
            y=[name],
            mode="markers",
            showlegend=False,
            marker={"symbol": style.marker, "size": 10, "color": pick(HUES["ink"], theme)},
            hovertemplate=f"{row.label}: all merges together lose %{{x:+.1%}}<extra></extra>",
        )
    figure.add_vline(x=0, line={"color": QUIET[theme], "dash": "dot", "width": 1.2})
    finish(
        figure,
        title="Attention of merged slots relative to their parts",
        x="sag: share of the parts' attention lost (right of 0) or gained (left)<br>(box: quartiles, 5 to 95 %; "
        "marker: all)",
        y="",
        theme=theme,
        height=150 + 46 * len(frame),
        legend=False,
    )
    figure.update_xaxes(tickformat="+.0%").update_yaxes(autorange="reversed")
    caption = words.contrast(
        frame.set_index("label")["total"],
        "Merging costs the least attention with {least}, the most with {most}.",
        "Merging costs the same attention in every run.",
        "Only the merges of {only} are shown.",
    )
    return Drawn("all merges", figure, frame, caption, origin, claim)


def candidate_similarity(
    frame: pd.DataFrame, source: int, texts: list[str], threshold: float | None, origin: Provenance, theme: Theme
) -> Drawn:
    """Cosine of the evicted token's key with every remaining slot, from `merge_effects.candidates`."""
    figure = go.Figure()
    for chosen, name, hue, marker, size in (
        (False, "remaining slots", "blue", "circle", 6),
        (True, "chosen", "red", "star", 15),
    ):
        some = frame[frame["chosen"] == chosen]
        hover = "slot %{x} %{customdata}: cosine %{y:.3f}"
        labels = [words.visible(texts[position]) for position in some["position"]]
        add_points(
            figure,
            some["position"],
            some["similarity"],
            name,
            pick(HUES[hue], theme),
            hover,
            size=size,
            marker_symbol=marker,
            customdata=labels,
        )
    if threshold is not None:
        line = {"color": QUIET[theme], "dash": "dash", "width": 1.4}
        figure.add_hline(
            y=threshold, line=line, annotation_text=f"threshold {threshold:g}", annotation_position="bottom left"
        )
    figure.add_vline(x=source, line={"color": pick(HUES["red"], theme), "dash": "dot", "width": 1.2})
    title = f"1. Token {words.token_label(source, texts[source])} leaves: its most similar slot"
    across = "position of the slot (dotted: the token itself)"
    finish(figure, title=title, x=across, y="cosine of keys", theme=theme)
    # Whether the most similar slot was chosen.
    chosen_slots = frame[frame["chosen"]]
    if chosen_slots.empty:
        caption = "No slot was similar enough, so the token was not merged."
    else:
        best = words.near(float(chosen_slots["similarity"].max()), float(frame["similarity"].max()))
        which = "the slot most similar to it" if best else "a slot that is not the most similar one"
        caption = f"The token was merged into {which}."
    return Drawn("candidates", figure, frame, caption, origin)


def influence_over_steps(frame: pd.DataFrame, origin: Provenance, claim: Claim | None, theme: Theme) -> Drawn:
    """The slot's attention at each step, and that of its tokens with nothing dropped."""
    hover = "step %{x}, %{customdata} tokens: %{y:.4f} {name}"
    figure = add_lines(go.Figure(), frame["step"], frame, RECEIVED, theme, hover, customdata=frame["votes"])
    finish(figure, title="3. Attention of the slot in later steps", x="step", y="attention", theme=theme)
    # Whether the slot keeps the attention of its tokens.
    mass = float(frame["mass"].mean())
    true = float(frame["true_mass"].mean())
    caption = words.NOT_RECORDED
    if words.are_known(mass, true):
        how = words.comparison_words(mass, true, "more than", "less than", "about", 0.05)
        caption = f"Over time, the slot gets {how} the attention that its tokens would have with nothing dropped."
    return Drawn("influence", figure, frame, caption, origin, claim)


SAGS = "Convex merging gives the merged slot less attention than its parts had: attention sag."
EXACT = "KeepKV's merge leaves the attention of the present query as it was: no sag."
ANY = Threshold(0.0, "each method's merges lose attention, rather than gain it")
CLEAR = Threshold(0.05, "over all methods one part in twenty: the paper draws the loss and prints no number")
NONE = Threshold(0.01, "a hundredth is ten times what rows in half precision can be off by", at_most=True)
CONVEX = "convex"
AT_THIS_QUERY = ("exact", "grouped")
PREDICTED = "predicted"
MERGING = ("cam", "d2o", "kvmerger", "pyramid-pool", "keepkv")
SUMS = ["merges", "before", "loss", "moved", "sagging"]


def sag_rows(run: Run) -> pd.DataFrame:
    """One row per head: `rule`, `merges`, and sums over them of attention `before`, `loss` and `moved` (absolute
    loss), and how many are `sagging`; merges with negligible attention are ignored."""
    groups = merge_groups(run)
    heavy = groups[groups["before"] >= LEAST_MASS]
    loss = heavy["before"] - heavy["after"]
    table = heavy.assign(loss=loss, moved=loss.abs(), sagging=loss > 0, merges=1)
    return table.groupby(["layer", "head"])[SUMS].sum().reset_index().assign(rule=rule_of(run))


SAG = Evidence("sag", sag_rows, MERGING)


def sags(rows: pd.DataFrame) -> Claim:
    """Every convex merging method loses attention, and all together clearly."""
    convex = rows[rows["rule"] == CONVEX] if "rule" in rows else rows.iloc[:0]
    if convex.empty:
        return Claim(SAGS, OPEN, "No run here merges by a plain convex combination.")
    every = _lost(convex)
    found = {str(label): _lost(group) for label, group in convex.groupby("label", sort=False)}
    shown = "; ".join(
        f"{label} {mean_text(one, words.lost_share)} in {int(group['merges'].sum()):,} merges, "
        f"{words.percent(float(group['sagging'].sum() / group['merges'].sum()))} of which sag"
        for (label, group), one in zip(convex.groupby("label", sort=False), found.values(), strict=True)
    )
    verdict, decider, held = decisive([(every, CLEAR), *((one, ANY) for one in found.values())])
    finding = f"Attention of merged slots against the sum of their parts, same query: {shown}."
    return Claim(SAGS, verdict, finding, basis_of(convex, int(convex["merges"].sum())), decider, held)


def exact(rows: pd.DataFrame) -> Claim:
    """KeepKV at the present query changes nothing; its merges at predicted scores are reported as well."""
    ours = rows[rows["rule"].isin((*AT_THIS_QUERY, PREDICTED))] if "rule" in rows else rows.iloc[:0]
    if ours.empty:
        return Claim(EXACT, OPEN, "No run here merges by KeepKV's rule.")
    shown = "; ".join(
        f"{label} ({RULES[group['rule'].iloc[0]]}) {mean_text(_lost(group), words.lost_share)} in "
        f"{int(group['merges'].sum()):,} merges, "
        f"{words.percent(float(group['moved'].sum() / group['before'].sum()))} of it moved"
        for label, group in ours.groupby("label", sort=False)
    )
    now = ours[ours["rule"].isin(AT_THIS_QUERY)]
    finding = f"Attention of merged slots against the sum of their parts: {shown}."
    if now.empty:
        why = " Predicted scores are those of no query: compare keepkv:predict=current, with per_head_mass besides."
        return Claim(EXACT, OPEN, finding + why, basis_of(ours, int(ours["merges"].sum())))
    note = " Query heads that share a slot cannot all be served by one log mass; per_head_mass gives each its own."
    note += " What counts is the size of the change in each prompt, whether lost or gained."
    off = {str(label): _lost(group, size=True) for label, group in now.groupby("label", sort=False)}
    worst_first = sorted(off, key=lambda label: 0.0 if (one := off[label]) is None else -one.mean)
    verdict, decider, _ = decisive([(off[label], NONE) for label in worst_first])
    arm = next(label for label in worst_first if off[label] == decider)
    basis = basis_of(now, int(now["merges"].sum()))
    setting = f"with {arm}, which is not the default: that merges at predicted scores"
    return Claim(EXACT, verdict, finding + note, basis, decider, NONE, setting=setting, part=arm)


def _lost(rows: pd.DataFrame, size: bool = False) -> Interval | None:
    """Share of the attention that is lost, over all merges of a prompt; `size`: its absolute value."""
    sums = rows.groupby("prompt", sort=False)[["loss", "before"]].sum()
    shares = sums["loss"] / sums["before"]
    return interval_of((shares.abs() if size else shares).tolist())


KEEPS = "With its votes the merged slot keeps the influence its tokens had."
WHY = "a fifth: the paper proves it for the merge's own query and claims it of later ones without a number"
NEAR_ONE = Threshold(0.8, WHY, up_to=1.25)


def influence_rows(run: Run) -> pd.DataFrame:
    """One row per head, sums over all merged slots and later steps: attention received (`mass`), attention of their
    tokens with nothing dropped (`true_mass`), and absolute difference (`off`); `slots` counts them."""
    every = run.attention_every
    rows = []
    for layer, head in heads_with_attention(run):
        # (rows, tokens), one row per `every` steps
        true, slot = (array.astype(np.float64) for array in run.attention(layer, head, thinned=True))
        events = run.select("events", layer, head)
        lineage = fold(events, run.select("steps", layer, head))
        merges = events[events["target"] >= 0]
        by_step = {int(step): group["target"].to_numpy(np.int64) for step, group in merges.groupby("step")}
        last_merge = np.full(lineage.tokens, np.iinfo(np.int64).max)
        mass = true_mass = off = 0.0
        slots: set[int] = set()
        for step in lineage.steps.tolist():
            row = step // every
            last_merge[by_step.get(step, np.empty(0, np.int64))] = step  # the step of the merge itself does not count
            if step % every == 0 and row < len(true):
                owner = lineage.owners(step)[: true.shape[1]]
                inside = owner >= 0
                sums = np.bincount(owner[inside], true[row, : len(owner)][inside], minlength=lineage.tokens)
                merged = np.flatnonzero((last_merge < step) & lineage.alive(step))
                gets = slot[row, merged]
                mass += float(gets.sum())
                true_mass += float(sums[merged].sum())
                off += float(np.abs(gets - sums[merged]).sum())
                slots.update(merged.tolist())
        if slots:
            sums_of_head = {"mass": mass, "true_mass": true_mass, "off": off, "slots": len(slots)}
            rows.append({"layer": layer, "head": head, **sums_of_head})
    return pd.DataFrame(rows)


INFLUENCE = Evidence("slot-influence", influence_rows, ("keepkv",))


def keeps(rows: pd.DataFrame) -> Claim:
    """Attention of merged slots relative to that of their tokens, over all slots and later steps."""
    if rows.empty or not rows["true_mass"].sum():
        return Claim(KEEPS, OPEN, "No merged slot lived for a further step.")
    sums = rows.groupby("prompt", sort=False)[["mass", "true_mass", "off"]].sum()
    ratio = interval_of((sums["mass"] / sums["true_mass"]).tolist())
    off = interval_of((sums["off"] / sums["true_mass"]).tolist())
    slots = int(rows["slots"].sum())
    finding = (
        f"After their merge {slots:,} slots get {mean_text(ratio, words.number)} times the attention their tokens "
        f"would have had; slot by slot and step by step they are off by {mean_text(off, words.percent)} of it."
    )
    return judge(KEEPS, ratio, NEAR_ONE, basis_of(rows, slots), finding)


OWN_MASSES = "keepkv:preset=default:predict=current:per_head_mass=true"
COMPARED = ("cam", "d2o", "kvmerger", "keepkv:rule=votes", "keepkv", "keepkv:predict=current", OWN_MASSES, "h2o")


@draws("keepkv/fig-1")
def draw_rules(sources: Sources, choice: Choice, theme: Theme) -> tuple[Drawn, ...] | Needs:
    """Figure 1 on recorded runs: where attention goes, one slot before and after, and all merges per rule."""
    runs = merging_runs(sources)
    if not runs:
        return Needs("This comparison has no run that merged and was recorded in full.", comparison(sources, COMPARED))
    rows = gather(sources, SAG, runs)
    origin = of_run(runs[0])
    drawn = []
    # Destination of the attention of one head, unless the full cache is alone.
    every = [run for run in sources.runs or runs if run.record.level == "full"]
    goes = merge_effects.where_attention_goes(every, choice.layer, choice.head, choice.step)
    if len(goes) and (goes["method"] != "full").any():
        place = f"layer {choice.layer}, head {choice.head}, step {int(goes['step'].iloc[0])}"
        drawn.append(where_attention_goes(goes, place, origin, theme))
    # One merge of each run that merged in this head.
    place_of_slot = (choice.layer, choice.head, choice.step, choice.token)
    labelled = [
        (label, run.record.method, merge)
        for label, run in zip(unique_labels(runs), runs, strict=True)
        if (merge := merge_effects.find_merge(run, *place_of_slot, least=LEAST_MASS)) is not None
    ]
    if labelled:
        drawn.append(slot_before_and_after(labelled, origin, exact(rows), theme))
    table = merge_effects.sag_of_runs(runs)
    if len(table):
        drawn.append(change_by_rule(table, origin, sags(rows), theme))
    return tuple(drawn)


@draws("keepkv/fig-3")
def draw_workflow(sources: Sources, choice: Choice, theme: Theme) -> tuple[Drawn, ...] | Needs:
    """Figure 3 on a recorded merge: candidates, averages and votes, and the slot's later attention."""
    runs = [run for run in merging_runs(sources) if run.record.method == "keepkv"]
    if not runs:
        why = "This comparison has no KeepKV run that merged and was recorded in full."
        return Needs(why, comparison(sources, COMPARED))
    run = sources.run if sources.run in runs else runs[0]
    merge = merge_effects.find_merge(run, choice.layer, choice.head, choice.step, choice.token)
    if merge is None:
        why = f"KeepKV merged nothing in layer {choice.layer}, head {choice.head}: choose another head."
        return Needs(why, comparison(sources, COMPARED))
    texts = token_texts(run.tokens, run.record.prompt_tokens + run.record.max_new_tokens)
    value = run.record.hyper_parameters.get("threshold")
    threshold = float(value) if isinstance(value, int | float) else None
    parts = merge_effects.merge_parts(run, sources.run_of("full") or run, merge)
    # Votes, averages and attention of the merge's parts and of the merged slot.
    names = []
    for row in parts.itertuples():
        token = words.visible(row.text, 10) if row.token < 0 else words.token_label(row.token, row.text, 10)
        votes = f"{words.number(row.votes)} {'vote' if row.votes == 1 else 'votes'}"
        names.append(f"{row.role}<br>{token}<br>{votes}")
    figure = go.Figure()
    for column, name, hue, pattern in (
        ("ema_before", "EMA before this query", "grey", "/"),
        ("ema_after", "EMA with this query", "sky", "."),
        ("mass", "attention of this query", "blue", ""),
    ):
        figure.add_bar(
            x=names,
            y=parts[column],
            name=name,
            marker={"color": pick(HUES[hue], theme), "pattern": {"shape": pattern, "size": 5}, "line": {"width": 0}},
            hovertemplate=f"%{{x}}<br>{name}: %{{y:.4g}}<extra></extra>",
        )
    finish(
        figure,
        title="2. Scores are averaged, votes added, and the merged slot replaces its parts",
        x="",
        y="attention",
        theme=theme,
        height=420,
    )
    figure.update_layout(barmode="group", bargap=0.25)
    figure.update_xaxes(tickfont={"size": 11}).update_yaxes(exponentformat="power")
    # Whether the merged slot gets the attention of its parts.
    is_slot = parts["role"] == "merged slot"
    before = float(parts.loc[~is_slot, "mass"].sum())
    after = float(parts.loc[is_slot, "mass"].iloc[0])
    caption = words.NOT_RECORDED
    if words.are_known(after):
        how = words.comparison_words(after, before, "more than", "less than", "about", WIDE)
        caption = f"After the merge, the slot gets {how} the attention that its parts had."
    where = of_run(run).at(f"layer {merge.layer}, head {merge.head}, step {merge.step}")
    claim = keeps(gather(sources, INFLUENCE, [run]))
    return (
        candidate_similarity(merge_effects.candidates(run, merge), merge.source, texts, threshold, where, theme),
        Drawn("votes and scores", figure, parts, caption, where),
        influence_over_steps(merge_effects.influence_over_steps(run, merge), where, claim, theme),
    )


def merging_runs(sources: Sources) -> list[Run]:
    """The comparison's runs with merges: KeepKV's first (the current one, then the one with the paper's settings)."""
    candidates = list(dict.fromkeys([*sources.runs, *([sources.run] if sources.run else [])]))
    merged = [run for run in candidates if run.record.level == "full" and run.steps["merged"].sum() > 0]
    return sorted(
        merged, key=lambda run: (run.record.method != "keepkv", run is not sources.run, bool(run.record.departures))
    )
