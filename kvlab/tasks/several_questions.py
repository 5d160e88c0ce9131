"""Tasks with several questions about one context: each of a copy of its compressed cache, or turn by turn."""

from __future__ import annotations

from kvlab.models.mini import phrasing
from kvlab.models.mini.phrasing import NAMES
from kvlab.tasks.draft import Draft, drafted, spread
from kvlab.tasks.sample import Further, Part, Sample

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
    kind = random.choice(phrasing.NEEDLE_PHRASINGS)
    names = phrasing.draw_names(random, needles)
    values = phrasing.draw_values(random, needles)
    statements = [phrasing.needle_statement(kind, *fact) for fact in zip(names, values, strict=True)]
    asked = random.sample(range(needles), questions)
    first, *others = [phrasing.needle_query(kind, names[one], values[one]) for one in asked]
    answers = [values[one] for one in asked]
    sample = draft.hiding(first, statements, depths, "each_line", answers=answers)
    return sample.model_copy(
        update={
            "parts": tuple(Part(kind="question", text=statements[one]) for one in asked),
            "further": tuple(Further(question=query.prompt) for query in others),
            "keeps_answers": keeps_answers,
        }
    )
