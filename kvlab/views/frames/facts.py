"""Locate the tokens of a prompt's facts, their fate in every head, and the heads that read them."""

from collections.abc import Sequence
from itertools import accumulate, product

import numpy as np
import pandas as pd

from kvlab.core.errors import UserError
from kvlab.requests.conversation import turns_of_text
from kvlab.trace.reader import Run
from kvlab.views.frames.autopsy import FATES, read_events, token_links


def fact_positions(tokens: pd.DataFrame, prompt: str, facts: Sequence[tuple[int, int]]) -> np.ndarray:
    """Increasing positions of the prompt tokens that hold a character of a fact; `tokens` is the run's table.

    A token that shares a character with the one before it has no text of its own and is counted with that one.

    Raises:
        UserError: the recorded tokens do not spell the prompt.
    """
    if not facts:
        return np.zeros(0, np.int64)
    read = tokens[tokens["phase"] == "prompt"]
    texts = read["text"].fillna("").tolist()
    moved = moved_parts(texts, prompt)
    stops = np.cumsum([len(text) for text in texts])
    starts = np.concatenate([[0], stops[:-1]])
    inside = np.zeros(len(texts), bool)
    for (start, stop), (first, last, by) in product(facts, moved):
        if start < last and stop > first:
            begin = max(start, first) + by
            end = min(stop, last) + by
            inside |= (starts < end) & (stops > begin) & (stops > starts)
            inside |= (starts == stops) & (starts > begin) & (starts <= end)
    return read["position"].to_numpy(np.int64)[inside]


def facts_in(run: Run) -> list[tuple[int, int]]:
    """First and last position of each run of neighbouring tokens of the facts; none if the tokens are damaged."""
    try:
        positions = fact_positions(run.tokens, run.record.prompt, run.record.facts)
    except UserError:
        return []
    parts = np.split(positions, np.flatnonzero(np.diff(positions) > 1) + 1)
    return [(int(part[0]), int(part[-1])) for part in parts if len(part)]


def moved_parts(texts: Sequence[str], prompt: str) -> list[tuple[int, int, int]]:
    """(start, stop, by): the prompt's characters from start to stop are `by` further on in the tokens' joined `texts`.

    Raises:
        UserError: the tokens do not spell the prompt.
    """
    read = "".join(texts)
    # Special tokens such as BOS come before the prompt; a chat template surrounds it and may strip it.
    if read.endswith(prompt):
        return [(0, len(prompt), len(read) - len(prompt))]
    stripped = len(prompt) - len(prompt.lstrip())
    if (place := read.find(prompt.strip())) >= 0:
        return [(0, len(prompt), place - stripped)]
    ends = [0, *accumulate(len(text) for text in texts)]
    # Where a token's text begins and ends, white space around it skipped.
    begins = {end + len(text) - len(text.lstrip()) for end, text in zip(ends, texts, strict=False)}
    finishes = {end + len(text.rstrip()) for end, text in zip(ends, texts, strict=False)}
    found = []
    end = 0
    for _, start, stop in turns_of_text(prompt):  # the turns of a conversation
        # A short turn may also occur within text of the template, even at the beginning of a token: the place where a
        # token ends with it too is preferred.
        turn = prompt[start:stop]
        places = []
        place = read.find(turn, end)
        while place >= 0:
            places += [place] if place in begins else []
            place = read.find(turn, place + 1)
        whole = [place for place in places if place + stop - start in finishes]
        place = next(iter(whole or places), -1)
        if place < 0:
            raise UserError("The recorded tokens do not spell the prompt, so the fact's tokens are unknown.")
        end = place + stop - start
        found.append((start, stop, place - start))
    return found


def fact_fates(run: Run, positions: Sequence[int] | np.ndarray, step: int) -> pd.DataFrame:
    """One row per layer, head and token of `positions`: its fate after `step` (`Links.fates`).

    Raises:
        UserError: the run recorded no events.
    """
    events = read_events(run)
    links, layer, head, token = token_links(run, events[events["step"] <= step], np.asarray(positions))
    return pd.DataFrame({"layer": layer, "head": head, "token": token, "fate": links.fates(layer, head, token)})


def fate_shares(fates: pd.DataFrame, *by: str) -> pd.DataFrame:
    """Share of the rows of `fact_fates` in each of `FATES`, one row per token, or per layer and head."""
    shares = fates.groupby(list(by))["fate"].value_counts(normalize=True).unstack(fill_value=0.0)
    return shares.reindex(columns=list(FATES), fill_value=0.0).reset_index()


def reading_heads(run: Run, positions: np.ndarray, rows: tuple[int, int]) -> pd.DataFrame:
    """One row per layer and head: `mass`, the attention of the answer's queries on the fact, most first.

    `rows` are the first and last token of the answer in the continuation (attention row r is the query that predicts
    token r). Mean over rows of the sum over `positions`. Empty if nothing was recorded.
    """
    found = []
    for layer in range(run.record.model.num_hidden_layers):
        for head in range(run.record.model.num_key_value_heads):
            try:
                mass = run.attention(layer, head)[0][rows[0] : rows[1] + 1, positions]
            except UserError:
                break
            if len(mass):
                found.append((layer, head, float(mass.astype(np.float32).sum(1).mean())))
    table = pd.DataFrame(found, columns=["layer", "head", "mass"])
    return table.sort_values("mass", ascending=False, kind="stable").reset_index(drop=True)
