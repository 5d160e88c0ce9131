"""Training rows of every task of mini, in the words of phrasing.py."""

from __future__ import annotations

from random import Random

import numpy as np

from kvlab.models.info import mini
from kvlab.models.info.mini import ADJECTIVES, NAMES, NEEDLE_PHRASINGS, NeedlePhrasing, Query
from training.mini.presets import Phase
from training.mini.recall import around, fitting, hidden, recall_row, room_for_context, seeded_generator
from training.mini.rows import IGNORED, TEXT, Row, RowBuilder
from training.mini.text import Text

_MOST_ASKED = 0.6  # largest share of questions in a row


def _in_text(
    task: str, rng: np.random.Generator, text: Text, phase: Phase, statements: list[str], queries: list[Query]
) -> Row:
    queries = fitting(text, queries, int(_MOST_ASKED * phase.length))
    context = hidden(rng, text, statements, room_for_context(text, queries, phase.length))
    return recall_row(task, text, context, queries, phase.length)


def _after_block(
    task: str, rng: np.random.Generator, text: Text, phase: Phase, block: str, queries: list[Query]
) -> Row:
    room = phase.length - len(text.encode(block)) - 1
    queries = fitting(text, queries, room)
    context = around(rng, text, block, room_for_context(text, queries, phase.length))
    return recall_row(task, text, context, queries, phase.length)


Facts = list[tuple[NeedlePhrasing, str, str]]


def _needles(random: Random, count: int) -> tuple[list[str], list[Query], Facts]:
    """Statements, a question for each, and their facts; half the time all share one phrasing."""
    names = random.sample(NAMES, count)
    values = mini.draw_values(random, count)
    one = random.choice(NEEDLE_PHRASINGS)
    mixed = random.random() < 0.5
    phrasings = [random.choice(NEEDLE_PHRASINGS) if mixed else one for _ in names]
    facts = list(zip(phrasings, names, values, strict=True))
    statements = [mini.needle_statement(*fact) for fact in facts]
    return statements, [mini.needle_query(*fact) for fact in facts], facts


def text_row(rng: np.random.Generator, text: Text, phase: Phase) -> Row:
    """One unbroken span of a book."""
    row = RowBuilder("text", text.bos_token_id)
    row.add(text.span(rng, phase.length), TEXT)
    return row.finish(phase.length)


def needle_row(rng: np.random.Generator, text: Text, phase: Phase, count: int | None = None) -> Row:
    """Needles (up to the phase's number, or `count`) hidden in a book, all asked for in another order."""
    random = seeded_generator(rng)
    statements, queries, _ = _needles(random, count or random.randint(1, phase.needles))
    return _in_text("needle", rng, text, phase, statements, random.sample(queries, len(queries)))


def _several(random: Random, facts: Facts) -> Query:
    """One question for two to four of the facts, answered in the phrasing of the first."""
    one = random.choice(facts)[0]
    alike = [fact for fact in facts if fact[0] is one]
    chosen = random.sample(alike, min(len(alike), random.randint(2, 4)))
    return mini.multi_query([name for _, name, _ in chosen], [value for _, _, value in chosen], one)


def multi_query_row(rng: np.random.Generator, text: Text, phase: Phase) -> Row:
    """Needles of which two to four are asked for in one question, several times."""
    random = seeded_generator(rng)
    statements, _, facts = _needles(random, random.randint(2, max(2, phase.needles)))
    queries = [_several(random, facts) for _ in range(4)]
    return _in_text("multi_query", rng, text, phase, statements, queries)


def multi_value_row(rng: np.random.Generator, text: Text, phase: Phase) -> Row:
    """Names with two to four values each; all values of a name are asked for at once."""
    random = seeded_generator(rng)
    names = random.sample(NAMES, random.randint(1, max(1, phase.needles // 2)))
    facts = [(name, value) for name in names for value in mini.draw_values(random, random.randint(2, 4))]
    random.shuffle(facts)
    one = random.choice(NEEDLE_PHRASINGS)
    statements = [mini.needle_statement(one, *fact) for fact in facts]
    queries = [mini.multi_value_query(name, [v for n, v in facts if n == name]) for name in names]
    return _in_text("multi_value", rng, text, phase, statements, queries)


def key_value_row(rng: np.random.Generator, text: Text, phase: Phase, count: int | None = None) -> Row:
    """A list of records (up to the phase's number, or `count`) and questions for some of its keys."""
    random = seeded_generator(rng)
    most = min(phase.pairs, phase.length // 12)
    count = count or random.randint(max(2, most // 4), most)
    pairs = list(zip(random.sample(NAMES, count), mini.draw_values(random, count), strict=True))
    queries = [mini.key_value_query(*pair) for pair in random.sample(pairs, count)]
    return _after_block("key_value", rng, text, phase, mini.key_value_list(pairs), queries)


def _chains(random: Random, lengths: list[int]) -> tuple[list[str], list[Query]]:
    """Statements of several interleaved chains, each in its own order, and a question for each."""
    names = iter(random.sample(NAMES, sum(lengths)))
    values = mini.draw_values(random, len(lengths))
    groups = [[next(names) for _ in range(length)] for length in lengths]
    waiting = [mini.variable_chain(group, value) for group, value in zip(groups, values, strict=True)]
    statements = []
    while any(waiting):
        statements.append(random.choice([chain for chain in waiting if chain]).pop(0))
    return statements, [mini.variable_query(*chain) for chain in zip(groups, values, strict=True)]


def variables_row(rng: np.random.Generator, text: Text, phase: Phase, hops: int | None = None) -> Row:
    """Up to sixteen chains of assignments (one of `hops`) hidden in a book; each value's variables are asked for."""
    random = seeded_generator(rng)
    small = phase.length < 256
    chains = 1 if small or hops else random.choice([n for n in (1, 2, 4, 8, 16) if 200 * n <= phase.length])
    lengths = [hops + 1 if hops else random.randint(2, 2 if small else 4) for _ in range(chains)]
    statements, queries = _chains(random, lengths)
    return _in_text("variables", rng, text, phase, statements, random.sample(queries, len(queries)))


def _labels(random: Random, count: int, shots: int) -> tuple[str, list[Query]]:
    """Examples of `count` classes and sixteen questions of the same kind."""
    words = random.sample(NAMES, 2 * count)
    classes = list(zip(words[:count], words[count:], strict=True))
    asked_for = [random.choice(classes) for _ in range(16)]
    queries = [mini.few_shot_query(random.choice(ADJECTIVES), *pair) for pair in asked_for]
    return mini.few_shot_list(random, classes, shots), queries


def labels_row(rng: np.random.Generator, text: Text, phase: Phase, full: bool = False) -> Row:
    """Up to four (`full`: four) examples of up to eight (eight) classes and questions of the same kind."""
    random = seeded_generator(rng)
    small = phase.length < 256
    count = 8 if full else random.randint(2, 3 if small else 8)
    shots = 4 if full else random.randint(1, 2 if small else 4)
    block, queries = _labels(random, count, shots)
    return _after_block("labels", rng, text, phase, block, queries)


def words_row(rng: np.random.Generator, text: Text, phase: Phase) -> Row:
    """A list in which three words occur often, the first most often, and the rest once or twice."""
    random = seeded_generator(rng)
    rare = random.randint(8, max(9, min(100, phase.length // 6)))
    words = random.sample(NAMES, 3 + rare)
    counts = [random.randint(9, 12), random.randint(6, 8), random.randint(4, 5), *random.choices((1, 2), k=rare)]
    listed = [word for word, count in zip(words, counts, strict=True) for _ in range(count)]
    random.shuffle(listed)
    listed = listed[: phase.length // 2]
    block, query = mini.word_list(listed), mini.common_words_query(words[:3])
    return _after_block("words", rng, text, phase, block, [query])


def copy_row(rng: np.random.Generator, text: Text, phase: Phase) -> Row:
    """A passage of a book, other text, and the request to copy the passage."""
    span = text.span(rng, int(rng.integers(16, max(17, min(64, phase.length // 4)))))
    passage = " ".join(text.decode(span).split())
    context = around(rng, text, mini.COPY_CONTEXT.format(span=passage) + "\n", 0)
    query = mini.copy_query(passage)
    room = room_for_context(text, [query], phase.length) - len(context[0][0])
    return recall_row("copy", text, [context[0], (text.span(rng, room), TEXT)], [query], phase.length)


def _coins(random: Random, holders: int) -> tuple[list[str], list[Query]]:
    """Numbers of coins per holder, and questions for the sums of two of them."""
    coins = {name: random.randrange(50) for name in random.sample(NAMES, holders)}
    statements = [mini.ARITHMETIC_STATEMENT.format(name=name, count=count) for name, count in coins.items()]
    couples = [random.sample(sorted(coins), 2) for _ in range(4)]
    return statements, [mini.arithmetic_query(a, b, (coins[a], coins[b])) for a, b in couples]


def arithmetic_row(rng: np.random.Generator, text: Text, phase: Phase) -> Row:
    """Holders of coins and questions for the sums of two of them."""
    random = seeded_generator(rng)
    statements, queries = _coins(random, random.randint(2, max(2, phase.needles)))
    return _in_text("arithmetic", rng, text, phase, statements, queries)


def natural_repeat_row(rng: np.random.Generator, text: Text, phase: Phase) -> Row:
    """A passage that is repeated after other text; the repetition is an answer."""
    span = text.span(rng, int(rng.integers(8, phase.length // 3)))
    between = int(rng.integers(phase.length - 2 * len(span) + 1))
    row = RowBuilder("natural_repeat", text.bos_token_id)
    row.add(span, TEXT)
    row.add(text.span(rng, between), TEXT)
    row.add(span[:4])
    for start in range(4, len(span), 8):
        row.add_answer(span[start : start + 8])
    row.add(text.span(rng, phase.length - len(row)), TEXT)
    return row.finish(phase.length)


def mixed_row(rng: np.random.Generator, text: Text, phase: Phase) -> Row:
    """Needles, chains, coins and one list in the same text, with questions of all kinds until the row is full."""
    random = seeded_generator(rng)
    statements, queries, facts = _needles(random, random.randint(2, max(2, phase.needles // 2)))
    queries.append(_several(random, facts))
    for more, asking in (_chains(random, [random.randint(2, 4) for _ in range(3)]), _coins(random, 3)):
        queries += asking
        for place, statement in zip(
            sorted(random.choices(range(len(statements) + 1), k=len(more)))[::-1], more[::-1], strict=True
        ):
            statements.insert(place, statement)
    count = random.randint(4, max(4, min(phase.pairs // 3, phase.length // 64)))
    pairs = list(zip(random.sample(NAMES, count), mini.draw_values(random, count), strict=True))
    block, asking = _labels(random, 4, 2)
    if random.random() < 0.6:
        block, asking = mini.key_value_list(pairs), [mini.key_value_query(*pair) for pair in pairs]
    queries += random.sample(asking, min(len(asking), 8))
    random.shuffle(queries)
    tokens = text.encode("\n" + block)
    queries = fitting(text, queries, int(_MOST_ASKED * phase.length))
    room = room_for_context(text, queries, phase.length) - len(tokens)
    context = hidden(rng, text, statements, room)
    context.insert(random.choice((0, len(context))), (tokens, IGNORED))
    return recall_row("mixed", text, context, queries, phase.length)
