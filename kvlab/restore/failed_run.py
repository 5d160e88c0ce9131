"""What is known of a wrong run before anything is given back: its text, what it lost, and who looked at that."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from torch import Tensor

from kvlab.analysis.comparison.board import expected_answer as wanted_of
from kvlab.analysis.comparison.facts import fact_positions
from kvlab.analysis.comparison.verdict import answer_tokens, judge
from kvlab.common.answer_match import find_answer
from kvlab.common.errors import UserError
from kvlab.engine.prompt import divergence
from kvlab.requests.restore import Return
from kvlab.restore.reading_heads import Looks, first_look, held_slots, own_slots
from kvlab.restore.shared_prompt import EVERYTHING, Prompt
from kvlab.trace import Run
from kvlab.trace.user_labels import Labels

Head = tuple[int, int]


@dataclass(frozen=True)
class Along:
    """A cache made to decode the full cache's continuation: KL of each token, and where the answer's queries looked."""

    kl: tuple[float, ...]
    look: np.ndarray  # (layers, heads, prompt tokens)
    own_slots: np.ndarray  # likewise, bool, at the end
    held: int  # slots after the prompt


@dataclass(frozen=True)
class Evidence:
    """`lost` (layers, heads, tokens): attention the full cache's answer paid tokens that have no slot to themselves."""

    wanted: Wanted
    reference: list[int]
    rows: list[Tensor]
    answer_rows: tuple[int, int]
    own_text: str
    fact: tuple[int, ...]
    full: Along
    before: Along
    lost: np.ndarray

    def tokens(self, most: int) -> list[int]:
        """Prompt tokens by what was lost of them over all heads, most first; those that were not lost are left out."""
        lost = self.lost.sum((0, 1))
        order = np.argsort(-lost, kind="stable")[:most]
        return [int(token) for token in order if lost[token] > 0]

    def heads(self, layers: tuple[int, ...], tokens: tuple[int, ...] | None = None) -> list[Head]:
        """(layer, KV head) by what they lost of `tokens` (default all), most first; all heads are there."""
        lost = self.lost.sum(2) if tokens is None else self.lost[:, :, list(tokens)].sum(2)
        order = np.argsort(-lost, axis=None, kind="stable")
        return [(layers[rank], head) for rank, head in zip(*divmod(order, lost.shape[1]), strict=True)]

    def reader(self, layers: tuple[int, ...]) -> Head:
        """The head whose answer queries look most at the fact, or at what was lost most, in the full cache."""
        mass = self.full.look[:, :, list(self.fact) or self.tokens(1)].sum(2)
        rank, head = np.unravel_index(int(mass.argmax()), mass.shape)
        return layers[int(rank)], int(head)


def gather(run: Run, labels: Labels, prompt: Prompt) -> Evidence:
    """Two texts and two forced decodings. Raises UserError where there is nothing to restore."""
    told = wanted_of([run], labels)
    whole, own = (prompt.write(back, lambda ids: False) for back in (EVERYTHING, None))
    texts, wanted = prompt.texts(whole), Wanted(None) if told is None else Wanted(told.answer, others=told.others)
    if told is None:
        differs = first_difference(own, whole)
        if differs is None:
            raise UserError(f"{run.record.label} writes what the full cache writes: there is nothing to look for.")
        wanted = Wanted(None, tuple(whole[: differs + 1]))
    elif not wanted.is_there(whole, texts):
        wrote = "".join(texts).strip()[:60]
        raise UserError(f"The full cache does not answer either: it writes “{wrote}”, so nothing given back can help.")
    if wanted.is_there(own, prompt.texts(own)):
        raise UserError(f"{run.record.label} gets the answer: there is nothing to look for.")
    rows = prompt.along(prompt.cache(EVERYTHING), whole)
    answer = wanted.rows(texts)
    full, before = (along(prompt, back, whole, rows, answer) for back in (EVERYTHING, None))
    look = full.look if answer[0] else (full.look + first_look(prompt)) / 2
    fact = () if told is None else tuple(fact_positions(run.tokens, run.record.prompt, told.facts).tolist())
    own_text = "".join(prompt.texts(own))
    return Evidence(wanted, whole, rows, answer, own_text, fact, full, before, look * ~before.own_slots)


def along(
    prompt: Prompt, returned: Return | None, ids: list[int], full: list[Tensor], answer: tuple[int, int]
) -> Along:
    """Decode `ids` with `returned` given back; `full` are the rows of the full cache."""
    looks = Looks(prompt.tokens, *answer)
    cache = prompt.cache(returned, looks)
    held = held_slots(cache)
    rows = prompt.along(cache, ids, looks.begin_step)
    kl = tuple(divergence(one, other)[0] for one, other in zip(full, rows, strict=True))
    return Along(kl, looks.mean(prompt.layers, prompt.heads), own_slots(cache, prompt.tokens), held)


@dataclass(frozen=True)
class Wanted:
    """`answer`, or one of `others`, anywhere; or, without one, the first tokens `ids` of the full cache's text."""

    answer: str | None
    ids: tuple[int, ...] = ()
    others: tuple[str, ...] = ()

    @property
    def answers(self) -> tuple[str, ...]:
        """All that is right."""
        return () if self.answer is None else (self.answer, *self.others)

    def is_there(self, ids: list[int], texts: list[str]) -> bool:
        """Whether this continuation holds what is wanted."""
        if self.answer is not None:
            return any(judge(texts, one).kind == "right" for one in self.answers)
        return tuple(ids[: len(self.ids)]) == self.ids

    def ended(self, decode: Callable[[list[int]], str]) -> Callable[[list[int]], bool]:
        """Says of a continuation so far that more of it can change nothing."""

        def ended(ids: list[int]) -> bool:
            if self.answer is None:
                return tuple(ids) != self.ids[: len(ids)] or len(ids) >= len(self.ids)
            text = decode(ids)
            found = filter(None, (find_answer(text, one) for one in self.answers))
            return any(stop < len(text.rstrip("\ufffd")) for _, stop in found)

        return ended

    def rows(self, texts: list[str]) -> tuple[int, int]:
        """(first, last) token of the full cache's continuation that its answer is."""
        last = max(len(self.ids) - 1, 0)
        return next(filter(None, (answer_tokens(texts, one) for one in self.answers)), (last, last))


def first_difference(own: list[int], reference: list[int]) -> int | None:
    """Index of the first token in which a continuation leaves the full cache's; None where it does not."""
    pairs = enumerate(zip(own, reference, strict=False))
    short = min(len(own), len(reference))
    place = next((index for index, (mine, theirs) in pairs if mine != theirs), short)
    return None if place == len(reference) else place
