"""RULER's thirteen tasks in RULER's own wording, from kvlab's texts and words.

Instructions, needles and answer prefixes are those of NVIDIA/RULER (scripts/data/synthetic, Apache-2.0; arXiv
2404.06654), with the settings of its synthetic.yaml. What differs:

- The essays are kvlab's public-domain books, keys and list words are kvlab's, and numbers are drawn by kvlab's seeds.
- `ruler_vt` and `ruler_cwe` have no worked example before the text.
- `ruler_cwe` repeats its ten common words `times` times among words that occur once, so that short prompts hold it;
  RULER has 30 times among words that occur three times.
- The documents of `ruler_qa_1` and `ruler_qa_2` state facts about invented persons; RULER takes SQuAD and HotpotQA.
  Files made by RULER are read by the loader `ruler`.
- Lengths count the prompt alone; RULER's include the answer.
"""

import string
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from random import Random
from uuid import UUID

from kvlab.models.info.mini import ADJECTIVES, NAMES, Query
from kvlab.tasks.draft import Draft, Task, drafted, largest_fit, spread, too_short
from kvlab.tasks.haystack import hide
from kvlab.tasks.sample import Sample
from kvlab.tasks.tokens import count_tokens, text_ids

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
    def from_template(cls, parts: Sequence[str], single: bool = False, **words: object) -> "Wording":
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


def sample_of(
    draft: Draft, wording: Wording, text: str, answers: list[str], new: int, metric: str, facts: Sequence[str] = ()
) -> Sample:
    """RULER's prompt; in a chat its last words open the model's turn, as RULER's answer prefix is used."""
    sample = draft.asking(Query(wording.question, "", ()), text, metric, answers=answers, statements=list(facts))
    return sample.model_copy(update={"answer_start": wording.lead, "max_new_tokens": new, "stop": None})


def filled_with(draft: Draft, wording: Wording, render: Callable[[int], str], most: int) -> str:
    """The longest `render(count)` whose prompt fits; raises UserError if `render(0)` does not."""

    def measure(count: int) -> int:
        return count_tokens(draft.tokenizer, render(count), wording.question + wording.lead)

    fixed = measure(0)
    if fixed > draft.length:
        raise too_short(draft.task, draft.length, fixed)
    each = max(1, (measure(most) - fixed) // most)
    return render(largest_fit(lambda count: measure(count) <= draft.length, most, (draft.length - fixed) // each))


def draw_different(draw: Callable[[], str], count: int) -> list[str]:
    """The first `count` different strings that are drawn."""
    found: dict[str, None] = {}
    while len(found) < count:
        found[draw()] = None
    return list(found)


_PERSONS = ("Alda", "Bruno", "Celia", "Dario", "Edith", "Felix", "Greta", "Hugo", "Irma", "Jonas", "Klara", "Leo")
_SURNAMES = ("Arden", "Bellamy", "Corwin", "Dunmore", "Ellery", "Fenwick", "Garrick", "Hollis", "Ingram", "Jessop")
_TOWNS = ("Bergen", "Turin", "Porto", "Lyon", "Geneva", "Dublin", "Prague", "Vienna", "Cairo", "Quito", "Lima", "Riga")
_TRADES = ("clockmaker", "painter", "sailor", "lawyer", "baker", "surgeon", "printer", "miller", "singer", "tailor")


def qa(name: str, hops: int) -> Task:
    """A question task of RULER over invented persons: of one document, or of two that name the same person."""

    def generate(draft: Draft) -> Sample:
        random = draft.random
        persons = [f"{first} {last}" for first in _PERSONS for last in _SURNAMES]
        random.shuffle(persons)
        towns = [f"{random.choice(ADJECTIVES).capitalize()} {town}" for town in random.sample(_TOWNS, len(_TOWNS))]
        facts = [
            f"{person} was born in {random.choice(towns)} and worked as a {random.choice(_TRADES)}. The house of "
            f"{person} had the number {random.randint(10, 999)}."
            for person in persons
        ]
        place = random.random()
        town = facts[0].split(" was born in ")[1].split(" and ")[0]
        needed = [facts[0]]
        query = f"In which town was {persons[0]} born?"
        if hops == 2:
            work = f"The ship {random.choice(NAMES).capitalize()}"
            needed = [f"{work} belonged to {persons[0]}. It was painted {random.choice(ADJECTIVES)}.", facts[0]]
            query = f"In which town was the owner of {work.replace('The', 'the')} born?"
        wording = Wording.from_template(QA, query=query)

        def render(count: int) -> str:
            documents = facts[1 : count + 1]
            for depth, fact in zip((place, place / 2), reversed(needed), strict=False):
                documents.insert(round(depth * count), fact)
            listed = [f"Document {number}:\n{document}" for number, document in enumerate(documents, 1)]
            return wording.before + "\n\n".join(listed)

        text = filled_with(draft, wording, render, len(facts) - 1)
        return sample_of(draft, wording, text, [town], 32, "string_match_part", needed)

    return drafted(f"ruler_{name}", f"RULER's {name}, in its own wording, over invented persons", name)(generate)


# common words; exponent of the Zipf distribution; letters of a coded word
_COMMON = 10
_ALPHA = 2.0
_CODED = 6


def cwe(draft: Draft, *, times: int = 6) -> Sample:
    """RULER's cwe: a numbered list in which ten words occur `times` times, others once; the share of the ten found."""
    draft.check_range("times", times, 2, 30)
    random = draft.random
    words = random.sample([*NAMES, *(f"{one}{two}" for one in ADJECTIVES for two in NAMES)], len(NAMES) + 2000)
    common = words[:_COMMON]
    others = words[_COMMON:]
    order = random.random()

    def render(count: int) -> str:
        listed = [*common * times, *others[:count]]
        Random(order).shuffle(listed)
        return wording.before + " ".join(f"{number}. {word}" for number, word in enumerate(listed, 1))

    wording = Wording.from_template(CWE)
    text = filled_with(draft, wording, render, min(len(others), draft.length))
    return sample_of(draft, wording, text, common, 120, "string_match_all")


def fwe(draft: Draft) -> Sample:
    """RULER's fwe: coded words with Zipf frequencies, the first one as dots; the share of the next three found."""
    random = draft.random
    words = ["....", *draw_different(lambda: "".join(random.choices(string.ascii_lowercase, k=_CODED)), 60)]
    wording = Wording.from_template(FWE)
    weights = [(rank + 1) ** -_ALPHA for rank in range(len(words))]
    drawn = random.choices(words, weights, k=draft.length)
    sure = [word for word, times in zip(words[1:4], (9, 6, 4), strict=True) for _ in range(times)]
    random.shuffle(sure)  # so that even a short text has three words with different counts
    text = filled_with(draft, wording, lambda count: wording.before + " ".join([*sure, *drawn[:count]]), draft.length)
    counts = Counter(word for word in text.removeprefix(wording.before).split() if word != "....")
    return sample_of(draft, wording, text, [word for word, _ in counts.most_common(3)], 50, "string_match_all")


def _draw(random: Random, kind: str) -> str:
    if kind == "numbers":
        return str(random.randint(10**6, 10**7 - 1))
    if kind == "uuids":
        return str(UUID(int=random.getrandbits(128), version=4))
    return f"{random.choice(ADJECTIVES)}-{random.choice(NAMES)}"


def niah(
    name: str,
    haystack: str,
    key_kind: str = "words",
    kind: str = "numbers",
    keys: int = 1,
    values: int = 1,
    asked: int = 1,
) -> Task:
    """A needle task of RULER: `haystack` is noise, essay or needle (every line is one)."""
    keys = max(keys, asked)

    def generate(draft: Draft) -> Sample:
        random = draft.random
        names = draw_different(partial(_draw, random, key_kind), keys)
        numbers = draw_different(partial(_draw, random, kind), keys * values)
        facts = [NEEDLE.format(kind=kind, key=names[i // values], value=one) for i, one in enumerate(numbers)]
        chosen = random.sample(range(keys), asked)
        answers = [numbers[one * values + i] for one in chosen for i in range(values)]
        queries = [names[one] for one in chosen]
        query = ", ".join(queries[:-1]) + f", and {queries[-1]}" if asked > 1 else queries[0]
        single = asked * values == 1
        wording = Wording.from_template(NIAH, single, kind=kind.removesuffix("s") if single else kind, query=query)
        placed = random.sample(facts, len(facts))
        text = _around(draft, wording, haystack, placed, spread(random, len(facts)), (key_kind, kind), names)
        return sample_of(draft, wording, text, answers, 128, "string_match_all", placed)

    return drafted(f"ruler_{name}", f"RULER's {name}, in its own wording", name)(generate)


def _around(
    draft: Draft,
    wording: Wording,
    haystack: str,
    facts: Sequence[str],
    depths: Sequence[float],
    kinds: tuple[str, str],
    taken: Sequence[str],
) -> str:
    """The facts at their depths of a haystack that fills the prompt."""
    if haystack == "essay":
        query = wording.question + wording.lead
        return draft.filled(lambda window: wording.before + hide(window, facts, depths).strip(), query)
    random = draft.random
    lines = []
    if haystack == "needle":
        drawn = draw_different(partial(_draw, random, kinds[0]), draft.length // 4 + len(taken))
        names = [key for key in drawn if key not in taken]
        lines = [NEEDLE.format(kind=kinds[1], key=key, value=_draw(random, kinds[1])) for key in names]

    def render(count: int) -> str:
        text = lines[:count] if lines else [NOISE] * count
        for depth, fact in zip(reversed(depths), reversed(facts), strict=True):
            text.insert(round(depth * count), fact)
        return wording.before + "\n".join(text)

    return filled_with(draft, wording, render, len(lines) or draft.length // 8)


def vt(draft: Draft, *, hops: int = 4) -> Sample:
    """RULER's vt: a chain of assignments in noise; the score is the share of its variables named."""
    draft.check_range("hops", hops, 1, 100)
    random = draft.random
    names = draw_different(lambda: "".join(random.choices(string.ascii_uppercase, k=5)), hops + 1)
    value = str(random.randint(10_000, 99_999))
    sources = [value, *(f"VAR {name}" for name in names[:-1])]
    facts = [f"VAR {name} = {source}" for name, source in zip(names, sources, strict=True)]
    wording = Wording.from_template(VT, query=value, count=hops + 1)
    text = _around(draft, wording, "noise", facts, spread(random, len(facts)), ("", ""), ())
    room = len(text_ids(draft.tokenizer, ", ".join(names))) + 4  # RULER has 30, too few for some small vocabularies
    return sample_of(draft, wording, text, names, max(30, room), "string_match_all", facts)


RULER_TASKS = (
    niah("niah_single_1", "noise"),
    niah("niah_single_2", "essay"),
    niah("niah_single_3", "essay", kind="uuids"),
    niah("niah_multikey_1", "essay", keys=4),
    niah("niah_multikey_2", "needle"),
    niah("niah_multikey_3", "needle", key_kind="uuids", kind="uuids"),
    niah("niah_multivalue", "essay", values=4),
    niah("niah_multiquery", "essay", asked=4),
    drafted("ruler_vt", "RULER's vt, in its own wording", "vt")(vt),
    drafted("ruler_cwe", "RULER's cwe, in its own wording, with fewer repetitions", "cwe")(cwe),
    drafted("ruler_fwe", "RULER's fwe, in its own wording", "fwe")(fwe),
    qa("qa_1", hops=1),
    qa("qa_2", hops=2),
)
