"""Servability of all methods as it was measured on mini: the file that ships, and the table of docs/serving.md."""

import csv
import io
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, field, fields
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np

from kvlab.common.formatting import join_words
from kvlab.core.errors import UserError

# What an engine must hold for a cache of this level.
LEVELS = (
    "nothing new: a dense prefix, whose length is also its logical length",
    "a logical length besides the physical one",
    "a number of slots per layer",
    "a number of slots per head",
    "a bias per slot, merged keys, or a state besides the slots",
)
ATTENTION = "attention weights"
QUERIES = "queries"
HIDDEN = "hidden states"


@dataclass(frozen=True)
class Held:
    """What a cache holds after a prompt and some decode steps, as far as an engine must know it.

    Attributes:
        by_head: heads of a layer keep different numbers of slots.
        by_layer: layers keep different numbers of slots.
        apart: heads of a layer keep different tokens.
        logical: positions of the kept tokens have gaps, and keys were not turned to close them.
        log_mass: some slot has a log mass (an additive attention bias).
        merged_keys: some key is none that the model computed.
        new_values: some value is none that the model computed.
        state: queries also attend to a state besides the slots.
    """

    by_head: bool
    by_layer: bool
    apart: bool
    logical: bool
    log_mass: bool = False
    merged_keys: bool = False
    new_values: bool = False
    state: bool = False

    @property
    def level(self) -> int:
        """Index into `LEVELS`."""
        if self.log_mass or self.merged_keys or self.state:
            return 4
        if self.by_head:
            return 3
        return 2 if self.by_layer else int(self.logical)

    @property
    def why(self) -> str:
        """What makes the level, as a clause."""
        special = {
            "a log mass per slot": self.log_mass,
            "merged keys": self.merged_keys,
            "a state besides the slots": self.state,
        }
        reasons = [reason for reason, holds in special.items() if holds]
        if not reasons:
            plain = {
                3: "heads keep different numbers of slots",
                2: "layers keep different numbers of slots",
                1: "kept tokens have gaps between their positions",
                0: "a dense cache without gaps",
            }
            reasons = [plain[self.level]]
        return join_words([*reasons, *(["new values"] if self.new_values else [])])


def held_counts(counts: np.ndarray) -> tuple[bool, bool]:
    """Whether counts (layers, heads) of slots differ over heads of a layer, and over layers."""
    return bool((counts != counts[:, :1]).any()), bool((counts.sum(1) != counts[0].sum()).any())


@dataclass(frozen=True)
class Freed:
    """Share of the prompt's slots in pages of which nothing is kept, by what shares a page table."""

    head: float
    layer: float
    model: float

    @classmethod
    def from_kept(cls, kept: np.ndarray, page: int) -> "Freed":
        """Of `kept` (layers, heads, tokens) bool, in the prompt's own layout of pages of `page` tokens."""
        return cls(*(freed_share(kept, page, axes) for axes in ((), (1,), (0, 1))))


def touched_pages(kept: np.ndarray, page: int) -> np.ndarray:
    """Pages (..., pages) bool with a kept slot, of `kept` (..., tokens) bool."""
    missing = -kept.shape[-1] % page
    padded = np.pad(kept, [(0, 0)] * (kept.ndim - 1) + [(0, missing)])
    return np.asarray(padded.reshape(*kept.shape[:-1], -1, page).any(-1))


def freed_share(kept: np.ndarray, page: int, axes: tuple[int, ...] = (1,)) -> float:
    """Share of slots in pages without a kept slot, where the heads along `axes` share a page table."""
    together = np.asarray(kept.any(axes, keepdims=True)) if axes else kept
    pages = touched_pages(together, page)
    size = np.full(pages.shape[-1], page)
    size[-1] -= -kept.shape[-1] % page
    return float((~pages * size).sum(-1).mean() / kept.shape[-1])


def fragmentation(kept: np.ndarray, page: int) -> float:
    """Share of the slots in a layer's touched pages that hold nothing; `kept` (layers, heads, tokens) bool."""
    freed = freed_share(kept, page)
    return 0.0 if freed == 1 else max(0.0, 1 - float(kept.mean()) / (1 - freed))


PAGES = (16, 32)


@dataclass(frozen=True)
class Servability:
    """One method's needs: level, what it reads of a pass, when it acts, and slots that pages really free.

    `reads_prompt`, `reads_decode`: of `ATTENTION`, `QUERIES` and `HIDDEN`, what decisions used of the prompt's pass and
    of decode steps. `freed`: by page size, after the prompt. `kept`: mean share of the prompt's slots kept.
    `fragmentation`: by page size, after the prompt and after the decode steps; empty if it was not measured.
    """

    method: str
    title: str
    held: Held
    reads_prompt: tuple[str, ...] = ()
    reads_decode: tuple[str, ...] = ()
    decodes: bool = False
    second_pass: bool = False
    store: str = "native"
    kept: float = 1.0
    freed: dict[int, Freed] = field(default_factory=dict)
    fragmentation: dict[int, tuple[float, float]] = field(default_factory=dict)

    @property
    def level(self) -> int:
        """Index into `LEVELS`."""
        return self.held.level

    @property
    def needs(self) -> str:
        """What it reads besides keys and values, as words."""
        prompt = set(self.reads_prompt)
        decode = set(self.reads_decode)
        words = [
            f"{name}{'' if name in decode and name in prompt else ' (decoding)' if name in decode else ''}"
            for name in (ATTENTION, QUERIES, HIDDEN)
            if name in prompt | decode
        ]
        return join_words(words) or "nothing"

    def as_data(self) -> dict[str, Any]:
        """As JSON: every field, with the level and its reason."""
        return {"level": self.level, "level_needs": LEVELS[self.level], "why": self.held.why, **asdict(self)}

    def lines(self) -> Sequence[tuple[str, str]]:
        """(property, value) pairs for a terminal."""
        held = self.held
        freed = [
            f"page {page}: {100 * part.layer:.0f} % where a layer has a page table, {100 * part.model:.0f} % where all "
            f"layers share one, {100 * part.head:.0f} % where each head has its own"
            for page, part in self.freed.items()
        ]
        empty = [
            f"page {page}: {100 * first:.0f} % of the slots hold nothing, after decoding {100 * last:.0f} %"
            for page, (first, last) in self.fragmentation.items()
        ]
        return [
            ("level", f"{self.level}: {LEVELS[self.level]}"),
            ("why", held.why),
            ("numbers per head, per layer", f"{yes(held.by_head)}, {yes(held.by_layer)}"),
            ("heads keep the same tokens", yes(not held.apart)),
            ("reads besides keys and values", self.needs),
            ("acts while decoding", yes(self.decodes)),
            ("second pass over the prompt", yes(self.second_pass)),
            ("store", self.store),
            ("slots kept", f"{100 * self.kept:.0f} % of the prompt's"),
            *(("slots really freed", words) for words in freed),
            *(("of the pages that stay", words) for words in empty),
        ]


def yes(holds: bool) -> str:
    """`yes` or `no`."""
    return "yes" if holds else "no"


FILE = Path(__file__).with_name("serving_methods.csv")
BEGIN = "<!-- kvlab serve-check --all -->"
END = "<!-- end -->"
# Besides every method with its defaults: settings that change the level.
FURTHER = (
    "streaming-llm:positions=cache", "snapkv:page=16", "snapkv:page=32", "h2o:page=16", "adakv:page=16",
    "kvzip:level=uniform", "kvzip:page=16", "exactmerge2:page=16",
    "kvzip:page=16:page_heads=model", "exactmerge2:page=16:page_heads=model",
)  # fmt: skip
HEADER = (
    "method", "level", "why", "per head", "per layer", "same tokens in all heads", "reads besides keys and values",
    "acts while decoding", "second pass", "freed, page 16", "freed, page 32", "freed, page 16, one page table",
)  # fmt: skip
SHARES = ("head", "layer", "model")


def write_csv(rows: Iterable[Servability], file: Path = FILE) -> None:
    """Write the measured table."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    names = [one.name for one in fields(Held)]
    plain = ["reads_prompt", "reads_decode", "decodes", "second_pass", "store", "kept"]
    freed = [f"freed_{page}_{share}" for page in PAGES for share in SHARES]
    writer.writerow(["method", "title", *names, *plain, *freed])
    for row in rows:
        held = [str(int(getattr(row.held, name))) for name in names]
        reads = ["+".join(read) for read in (row.reads_prompt, row.reads_decode)]
        acts = [str(int(row.decodes)), str(int(row.second_pass))]
        shares = [f"{getattr(row.freed[page], share):.4f}" for page in PAGES for share in SHARES]
        writer.writerow([row.method, row.title, *held, *reads, *acts, row.store, f"{row.kept:.4f}", *shares])
    file.write_text(text.getvalue(), encoding="utf-8")


@lru_cache(maxsize=1)
def read_csv(file: Path = FILE) -> tuple[Servability, ...]:
    """Read the measured table; raises UserError if it is damaged."""
    try:
        with file.open(encoding="utf-8", newline="") as lines:
            return tuple(
                Servability(
                    method=cells["method"],
                    title=cells["title"],
                    held=Held(**{one.name: cells[one.name] == "1" for one in fields(Held)}),
                    reads_prompt=tuple(filter(None, cells["reads_prompt"].split("+"))),
                    reads_decode=tuple(filter(None, cells["reads_decode"].split("+"))),
                    decodes=cells["decodes"] == "1",
                    second_pass=cells["second_pass"] == "1",
                    store=cells["store"],
                    kept=float(cells["kept"]),
                    freed={page: Freed(*(float(cells[f"freed_{page}_{share}"]) for share in SHARES)) for page in PAGES},
                )
                for cells in csv.DictReader(lines)
            )
    except (OSError, KeyError, ValueError, TypeError) as error:
        raise UserError(f"kvlab's own table {file} is missing or damaged: install kvlab again.") from error


def markdown(rows: Sequence[Servability]) -> str:
    """The table of the documentation."""
    lines = ["| " + " | ".join(HEADER) + " |", "|" + "---|" * len(HEADER)]
    for row in rows:
        held = row.held
        words = [row.method, str(row.level), held.why]
        words += [yes(flag) for flag in (held.by_head, held.by_layer, not held.apart)]
        words += [row.needs, yes(row.decodes), yes(row.second_pass)]
        words += [f"{100 * share:.0f} %" for share in (row.freed[16].layer, row.freed[32].layer, row.freed[16].model)]
        lines.append("| " + " | ".join(words) + " |")
    return "\n".join(lines)


def replace_between(text: str, begin: str, content: str) -> str:
    """A document's text with `content` between the lines `begin` and END; raises UserError without them."""
    before, begun, rest = text.partition(begin)
    _, ended, after = rest.partition(END)
    if not (begun and ended):
        raise UserError(f"The document has no lines {begin} and {END}: write them where the table shall be.")
    return f"{before}{begin}\n\n{content}\n\n{END}{after}"
