"""The texts of a comparison's runs while they are written, for whoever watches.

Only new tokens are decoded, and `Watch` asks a few times per second at most.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import zip_longest

from kvlab.core.choice import FULL
from kvlab.engine.active_run import ActiveRun
from kvlab.engine.forward import end_ids
from kvlab.engine.prepare import Prepared
from kvlab.models.chat import decode_answer
from kvlab.requests.live_texts import LiveText, LiveTexts
from kvlab.trace.token_text import CONTEXT_TOKENS, UNKNOWN

PROMPT_END = 160  # characters of the prompt that are shown


@dataclass(eq=False)
class GrowingText:
    """The text of token ids that only grow; `decode` sees the new ones with a little context before them."""

    decode: Callable[[list[int]], str]
    text: str = ""
    _settled: str = ""  # the text of the first tokens, which spell whole characters
    _count: int = 0  # of these tokens
    _context: int = 0  # the first token of the context

    def extend(self, ids: Sequence[int]) -> str:
        """The text of all `ids`, of which those of earlier calls are the first."""
        if len(ids) > self._count:
            known = self.decode(list(ids[self._context : self._count])) if self._count else ""
            self.text = self._settled + self.decode(list(ids[self._context :]))[len(known) :]
            if not self.text.endswith(UNKNOWN):
                self._settled, self._count = self.text, len(ids)
                self._context = max(0, len(ids) - CONTEXT_TOKENS)
        return self.text


class _Writer:
    """One run's text, compared with the reference token by token."""

    def __init__(self, run: ActiveRun, shown: LiveText) -> None:
        tokenizer = run.prepared.loaded.tokenizer
        self.run, self.shown = run, shown.model_copy(update={"state": "reading"})
        self._text = GrowingText(lambda ids: decode_answer(tokenizer, ids))
        self._ends = end_ids(run.prepared.loaded)
        self._compared = 0

    def update(self, reference: Sequence[int], measure: bool) -> LiveText:
        """The text so far; `measure`: read how much the cache holds, which waits for the device."""
        own_text = self.run.own_text
        if not own_text.ids:
            return self.shown
        if self.shown.left_at is None:
            new = zip_longest(own_text.ids[self._compared :], reference[self._compared : len(own_text.ids)])
            first = next((at for at, (one, other) in enumerate(new, self._compared) if one != other), None)
            self._compared = len(own_text.ids)
            if first is not None:
                span = len(self._text.extend(own_text.ids[:first])), len(self._text.extend(own_text.ids[: first + 1]))
                self.shown = self.shown.model_copy(update={"left_at": span, "left_token": first + 1})
        ids = own_text.ids[:-1] if own_text.ended and own_text.ids[-1] in self._ends else own_text.ids
        changed: dict[str, object] = {
            "state": "ended" if own_text.ended else "writing",
            "text": self._text.extend(own_text.ids),
            "tokens": len(ids),
        }
        if measure or self.shown.held is None:
            memory = (self.run.cache if own_text.branch is None else own_text.branch.cache).memory()
            changed["held"] = memory.live_slots / max(memory.logical_tokens, 1)
        self.shown = self.shown.model_copy(update=changed)
        return self.shown


class LiveComparison:
    """The texts of all runs of a comparison, over all of its passes."""

    def __init__(self, prepared: Prepared) -> None:
        self._prepared = prepared
        choices = [run.choice for run in prepared.runs]
        self._unwritten = [
            LiveText(label="full cache" if choice == FULL else choice.label, method=choice.method) for choice in choices
        ]
        self._texts = list(self._unwritten)
        self._writers: dict[int, _Writer] = {}
        self._turn = 0

    def read(self, runs: Sequence[ActiveRun], reference: Sequence[int]) -> LiveTexts:
        """The texts so far; `runs` are those of the present pass, `reference` the ids of the full cache's text."""
        self._turn += 1
        active = {index: run for index, one in enumerate(self._prepared.runs) for run in runs if run.run is one}
        for index, run in active.items():
            if index not in self._writers or self._writers[index].run is not run:
                self._writers[index] = _Writer(run, self._unwritten[index])
            measure = self._turn % len(active) == index % len(active)  # one run at a time
            self._texts[index] = self._writers[index].update(reference, measure)
        for index, text in enumerate(self._texts):
            if text.state in ("reading", "writing") and index not in active:
                self._texts[index] = text.model_copy(update={"state": "failed"})
        request = self._prepared.request
        words = request.prompt[-PROMPT_END:].split()
        end = " ".join(words[1:] if len(request.prompt) > PROMPT_END else words)  # the first may be cut
        title = request.title if request.repeat is not None else ""
        return LiveTexts(title=title, prompt_end=end, texts=tuple(self._texts))
