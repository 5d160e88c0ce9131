"""Rules for an answer that a program can check: how each is drawn, worded and checked. Torch-free.

Kinds of rules are those of IFEval (arXiv 2311.07911) that need no other model to judge them; wording and checks are
kvlab's own.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from random import Random

from kvlab.common.answer_match import find_answer
from kvlab.core.errors import UserError
from kvlab.models.info.mini import NAMES

_MARKS = " \t\n\"'“”‘’*_.,!?:;-–()"  # around a phrase; they do not count at an answer's start or end
_SENTENCE = re.compile(r"[^.!?\n]*[A-Za-z0-9][^.!?\n]*")
_LIST_LINE = re.compile(r"\s*(?:[-*•]|\d+[.)])\s+\S")


@dataclass(frozen=True)
class Rule:
    """One rule as drawn. `kind` is its name in tables, `label` and `value` word it; `check` is a name in `CHECKS`.

    `opening`: an answer may begin with this label, as in a form.
    """

    kind: str
    label: str
    value: str
    check: str
    wanted: str  # what the check takes
    opening: bool = False

    @property
    def text(self) -> str:
        """The sentence that states the rule."""
        return f"The {self.label} {'are' if self.label.endswith('s') else 'is'}: {self.value}."

    @property
    def spec(self) -> str:
        """`check=wanted`, as `obeys` reads it."""
        return f"{self.check}={self.wanted}"


@dataclass(frozen=True)
class RuleKind:
    """How a kind of rule is drawn: one of `words`, if any, in the templates of its value and of what is wanted."""

    label: str
    check: str
    words: Sequence[object] = ()
    value: str = "{0}"
    wanted: str = "{0}"

    def draw(self, kind: str, random: Random) -> Rule:
        """A rule of the kind of this name."""
        word = random.choice(self.words) if self.words else ""
        is_phrase = self.check in ("starts_with", "contains", "ends_with")
        return Rule(kind, self.label, self.value.format(word), self.check, self.wanted.format(word), opening=is_phrase)


_NAMES = tuple(name.capitalize() for name in NAMES)
_COLOURS = ("Purple", "Green", "Yellow", "Orange", "Silver", "Golden", "Brown", "Pink")
_CITIES = ("Bergen", "Oslo", "Turin", "Porto", "Lyon", "Geneva", "Dublin", "Prague", "Vienna", "Cairo")

# The first five are phrases that the answer repeats.
KINDS: Mapping[str, RuleKind] = {
    "first words": RuleKind("greeting", "starts_with", _NAMES, "Ahoy {0}", "Ahoy {0}"),
    "required word": RuleKind("colour", "contains", _COLOURS),
    "place": RuleKind("city", "contains", _CITIES),
    "signature": RuleKind("signature", "contains", _NAMES, "Captain {0}", "Captain {0}"),
    "last words": RuleKind("closing words", "ends_with", _NAMES, "Mind the {0}", "Mind the {0}"),
    "most words": RuleKind("greatest length", "most words", range(30, 61, 10), "{0} words"),
    "sentences": RuleKind("sentence count", "sentences", range(1, 4), "{0} sentences"),
    "forbidden word": RuleKind("forbidden word", "without", ("the", "is", "and", "of", "in")),
    "letter case": RuleKind("letters", "letters", ("capital", "small"), "{0} letters"),
    "list": RuleKind("format", "list", value='a list with "- " before every line'),
}
PHRASES = 5
MOST_RULES = len(KINDS) - 2


def draw_rules(random: Random, count: int) -> list[Rule]:
    """`count` rules of different kinds in random order, at least half of them phrases.

    A list of sentences is a contradiction to a small model, so the two kinds are not drawn together.
    """
    phrases = list(KINDS)[:PHRASES]
    forms = list(KINDS)[PHRASES:]
    forms.remove(random.choice(("sentences", "list")))
    few = min(count // 2, len(forms))
    chosen = [*random.sample(forms, max(few, count - len(phrases)))]
    chosen += random.sample(phrases, count - len(chosen))
    random.shuffle(chosen)
    return [KINDS[kind].draw(kind, random) for kind in chosen]


_STATED = re.compile(r"The ([^:\n]+?) (?:is|are): ([^\n]+)\.")


def stated_rule(text: str) -> Rule | None:
    """The rule that a line of a prompt states in the words of `Rule.text`; None if it states none."""
    match = _STATED.search(text)
    for name, kind in KINDS.items() if match else ():
        like = kind.draw(name, Random(0))
        if match is not None and like.label == match[1]:
            number_or_case = like.check in ("most words", "sentences", "letters")
            wanted = match[2].split()[0] if number_or_case else "" if like.check == "list" else match[2]
            return replace(like, value=match[2], wanted=wanted)
    return None


# Names of the checks of `obeys`.
CHECKS = ("starts_with", "ends_with", "contains", "without", "most words", "sentences", "letters", "list")


def obeys(text: str, spec: str) -> bool:
    """Whether a text obeys a rule given as `check=wanted`, or a text that it must contain; an empty text obeys none.

    Raises UserError for a check that does not exist.
    """
    check, found, wanted = spec.partition("=")
    if not found:
        check = "contains"
        wanted = spec
    if check not in CHECKS:
        raise UserError(f"There is no rule '{check}': write one of {', '.join(CHECKS)}, as in contains=word.")
    if not text.strip():
        return False
    match check:
        case "starts_with":
            return text.lstrip(_MARKS).lower().startswith(wanted.lower()) and find_answer(text, wanted) is not None
        case "ends_with":
            bare = text.rstrip(_MARKS).lower()
            return bare.endswith(wanted.lower()) and find_answer(bare[-len(wanted) - 1 :], wanted) is not None
        case "contains" | "without":
            return (find_answer(text, wanted) is None) == (check == "without")
        case "most words":
            # runs of letters and digits, apostrophes and hyphens inside included
            return len(re.findall(r"\w+(?:['’-]\w+)*", text)) <= int(wanted)
        case "sentences":
            # ended by a full stop, mark or line break; pieces without a letter or digit are none
            return len(_SENTENCE.findall(text)) == int(wanted)
        case "letters":
            letters = [letter for letter in text if letter.isalpha()]
            cased = str.upper if wanted == "capital" else str.lower
            return bool(letters) and all(letter == cased(letter) for letter in letters)
        case _:
            return all(_LIST_LINE.match(line) for line in text.splitlines() if line.strip())


def rule_score(prediction: str, answers: Sequence[str], classes: Sequence[str] = (), *, wholly: bool = False) -> float:
    """The share of the rules, given as `check=wanted`, that the prediction obeys; `wholly`: 1 if it obeys every one."""
    obeyed = (obeys(prediction, spec) for spec in answers)
    return float(all(obeyed)) if wholly else sum(obeyed) / len(answers)
