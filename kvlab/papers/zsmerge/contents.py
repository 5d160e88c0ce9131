"""ZSMerge, figures 1 and 2, with the claims: merging drifts less than eviction, and slots never exceed their budget."""

import numpy as np
import pandas as pd
import plotly.graph_objects as go

from kvlab.papers.evidence import (
    Evidence,
    basis_of,
    comparison,
    gather,
    interval_of,
    mean_text,
    recorded_run,
)
from kvlab.papers.exhibit import Choice, Drawn, Needs, draws
from kvlab.results.sources import Sources
from kvlab.results.verdict import OPEN, Basis, Claim, Threshold, judge, judge_universal
from kvlab.trace.reader import Run
from kvlab.views.base.animation import frames_of, with_slider
from kvlab.views.base.head_map import cell_text
from kvlab.views.base.palette import HUES, STATE_COLOURS, STATE_NAMES, Theme, pick, stepped_scale
from kvlab.views.base.provenance import Provenance, join_sources, of_run
from kvlab.views.base.template import CLEAR, finish
from kvlab.views.base.words import contrast, number, part, percent, plural, sentence, shown_of, token_label
from kvlab.views.frames.compare import headline, unique_labels
from kvlab.views.frames.lineage import (
    STATES,
    Lineage,
    State,
    head_history,
    mosaic,
    state_counts,
    states_at,
    token_texts,
)
from kvlab.views.timeline import block_note, state_legend

REGIONS = ("residual", "context", "proximity")
_REGION_OF = {State.PIVOT: 0, State.SINK: 1, State.KEPT: 1, State.RECENT: 2}


def region_codes(lineage: Lineage, step: int) -> np.ndarray:
    """(tokens,) index into `REGIONS` of the slot named by each token after `step`; -1 if there is none.

    Residual: merged slots; proximity: the contiguous own slots at the end; context: own slots before them.
    """
    states = states_at(lineage, step)
    codes = np.full(lineage.tokens, -1)
    for state, region in _REGION_OF.items():
        codes[states == state] = region
    return codes


def region_counts(lineage: Lineage) -> pd.DataFrame:
    """One row per step: slots in each region, all slots, and tokens read."""
    rows = [np.bincount(codes[codes >= 0], minlength=3) for codes in (region_codes(lineage, s) for s in lineage.steps)]
    table = pd.DataFrame(rows, columns=list(REGIONS)).assign(step=lineage.steps, tokens=lineage.tokens_seen)
    return table.assign(slots=table[list(REGIONS)].sum(axis=1))


def slots_by_step(lineage: Lineage, step: int, columns: int = 6, most: int = 28) -> pd.DataFrame:
    """One row per slot and step over `columns` steps from `step` on: step, tokens, position, region, votes, and
    `slots`, the number of slots over these steps.

    At most `most` slots: first those that arrive, leave or change region, then residual ones, then an even sample.
    """
    last_first = max(0, len(lineage.steps) - columns)
    first_step = min(int(np.searchsorted(lineage.steps, step)), last_first)
    steps = lineage.steps[first_step : first_step + columns]
    codes = np.stack([region_codes(lineage, one) for one in steps])
    # Sorted positions of the slots to show.
    alive = np.flatnonzero((codes >= 0).any(axis=0))
    changes = (codes != codes[0]).any(axis=0)
    rank = np.where(changes, 0, np.where((codes == 0).any(axis=0), 1, 2))[alive]
    order = alive[np.argsort(rank, kind="stable")]
    first = order[np.sort(rank) < 2][:most]
    rest = order[np.sort(rank) == 2]
    room = min(most - len(first), len(rest))
    spread = rest[np.unique(np.linspace(0, len(rest) - 1, room).round().astype(int))] if room > 0 else rest[:0]
    shown = np.sort(np.concatenate([first, spread]))
    votes = np.stack([lineage.votes(one) for one in steps])
    table = pd.DataFrame(
        {
            "step": np.repeat(steps, len(shown)),
            "tokens": np.repeat(lineage.tokens_seen[np.searchsorted(lineage.steps, steps)], len(shown)),
            "position": np.tile(shown, len(steps)),
            "code": codes[:, shown].ravel(),
            "votes": votes[:, shown].ravel(),
        }
    )
    table = table[table["code"] >= 0].assign(slots=int((codes >= 0).any(axis=0).sum()))
    return table.assign(region=[REGIONS[code] for code in table.pop("code")]).reset_index(drop=True)


COLOURS = {
    "residual": STATE_COLOURS["pivot"],
    "context": STATE_COLOURS["kept"],
    "proximity": STATE_COLOURS["recent"],
}
MEANINGS = {
    "residual": "R: residual slot (number: tokens it holds)",
    "context": "C: context slot",
    "proximity": "P: proximity slot (recent)",
}


def cache_contents(
    frame: pd.DataFrame, texts: list[str], origin: Provenance, claim: Claim | None, theme: Theme
) -> Drawn:
    """Slots (rows) by steps (columns), from `slots_by_step`; letters name the region as a second cue."""
    steps = frame["step"].unique()
    positions = np.sort(frame["position"].unique())
    codes, words = (np.full((len(positions), len(steps)), blank, object) for blank in (np.nan, ""))
    rows = np.searchsorted(positions, frame["position"])
    columns = np.searchsorted(steps, frame["step"])
    codes[rows, columns] = frame["region"].map(REGIONS.index)
    residual = frame["region"] == "residual"
    words[rows, columns] = ("R ×" + frame["votes"].astype(str)).where(residual, frame["region"].str[0].str.upper())
    tokens = frame.drop_duplicates("step")["tokens"]
    labels = [token_label(position, texts[position], 14) for position in positions]
    across = [f"step {step}<br>{count:,} tokens" for step, count in zip(steps, tokens, strict=True)]
    heat = go.Heatmap(
        z=codes.astype(np.float32),
        x=across,
        y=labels,
        xgap=3,
        ygap=2,
        zmin=-0.5,
        zmax=2.5,
        showscale=False,
        colorscale=stepped_scale([COLOURS[region] for region in REGIONS], theme),
        text=words,
        hovertemplate="%{x}<br>slot %{y}: %{text}<extra></extra>",
    )
    figure = go.Figure(
        [
            heat,
            *[
                go.Scatter(
                    x=[None],
                    y=[None],
                    mode="markers",
                    name=MEANINGS[region],
                    hoverinfo="skip",
                    marker={"size": 11, "symbol": "square", "color": pick(COLOURS[region], theme)},
                )
                for region in REGIONS
            ],
            cell_text(heat, words),
        ]
    )
    finish(
        figure,
        title="Contents of the cache",
        x="step",
        y="slot (position, token)",
        theme=theme,
        height=170 + 20 * len(positions),
    )
    figure.update_yaxes(autorange="reversed", type="category", showgrid=False, dtick=1)
    figure.update_xaxes(side="bottom", type="category", showgrid=False)
    # Number of tokens that residual slots stand for at the end.
    last = frame[frame["step"] == frame["step"].max()]
    held = last.loc[last["region"] == "residual", "votes"].sum()
    drawn = shown_of(len(positions), int(frame["slots"].iloc[0]), "slot", "those that move first")
    caption = f"No slot collects dropped tokens here.{drawn}"
    if held:
        caption = f"At the end, the slots that collect dropped tokens stand for {plural(float(held), 'token')}.{drawn}"
    return Drawn("contents", figure, frame, caption, origin, claim)


MOST_FRAMES = 30


EVICTING = ("h2o", "snapkv", "streaming-llm", "pyramidkv", "adakv", "window")
CLOSER = "Eviction makes attention drift; zero-shot merging loses less of it."
BOUNDED = (
    "The cache never holds more than its budget of proximity, context and residual slots, and what leaves is merged, "
    "not dropped."
)
LESS_DRIFT = Threshold(0.0, "the merging run is nearer to the full cache, on the same prompt and budget")


def drift(run: Run) -> pd.DataFrame:
    """One row: mean `kl` from the full cache (nats per token), the share of its `bytes`, and the `budget`."""
    line = headline([run]).iloc[0]
    return pd.DataFrame([{"kl": line["mean_kl"], "bytes": line["live_ratio"], "budget": str(run.record.budget)}])


def fill_by_head(run: Run) -> pd.DataFrame:
    """One row per head: `steps`, steps `over` the budget, slots `evicted` and `merged`, and the largest `fill`."""
    steps = run.steps
    table = steps.assign(
        over=(steps["live_slots"] > steps["budget_slots"]).astype(int),
        fill=steps["live_slots"] / steps["budget_slots"],
    )
    groups = table.groupby(["layer", "head"])
    sums = groups[["over", "evicted", "merged"]].sum()
    return sums.assign(steps=groups.size(), fill=groups["fill"].max()).reset_index()


DRIFT = Evidence("drift", drift, (*EVICTING, "zsmerge"))
FILLED = Evidence("filled", fill_by_head, ("zsmerge",))


def closer(rows: pd.DataFrame, evicting: str, merging: str) -> Claim:
    """KL under eviction minus KL under merging, prompt by prompt; `evicting` and `merging` are run labels."""
    if "kl" not in rows:
        return Claim(CLOSER, OPEN, "These runs recorded no KL from the full cache.")
    known = rows.dropna(subset="kl")
    pairs = known.pivot_table(index="prompt", columns="label", values="kl", aggfunc="first", sort=False)
    if not {evicting, merging} <= set(pairs.columns) or pairs[[evicting, merging]].dropna().empty:
        return Claim(CLOSER, OPEN, "These runs recorded no KL from the full cache.")
    pairs = pairs[[evicting, merging]].dropna()
    gap = interval_of((pairs[evicting] - pairs[merging]).tolist())
    means = ", ".join(
        f"{label} {mean_text(interval_of(pairs[label].tolist()), number)} "
        f"({percent(known.loc[known['label'] == label, 'bytes'].mean())} of the bytes)"
        for label in (evicting, merging)
    )
    finding = f"KL from the full cache in nats per token: {means}; eviction minus merging {mean_text(gap, number)}."
    return judge(CLOSER, gap, LESS_DRIFT, Basis(len(pairs)), finding)


def judge_budget(rows: pd.DataFrame) -> Claim:
    """No head exceeds its budget at any step, and nothing is dropped."""
    if rows.empty:
        return Claim(BOUNDED, OPEN, "There is no run of ZSMerge.")
    over, lost, merged, steps = (int(rows[name].sum()) for name in ("over", "evicted", "merged", "steps"))
    basis = basis_of(rows, merged)
    finding = (
        f"The fullest head holds {percent(rows['fill'].max())} of its budget, above it at {over:,} of {steps:,} heads "
        f"and steps; of the slots that left, {merged:,} were merged and {lost:,} dropped."
    )
    return Claim(BOUNDED, judge_universal(over + lost, basis), finding, basis)


PANELS = (
    "These are the paper's panels A (eviction), B (trained residuals: LESS keeps evicted tokens in an extra state) "
    "and C (ZSMerge)."
)
WITHOUT_B = (
    "These are the paper's panels A (eviction) and C (ZSMerge); for B, trained residuals, add less to the comparison."
)


@draws("zsmerge/fig-1")
def draw_strategies(sources: Sources, choice: Choice, theme: Theme) -> tuple[Drawn, ...] | Needs:
    """Figure 1: the same tokens under an evicting method, under LESS if present, and under ZSMerge."""
    evicting, trained, merging = (recorded_run(sources, *names) for names in (EVICTING, ("less",), ("zsmerge",)))
    if isinstance(evicting, Needs) or isinstance(merging, Needs):
        why = "A comparison of an evicting method with ZSMerge is needed."
        return Needs(why, comparison(sources, ("h2o", "less", "zsmerge")))
    runs = [run for run in (evicting, trained, merging) if isinstance(run, Run)]
    names = unique_labels(runs)
    lineages = [head_history(run, choice.layer, choice.head)[0] for run in runs]
    mosaics = [mosaic(lineage) for lineage in lineages]
    # A strip of tokens per method; frames are steps.
    columns = mosaics[0].columns
    steps = columns[np.unique(np.linspace(0, len(columns) - 1, MOST_FRAMES).round().astype(int))]
    strips = [np.stack([table[step].to_numpy(np.uint8) for table in mosaics]) for step in steps]
    labels = np.array([STATE_NAMES[state] for state in STATES])
    heats = [
        go.Heatmap(
            z=codes,
            x=mosaics[0].index.to_numpy(),
            y=names,
            ygap=10,
            zmin=-0.5,
            zmax=len(STATES) - 0.5,
            colorscale=stepped_scale(STATE_COLOURS.values(), theme),
            showscale=False,
            text=labels[codes],
            hovertemplate="%{y}, token %{x}: %{text}<extra></extra>",
        )
        for codes in strips
    ]
    shown = np.unique(np.concatenate([codes.ravel() for codes in strips]))
    figure = go.Figure([heats[-1], *state_legend(shown, theme)], frames=frames_of(steps, [[heat] for heat in heats]))
    title = "The same tokens under each method"
    finish(figure, title=title, x="position in the text", y="method", theme=theme, height=160 + 62 * len(names))
    figure.update_yaxes(autorange="reversed", showgrid=False, type="category").update_xaxes(showgrid=False)
    figure = with_slider(figure, "step ", len(steps) - 1, theme)
    # Who drops most and least.
    counts = [state_counts(lineage) for lineage in lineages]
    at_the_end = pd.DataFrame([table.iloc[-1] for table in counts], index=names)
    tokens = at_the_end[["unseen", "own", "pivot", "absorbed", "evicted"]].sum(axis=1)
    dropped = contrast(
        at_the_end["evicted"] / tokens,
        "The most text is dropped by {most}, the least by {least}.",
        "All drop equally much of the text.",
        "Only {only} is shown.",
    )
    blocks = block_note(len(mosaics[0]), int(tokens.iloc[0]))
    drawn = shown_of(min(MOST_FRAMES, len(columns)), len(counts[0]), "step", "evenly chosen")
    caption = f"{dropped}{blocks}{drawn} {PANELS if len(runs) == 3 else WITHOUT_B}"
    frames = [table.assign(run=name).reset_index() for name, table in zip(names, mosaics, strict=True)]
    frame = pd.concat(frames, ignore_index=True)
    frame.columns = frame.columns.map(str)
    pair = [evicting, merging]
    claim = closer(gather(sources, DRIFT, pair), *(run.record.label for run in pair))
    return (Drawn("strategies", figure, frame, caption, join_sources(*map(of_run, runs)), claim),)


@draws("zsmerge/fig-2")
def draw_contents(sources: Sources, choice: Choice, theme: Theme) -> tuple[Drawn, ...] | Needs:
    """Figure 2: the slots of one head over six steps, and its regions over all steps."""
    run = recorded_run(sources, "zsmerge")
    if isinstance(run, Needs):
        return run
    lineage = head_history(run, choice.layer, choice.head)[0]
    texts = token_texts(run.tokens, lineage.tokens)
    slots = slots_by_step(lineage, choice.step)
    claim = judge_budget(gather(sources, FILLED, [run]))
    # Slots in each region over all steps, stacked, and tokens read.
    counts = region_counts(lineage)
    figure = go.Figure()
    patterns = {"residual": "x", "context": "", "proximity": "/"}
    for region in REGIONS:
        colour = pick(COLOURS[region], theme)
        fill = {"shape": patterns[region], "size": 6, "fgcolor": CLEAR, "bgcolor": colour}
        figure.add_scatter(
            x=counts["step"],
            y=counts[region],
            name=region,
            stackgroup="slots",
            mode="lines",
            line={"width": 0.5, "color": colour},
            fillcolor=colour,
            fillpattern=fill if patterns[region] else None,
            hovertemplate=f"step %{{x}}: %{{y:,}} {region} slots<extra></extra>",
        )
    figure.add_scatter(
        x=counts["step"],
        y=counts["tokens"],
        name="tokens read",
        mode="lines",
        line={"color": pick(HUES["ink"], theme), "dash": "dot", "width": 1.6},
        hovertemplate="step %{x}: %{y:,} tokens<extra></extra>",
    )
    finish(figure, title="Regions of the cache", x="step", y="slots, tokens", theme=theme)
    last = counts.iloc[-1]
    share = part(float(last["slots"] / last["tokens"]))
    caption = sentence(f"at the end, the cache has slots for {share} of the tokens read")
    return (
        cache_contents(slots, texts, of_run(run), claim, theme),
        Drawn("regions", figure, counts, caption, of_run(run)),
    )
