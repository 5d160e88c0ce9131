"""Numbers as texts write them: where each one begins and ends, and one way to write each value.

A number is read as a whole: sign, decimals, thousands separators, fraction, power of ten. What is no quantity keeps its
own form: times, dates, versions, phone numbers and codes with leading zeros. The rules are in docs/tasks.md.
"""

import re
import unicodedata
from collections.abc import Sequence
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
_DIGITS_BEYOND_ASCII = re.compile(r"(?![0-9])\d")
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
    # A decimal digit of any script as 0 to 9, a sign or separator as its common form.
    plain = _DIGITS_BEYOND_ASCII.sub(lambda digit: str(unicodedata.decimal(digit[0])), text.translate(_SAME))
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


def _value(match: re.Match[str]) -> str:
    """The value of a matched number, in one spelling."""
    if match["parts"] is not None:
        return re.sub(r"\d+", lambda part: part[0].lstrip("0") or "0", match["parts"])
    if match["power"] is not None:
        exponent = unicodedata.normalize("NFKC", match["power"].removeprefix("10").lstrip("^*")).replace("\u2212", "-")
        value = _decimal("1", int(exponent))
    elif match["mixed"] is not None:
        top, bottom = map(int, unicodedata.normalize("NFKD", match["vulgar"]).split("\u2044"))
        value = _fraction(int(match["units"] or 0) * bottom + top, bottom) if bottom else match[0]
    elif match["raised"] is not None:
        # Digits with superscripts or subscripts are no quantity; alone, such a sign is its number.
        digits = match["raised"].rstrip(_RAISED)
        signs = "".join(f"{unicodedata.numeric(sign):g}" for sign in match["raised"][len(digits) :])
        value = f"{digits}^{signs}" if digits else signs
    elif match["fraction"] is not None:
        top = int(match["top"])
        bottom = int(match["bottom"])
        # Behind a whole number a fraction below 1 belongs to it; any other stays as it is written.
        is_read = match["whole"] is None or top < bottom
        value = _fraction(int(match["whole"] or 0) * bottom + top, bottom) if is_read else match["fraction"]
    elif match["grouped"] is not None:
        # Thousands separators; a last separator that differs from them begins decimals.
        separators = re.findall(r"\D", match["grouped"])
        groups = re.split(r"\D", match["grouped"])
        decimals = groups[-1] if separators[-1] != separators[0] else ""
        value = _decimal("".join(groups), -len(decimals))
    elif match["version"] is not None:
        value = match["version"]
    else:
        # Digits with a decimal point or comma and a power of ten; a code with leading zeros stays as it is.
        mantissa, _, exponent = match["plain"].lower().partition("e")
        whole, _, decimals = mantissa.replace(",", ".").partition(".")
        is_code = len(whole) > 1 and whole.startswith("0")
        value = match["plain"] if is_code else _decimal(whole + decimals, int(exponent or 0) - len(decimals))
    return f"{match['currency'] or ''}{'-' if match['sign'] == '-' and value != '0' else ''}{value}"


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
