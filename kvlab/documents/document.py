"""The text of a document, and what of the document is not in it."""

from __future__ import annotations

from dataclasses import dataclass

from kvlab.common.errors import UserError
from kvlab.requests.compare import LARGEST_PROMPT_BYTES

LARGEST_BYTES = 32 * 2**20  # of a file; its text has to fit a prompt
TYPES = ("pdf", "docx", "html", "htm")


@dataclass(frozen=True)
class Document:
    """`left_out` holds sentences, none where the text is all there is."""

    text: str
    left_out: tuple[str, ...] = ()


class Lines:
    """Text that grows, and ends in one sentence where it becomes more than a prompt can be."""

    def __init__(self) -> None:
        self.parts: list[str] = []
        self._room = LARGEST_PROMPT_BYTES

    def add(self, text: str) -> None:
        """One more piece. Raises UserError where there is no room."""
        self._room -= len(text)
        if self._room < 0:
            raise UserError(
                f"The document has more than {LARGEST_PROMPT_BYTES // 2**20} million characters of text: save the part "
                "you study as a file of its own."
            )
        self.parts.append(text)

    @property
    def text(self) -> str:
        """All of it, without half signs, white space at line ends and more than one empty line in a row."""
        lines = "".join(self.parts).encode("utf-8", "replace").decode("utf-8").replace("\0", "").splitlines()
        kept: list[str] = []
        for line in lines:
            if line.strip() or (kept and kept[-1]):
                kept.append(line.rstrip())
        return "\n".join(kept).strip("\n")
