"""KVMerger's sets on recorded keys, and the runs that recorded them: compression, Gaussian weights, a dozen tokens."""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd

from kvlab.core.errors import UserError
from kvlab.papers.evidence import comparison
from kvlab.papers.exhibit import Needs
from kvlab.results.sources import Sources
from kvlab.trace.catalogue import list_runs
from kvlab.trace.reader import Run, open_run
from kvlab.views.base.words import plural
from kvlab.views.frames.head_states import heads_with_states
from kvlab.views.similarity import consecutive_sets, set_count

PAPER_THRESHOLD = 0.75  # KVMerger, section 6.1
MOST_TOKENS = 4096  # about the length of the paper's samples


def ratios(
    run: Run, heads: Iterable[tuple[int, int]], thresholds: Sequence[float] = (PAPER_THRESHOLD,)
) -> pd.DataFrame:
    """Ratio of merge sets to prompt tokens, for the first `MOST_TOKENS`: columns layer, head, threshold, sets, ratio.

    Every token may merge; protecting recent and heavy tokens is a later choice of the method.
    """
    tokens = min(run.record.prompt_tokens, MOST_TOKENS)
    rows = []
    for layer, head in heads:
        unit = run.keys(layer, head)[0][:tokens].astype(np.float32)
        for threshold in thresholds:
            sets = set_count(consecutive_sets(unit, threshold))
            rows.append({"layer": layer, "head": head, "threshold": threshold, "sets": sets, "ratio": sets / tokens})
    return pd.DataFrame(rows, columns=["layer", "head", "threshold", "sets", "ratio"])


def persistence(table: pd.DataFrame) -> np.ndarray:
    """(prompts, prompts) Spearman correlation of the columns of `table`; NaN for constant ones."""
    return table.corr(method="spearman").to_numpy()


MEMBERS = ["layer", "head", "target", "source", "distance", "sigma", "kernel", "weight", "relative_weight", "others"]


def merged_pairs(run: Run, heads: list[tuple[int, int]]) -> pd.DataFrame:
    """One row per token merged in the prefill: columns `MEMBERS`.

    `distance` from its key to the pivot's (as cached), `sigma` of its set by the run's rule, `kernel` exp(-distance^2 /
    (2 sigma^2)), `weight` its key's share of the new key, `relative_weight` that share over the pivot's own (predicted
    by the kernel), `others` the tokens of the set besides the pivot.
    """
    rule = run.record.hyper_parameters.get("sigma_mode", "mean_l2")
    found = []
    for layer, head in heads:
        events = run.select("events", layer, head, ["step", "kind", "source", "target", "key_weight"])
        table = events[(events["step"] == 0) & (events["kind"] == "merge")]
        if table.empty:
            continue
        unit, norm = run.keys(layer, head)
        keys = unit.astype(np.float32) * norm.astype(np.float32)[:, None]
        distance = np.linalg.norm(keys[table["source"].to_numpy()] - keys[table["target"].to_numpy()], axis=1)
        table = table.assign(layer=layer, head=head, distance=distance, square=distance**2)
        sets = table.groupby("target")
        others = sets["source"].transform("size")
        # Each set's sigma, as in `kvlab.core.methods.settlers.gaussian_sets`.
        if rule in ("mean", "mean_l2"):
            sigma = sets["distance"].transform("sum") / others / (math.sqrt(2) if rule == "mean_l2" else 1)
        elif rule == "paper":
            sigma = sets["square"].transform("sum") / (others + 1) / math.sqrt(2)
        else:
            sigma = pd.Series(float(str(rule)), index=table.index)
        table = table.assign(
            sigma=sigma,
            kernel=kernel(distance, sigma.to_numpy()),
            weight=table["key_weight"],
            relative_weight=table["key_weight"] / (1 - sets["key_weight"].transform("sum")),
            others=others,
        )
        found.append(table[MEMBERS])
    return pd.concat(found, ignore_index=True) if found else pd.DataFrame(columns=MEMBERS)


def kernel(distance: np.ndarray, sigma: float | np.ndarray) -> np.ndarray:
    """The Gaussian kernel (KVMerger, equation 7)."""
    return np.exp(-np.square(distance) / (2 * np.square(sigma)))


LENGTH = 12
THRESHOLDS = (0.8, 0.75, 0.7, 0.6, 0.5, 0.4, 0.3)  # the paper's toy map uses 0.8


@dataclass(frozen=True)
class Walkthrough:
    """A window of tokens and the result of merging it.

    `tokens` has one row per token: position, set (position of its anchor), attention, pivot (position), weight;
    `similarity` (tokens, tokens), `keys` and `merged` (tokens, head_dim), the latter NaN where no slot remains.
    """

    threshold: float
    tokens: pd.DataFrame
    similarity: np.ndarray
    keys: np.ndarray
    merged: np.ndarray


def walkthrough(run: Run, layer: int, head: int, length: int = LENGTH) -> Walkthrough:
    """The window with most sets at the first threshold of `THRESHOLDS` that finds sets in this head's prompt.

    Raises:
        UserError: keys were not recorded, or no two neighbours are similar enough.
    """
    unit, norm = (array.astype(np.float32) for array in run.keys(layer, head))
    for threshold in THRESHOLDS:
        # Skip the first token, a sink that never merges.
        anchor = consecutive_sets(unit[1 : run.record.prompt_tokens], threshold)
        bounds = 1 + np.append(np.flatnonzero(np.diff(anchor, prepend=-1)), len(anchor))
        # The run of whole sets, at most `length` tokens, with most sets of several tokens.
        best = (1, length)
        window: tuple[int, int] | None = None
        for first, start in enumerate(bounds[:-1]):
            last = int(np.searchsorted(bounds, start + length, side="right")) - 1
            sizes = np.diff(bounds[first : last + 1])
            score = (int((sizes > 1).sum()), int((sizes - 1).sum()))
            if score > best:
                best = score
                window = (int(start), int(bounds[last]))
        if window is not None:
            break
    if window is None:
        raise UserError(f"No two neighbouring keys of layer {layer}, head {head} are similar: choose another head.")
    # Each set of the window merges into its most attended token.
    start, stop = window
    attention = run.attention(layer, head, thinned=True)[0].astype(np.float32).sum(axis=0)[start:stop]
    keys = unit[start:stop] * norm[start:stop, None]
    position = np.arange(start, stop)
    anchor = bounds[np.searchsorted(bounds, position, side="right")] - 1
    pivot = np.zeros_like(position)
    weight = np.zeros(len(position), np.float32)
    merged = np.full_like(keys, np.nan)
    for last in np.unique(anchor):
        members = np.flatnonzero(anchor == last)
        leader = members[np.argmax(attention[members])]
        # The Gaussian kernel around the pivot, sigma = mean distance / sqrt(2).
        distance = np.linalg.norm(keys[members] - keys[leader], axis=1)
        sigma = distance.sum() / max(1, len(members) - 1) / math.sqrt(2)
        shares = kernel(distance, sigma) if sigma > 0 else np.ones(len(members))
        weight[members] = shares / shares.sum()
        pivot[members] = start + leader
        merged[leader] = weight[members] @ keys[members]
    columns = {"position": position, "set": anchor, "attention": attention, "pivot": pivot, "weight": weight}
    return Walkthrough(threshold, pd.DataFrame(columns), unit[start:stop] @ unit[start:stop].T, keys, merged)


def representing_keys(walk: Walkthrough) -> np.ndarray:
    """(tokens, head_dim) the merged key that represents each token."""
    place = walk.tokens["pivot"].to_numpy() - int(walk.tokens["position"].iloc[0])
    return walk.merged[place]


METHODS = ("kvmerger:preset=paper-35",)
BUDGETS = (0.35,)
MOST_PROMPTS = 12


def run_with_keys(sources: Sources) -> Run | Needs:
    """The current run, or else one of its comparison, that recorded its keys."""
    candidates = [run for run in (sources.run, *sources.runs) if run is not None]
    keyed = [run for run in candidates if run.record.level == "full" and run.has_arrays]
    if keyed:
        return keyed[0]
    why = "No run of this comparison recorded its keys." if candidates else "There are no recorded runs yet."
    return Needs(why, comparison(sources, METHODS, BUDGETS))


def eviction_sentence(run: Run) -> str:
    """A sentence on how many tokens this KVMerger run evicted after its prompt; "" for other methods."""
    first = run.steps[run.steps["step"] == 0]
    heads = len(first)
    if run.record.method != "kvmerger" or not heads:
        return ""
    evicted, merged = (float(first[column].sum()) / heads for column in ("evicted", "merged"))
    return (
        f"Of the {evicted + merged:,.0f} tokens that left a head after the prompt (mean over heads) {evicted:,.0f} "
        "were evicted, not merged; the paper evicts none, because its budget follows from the threshold."
    )


def prompts_of(sources: Sources, model: str | None = None) -> list[Run]:
    """One run with keys per prompt in the runs folder, newest first, optionally of one model.

    Prompt keys do not depend on the method, because the prefill attends to everything.
    """
    # One run per comparison, newest first, up to a limit.
    opened: dict[str, Run] = {}
    for entry in list_runs(sources.root, status="complete"):
        if entry.level == "full" and entry.comparison_id not in opened and len(opened) < 2 * MOST_PROMPTS:
            try:
                opened[entry.comparison_id] = open_run(sources.root / entry.run_id)
            except UserError:
                continue
    found: dict[tuple[str, str], Run] = {}
    for run in (*filter(None, (sources.run, *sources.runs)), *opened.values()):
        name = run.record.model.name
        if run.record.level == "full" and run.has_arrays and model in (None, name):
            found.setdefault((name, run.record.prompt), run)
    return list(found.values())[:MOST_PROMPTS]


def prompt_name(run: Run) -> str:
    """A prompt's title or first words, with its length."""
    words = " ".join((run.record.title or run.record.prompt[:200]).split())
    short = words if len(words) <= 40 else f"{words[:39]}…"
    return f"{short} ({run.record.prompt_tokens:,} tokens)"


def sample_sentence(run: Run, heads: Sequence[tuple[int, int]], tokens: int = 0) -> str:
    """A sentence on the heads and `tokens` that were sampled; "" if all were used."""
    parts = []
    if len(heads) < (every := heads_with_states(run)):
        parts.append(f"{len(heads)} of {plural(every, 'head')}, evenly chosen")
    if 0 < tokens < run.record.prompt_tokens:
        parts.append(f"the first {tokens:,} of {plural(run.record.prompt_tokens, 'token')}")
    return f" Sampled: {', '.join(parts)}." if parts else ""
