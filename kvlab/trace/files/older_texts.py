"""The text of generated tokens in runs that were recorded before tokens were split without losing characters."""

from __future__ import annotations

from functools import lru_cache

import pandas as pd
from tokenizers import Tokenizer

from kvlab.model_info.files import model_file
from kvlab.trace.schema import RunRecord
from kvlab.trace.token_text import align, split_text


def restore_texts(tokens: pd.DataFrame, record: RunRecord) -> pd.DataFrame:
    """Return the frame of tokens with `special` known and texts that join to the recorded continuations.

    Older runs lost every character that several tokens spell. Their ids are decoded again where the tokenizer is on
    this machine; elsewhere the recorded pieces are aligned with the recorded text.
    """
    recorded = tokens["special"].notna()
    tokens = tokens.assign(special=tokens["special"].eq(True).to_numpy(bool))
    for phase, text in (("forced", record.forced_text), ("free", record.free_text)):
        rows = tokens["phase"] == phase
        if recorded[rows].all():  # also where there are none
            continue
        pieces = tokens.loc[rows, "text"].fillna("").tolist()
        restored, special = _restore(pieces, tokens.loc[rows, "id"].tolist(), text, record.model.name)
        tokens.loc[rows, "text"] = [
            old if own else new for old, new, own in zip(pieces, restored, special, strict=True)
        ]
        tokens.loc[rows, "special"] = special
    return tokens


def _restore(pieces: list[str], ids: list[int], text: str, model: str) -> tuple[list[str], list[bool]]:
    """(text each token added, whether it is no part of the text) for the pieces of one continuation."""
    if not text or "".join(pieces) == text:
        return pieces, [False] * len(pieces)
    return _decode_again(ids, text, model) or align(pieces, text)


def _decode_again(ids: list[int], text: str, model: str) -> tuple[list[str], list[bool]] | None:
    """The pieces from the ids; None where there is no tokenizer, or it does not decode them to the recorded text."""
    path = model_file(model, "tokenizer.json")
    tokenizer = None if path is None else _load(str(path))
    if tokenizer is None or tokenizer.decode(ids) != text:
        return None
    special = [not tokenizer.decode([token]) and bool(tokenizer.decode([token], False)) for token in ids]
    return split_text(tokenizer.decode, ids), special


@lru_cache(maxsize=4)
def _load(path: str) -> Tokenizer | None:
    try:
        return Tokenizer.from_file(path)
    except Exception:  # the package raises nothing narrower for a file that is no tokenizer
        return None
