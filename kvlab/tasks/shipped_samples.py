"""The sample prompts that ship with kvlab, with their descriptions. Torch-free."""

import json
from dataclasses import dataclass

from kvlab.core import UserError, asset_path

QUESTION = "\nQuestion:"


@dataclass(frozen=True)
class ShippedSample:
    """A shipped prompt; `answer` is None without a question, `facts` are texts of the prompt that the answer needs."""

    name: str
    title: str
    description: str
    look_for: str
    answer: str | None
    suggested_budget: float
    max_new_tokens: int
    text: str
    facts: tuple[str, ...] = ()

    @property
    def context(self) -> str:
        """The text without the question at its end, as a conversation about it begins."""
        return self.text.rpartition(QUESTION)[0] or self.text


def shipped_samples() -> list[ShippedSample]:
    """Return the shipped prompts in recommended order."""
    folder = asset_path("prompts/samples")
    listed = json.loads((folder / "samples.json").read_text(encoding="utf-8"))
    return [
        ShippedSample(
            text=(folder / entry.pop("file")).read_text(encoding="utf-8"), facts=tuple(entry.pop("facts", ())), **entry
        )
        for entry in map(dict, listed)
    ]


def shipped_sample(name: str) -> ShippedSample:
    """Return the named prompt; raises UserError listing the known ones."""
    samples = {sample.name: sample for sample in shipped_samples()}
    if name not in samples:
        raise UserError(f"There is no sample prompt {name!r}; choose one of {', '.join(samples)}.")
    return samples[name]


CHARACTERS = 2000  # about 500 tokens
# of a book: the parts before and after are not prose
FIRST = 0.1
LAST = 0.9


def excerpts(count: int, characters: int = CHARACTERS) -> list[tuple[str, str]]:
    """(title, text) of `count` fixed excerpts that start at a paragraph, taken from the books in turn."""
    books = sorted(asset_path("prompts/haystack").glob("*.txt"))
    rounds = -(-count // len(books))
    found = []
    for place in range(count):
        book = books[place % len(books)]
        text = book.read_text(encoding="utf-8")
        share = FIRST + (LAST - FIRST) * (place // len(books) + 0.5) / rounds
        start = text.index("\n\n", int(len(text) * share)) + 2
        found.append((f"excerpt {place + 1}: {book.stem}", text[start : start + characters].rsplit(" ", 1)[0]))
    return found
