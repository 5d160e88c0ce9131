"""Tasks about facts hidden in a story: numbers (needles), chains of variables, and sums."""

from random import Random

from kvlab.models.info import mini
from kvlab.models.info.mini import NAMES
from kvlab.tasks.draft import Depth, Draft, drafted, spread
from kvlab.tasks.haystack import hide
from kvlab.tasks.sample import Further, Part, Sample
from kvlab.tasks.tokens import text_ids

_MOST_QUESTIONS = 20


@drafted("questions", "several questions, each of a copy of one compressed context", context_alone=True)
def questions(draft: Draft, *, questions: int = 4, needles: int = 8) -> Sample:
    """`needles` numbers in a story and `questions` questions, each asked of a copy of the cache (KVzip's protocol).

    No question is in sight when the context is compressed, whatever --question-aware says. The score is the share of
    right answers, with a score for each question.
    """
    return _asked(draft, questions, needles, keeps_answers=False)


@drafted("turns", "several questions as turns of one conversation, answers kept")
def turns(draft: Draft, *, questions: int = 4, needles: int = 8) -> Sample:
    """`needles` numbers in a story and `questions` questions one after another in one cache (SCBench's multi-turn).

    With --question-aware yes the first question is in sight when the context is compressed, later ones never are. The
    score is the share of right answers, with a score for each turn.
    """
    return _asked(draft, questions, needles, keeps_answers=True)


def _asked(draft: Draft, questions: int, needles: int, keeps_answers: bool) -> Sample:
    draft.check_range("needles", needles, 1, len(NAMES))
    draft.check_range("questions", questions, 2, min(needles, _MOST_QUESTIONS))
    random = draft.random
    depths = spread(random, needles)
    kind, facts = _draw_facts(random, needles)
    statements = [mini.needle_statement(kind, *fact) for fact in facts]
    asked = random.sample(range(needles), questions)
    first, *others = [mini.needle_query(kind, *facts[one]) for one in asked]
    answers = [facts[one][1] for one in asked]
    sample = draft.hiding(first, statements, depths, "each_line", answers=answers)
    return sample.model_copy(
        update={
            "parts": tuple(Part(kind="question", text=statements[one]) for one in asked),
            "further": tuple(Further(question=query.prompt) for query in others),
            "keeps_answers": keeps_answers,
        }
    )


_MOST_VALUES = 1000
_FEWEST_DECODED = 96  # a needle of 64 bytes, and some text around it
_MOST_DECODED = 100_000
_MOST_COINS = 50


@drafted("needle", "one number hidden in a story, at a chosen depth", ruler="niah_single_2")
def needle(draft: Draft, *, depth: Depth = None) -> Sample:
    """One needle in real prose, at `depth` (None: random)."""
    place = draft.place(depth)
    kind, (fact,) = _draw_facts(draft.random, 1)
    statement = mini.needle_statement(kind, *fact)
    return draft.hiding(mini.needle_query(kind, *fact), [statement], [place], depth=place)


@drafted("needle_decoded", "one number hidden in text that enters while decoding", context_alone=True)
def needle_decoded(draft: Draft, *, depth: Depth = None, decoded: int = 256) -> Sample:
    """One needle in prose that is forced token by token after the compressed prompt, at `depth` of these tokens.

    So what a method evicts while decoding is seen apart from what it evicts of the prompt: the needle is no part of it
    (Random Attention's protocol, arXiv 2609.03430). `decoded` is the most tokens of that text, the needle included.
    """
    draft.check_range("decoded", decoded, _FEWEST_DECODED, _MOST_DECODED)
    place = draft.place(depth)
    kind, (fact,) = _draw_facts(draft.random, 1)
    query = mini.needle_query(kind, *fact)
    statement = mini.needle_statement(kind, *fact)
    text = draft.filled(lambda window: f" {hide(window, [statement], [place]).lstrip()}", length=decoded)
    rest = draft.length - len(text_ids(draft.tokenizer, text))
    context = draft.filled(lambda window: window.text, query.prompt, rest)
    sample = draft.asking(query, context, "whole_match_all", depth=place, statements=[statement])
    return sample.model_copy(update={"decoded": text})


@drafted("needle_multikey", "many numbers hidden in a story, a question for one", ruler="niah_multikey_1")
def needle_multikey(draft: Draft, *, depth: Depth = None, needles: int = 8) -> Sample:
    """Needles of the same form, all but one distractors, and a question for the one at `depth`, or for a random one."""
    draft.check_range("needles", needles, 1, len(NAMES))
    random = draft.random
    depths = spread(random, needles)
    target = random.randrange(needles)
    kind, facts = _draw_facts(random, needles)
    if depth is not None:
        depths[target] = depth
        order = sorted(range(needles), key=depths.__getitem__)
        facts = [facts[i] for i in order]
        depths = [depths[i] for i in order]
        target = order.index(target)
    query = mini.needle_query(kind, *facts[target])
    statements = [mini.needle_statement(kind, *fact) for fact in facts]
    return draft.hiding(query, statements, depths, depth=depths[target])


@drafted("needle_multivalue", "one name with several numbers, a question for all", ruler="niah_multivalue")
def needle_multivalue(draft: Draft, *, values: int = 3, names: int = 2) -> Sample:
    """`names` names of `values` values each, and a question for all values of one; the score is the share found."""
    draft.check_range("names", names, 1, len(NAMES))
    draft.check_range("values", values, 1, _MOST_VALUES)
    random = draft.random
    depths = spread(random, names * values)
    kind = random.choice(mini.NEEDLE_PHRASINGS)
    chosen = random.sample(NAMES, names)
    facts = list(zip(chosen * values, mini.draw_values(random, names * values), strict=True))
    random.shuffle(facts)
    query = mini.multi_value_query(chosen[0], [value for name, value in facts if name == chosen[0]])
    return draft.hiding(query, [mini.needle_statement(kind, *fact) for fact in facts], depths)


@drafted("needle_multiquery", "many numbers, one question for several", ruler="niah_multiquery")
def needle_multiquery(draft: Draft, *, needles: int = 6, queries: int = 3) -> Sample:
    """`needles` needles and one question for `queries` of them; the score is the share of the values found."""
    draft.check_range("needles", needles, 1, len(NAMES))
    draft.check_range("queries", queries, 1, needles)
    random = draft.random
    depths = spread(random, needles)
    kind, facts = _draw_facts(random, needles)
    targets = random.sample(facts, queries)
    query = mini.multi_query([name for name, _ in targets], [value for _, value in targets], kind)
    statements = [mini.needle_statement(kind, *fact) for fact in facts]
    return draft.hiding(query, statements, depths, answers=[value for _, value in targets])


@drafted("variable_tracking", "name every variable of a chain of assignments", ruler="vt")
def variable_tracking(draft: Draft, *, hops: int = 3, chains: int = 1) -> Sample:
    """`chains` interleaved chains of `hops` + 1 variables each, and a question for the variables of one.

    The score is the share of the chain's variables in the answer (RULER's).
    """
    draft.check_range("hops", hops, 1, len(NAMES) - 1)
    draft.check_range("chains", chains, 1, len(NAMES) // (hops + 1))
    random = draft.random
    depths = spread(random, chains * (hops + 1))
    names = random.sample(NAMES, chains * (hops + 1))
    groups = [names[start : start + hops + 1] for start in range(0, len(names), hops + 1)]
    values = mini.draw_values(random, chains)
    waiting = [mini.variable_chain(*chain) for chain in zip(groups, values, strict=True)]
    statements = []
    while any(waiting):  # chains are interleaved, each in its own order
        statements.append(random.choice([chain for chain in waiting if chain]).pop(0))
    return draft.hiding(mini.variable_query(groups[0], values[0]), statements, depths)


@drafted("arithmetic", "the sum of two numbers hidden in a story")
def arithmetic(draft: Draft, *, holders: int = 4) -> Sample:
    """`holders` owners of coins and a question for the sum of two of them.

    The answer repeats both numbers; only its last number, the sum, is scored.
    """
    draft.check_range("holders", holders, 2, len(NAMES))
    random = draft.random
    depths = spread(random, holders)
    coins = {name: random.randrange(_MOST_COINS) for name in random.sample(NAMES, holders)}
    first, second = random.sample(list(coins), 2)
    query = mini.arithmetic_query(first, second, (coins[first], coins[second]))
    statements = [mini.ARITHMETIC_STATEMENT.format(name=name, count=count) for name, count in coins.items()]
    return draft.hiding(query, statements, depths, "final_number")


def _draw_facts(random: Random, count: int) -> tuple[mini.NeedlePhrasing, list[tuple[str, str]]]:
    """A wording, and `count` different names with different values."""
    kind = random.choice(mini.NEEDLE_PHRASINGS)
    return kind, list(zip(random.sample(NAMES, count), mini.draw_values(random, count), strict=True))
