"""Text of a document, and what it lacks."""

from __future__ import annotations

from dataclasses import dataclass

from kvlab.core.errors import UserError
from kvlab.requests.compare import LARGEST_PROMPT_BYTES

LARGEST_BYTES = 32 * 2**20  # of a file; its text must fit a prompt
TYPES = ("pdf", "docx", "html", "htm")


@dataclass(frozen=True)
class Document:
    """`left_out` has one sentence per omission."""

    text: str
    left_out: tuple[str, ...] = ()


class Lines:
    """Growing text, limited to the size of a prompt."""

    def __init__(self) -> None:
        self.parts: list[str] = []
        self._room = LARGEST_PROMPT_BYTES

    def add(self, text: str) -> None:
        """Append text. Raises UserError beyond the limit."""
        self._room -= len(text)
        if self._room < 0:
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
