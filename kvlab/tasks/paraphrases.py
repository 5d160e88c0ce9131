"""Needles that a question does not repeat: paraphrased facts, and facts of different kinds.

A question that repeats the fact's words can be answered by matching them (NoLiMa, arXiv 2502.05167). Here fact and
question share no content word; the pairs of wordings were written for kvlab.
"""

from dataclasses import dataclass
from random import Random

from kvlab.models.info import mini
from kvlab.models.info.mini import ADJECTIVES, NAMES
from kvlab.tasks.draft import Depth, Draft, drafted, spread
from kvlab.tasks.sample import Part, Sample

# (in the fact, in the question): the same thing in other words
SUBJECTS = (
    ("physician", "doctor"), ("automobile", "car"), ("infant", "baby"), ("attorney", "lawyer"), ("vessel", "ship"),
    ("monarch", "king"), ("hound", "dog"), ("steed", "horse"), ("residence", "house"), ("shop", "store"),
    ("sailor", "seaman"), ("pupil", "student"), ("burglar", "thief"), ("author", "writer"), ("cafe", "restaurant"),
    ("rock", "stone"), ("woods", "forest"), ("pilot", "airman"),
)  # fmt: skip


@dataclass(frozen=True)
class Paraphrase:
    """How a number is stated of a subject, and asked for in other words; the lead begins the answer."""

    statement: str
    question: str
    lead: str


PARAPHRASES = (
    Paraphrase("To call the {0}, dial {1}.", "What is the phone number of the {0}?", "The phone number of the {0} is"),
    Paraphrase("The {0} was sold for {1} dollars.", "What is the price of the {0}?", "The price of the {0} is"),
    Paraphrase("The {0} weighs {1} pounds.", "How heavy is the {0}?", "The mass of the {0} is"),
    Paraphrase("To let the {0} in, type {1}.", "What is the password of the {0}?", "The password of the {0} is"),
    Paraphrase("The {0} owes the bank {1} coins.", "How large is the debt of the {0}?", "The debt of the {0} is"),
    Paraphrase("The {0} has lived for {1} days.", "What is the age of the {0}?", "The age of the {0} is"),
    Paraphrase("Nature gave the {0} {1} hairs.", "How much fur grows on the {0}?", "The fur on the {0} counts"),
    Paraphrase("It takes {1} steps to walk to the {0}.", "How far away is the {0}?", "The distance of the {0} is"),
)


@drafted("needle_paraphrased", "a number hidden in a story; the question uses other words than the fact")
def needle_paraphrased(draft: Draft, *, depth: Depth = None, needles: int = 3) -> Sample:
    """`needles` facts about different subjects; the question for the one at `depth` shares no content word with it."""
    draft.check_range("needles", needles, 1, len(SUBJECTS))
    random = draft.random
    place = draft.place(depth)
    depths = spread(random, needles)
    subjects = random.sample(SUBJECTS, needles)
    values = mini.draw_values(random, needles)
    wordings = [random.choice(PARAPHRASES) for _ in subjects]
    facts = [
        wording.statement.format(subject, value)
        for wording, (subject, _), value in zip(wordings, subjects, values, strict=True)
    ]
    wording, (_, asked) = wordings[0], subjects[0]
    query = mini.ask(wording.question.format(asked), wording.lead.format(asked), (values[0],))
    return _asking_first(draft, query, facts, [place, *depths[1:]], "paraphrased")


@dataclass(frozen=True)
class Kind:
    """A kind of fact: how it is stated and asked for, and how its value is drawn."""

    name: str
    statement: str
    question: str
    lead: str

    def draw(self, random: Random) -> str:
        """A value of this kind."""
        if self.name == "date":
            return f"{random.randint(1, 28)} {random.choice(_MONTHS)}"
        if self.name == "words":
            return f"{random.choice(ADJECTIVES)} {random.choice(NAMES)}"
        if self.name == "person":
            return f"{random.choice(_TITLES)} {random.choice(_PEOPLE)}"
        if self.name == "code":
            return f"{random.choice('BCDFGHKLM')}{random.choice('NPRSTVWXZ')}-{random.randint(100, 999)}"
        return mini.draw_value(random)


_MONTHS = ("January", "February", "March", "April", "May", "June", "July", "August", "September", "October")
_TITLES = ("Doctor", "Captain", "Professor", "Madame")
_PEOPLE = ("Brown", "Carter", "Fischer", "Garcia", "Hansen", "Ito", "Kowalski", "Moreau", "Okafor", "Rossi")
KINDS = (
    Kind("number", "The {0} has the number {1}.", "Which number has the {0}?", "The {0} has the number"),
    Kind("date", "The {0} was opened on {1}.", "When was the {0} opened?", "The {0} was opened on"),
    Kind("words", "The password of the {0} is {1}.", "What is the password of the {0}?", "The password of the {0} is"),
    Kind("person", "The {0} belongs to {1}.", "To whom does the {0} belong?", "The {0} belongs to"),
    Kind(
        "code", "The label of the {0} reads {1}.", "What does the label of the {0} read?", "The label of the {0} reads"
    ),
)


@drafted("needle_mixed", "facts of different kinds (number, date, words, person, code), a question for one")
def needle_mixed(draft: Draft, *, depth: Depth = None, needles: int = 5) -> Sample:
    """`needles` facts of different kinds about different things; the one at `depth` is asked for in its own words."""
    draft.check_range("needles", needles, 1, len(NAMES))
    random = draft.random
    place = draft.place(depth)
    depths = spread(random, needles)
    names = random.sample(NAMES, needles)
    kinds = [KINDS[index % len(KINDS)] for index in random.sample(range(max(needles, len(KINDS))), needles)]
    values = [kind.draw(random) for kind in kinds]
    facts = [kind.statement.format(*pair) for kind, pair in zip(kinds, zip(names, values, strict=True), strict=True)]
    query = mini.ask(kinds[0].question.format(names[0]), kinds[0].lead.format(names[0]), (values[0],))
    return _asking_first(draft, query, facts, [place, *depths[1:]], kinds[0].name)


def _asking_first(draft: Draft, query: mini.Query, facts: list[str], depths: list[float], kind: str) -> Sample:
    """The facts hidden at their depths, and the question for the first of them."""
    order = sorted(range(len(facts)), key=depths.__getitem__)
    placed = [facts[one] for one in order]
    sample = draft.hiding(query, placed, [depths[one] for one in order], depth=depths[0])
    return sample.model_copy(update={"parts": (Part(kind=kind, text=facts[0]),)})
