"""The corpus as tokens: cached once as uint16, memory-mapped, with the ends of sentences."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from transformers import PreTrainedTokenizerBase

from kvlab.core.errors import UserError
from kvlab.models.info.mini import VALIDATION_BOOKS, book_paths, read_book
from training.mini.rows import Tokens
from training.mini.tokenizer import load_tokenizer, save_tokenizer, train_tokenizer

_TOKENS_FILE = "tokens.npy"
_BOOKS_FILE = "books.json"

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


@dataclass(frozen=True)
class Text:
    """All training books end to end; `starts` has one entry per book and a last one for the end."""

    tokenizer: PreTrainedTokenizerBase
    tokens: NDArray[np.uint16]
    starts: NDArray[np.int64]

    @property
    def vocab_size(self) -> int:
        return len(self.tokenizer)

    @property
    def bos_token_id(self) -> int:
        return int(self.tokenizer.bos_token_id)

    def encode(self, text: str) -> list[int]:
        """Tokens of a piece of text, without BOS."""
        return self.tokenizer.encode(text, add_special_tokens=False)

    def decode(self, tokens: Sequence[int] | Tokens) -> str:
        """Text of some tokens."""
        return str(self.tokenizer.decode(list(tokens)))

    @cached_property
    def _ends_sentence(self) -> NDArray[np.bool_]:
        pieces = self.tokenizer.convert_ids_to_tokens(list(range(self.vocab_size)))
        return np.array([piece.strip("Ġ") in {".", "?", "!", '."', '?"', '!"', ".”", "?”", "!”"} for piece in pieces])

    @cached_property
    def _starts_word(self) -> NDArray[np.bool_]:
        pieces = self.tokenizer.convert_ids_to_tokens(list(range(self.vocab_size)))
        return np.array([piece.startswith("Ġ") and len(piece) > 1 for piece in pieces])

    def span(self, rng: np.random.Generator, length: int) -> Tokens:
        """`length` consecutive tokens of one book (if it is shorter, the whole book and what follows)."""
        start = int(rng.integers(len(self.tokens) - length))
        book_end = self.starts[np.searchsorted(self.starts, start, side="right")]
        start = max(0, min(start, int(book_end) - length))
        return self.tokens[start : start + length].astype(np.int64)

    def sentence_ends(self, span: Tokens) -> Tokens:
        """Places in a span between two sentences of one paragraph, where a statement may be inserted."""
        between = self._ends_sentence[span[:-1]] & self._starts_word[span[1:]]
        return np.flatnonzero(between) + 1


def validation_text(corpus: Path, tokenizer: PreTrainedTokenizerBase) -> Text:
    """The validation books as tokens."""
    books = [tokenizer.encode(read_book(path), add_special_tokens=False) for path in validation_books(corpus).values()]
    starts = np.array([0, *np.cumsum([len(book) for book in books])])
    return Text(tokenizer, np.concatenate([np.array(book, dtype=np.uint16) for book in books]), starts)


def prepare_text(corpus: Path, cache: Path, tokenizer_folder: Path | None = None, every: int = 1) -> Text:
    """The training text, every n-th book of a corpus, tokenized once for a cache folder.

    The tokenizer is trained on the text, or is that of a model folder whose training continues.
    """
    if not (cache / _BOOKS_FILE).is_file():
        _build_cache(training_books(corpus, every), cache, tokenizer_folder)
    books = json.loads((cache / _BOOKS_FILE).read_text())
    starts = np.array([0, *np.cumsum([book["tokens"] for book in books])])
    return Text(load_tokenizer(cache), np.load(cache / _TOKENS_FILE, mmap_mode="r"), starts)


def _build_cache(paths: Mapping[str, Path], cache: Path, tokenizer_folder: Path | None) -> None:
    cache.mkdir(parents=True, exist_ok=True)
    texts = {name: read_book(path) for name, path in paths.items()}
    tokenizer = load_tokenizer(tokenizer_folder) if tokenizer_folder else train_tokenizer(texts.values())
    save_tokenizer(tokenizer, cache)
    tokens = [np.array(tokenizer.encode(text, add_special_tokens=False), dtype=np.uint16) for text in texts.values()]
    np.save(cache / _TOKENS_FILE, np.concatenate(tokens))
    books = [{"name": name, "tokens": len(ids)} for name, ids in zip(texts, tokens, strict=True)]
    # written last: its presence means that the cache is complete
    (cache / _BOOKS_FILE).write_text(json.dumps(books, indent=1))
