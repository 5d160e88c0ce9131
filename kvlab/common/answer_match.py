"""Find an answer in a text, by one rule for comparisons, evaluations and `kvlab restore`.

Text and answer are folded first, much as Unicode's NFKC_Casefold does, so that case, composed and decomposed letters,
full-width digits, curly quotes and the amount of white space make no difference. A match must then stand alone: it may
not begin or end between two letters of a script that separates words by spaces, nor within a number. `ring` is not
found in `spring` nor 3 in 3.14, but 48213 is found in `48213号。` and `48213입니다`. An answer that is one number,
with a currency in front or a unit behind, matches by value (`kvlab.common.numerals`): 48213 is found in `48,213`.
"""

import re
import unicodedata
from array import array
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache

from kvlab.common.numerals import CURRENCIES, Span, numerals, quantity

LEAST_SCORE = 0.5  # of a full cache that can do a task: it answers half of the prompts
# First words of the Unicode names of letters of scripts that write no spaces between words, or, as Korean does, attach
# particles to a word without one.
_UNSPACED = frozenset(
    (
        "CJK",
        "HIRAGANA",
        "KATAKANA",
        "HANGUL",
        "BOPOMOFO",
        "IDEOGRAPHIC",
        "YI",
        "THAI",
        "LAO",
        "KHMER",
        "MYANMAR",
        "TIBETAN",
        "TAI",
        "JAVANESE",
        "BALINESE",
    )
)
_LATER_JAMO = range(0x1160, 0x1200)  # vowels and final consonants of a Hangul syllable
_SAME = str.maketrans(
    {**dict.fromkeys("‘’‚‛ʼ′`´", "'"), **dict.fromkeys("“”„‟″«»", '"'), **dict.fromkeys("‐‑‒–—―−", "-"), "İ": "i"}
)
# Default ignorable characters: soft hyphen, joiners, direction marks, byte order mark, variation selectors.
_IGNORED = re.compile("[\u00ad\u034f\u061c\u180b-\u180e\u200b-\u200f\u202a-\u202e\u2060-\u206f\ufe00-\ufe0f\ufeff]")
_NON_ASCII = re.compile(r"[^\x00-\x7f]+")


@dataclass(frozen=True)
class Folded:
    """Folded text; `sources[i]` is the index, in the text it was made from, of its character `i`."""

    text: str
    sources: Sequence[int]
    numbers: Sequence[Span] = ()  # places, in that text, that no match may cut

    def place(self, start: int, stop: int) -> Span:
        """The characters `start` to `stop` as a place of the source, with all of a number at either end."""
        covered = self.sources[start:stop]
        first = min(covered)
        last = max(covered)
        return min(first, self.number_at(first)[0]), max(last + 1, self.number_at(last)[1])

    def number_at(self, source: int) -> Span:
        """The number that holds a character of the source; an empty place without one."""
        found = bisect_right(self.numbers, source, key=lambda span: span[0]) - 1
        number = self.numbers[found] if found >= 0 else (source, source)
        return number if source < number[1] else (source, source)


@lru_cache(maxsize=32)
def fold(text: str) -> Folded:
    """Fold case, compatibility forms, quotes and dashes; letters are decomposed into base and marks."""
    if text.isascii():
        return Folded(text.lower().replace("`", "'"), range(len(text)))
    parts: list[str] = []
    sources = array("l")
    end = 0
    for run in _NON_ASCII.finditer(text):
        parts.append(text[end : run.start()].lower().replace("`", "'"))
        sources.extend(range(end, run.start()))
        # Characters beyond ASCII, each with the index of its source; marks of one letter in canonical order.
        folded: list[tuple[str, int]] = []
        for index, character in enumerate(run[0], start=run.start()):
            if not _IGNORED.match(character):
                folds = unicodedata.normalize("NFKD", character.translate(_SAME)).casefold()
                plain = unicodedata.normalize("NFKD", folds).translate(_SAME)
                folded += [(_digit(letter), index) for letter in plain]
        for last in range(1, len(folded)):
            at = last
            while at and 0 < unicodedata.combining(folded[at][0]) < unicodedata.combining(folded[at - 1][0]):
                folded[at - 1], folded[at] = folded[at], folded[at - 1]
                at -= 1
        parts += [character for character, _ in folded]
        sources.extend(source for _, source in folded)
        end = run.end()
    parts.append(text[end:].lower().replace("`", "'"))
    sources.extend(range(end, len(text)))
    return Folded("".join(parts), sources)


def find_answer(text: str, answer: str) -> tuple[int, int] | None:
    """(start, stop) of the answer's first match in characters of `text`; None without one or for an empty answer."""
    number = quantity(answer)
    if number is None:
        pattern = _words(answer)
    else:
        currency, numeral, unit = number
        # The value of -$5 is written with its currency in front: an answer without one is equal to it.
        before = f"[{CURRENCIES}]?" if numeral.value.startswith("-") and not currency else ""
        value = f"(?P<value>{before}{re.escape(numeral.value)})"
        pattern = r"\s*".join(filter(None, [_words(currency), value, _words(unit)]))
    if not pattern:
        return None
    folded = fold_for(text, answer)
    begun = 0
    while (match := re.compile(pattern).search(folded.text, begun)) is not None:
        fits = not any(_is_inside(folded, index) for index in match.span())
        if fits and number is not None:
            # The value has to be one whole number of the source.
            first, stop = match.span("value")
            span = folded.number_at(folded.sources[first])
            fits = span[0] < span[1] and span == folded.number_at(folded.sources[stop - 1])
        if fits:
            return folded.place(*match.span())
        begun = match.start() + 1
    return None


def _words(text: str) -> str:
    """A pattern of the folded words, with any white space between them."""
    return r"\s+".join(re.escape(word) for word in fold(text).text.split())


def fold_for(text: str, answer: str) -> Folded:
    """The folded text in which an answer is sought: its numbers in one spelling if the answer is a number."""
    if not numerals(answer):
        return fold(text)
    return _fold_numbers(text, quantity(answer) is not None)


@lru_cache(maxsize=32)
def _fold_numbers(text: str, by_value: bool) -> Folded:
    """Fold a text and note its numbers; with `by_value` each is written as its value."""
    found = numerals(text)
    places = [numeral.span for numeral in found]
    if not by_value:
        return replace(fold(text), numbers=places)
    parts = list[str]()
    sources = array("l")
    end = 0
    for numeral in found:
        start, stop = numeral.span
        parts += [text[end:start], numeral.value]
        sources.extend(range(end, start))
        # Each character of the value comes from the next digit of the text that is equal to it.
        source = start
        for character in numeral.value:
            source = next((at for at in range(source, stop) if _digit(text[at]) == character), source)
            sources.append(min(source, stop - 1))
            source += 1
        end = stop
    sources.extend(range(end, len(text)))
    folded = fold("".join([*parts, text[end:]]))
    return Folded(folded.text, [sources[place] for place in folded.sources], places)


def starts_word(folded: Folded, index: int) -> bool:
    """Whether a match may begin at character `index` of a folded text."""
    return not folded.text[index].isspace() and not _is_inside(folded, index)


def _digit(character: str) -> str:
    """A decimal digit of any script as 0 to 9."""
    return str(unicodedata.decimal(character)) if character.isdecimal() else character


def _is_inside(folded: Folded, index: int) -> bool:
    """Whether character `index` and the one before it belong to one letter, one number or one word."""
    text = folded.text
    if not 0 < index < len(text):
        return False
    first, last = sorted(folded.sources[index - 1 : index + 1])
    is_one_character = first == last  # such as ½ = 1⁄2
    begin, end = folded.number_at(first)
    if is_one_character or (begin <= first and last < end) or _continues_letter(text[index]):
        return True
    base = index - 1  # of the letter before, whose marks stand behind it
    while base and _continues_letter(text[base]):
        base -= 1
    before = text[base]
    after = text[index]
    return (before.isdecimal() and after.isdecimal()) or (_is_spaced_letter(before) and _is_spaced_letter(after))


def _continues_letter(character: str) -> bool:
    return unicodedata.category(character).startswith("M") or ord(character) in _LATER_JAMO


@lru_cache(maxsize=4096)
def _is_spaced_letter(character: str) -> bool:
    return character.isalpha() and unicodedata.name(character, "").split(" ")[0] not in _UNSPACED
