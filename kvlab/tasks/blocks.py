"""Tasks about a block of lines with real text around it: word lists, records, labelled examples, a passage."""

from collections import Counter

from kvlab.models.info import mini
from kvlab.models.info.mini import ADJECTIVES, NAMES
from kvlab.tasks.draft import Depth, Draft, drafted
from kvlab.tasks.haystack import draw_window
from kvlab.tasks.sample import Sample

_COMMON_COUNTS = ((9, 12), (6, 8), (4, 5))  # the three common words; the others occur once or twice
_EXPONENT = 1.5  # RULER uses 2.0; a flatter one makes the third word rare enough to be lost
_TOP = 3
_FEWEST_WORDS = 20  # fewer draws rarely have three words with different counts
_MOST_WORDS = 20_000
_MOST_COPIED = 5000


@drafted("common_words", "the three most common words of a list", ruler="cwe")
def common_words(draft: Draft, *, depth: Depth = None, rare: int = 40) -> Sample:
    """A shuffled list in which three words occur often among `rare` others; the score is the share of the three found.

    RULER has ten words of equal count; here the counts differ, so that only one order of the answer is right.
    """
    draft.check_range("rare", rare, 1, len(NAMES) - len(_COMMON_COUNTS))
    place = draft.place(depth)
    random = draft.random
    words = random.sample(NAMES, len(_COMMON_COUNTS) + rare)
    counts = [random.randint(*bounds) for bounds in _COMMON_COUNTS] + random.choices((1, 2), k=rare)
    listed = [word for word, count in zip(words, counts, strict=True) for _ in range(count)]
    random.shuffle(listed)
    query = mini.common_words_query(words[: len(_COMMON_COUNTS)])
    block = mini.word_list(listed)
    return draft.around(query, block, place, depth=place, counts=dict(zip(words, counts, strict=True)))


@drafted("frequent_words", "the three most frequent words, Zipf", ruler="fwe")
def frequent_words(draft: Draft, *, depth: Depth = None, words: int = 80) -> Sample:
    """`words` words drawn with repetition from a Zipf distribution; the score is the share of the top three found."""
    draft.check_range("words", words, _FEWEST_WORDS, _MOST_WORDS)
    place = draft.place(depth)
    random = draft.random
    counts = Counter[str]()
    # The three most frequent words and the fourth have four different counts.
    while len({times for _, times in counts.most_common(_TOP + 1)}) < _TOP + 1:
        names = random.sample(NAMES, len(NAMES))
        weights = [(rank + 1) ** -_EXPONENT for rank in range(len(names))]
        listed = random.choices(names, weights, k=words)
        counts = Counter(listed)
    query = mini.common_words_query([word for word, _ in counts.most_common(_TOP)])
    return draft.around(query, mini.word_list(listed), place, depth=place, counts=dict(counts))


@drafted("key_value", "one value of a list of records", ruler="niah_multikey_2")
def key_value(draft: Draft, *, depth: Depth = None, pairs: int = 32) -> Sample:
    """`pairs` records and a question for one of them."""
    draft.check_range("pairs", pairs, 1, len(NAMES))
    place = draft.place(depth)
    random = draft.random
    records = list(zip(random.sample(NAMES, pairs), mini.draw_values(random, pairs), strict=True))
    query = mini.key_value_query(*random.choice(records))
    return draft.around(query, mini.key_value_list(records), place, depth=place)


@drafted("few_shot", "the label of one more item, learned from examples")
def few_shot(draft: Draft, *, depth: Depth = None, classes: int = 8, shots: int = 4) -> Sample:
    """`shots` examples of each of `classes` classes, and one more item to label."""
    draft.check_range("classes", classes, 1, len(NAMES) // 2)
    draft.check_range("shots", shots, 1, len(ADJECTIVES))
    place = draft.place(depth)
    random = draft.random
    words = random.sample(NAMES, 2 * classes)
    pairs = list(zip(words[:classes], words[classes:], strict=True))
    query = mini.few_shot_query(random.choice(ADJECTIVES), *random.choice(pairs))
    block = mini.few_shot_list(random, pairs, shots)
    return draft.around(query, block, place, "exact_match", depth=place, hold_back=1)  # a label is one token


@drafted("copy", "copy a passage word for word")
def copy(draft: Draft, *, words: int = 24) -> Sample:
    """A passage of `words` words, other text, and the request to copy the passage.

    The score is the share copied before the first mistake.
    """
    draft.check_range("words", words, 1, _MOST_COPIED)
    passage = " ".join("".join(draw_window(draft.random, words).words).split())
    query = mini.copy_query(passage)
    return draft.around(query, f"{mini.COPY_CONTEXT.format(span=passage)}\n", 0.0, "word_prefix")
