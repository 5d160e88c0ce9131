"""Heads that lost answers: how often restoring one head brought a lost answer back, over many prompts."""

from collections import Counter
from collections.abc import Sequence
from itertools import product
from statistics import median

import numpy as np
import pandas as pd
import plotly.graph_objects as go

from kvlab.common.formatting import prompts
from kvlab.core import UserError, head_words
from kvlab.trace.catalogue import list_repeats, list_runs
from kvlab.trace.reader import Run
from kvlab.trace.restore_results import RestoreResult, load_result
from kvlab.trace.schema import RunRecord
from kvlab.views.base import LOSS, Theme, of_batch, plural, sentence, some_of
from kvlab.views.base.head_map import head_map
from kvlab.views.base.view import view
from kvlab.views.frames.restore import cheapest, slot_count_text

FAILED = ("nearly", "wrong")


def failed_runs(table: pd.DataFrame) -> pd.DataFrame:
    """The rows of compressed runs with a wrong answer (`verdicts`, or the prompts of a batch).

    Prompts that the full cache itself fails (`reference`, if there is this column) do not count.
    """
    failed = table[(table["method"] != "full") & table["verdict"].isin(FAILED)]
    return failed[failed["reference"] == "right"] if "reference" in failed else failed


@view("lost_heads", title="Heads that lost the answer", page="result")
def heads_of_lost_answers(runs: Sequence[Run]) -> pd.DataFrame:
    """`count_lost_heads` of the runs' comparison, or of all prompts of its batch.

    Raises UserError if no search that restores an answer has ended.
    """
    record = runs[0].record
    root = runs[0].path.parent
    entries = list_repeats(root, record.repeat.batch) if record.repeat else []
    found = [run for entry in entries for run in entry.runs] or list_runs(root, comparison_id=record.comparison_id)
    loaded = [load_result(root, run.comparison_id, run.run_id) for run in found]
    results = [one for one in loaded if one is not None]
    if not results:
        raise UserError(
            f"No answer of {record.comparison_id} was restored yet: search with `kvlab restore RUN`, or on the page "
            "Why wrong."
        )
    table = count_lost_heads(results, record)
    if record.repeat:
        table.attrs["source"] = of_batch(record.repeat.batch, len(entries))
    return table


def count_lost_heads(results: Sequence[RestoreResult], record: RunRecord) -> pd.DataFrame:
    """How often the cheapest change that restores an answer names each head.

    One row per recorded layer and KV head of the record's model: layer, head, count of results and slots, the median
    price of these (empty for a count of 0). Its `attrs` count the `results`, those `located` in heads (and not in every
    head), and their `prompts`.
    """
    changes = [change for result in results if (change := cheapest(result)) is not None]
    located = [change for change in changes if change.returned.heads is not None]
    counts: Counter[tuple[int, int]] = Counter()
    prices: dict[tuple[int, int], list[int]] = {}
    for change in located:
        for place in set(change.returned.heads or ()):
            counts[place] += 1
            prices.setdefault(place, []).append(change.slots)
    layers = [layer for layer in range(record.model.num_hidden_layers) if layer not in record.sliding_layers]
    rows = [
        (layer, head, counts[layer, head], float(median(prices[layer, head])) if counts[layer, head] else None)
        for layer, head in product(layers, range(record.model.num_key_value_heads))
    ]
    table = pd.DataFrame(rows, columns=["layer", "head", "count", "slots"]).astype({"slots": float})
    over = len({result.comparison_id for result in results})
    table.attrs |= {"results": len(results), "located": len(located), "prompts": over}
    return table


def short_words(result: RestoreResult) -> str:
    """What restores the answer, for a cell of the board: `restored by 2 slots in layer 3 head 3`."""
    change = cheapest(result)
    if change is None:
        return "nothing tried restores it"
    heads = change.returned.heads
    where = "every head" if heads is None else head_words(heads) if len(heads) == 1 else f"{len(heads)} heads"
    if change.slots < 1:
        return f"restored in {where} for no slot more"
    return f"restored by {slot_count_text(change.slots)} in {where}"


@heads_of_lost_answers.figure
def lost_heads(frame: pd.DataFrame, theme: Theme = "light") -> go.Figure:
    """Failed runs whose answer one or few heads restore, counted by layer and KV head."""
    counts, slots = (frame.pivot(index="layer", columns="head", values=name) for name in ("count", "slots"))
    words = np.array([[f"{count}" if count else "" for count in row] for row in counts.to_numpy()], object)
    prices = np.array(
        [
            ["" if pd.isna(price) else f", median price {slot_count_text(round(price))}" for price in row]
            for row in slots.to_numpy()
        ],
        object,
    )
    highest = max(1, int(counts.to_numpy().max()))
    ticks = sorted({0, (highest + 1) // 2, highest})
    return head_map(
        counts,
        f"Heads that lost the answer: where {plural(frame.attrs['results'], 'lost answer')} can be restored",
        theme,
        bar="failed runs",
        hover=": %{z:.0f} failed runs%{text}",
        high=highest,
        colours=LOSS[theme],
        bar_options={"tickvals": ticks},
        words=words,
        text=prices,
    )


@heads_of_lost_answers.caption
def caption_lost_heads(frame: pd.DataFrame) -> str:
    """How many lost answers a few heads bring back."""
    count = some_of(frame.attrs["located"], frame.attrs["results"], "lost answer")
    over = prompts(frame.attrs["prompts"])
    return sentence(f"giving their tokens back to single heads restores {count}, of {over}")
