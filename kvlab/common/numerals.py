"""Numbers as texts write them: where each one begins and ends, and one way to write each value.

A number is read as a whole: sign, decimals, thousands separators, fraction, power of ten. What is no quantity keeps its
own form: times, dates, versions, phone numbers and codes with leading zeros. The rules are in docs/tasks.md.
"""

import re
import unicodedata
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache
from math import gcd

Span = tuple[int, int]

# Written for one another inside numbers; every character stands for one, so that places stay.
_SAME = str.maketrans(
    {
        **dict.fromkeys("−‒–‐‑﹣－", "-"),
        **dict.fromkeys("\u00a0\u2007\u2008\u2009\u200a\u202f\u205f", " "),
        **dict.fromkeys("’ʼ′＇", "'"),
        **dict.fromkeys("⁄∕", "/"),
        "＋": "+",
        "．": ".",
        "，": ",",
        "：": ":",
        "٫": ".",
        "٬": ",",
        "＿": "_",
    }
)
_BEYOND_ASCII = re.compile(r"[^\x00-\x7f]")
CURRENCIES = "$€£¥₹₽₩₺₫₴₦₱฿¢"
_SINGLE = [chr(code) for code in range(0xB2, 0x3400) if unicodedata.category(chr(code)) == "No"]
_VULGAR = "".join(one for one in _SINGLE if re.fullmatch("[0-9]+\u2044[0-9]+", unicodedata.normalize("NFKD", one)))
_RAISED = "".join(one for one in _SINGLE if one not in _VULGAR)  # superscripts, subscripts, numbers in circles
_SUPERSCRIPTS = "⁰¹²³⁴⁵⁶⁷⁸⁹"
# A sign belongs to a number that follows nothing it could be subtracted from or joined to by a hyphen.
_SIGN = rf"(?:(?<![0-9A-Za-zÀ-ÖØ-öø-\u0dff)\]}}'%°])[-+](?=[{CURRENCIES}]?[.]?[\d{_VULGAR}]))?"
_GROUPED = "|".join(
    (
        r"[1-9]\d{0,2}(?:,\d{3})+(?:\.\d+)?",  # 48,213.50
        r"[1-9]\d?(?:,\d{2})+,\d{3}(?:\.\d+)?",  # 1,00,000
        r"[1-9]\d{0,2}(?:\ \d{3})+(?:[.,]\d+)?",  # 48 213,50
        r"[1-9]\d{0,2}(?:'\d{3})+(?:[.,]\d+)?",  # 48'213.50
        r"[1-9]\d{0,2}(?:_\d{3})+(?:\.\d+)?",  # 48_213
        r"[1-9]\d{0,2}(?:\.\d{3}){2,}(?:,\d+)?",  # 1.048.213
        r"[1-9]\d{0,2}\.\d{3},\d+",  # 48.213,50
    )
)
_DECIMALS = r"\.\d+|(?<!\d,\d)(?<!\d,\d\d)(?<!\d,\d\d\d),(?!\d{3}(?!\d))\d+(?![,.]?\d)"
_NUMERAL = re.compile(
    rf"""
    (?=[-+.\d{_VULGAR}{_RAISED}])
    (?:(?P<parts> \d+(?::\d+)+(?:\.\d+)? | \d+(?:/\d+){{2,}} | \d+(?:-\d+){{2,}} )  # 12:30, 1/2/2024, 2024-01-02
  | (?P<sign>{_SIGN})(?P<currency>(?<=[-+])[{CURRENCIES}])?(?:
      (?P<power> 10 (?:(?:\^|\*\*)[-+]?\d{{1,4}}(?!\d) | ⁻?[{_SUPERSCRIPTS}]{{1,4}}) )
    | (?P<mixed> (?:(?P<units>\d{{1,9}})\ ?)?(?P<vulgar>[{_VULGAR}]) )
    | (?P<raised> \d*[{_RAISED}]+ )
    | (?P<fraction> (?:(?P<whole>\d{{1,9}})\ )?(?P<top>\d{{1,9}})/(?P<bottom>[1-9]\d{{0,8}})(?![.,:/]?\d) )
    | (?P<grouped> (?:{_GROUPED})(?![.,'_]?\d) )
    | (?P<version> \d+(?:\.\d+){{2,}} )
    | (?P<plain> (?: 0,\d+(?![,.]?\d) | \d+(?:{_DECIMALS})? | (?<![\w.)])\.\d+ ) (?:[eE][-+]?\d{{1,4}}(?!\w))? )
    ))
    """,
    re.VERBOSE,
)


@dataclass(frozen=True)
class Numeral:
    """A number of a text: its place, and its value written in one way (with currency and sign in front)."""

    span: Span
    value: str


@lru_cache(maxsize=32)
def numerals(text: str) -> Sequence[Numeral]:
    """The numbers of a text, in order."""
    plain = _BEYOND_ASCII.sub(_plain_character, text)
    return tuple(Numeral(match.span(), _value(match)) for match in _NUMERAL.finditer(plain))


def quantity(text: str) -> tuple[str, Numeral, str] | None:
    """(currency in front, number, unit behind) of a text that is one number; None for any other."""
    text = text.strip()
    found = numerals(text)
    if len(found) != 1:
        return None
    start, stop = found[0].span
    before = text[:start].strip()
    after = text[stop:].strip().rstrip(".")
    if before.strip(CURRENCIES) or any(character.isnumeric() for character in before + after):
        return None
    return before, found[0], after


def _plain_character(match: re.Match[str]) -> str:
    """A decimal digit of any script as 0 to 9, a sign or separator as its common form."""
    character = match[0].translate(_SAME)
    return str(unicodedata.decimal(character)) if character.isdecimal() else character


def _value(match: re.Match[str]) -> str:
    """The value of a matched number, in one spelling."""
    if match["parts"] is not None:
        return re.sub(r"\d+", lambda part: part[0].lstrip("0") or "0", match["parts"])
    # The value of a matched number without its sign.
    value = next(read(match) for kind, read in _VALUES.items() if match[kind] is not None)
    return f"{match['currency'] or ''}{'-' if match['sign'] == '-' and value != '0' else ''}{value}"


def _power(match: re.Match[str]) -> str:
    exponent = unicodedata.normalize("NFKC", match["power"].removeprefix("10").lstrip("^*")).replace("\u2212", "-")
    return _decimal("1", int(exponent))


def _mixed(match: re.Match[str]) -> str:
    top, bottom = map(int, unicodedata.normalize("NFKD", match["vulgar"]).split("\u2044"))
    return _fraction(int(match["units"] or 0) * bottom + top, bottom) if bottom else match[0]


def _raised(match: re.Match[str]) -> str:
    """Digits with superscripts or subscripts are no quantity; alone, such a sign is its number."""
    digits = match["raised"].rstrip(_RAISED)
    signs = [f"{unicodedata.numeric(sign):g}" for sign in match["raised"][len(digits) :]]
    return f"{digits}^{''.join(signs)}" if digits else "".join(signs)


def _slashed(match: re.Match[str]) -> str:
    top = int(match["top"])
    bottom = int(match["bottom"])
    if match["whole"] is None:
        return _fraction(top, bottom)
    return _fraction(int(match["whole"]) * bottom + top, bottom) if top < bottom else match["fraction"]


def _grouped(match: re.Match[str]) -> str:
    """The value of a number with thousands separators; a last separator that differs from them begins decimals."""
    separators = re.findall(r"\D", match["grouped"])
    groups = re.split(r"\D", match["grouped"])
    decimals = groups[-1] if separators[-1] != separators[0] else ""
    return _decimal("".join(groups), -len(decimals))


def _plain(match: re.Match[str]) -> str:
    """The value of digits with a decimal point or comma and a power of ten; a code with leading zeros as it is."""
    mantissa, _, exponent = match["plain"].lower().partition("e")
    whole, _, decimals = mantissa.replace(",", ".").partition(".")
    if len(whole) > 1 and whole.startswith("0"):
        return match["plain"]
    return _decimal(whole + decimals, int(exponent or 0) - len(decimals))


_VALUES: dict[str, Callable[[re.Match[str]], str]] = {
    "power": _power,
    "mixed": _mixed,
    "raised": _raised,
    "fraction": _slashed,
    "grouped": _grouped,
    "version": lambda match: match["version"],
    "plain": _plain,
}


def _fraction(top: int, bottom: int) -> str:
    """A fraction: as a decimal number where one ends, else in lowest terms; one that is whole stays a fraction."""
    if top % bottom == 0:
        return f"{top}/{bottom}"
    exact = Fraction(top, bottom)
    rest = exact.denominator
    places = 0
    while (shared := gcd(rest, 10)) > 1:
        rest = rest // shared
        places = places + 1
    if rest > 1:
        return f"{exact.numerator}/{exact.denominator}"
    return _decimal(str(exact.numerator * 10**places // exact.denominator), -places)


def _decimal(digits: str, exponent: int) -> str:
    """digits * 10^exponent without leading zeros, or zeros at the end of decimals."""
    digits = digits.lstrip("0")
    if not digits:
        return "0"
    if exponent >= 0:
        return digits + "0" * exponent
    digits = digits.rjust(1 - exponent, "0")
    decimals = digits[exponent:].rstrip("0")
    return digits[:exponent] + (f".{decimals}" if decimals else "")
