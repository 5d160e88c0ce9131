"""Excerpts of the books that ship with kvlab: different texts, so that what is said of one can be said of several."""

from __future__ import annotations

from kvlab.common.assets import asset_path

CHARACTERS = 2000  # about 500 tokens
FIRST, LAST = 0.1, 0.9  # of a book: what comes before and after is not prose


def excerpts(count: int, characters: int = CHARACTERS) -> list[tuple[str, str]]:
    """(title, text) of `count` excerpts, each from a paragraph's beginning, the books in turn; the same every time."""
    books = sorted(asset_path("prompts/haystack").glob("*.txt"))
    rounds = -(-count // len(books))
    found = []
    for place in range(count):
        book = books[place % len(books)]
        text = book.read_text(encoding="utf-8")
        share = FIRST + (LAST - FIRST) * (place // len(books) + 0.5) / rounds
        start = text.index("\n\n", int(len(text) * share)) + 2
        found.append((f"excerpt {place + 1}: {book.stem}", text[start : start + characters].rsplit(" ", 1)[0]))
    return found
