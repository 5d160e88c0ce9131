"""The training text: books as unwrapped paragraphs, and the split into training and validation."""

from __future__ import annotations

import re
from pathlib import Path

from kvlab.core.errors import UserError

# Whole books held out from all training: from the tokenizer, the text loss and the haystacks.
VALIDATION_BOOKS = ("alice_in_wonderland", "great_gatsby", "jekyll_and_hyde", "sherlock_holmes")

# Verse, plays and early spelling: too costly for a small model's vocabulary.
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
    """Join the lines of wrapped prose into one line per paragraph; verse and headings keep their line breaks."""
    text = text.replace("\r\n", "\n").replace("\t", " ").lstrip("\ufeff")
    text = re.sub(rf"(?m)^(.{{{_PROSE_LINE},}}?)[ ]*\n(?=\S)", r"\1 ", text)
    return re.sub(r"\n{3,}", "\n\n", text).strip() + "\n"


def book_paths(corpus: Path) -> dict[str, Path]:
    """Plain-text books of a corpus folder by name; raises UserError if there are none."""
    folder = corpus / "books" if (corpus / "books").is_dir() else corpus
    paths = {path.stem: path for path in sorted(folder.glob("*.txt"))}
    if not paths:
        raise UserError(
            f"No .txt books in {corpus}: pass a folder with plain-text books (or a books/ folder) to --corpus."
        )
    return paths


def read_book(path: Path) -> str:
    """One book as unwrapped text."""
    return unwrap(path.read_text(encoding="utf-8", errors="strict"))


def training_books(corpus: Path, every: int = 1) -> dict[str, Path]:
    """Training books, sorted by name: the first and every `every`-th after it."""
    books = {name: path for name, path in book_paths(corpus).items() if name not in VALIDATION_BOOKS + LEFT_OUT}
    if not books:
        raise UserError(f"{corpus} contains validation books only: add books to train on.")
    return dict(list(books.items())[::every])


def validation_books(corpus: Path) -> dict[str, Path]:
    """Validation books of a corpus; raises UserError if there are none."""
    books = {name: path for name, path in book_paths(corpus).items() if name in VALIDATION_BOOKS}
    if not books:
        raise UserError(f"{corpus} has none of the validation books {', '.join(VALIDATION_BOOKS)}: add at least one.")
    return books
