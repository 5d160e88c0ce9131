"""Text of each generated token, as pieces that join to the decoded text."""

from collections.abc import Callable, Sequence
from functools import lru_cache

import pandas as pd
from tokenizers import Tokenizer

from kvlab.models.info.names import model_file
from kvlab.trace.schema import RunRecord

UNKNOWN = "\ufffd"  # written by decoders for incomplete or invalid characters
CONTEXT_TOKENS = 8  # context tokens, because decoders drop the space of a first token

Decode = Callable[[list[int]], str]


def split_text(decode: Decode, ids: Sequence[int]) -> list[str]:
    """Return the text added by each token; joined, the pieces equal `decode(ids)`.

    A character spelled by several tokens goes to the first of them; the others add "".
    """
    pieces: list[str] = []
    starts = [0]  # of token groups that spell whole characters
    lengths: list[int] = []  # of the decoded text after each token of the current group
    for index in range(len(ids)):
        start = starts[-1]
        context = starts[max(0, len(starts) - 1 - CONTEXT_TOKENS)]
        known = decode(list(ids[context:start])) if context < start else ""
        added = decode(list(ids[context : index + 1]))[len(known) :]
        lengths.append(len(added))
        if not added.endswith(UNKNOWN) or index == len(ids) - 1:
            # Assign each character to the token with which it first appeared, even as an unknown one.
            end = 0
            for length in (*lengths[:-1], len(added)):
                pieces.append(added[end : max(end, length)])
                end = max(end, length)
            starts.append(index + 1)
            lengths = []
    text = decode(list(ids)) if ids else ""
    return pieces if "".join(pieces) == text else align(pieces, text)[0]


def align(pieces: Sequence[str], text: str) -> tuple[list[str], list[bool]]:
    """Adjust the pieces so that they join to `text`, and flag those that are not part of it (end tokens).

    Pieces without unknown characters stay at their position in the text. The text in between goes to the incomplete
    pieces: one character to each that begins one, else all to the first.
    """
    aligned = [""] * len(pieces)
    outside = [False] * len(pieces)
    gap: list[int] = []
    end = 0
    for index, piece in enumerate(pieces):
        if not piece or UNKNOWN in piece:
            gap.append(index)
            continue
        least = sum(UNKNOWN in pieces[place] for place in gap)
        found = text.find(piece, end + least) if gap else (end if text.startswith(piece, end) else -1)
        if found < 0:
            outside[index] = True
            continue
        _fill(aligned, pieces, gap, text[end:found])
        aligned[index], end, gap = piece, found + len(piece), []
    rest = gap or [index for index in range(len(pieces)) if not outside[index]][-1:] or list(range(len(pieces)))[:1]
    if end < len(text) and rest:
        missing = text[end:]
        if gap:
            _fill(aligned, pieces, gap, missing)
        else:
            aligned[rest[0]] += missing
    return aligned, outside


def _fill(aligned: list[str], pieces: Sequence[str], gap: Sequence[int], text: str) -> None:
    """Distribute the characters of `text` over the pieces of the gap."""
    begin = [place for place in gap if UNKNOWN in pieces[place]]
    if len(begin) == len(text):
        for place, character in zip(begin, text, strict=True):
            aligned[place] = character
    elif gap:
        aligned[(begin or gap)[0]] = text


def restore_texts(tokens: pd.DataFrame, record: RunRecord) -> pd.DataFrame:
    """Complete the tokens frame: `special` known, and texts that join to the recorded continuations.

    Older runs lost characters spelled by several tokens. Their ids are decoded again if the tokenizer is on this
    machine; otherwise the pieces are aligned with the recorded text.
    """
    recorded = tokens["special"].notna()
    tokens = tokens.assign(special=tokens["special"].eq(True).to_numpy(bool))
    for phase, text in (("forced", record.forced_text), ("free", record.free_text)):
        rows = tokens["phase"] == phase
        if recorded[rows].all():  # also if there are none
            continue
        pieces = tokens.loc[rows, "text"].fillna("").tolist()
        restored = pieces
        special = [False] * len(pieces)
        if text and "".join(pieces) != text:
            ids = tokens.loc[rows, "id"].tolist()
            path = model_file(record.model.name, "tokenizer.json")
            tokenizer = None if path is None else _load(str(path))
            if tokenizer is None or tokenizer.decode(ids) != text:
                restored, special = align(pieces, text)
            else:
                restored = split_text(tokenizer.decode, ids)
                special = [not tokenizer.decode([one]) and bool(tokenizer.decode([one], False)) for one in ids]
        texts = zip(pieces, restored, special, strict=True)
        tokens.loc[rows, "text"] = [old if is_special else new for old, new, is_special in texts]
        tokens.loc[rows, "special"] = special
    return tokens


@lru_cache(maxsize=4)
def _load(path: str) -> Tokenizer | None:
    try:
        return Tokenizer.from_file(path)
    except Exception:  # the package raises nothing narrower for an invalid file
        return None
