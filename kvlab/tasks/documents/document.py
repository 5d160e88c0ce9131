"""Text of a document, and what it lacks."""

import re
from dataclasses import dataclass, field

from kvlab.core.errors import UserError
from kvlab.requests.compare import LARGEST_PROMPT_BYTES

LARGEST_BYTES = 32 * 2**20  # of a file; its text must fit a prompt
TYPES = ("pdf", "docx", "html", "htm", "ipynb")
HIDDEN = "hidden part"  # noun of text that a reader of the document does not see
ORDINALS = ("st", "nd", "rd", "th")
ROMAN = ((1000, "m"), (900, "cm"), (500, "d"), (400, "cd"), (100, "c"), (90, "xc"), (50, "l"), (40, "xl"), (10, "x"))
SMALL_ROMAN = ("", "i", "ii", "iii", "iv", "v", "vi", "vii", "viii", "ix")


@dataclass(frozen=True)
class Document:
    """`left_out` has one sentence per omission."""

    text: str
    left_out: tuple[str, ...] = ()


@dataclass
class Lines:
    """Growing text, limited to the size of a prompt."""

    parts: list[str] = field(default_factory=list)
    room: int = LARGEST_PROMPT_BYTES  # characters that may follow

    def add(self, text: str) -> None:
        """Append text. Raises UserError beyond the limit."""
        self.room -= len(text)
        if self.room < 0:
            raise UserError(
                f"The document has more than {LARGEST_PROMPT_BYTES // 2**20} million characters of text: save the part "
                "you need as a separate file."
            )
        self.parts.append(text)

    @property
    def text(self) -> str:
        """The text without unpaired surrogates, trailing white space and repeated empty lines."""
        lines = "".join(self.parts).encode("utf-8", "replace").decode("utf-8").replace("\0", "").splitlines()
        kept: list[str] = []
        for line in lines:
            if line.strip() or (kept and kept[-1]):
                kept.append(line.rstrip())
        return "\n".join(kept).strip("\n")


def raise_script(text: str, sign: str) -> str:
    """Text with the sign `^` of a superscript or `_` of a subscript: 10^6, x^(n+1), people^[1]; ordinals need none."""
    written = text.strip()
    if not written or (sign == "^" and written.lower() in ORDINALS):
        return text
    alone = re.fullmatch(r"[+\-\u2212]?[\w.,'\u2032*]+|\[[^\[\]]*\]|\([^()]*\)", written)
    return sign + (written if alone else f"({written})")


def number_as(kind: str, number: int) -> str:
    """A number of a list in the style `a`, `A`, `i` or `I`; any other style is decimal."""
    if kind.lower() == "a" and number > 0:
        letters = ""
        rest = number
        while rest:
            rest, last = divmod(rest - 1, 26)
            letters = chr(ord("a") + last) + letters
        return letters if kind == "a" else letters.upper()
    if kind.lower() == "i" and 0 < number < 4000:
        words = ""
        rest = number
        for value, letters in ROMAN:
            words += letters * (rest // value)
            rest %= value
        words += SMALL_ROMAN[rest]
        return words if kind == "i" else words.upper()
    return str(number)
