"""The text of each generated token: pieces that join to the decoded text."""

from __future__ import annotations

from collections.abc import Callable, Sequence

UNKNOWN = "\ufffd"  # what a decoder writes for bytes that are no character, or not yet one
CONTEXT_TOKENS = 8  # decoders drop the space of a first token: so many tokens stand before each one

Decode = Callable[[list[int]], str]


def split_text(decode: Decode, ids: Sequence[int]) -> list[str]:
    """Return the text each token added; joined, the pieces are `decode(ids)`.

    A character that several tokens spell stands on the first of them, and the others add "".
    """
    pieces: list[str] = []
    starts = [0]  # of groups of tokens that spell whole characters
    lengths: list[int] = []  # of the decoded text after each token of the present group
    for index in range(len(ids)):
        start, context = starts[-1], starts[max(0, len(starts) - 1 - CONTEXT_TOKENS)]
        known = decode(list(ids[context:start])) if context < start else ""
        added = decode(list(ids[context : index + 1]))[len(known) :]
        lengths.append(len(added))
        if not added.endswith(UNKNOWN) or index == len(ids) - 1:
            pieces += _split_group(added, lengths)
            starts.append(index + 1)
            lengths = []
    text = decode(list(ids)) if ids else ""
    return pieces if "".join(pieces) == text else align(pieces, text)[0]


def _split_group(text: str, lengths: Sequence[int]) -> list[str]:
    """Give each token the characters that the decoded text had with it first, if only as unknown ones."""
    pieces, end = [], 0
    for length in (*lengths[:-1], len(text)):
        pieces.append(text[end : max(end, length)])
        end = max(end, length)
    return pieces


def align(pieces: Sequence[str], text: str) -> tuple[list[str], list[bool]]:
    """Return the pieces changed so that they join to `text`, and which of them are no part of it (end tokens).

    Pieces without unknown characters stay where the text has them. What lies between them goes to the pieces that lack
    it: one character to each that begins one, else all to the first.
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
    """Spread the characters of `text` over the pieces of the gap."""
    begin = [place for place in gap if UNKNOWN in pieces[place]]
    if len(begin) == len(text):
        for place, character in zip(begin, text, strict=True):
            aligned[place] = character
    elif gap:
        aligned[(begin or gap)[0]] = text
