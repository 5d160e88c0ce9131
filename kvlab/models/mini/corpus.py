"""The training text: books as unwrapped paragraphs, and the split between training and validation."""

from __future__ import annotations

import re
from pathlib import Path

from kvlab.common.errors import UserError

# Whole books that no training step may see: the tokenizer, the text loss and the haystacks all leave them out.
VALIDATION_BOOKS = ("alice_in_wonderland", "great_gatsby", "jekyll_and_hyde", "sherlock_holmes")

# Verse, plays and early spelling: a small model has no tokens to spare for them.
LEFT_OUT = (
    "beowulf",
    "devil_is_an_ass",
    "divine_comedy",
    "doctor_faustus",
    "hamlet",
    "iliad",
    "leviathan",
    "morte_darthur",
    "plays",
)

_PROSE_LINE = 45  # a line at least this long was broken by the typesetter; shorter ones are verse, titles or speech


def unwrap(text: str) -> str:
    """Join the lines of wrapped prose into one line a paragraph; verse and headings keep their line breaks."""
    text = text.replace("\r\n", "\n").replace("\t", " ").lstrip("\ufeff")
    text = re.sub(rf"(?m)^(.{{{_PROSE_LINE},}}?)[ ]*\n(?=\S)", r"\1 ", text)
    return re.sub(r"\n{3,}", "\n\n", text).strip() + "\n"


def book_paths(corpus: Path) -> dict[str, Path]:
    """Return the plain-text books of a corpus folder by name; raises UserError where there are none."""
    folder = corpus / "books" if (corpus / "books").is_dir() else corpus
    paths = {path.stem: path for path in sorted(folder.glob("*.txt"))}
    if not paths:
        raise UserError(
            f"No .txt books in {corpus}: give a folder with plain-text books (or a books/ folder) to --corpus."
        )
    return paths


def read_book(path: Path) -> str:
    """Return one book as unwrapped text."""
    return unwrap(path.read_text(encoding="utf-8", errors="strict"))


def training_books(corpus: Path, every: int = 1) -> dict[str, Path]:
    """Return the books that training may read: in the order of their names the first, and each `every`-th after it."""
    books = {name: path for name, path in book_paths(corpus).items() if name not in VALIDATION_BOOKS + LEFT_OUT}
    if not books:
        raise UserError(f"{corpus} holds validation books only: add books to train on.")
    return dict(list(books.items())[::every])


def validation_books(corpus: Path) -> dict[str, Path]:
    """Return the books kept for validation; raises UserError where the folder has none of them."""
    books = {name: path for name, path in book_paths(corpus).items() if name in VALIDATION_BOOKS}
    if not books:
        raise UserError(f"{corpus} has none of the validation books {', '.join(VALIDATION_BOOKS)}: add at least one.")
    return books
