"""Tasks about memory while generating: a state that changes step by step, and a list needed again much later.

What an answer needs is in the model's own tokens, so these tasks measure what a method does while decoding. The row
holds the answer's tokens and whether it ends in a loop beside the score.
"""

from itertools import pairwise

from kvlab.models.info import mini
from kvlab.models.info.mini import NAMES
from kvlab.tasks.draft import Depth, Draft, drafted
from kvlab.tasks.sample import Further, Part, Sample
from kvlab.tasks.tokens import text_ids

_MOST_STEPS = 60
_MOST_WORDS = 20
_STEP_TOKENS = 24  # "Step 12: 45 - 8 = 37", with a token a digit
_NUMBER_TOKENS = 4  # "37, "


@drafted("state_tracing", "a walk along arrows that the answer follows step by step: the share of steps right")
def state_tracing(draft: Draft, *, depth: Depth = None, steps: int = 6, others: int = 6) -> Sample:
    """`steps` arrows from place to place and `others` that lead elsewhere, shuffled; the answer walks from a start.

    Each step needs the place that was written last, as in a depth-first search that is traced while generating
    (TriAttention's state queries, arXiv 2604.04921). The score is the share of places that are right and in their
    place in the walk, with a score for each.
    """
    draft.check_range("steps", steps, 2, _MOST_STEPS)
    draft.check_range("others", others, 1, _MOST_STEPS)
    place = draft.place(depth)
    random = draft.random
    names = random.sample(NAMES, steps + 1 + 2 * others)
    walk = names[: steps + 1]
    rest = names[steps + 1 :]
    arrows = [f" {start} -> {end}" for start, end in pairwise(walk)]
    lines = [*arrows, *(f" {start} -> {end}" for start, end in zip(rest[::2], rest[1::2], strict=True))]
    random.shuffle(lines)
    query = mini.ask(f"Follow the arrows from {walk[0]} to the end.", f"{walk[0]} ->", ())
    block = "Arrows:\n" + "".join(f"{line}\n" for line in lines)
    sample = draft.around(query, block, place, "walk", answers=walk[1:], depth=place)
    most = len(text_ids(draft.tokenizer, " -> ".join(walk))) + 8
    meta = {**sample.meta, "statements": [line.strip() for line in arrows]}
    parts = tuple(Part(kind="step", text=line.strip()) for line in arrows)
    return sample.model_copy(update={"max_new_tokens": most, "parts": parts, "meta": meta})


@drafted("arithmetic_chain", "a number that changes step by step: the share of steps written right")
def arithmetic_chain(draft: Draft, *, depth: Depth = None, steps: int = 8) -> Sample:
    """`steps` additions and subtractions; the answer writes each with its result, which the next step needs.

    The score is the share of steps with the right result, with a score for each step.
    """
    draft.check_range("steps", steps, 2, _MOST_STEPS)
    place = draft.place(depth)
    random = draft.random
    state = random.randint(2, 9)
    lines = [f"A counter starts at {state}."]
    results = []
    start = state
    for number in range(1, steps + 1):
        change = random.randint(1, 5)
        adds = state < 6 or (state < 15 and random.random() < 0.5)
        lines.append(f"Step {number}: {'add' if adds else 'subtract'} {change}.")
        state += change if adds else -change
        results.append(state)
        if number == 1:
            opening = f"Step 1: {start} {'+' if adds else '-'} {change} ="
    query = mini.ask("Write the counter after every step.", opening, ())
    block = "\n".join(lines) + "\n"
    sample = draft.around(query, block, place, "line_results", answers=[str(result) for result in results], depth=place)
    parts = tuple(Part(kind="step", text=line) for line in lines[1:])
    meta = {**sample.meta, "statements": lines}
    return sample.model_copy(
        update={"max_new_tokens": _STEP_TOKENS * steps, "stop": None, "parts": parts, "meta": meta}
    )


@drafted("list_recall", "a list, written, then a long count, then the list again")
def list_recall(draft: Draft, *, depth: Depth = None, words: int = 5, count: int = 60) -> Sample:
    """A list of `words` words; three turns with answers kept: the list, the numbers from 1 to `count`, the list again.

    Scores by turn: a text of a few hundred generated tokens lies between the first and the last.
    """
    draft.check_range("words", words, 2, _MOST_WORDS)
    draft.check_range("count", count, 2, 1000)
    place = draft.place(depth)
    random = draft.random
    listed = ", ".join(random.sample(NAMES, words))
    statement = f"The list is: {listed}."
    first = mini.ask("What is the list?", "The list is:", ())
    between = mini.ask(f"Count from 1 to {count}.", "1, 2, 3,", ())
    again = mini.ask("What was the list?", "The list was:", ())
    sample = draft.around(
        first, f"{statement}\n", place, "each_line", answers=[listed, str(count), listed], depth=place
    )
    return sample.model_copy(
        update={
            "max_new_tokens": _NUMBER_TOKENS * count,
            "parts": (Part(kind="list", text=statement), Part(kind="count"), Part(kind="list again", text=statement)),
            "further": (Further(question=between.prompt), Further(question=again.prompt)),
            "keeps_answers": True,
            "meta": {**sample.meta, "statements": [statement]},
        }
    )
