"""Put statements into real text and ask for them: the common frame of all recall rows."""

from __future__ import annotations

from collections.abc import Sequence
from random import Random

import numpy as np

from kvlab.models.info.mini import TAIL, Query
from training.mini.rows import IGNORED, TEXT, Row, RowBuilder, Tokens
from training.mini.text import Text

Pieces = list[tuple[Tokens | list[int], int]]  # tokens and their marks


def seeded_generator(rng: np.random.Generator) -> Random:
    """Python's generator for the phrasings, seeded from numpy's."""
    return Random(int(rng.integers(1 << 62)))


def query_length(text: Text, query: Query) -> int:
    """Number of tokens of a query with its answer."""
    return len(text.encode(query.prompt + query.answer + TAIL))


def fitting(text: Text, queries: Sequence[Query], room: int) -> list[Query]:
    """The first queries that fit into `room` tokens."""
    chosen: list[Query] = []
    for query in queries:
        room -= query_length(text, query)
        if room < 0:
            break
        chosen.append(query)
    return chosen


def hidden(rng: np.random.Generator, text: Text, statements: Sequence[str], length: int) -> Pieces:
    """`length` tokens of real text with the statements at random depths, in the given order."""
    stated = [text.encode(" " + statement) for statement in statements]
    span = text.span(rng, max(0, length - sum(map(len, stated))))
    places = np.array([0, *text.sentence_ends(span), len(span)])
    wanted = np.sort(rng.random(len(stated))) * len(span)
    cuts = [int(places[np.abs(places - place).argmin()]) for place in wanted]
    pieces: Pieces = []
    for start, end, statement in zip([0, *cuts], cuts, stated, strict=False):
        pieces += [(span[start:end], TEXT), (statement, IGNORED)]
    return [*pieces, (span[cuts[-1] if cuts else 0 :], TEXT)]


def around(rng: np.random.Generator, text: Text, block: str, length: int) -> Pieces:
    """A block of lines with real text around it, `length` tokens in total; half the blocks come first."""
    tokens = text.encode(block)
    room = max(0, length - len(tokens) - 1)
    before = 0 if rng.random() < 0.5 else int(rng.integers(room + 1))
    first: Pieces = [(text.span(rng, before), TEXT), (text.encode("\n"), IGNORED)] if before else []
    return [*first, (tokens, IGNORED), (text.span(rng, room - before + (not before)), TEXT)]


def recall_row(task: str, text: Text, context: Pieces, queries: Sequence[Query], length: int) -> Row:
    """The row of a context followed by its queries and answers, filled to `length` targets."""
    row = RowBuilder(task, text.bos_token_id)
    for tokens, mark in context:
        row.add(tokens, mark)
    for query in queries:
        row.add(text.encode(query.prompt))
        row.add_answer(text.encode(query.answer + TAIL))
    return row.finish(length)


def room_for_context(text: Text, queries: Sequence[Query], length: int) -> int:
    """Tokens the context may take so that the row has `length` targets."""
    return length - sum(query_length(text, query) for query in queries)
