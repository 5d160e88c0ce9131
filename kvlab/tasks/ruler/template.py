"""RULER's instructions, needles and answer prefixes (NVIDIA/RULER, Apache-2.0), and prompts of a length from them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from random import Random

from kvlab.models.mini.phrasing import Query
from kvlab.tasks.draft import Draft, largest_fit, too_short
from kvlab.tasks.sample import Sample
from kvlab.tasks.tokens import count_tokens

NOISE = "The grass is green. The sky is blue. The sun is yellow. Here we go. There and back again."
NEEDLE = "One of the special magic {kind} for {key} is: {value}."
NIAH = (
    "Some special magic {kind} are hidden within the following text. Make sure to memorize it. I will quiz you about "
    "the {kind} afterwards.\n",
    "\nWhat are all the special magic {kind} for {query} mentioned in the provided text?",
    " The special magic {kind} for {query} mentioned in the provided text are",
)
VT = (
    "Memorize and track the chain(s) of variable assignment hidden in the following text.\n\n",
    "\nQuestion: Find all variables that are assigned the value {query} in the text above.",
    " Answer: According to the chain(s) of variable assignment in the text above, {count} variables are assigned the "
    "value {query}, they are: ",
)
CWE = (
    "Below is a numbered list of words. In these words, some appear more often than others. Memorize the ones that "
    "appear most often.\n",
    "\nQuestion: What are the 10 most common words in the above list?",
    " Answer: The top 10 words that appear most often in the list are:",
)
FWE = (
    "Read the following coded text and track the frequency of each coded word. Find the three most frequently appeared "
    "coded words. ",
    "\nQuestion: Do not provide any explanation. Please ignore the dots '....'. What are the three most frequently "
    "appeared words in the above coded text?",
    " Answer: According to the coded text above, the three most frequently appeared words are:",
)
QA = (
    "Answer the question based on the given documents. Only give me the answer and do not output any other words.\n\n"
    "The following are given documents.\n\n",
    "\n\nAnswer the question based on the given documents. Only give me the answer and do not output any other words."
    "\n\nQuestion: {query}",
    " Answer:",
)


@dataclass(frozen=True)
class Wording:
    """What comes before the text, the question after it, and the first words of the answer."""

    before: str
    question: str
    lead: str

    @classmethod
    def of(cls, parts: Sequence[str], single: bool = False, **words: object) -> Wording:
        """Fill in a template; `single` is RULER's rewording for one needle with one answer."""
        changed = (
            [
                part.replace("Some", "A").replace("are all", "is").replace("are", "is").replace("answers", "answer")
                for part in parts
            ]
            if single
            else parts
        )
        return cls(*(part.format(**words) for part in changed))

    @property
    def query(self) -> str:
        return self.question + self.lead


def sample_of(
    draft: Draft, wording: Wording, text: str, answers: list[str], new: int, metric: str, facts: Sequence[str] = ()
) -> Sample:
    """RULER's prompt; in a chat its last words open the model's turn, as RULER's answer prefix is used."""
    sample = draft.asking(Query(wording.question, "", ()), text, metric, answers=answers, statements=list(facts))
    return sample.model_copy(update={"answer_start": wording.lead, "max_new_tokens": new, "stop": None})


def filled_with(draft: Draft, wording: Wording, render: Callable[[int], str], most: int) -> str:
    """The longest `render(count)` whose prompt fits; raises UserError if `render(0)` does not."""

    def measure(count: int) -> int:
        return count_tokens(draft.tokenizer, render(count), wording.query)

    fixed = measure(0)
    if fixed > draft.length:
        raise too_short(draft.task, draft.length, fixed)
    each = max(1, (measure(most) - fixed) // most)
    return render(largest_fit(lambda count: measure(count) <= draft.length, most, (draft.length - fixed) // each))


def draw_letters(random: Random, count: int, letters: int, alphabet: str) -> list[str]:
    """`count` different strings of `letters` letters of an alphabet."""
    found: dict[str, None] = {}
    while len(found) < count:
        found["".join(random.choices(alphabet, k=letters))] = None
    return list(found)
