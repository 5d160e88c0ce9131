"""The embedded model: its card, and phrasings of its synthetic prompts, shared by its training and by kvlab/tasks.

Every form has *statements* (what to remember) and a *query*: the question, beginning with a newline and ending just
before the answer. An answer begins with a space and is followed by TAIL, so greedy decoding may stop at the first
newline. A whole prompt is BOS + context + query. Names are single tokens; a value has five digits, one token each.
Statements are between sentences of real text, with one space before and after. Pure Python: no torch.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from random import Random

from kvlab.core import UserError, asset_path

CARD = "mini/README.md"
CANNOT = "## What it cannot do"


@dataclass(frozen=True)
class Taught:
    """One way of stating something and asking for it; "…" is a placeholder."""

    kind: str
    statement: str
    question: str


def taught() -> list[Taught]:
    """The ways of asking used in training, as in a prompt."""
    needles = [
        Taught("a number", needle_statement(one, "…", "…"), needle_query(one, "…", "…").prompt)
        for one in NEEDLE_PHRASINGS
    ]
    pairs = key_value_list([("…", "…")])
    labels = "Labels:\n" + FEW_SHOT_EXAMPLE.format(adjective="…", noun="…", label="…")
    chain = " ".join(variable_chain(["…", "…"], "…"))
    return [
        *needles,
        Taught("a list of records", pairs, key_value_query("…", "…").prompt),
        Taught("a chain of variables", chain, variable_query(["…"], "…").prompt),
        Taught("labels by example", labels, few_shot_query("…", "…", "…").prompt),
    ]


def cannot_do() -> str:
    """The section of the card on what mini cannot do, on one line."""
    text = asset_path(CARD).read_text(encoding="utf-8")
    return " ".join(text.split(CANNOT, 1)[1].split("\n## ")[0].split())


# Whole books held out from all training: from the tokenizer, the text loss and the haystacks.
VALIDATION_BOOKS = ("alice_in_wonderland", "great_gatsby", "jekyll_and_hyde", "sherlock_holmes")

_PROSE_LINE = 45  # a line at least this long was broken by the typesetter; shorter ones are verse, titles or speech


def book_paths(corpus: Path) -> dict[str, Path]:
    """Plain-text books of a corpus folder by name; raises UserError if there are none."""
    folder = corpus / "books" if (corpus / "books").is_dir() else corpus
    paths = {path.stem: path for path in sorted(folder.glob("*.txt"))}
    if not paths:
        raise UserError(
            f"No .txt books in {corpus}: pass a folder with plain-text books (or a books/ folder) to --corpus."
        )
    return paths


def read_book(path: Path) -> str:
    """One book, its wrapped prose joined into one line per paragraph; verse and headings keep their line breaks."""
    text = path.read_text(encoding="utf-8", errors="strict")
    text = text.replace("\r\n", "\n").replace("\t", " ").lstrip("\ufeff")
    text = re.sub(rf"(?m)^(.{{{_PROSE_LINE},}}?)[ ]*\n(?=\S)", r"\1 ", text)
    return re.sub(r"\n{3,}", "\n\n", text).strip() + "\n"


# ruff: noqa: SIM905 (a list of two hundred quoted words is harder to read)

NAMES = tuple(
    """
    king girl boy horse law heart mother father house door voice face room lady knight queen prince duke uncle
    aunt sister brother wife husband daughter friend enemy captain doctor soldier servant stranger maid squire
    officer judge author poet prisoner gentleman lord army troops battle sword shield crown castle church
    prison garden forest street road village town city country island river sea ship boat shore wall chamber
    table chair bed window gate floor corner letter book paper story song music dream dinner breakfast bread
    wine tea water fire cloud rain wind sun moon earth ground field hill tree bird cat dog whale silver gold
    iron glass stone wood coat hat dress ring watch pocket box card bell pen gun carriage coach journey
    winter summer spring evening morning night day hour week month year minute money fortune business work
    school society company party crowd nation people world heaven spirit soul mind memory thought reason truth
    faith virtue justice honour glory courage passion pride pity joy grief sorrow fear hope love hate peace
    war danger trouble pain sleep death life birth youth marriage family child infant master mistress reader
    beast creature body head hair eye ear nose mouth tongue teeth neck shoulder arm hand breast leg foot blood
    smile laugh cry breath secret history adventure reply subject object idea opinion promise advice
    """.split()
)

ADJECTIVES = tuple(
    """
    blue green red white black bright cold warm old young deep wide strong weak quick slow quiet silent gentle
    proud wise noble poor rich sweet bitter hard soft dark pale fresh heavy light small large great little
    happy sad brave bold calm clean clear
    """.split()
)


TRAINING_SEED_START = 10_000_000  # training uses seeds from here on, evaluation lower ones
TAIL = ".\n"  # follows every answer
VALUE_DIGITS = 5
_GIVEN_WORDS = 3  # of a text to copy


@dataclass(frozen=True)
class Query:
    """One question: `prompt` ends just before the answer, `answer` starts with a space; `targets` are its parts."""

    prompt: str
    answer: str
    targets: tuple[str, ...]


QUESTION = "\nQuestion: "
ANSWER = "\nAnswer:"


def split_query(prompt: str) -> tuple[str, str] | None:
    """(question, first words of the answer) of a query's prompt; None for another text."""
    question, found, lead = prompt.removeprefix(QUESTION).partition(ANSWER)
    return (question, lead.strip()) if found and prompt.startswith(QUESTION) else None


def ask(question: str, lead: str, targets: Sequence[str]) -> Query:
    """A query in the common form of all tasks; `lead` repeats the question's words up to the answer."""
    return Query(f"{QUESTION}{question}{ANSWER}{' ' + lead if lead else ''}", " " + ", ".join(targets), tuple(targets))


def draw_value(random: Random, digits: int = VALUE_DIGITS) -> str:
    """A number with exactly `digits` digits, as text."""
    return str(random.randrange(10 ** (digits - 1), 10**digits))


def draw_values(random: Random, count: int, digits: int = VALUE_DIGITS) -> list[str]:
    """`count` different numbers."""
    values: dict[str, None] = {}
    while len(values) < count:
        values[draw_value(random, digits)] = None
    return list(values)


# --- needles -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class NeedlePhrasing:
    """How a needle is stated and asked for, and how its answer starts."""

    statement: str
    question: str
    lead: str


NEEDLE_PHRASINGS = (
    NeedlePhrasing(
        "The secret number of the {name} is {value}.",
        "What is the secret number of the {name}?",
        "The secret number of the {name} is",
    ),
    NeedlePhrasing(
        "One of the special magic numbers for {name} is: {value}.",
        "What is the special magic number for {name}?",
        "The special magic number for {name} is:",
    ),
    NeedlePhrasing(
        "Remember that the code of the {name} is {value}.",
        "What is the code of the {name}?",
        "The code of the {name} is",
    ),
    NeedlePhrasing(
        "The {name} was given the number {value}.",
        "Which number was the {name} given?",
        "The {name} was given the number",
    ),
    NeedlePhrasing(
        "In the ledger the {name} stands at {value}.",
        "Where does the {name} stand in the ledger?",
        "In the ledger the {name} stands at",
    ),
)


def needle_statement(phrasing: NeedlePhrasing, name: str, value: str) -> str:
    """The sentence that states `value` for `name`."""
    return phrasing.statement.format(name=name, value=value)


def needle_query(phrasing: NeedlePhrasing, name: str, value: str) -> Query:
    """The question for one needle (single needle, or multi-key if other names are stated too)."""
    return ask(phrasing.question.format(name=name), phrasing.lead.format(name=name), (value,))


def multi_value_query(name: str, values: Sequence[str]) -> Query:
    """The question for all values stated for one name, in order."""
    return ask(f"What are all the numbers of the {name}?", f"The numbers of the {name} are", values)


def multi_query(names: Sequence[str], values: Sequence[str], phrasing: NeedlePhrasing = NEEDLE_PHRASINGS[0]) -> Query:
    """One question for several needles stated in `phrasing`; the answer has a sentence for each."""
    lead, *others = [phrasing.lead.format(name=name) for name in names]
    answer = f" {values[0]}" + "".join(f". {say} {value}" for say, value in zip(others, values[1:], strict=True))
    return Query(ask(f"What are the numbers of {', '.join(names)}?", lead, ()).prompt, answer, tuple(values))


# --- key-value lists ---------------------------------------------------------------------------------------------


def key_value_list(pairs: Sequence[tuple[str, str]]) -> str:
    """The list, one "key: value" line per pair."""
    return "Records:\n" + "".join(f" {key}: {value}\n" for key, value in pairs)


def key_value_query(key: str, value: str) -> Query:
    """The question for one key."""
    return ask(f"Which value has {key}?", f"{key}:", (value,))


# --- variable tracking -------------------------------------------------------------------------------------------


def variable_chain(names: Sequence[str], value: str) -> list[str]:
    """A chain of assignments: the first variable gets the value, each other the one before it.

    RULER writes the receiver first ("VAR B = VAR A"); here it comes last, so that a chain reads forwards.
    """
    sources = [value, *(f"VAR {name}" for name in names[:-1])]
    return [f"{source} -> VAR {name}." for source, name in zip(sources, names, strict=True)]


def variable_query(names: Sequence[str], value: str) -> Query:
    """The question for every variable that has the value; the answer follows the chain."""
    answer = "".join(f" -> VAR {name}" for name in names).removeprefix(" ->")
    prompt = ask(f"Which variables hold the value {value}?", f"{value} ->", ()).prompt
    return Query(prompt, answer, tuple(names))


# --- few-shot labels ---------------------------------------------------------------------------------------------


# One line that maps an item to its class; the noun decides, the adjective does not.
FEW_SHOT_EXAMPLE = " {adjective} {noun} -> {label}\n"


def few_shot_list(random: Random, classes: Sequence[tuple[str, str]], shots: int) -> str:
    """`shots` examples of each (noun, label) class in random order, with varying adjectives."""
    lines = [
        FEW_SHOT_EXAMPLE.format(adjective=adjective, noun=noun, label=label)
        for noun, label in classes
        for adjective in random.sample(ADJECTIVES, shots)
    ]
    random.shuffle(lines)
    return "Labels:\n" + "".join(lines)


def few_shot_query(adjective: str, noun: str, label: str) -> Query:
    """The question for the label of another item."""
    return ask("Which label?", f"{adjective} {noun} ->", (label,))


# --- common and frequent words -----------------------------------------------------------------------------------


def word_list(words: Sequence[str]) -> str:
    """The words of a common-words or frequent-words task, ten per line, in the given order."""
    lines = [" ".join(words[start : start + 10]) for start in range(0, len(words), 10)]
    return "Words:\n" + "".join(f" {line}\n" for line in lines)


def common_words_query(words: Sequence[str]) -> Query:
    """The question for the most frequent words, in descending order."""
    return ask(f"Which {len(words)} words occur most often?", "The most common words are", words)


# --- copy and arithmetic -----------------------------------------------------------------------------------------


COPY_CONTEXT = "Text: {span}"  # the text to copy
ARITHMETIC_STATEMENT = "The {name} has {count} coins."  # a number from 0 to 49


def copy_query(span: str) -> Query:
    """The request to copy the text word for word, starting with its first words."""
    words = span.split(" ")
    given = min(_GIVEN_WORDS, len(words) - 1)
    rest = " ".join(words[given:])
    return Query(ask("Copy the text.", " ".join(words[:given]), ()).prompt, f" {rest}", (rest,))


def arithmetic_query(first: str, second: str, counts: tuple[int, int]) -> Query:
    """The question for the sum; the answer repeats both numbers and ends with their sum."""
    a, b = counts
    prompt = ask(f"How many coins have the {first} and the {second}?", f"The {first} has", ()).prompt
    return Query(prompt, f" {a} coins. The {second} has {b} coins. Together they have {a + b}", (str(a + b),))
