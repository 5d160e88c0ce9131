"""For one run whose answer is wrong: the smallest sets of each kind whose return restores it."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from kvlab.common.errors import UserError
from kvlab.engine.out_of_memory import room
from kvlab.engine.progress import Cancelled
from kvlab.models.load import LoadedModel, pick_device
from kvlab.models.model_cache import held_model
from kvlab.requests.compare import CompareRequest, Progress, RescueRequest
from kvlab.requests.restore import Return
from kvlab.restore.bisect import smallest
from kvlab.restore.failed_run import Evidence, along, gather
from kvlab.restore.shared_prompt import Prompt, read_prompt
from kvlab.trace import Run, open_run
from kvlab.trace.record import choice_of, model_fields
from kvlab.trace.restore_results import RestoreResult, SearchResult, save_result
from kvlab.trace.user_labels import load_labels

MOST_TOKENS = 64  # candidates where the fact is not known, or all of it does not restore the answer
UNLIKELY = ("evict", "apart")  # searches that first ask whether all of it restores the answer
SHOWN_TOKENS = 16  # whose attention is kept beside the fact's


def rescue(
    request: RescueRequest,
    root: Path | str = "runs",
    *,
    progress: Callable[[Progress], None] | None = None,
    cancelled: Callable[[], bool] | None = None,
    loaded: LoadedModel | None = None,
) -> Path:
    """Look for what restores the answer of a recorded run, write it beside the runs, and return the file.

    The prompt is read once; each rerun decides again what stays and writes its text. What was found is saved after each
    search, so that a stop (`cancelled`) keeps it. Raises UserError where there is nothing to restore: the run is right,
    the full cache is wrong too, or the run cannot be made again here.
    """
    root = Path(root)
    run = open_run(root / request.run_id)
    asked = _asked_again(run, request)
    with room(asked, pick_device(asked.device), run.record.prompt_tokens, root, "looking for what killed the answer"):
        loaded = held_model(asked) if loaded is None else loaded
        watch = _Reruns(request.most_reruns, progress, cancelled)
        watch.report("reading the prompt")
        prompt = read_prompt(loaded, asked)
        evidence = gather(run, load_labels(root, run.record.comparison_id), prompt)
        search = _Search(run, root, prompt, evidence, watch)
        try:
            search.all()
        except Cancelled:
            return search.save("Stopped; what was found before is kept.")
    return search.save("" if watch.done < watch.most else f"All {watch.most} reruns were used.")


def _asked_again(run: Run, request: RescueRequest) -> CompareRequest:
    record = run.record
    if record.method == "full":
        raise UserError("This is the full cache itself, which drops nothing: choose a compressed run.")
    if record.returned is not None:
        raise UserError(f"{record.label} has something given back already: look into the run that it was made from.")
    return CompareRequest(
        prompt=record.prompt,
        choices=(choice_of(record),),
        max_new_tokens=record.max_new_tokens,
        compress_every=record.compress_every,
        seed=record.seed,
        generation_config=record.generation_config,
        **model_fields(record) | {"device": request.device},
    )


@dataclass
class _Reruns:
    """Counts them, says how long the rest may take, and stops when asked to."""

    most: int
    progress: Callable[[Progress], None] | None
    cancelled: Callable[[], bool] | None
    done: int = 0
    seconds: float = 0.0

    def report(self, stage: str) -> None:
        """Raises Cancelled where somebody asked to stop."""
        if self.cancelled is not None and self.cancelled():
            raise Cancelled
        if self.progress is not None:
            self.progress(Progress(stage=stage, done=self.done, total=self.most))

    def run(self, search: str, write: Callable[[], bool]) -> bool:
        """One rerun."""
        left = f", at most {self.seconds / self.done * (self.most - self.done):.0f} s left" if self.done else ""
        self.report(f"{search}: rerun {self.done + 1} of at most {self.most}{left}")
        begun = time.perf_counter()
        is_right = write()
        self.done, self.seconds = self.done + 1, self.seconds + time.perf_counter() - begun
        return is_right


@dataclass
class _Search:
    """The searches of one run, one after the other, each with its share of the reruns."""

    run: Run
    root: Path
    prompt: Prompt
    evidence: Evidence
    reruns: _Reruns
    found: list[SearchResult] = field(default_factory=list)

    def all(self) -> None:
        """Every kind in turn; tokens that restore the answer are then sought in as few heads as do."""
        layers = self.prompt.layers
        tokens = self.tokens()
        if tokens:
            readers = self.evidence.heads(layers, tokens)
            self.look_for("reading heads", readers, lambda some: Return(tokens=tokens, heads=tuple(some)), 0.6)
        whole = lambda some: Return(kind="heads", heads=tuple(some))  # noqa: E731
        self.look_for("heads", self.evidence.heads(layers), whole, 0.6)
        for kind in ("evict", "apart") if self.merges else ():
            undone = lambda some, kind=kind: Return(kind=kind, heads=tuple(some))  # noqa: E731
            self.look_for(kind, self.evidence.heads(layers), undone, 0.5)

    def tokens(self) -> tuple[int, ...]:
        """Tokens kept in every head: of the fact, or where all of it is not enough, of what the answer looked at."""
        order, back = self.evidence.tokens(self.prompt.tokens), lambda some: Return(tokens=tuple(sorted(some)))
        fact = [token for token in order if token in self.evidence.fact]
        if fact and (found := self.look_for("tokens", fact, back, 0.4)).restores:
            return found.returned.tokens
        found = self.look_for("more tokens", order[:MOST_TOKENS], back, 0.4)
        return found.returned.tokens if found.restores else ()

    @property
    def merges(self) -> bool:
        """Whether the run merged anything."""
        return bool((self.run.select("steps", columns=["merged"])["merged"] > 0).any())

    def look_for(
        self, name: str, items: Sequence, returned: Callable[[Sequence], Return], share: float
    ) -> SearchResult:
        """The smallest part of `items` whose return restores the answer, in a share of the reruns left; saved."""
        before, prompt = self.reruns.done, self.prompt
        part = smallest(items, lambda some: self._restores(name, returned(some)), self._most(share), name in UNLIKELY)
        back = returned(part.items)
        what = along(prompt, back, self.evidence.reference, self.evidence.rows, self.evidence.answer_rows)
        found = SearchResult(
            search=name,
            returned=back,
            restores=part.does,
            complete=part.complete,
            tried=self.reruns.done - before,
            slots=what.held - self.evidence.before.held,
            text="".join(prompt.texts(prompt.write(back, lambda ids: False))),
            kl=what.kl,
            attention=self._shown(what.look),
        )
        self.found.append(found)
        self.save("Not finished.")
        return found

    def _most(self, share: float) -> int:
        return max(round(share * (self.reruns.most - self.reruns.done)), 1)

    def _restores(self, name: str, returned: Return) -> bool:
        def write() -> bool:
            ids = self.prompt.write(returned, self.evidence.wanted.ended(self.prompt.decode))
            return self.evidence.wanted.is_there(ids, self.prompt.texts(ids))

        return self.reruns.run(name, write)

    def save(self, ending: str) -> Path:
        """Write all that is known now."""
        evidence, record = self.evidence, self.run.record
        reference = self.prompt.texts(evidence.reference)
        wanted = evidence.wanted.answer or "".join(reference[: len(evidence.wanted.ids)])
        return save_result(
            self.root,
            RestoreResult(
                run_id=record.run_id,
                comparison_id=record.comparison_id,
                label=record.label,
                answer=wanted,
                expected=evidence.wanted.answer is not None,
                ending=ending,
                reruns=self.reruns.done,
                most_reruns=self.reruns.most,
                seconds=self.reruns.seconds,
                fact=evidence.fact,
                reference=tuple(reference),
                reader=evidence.reader(self.prompt.layers),
                slots=evidence.before.held,
                text_before=evidence.own_text,
                kl_before=evidence.before.kl,
                tokens=self._tokens_shown(),
                attention_full=self._shown(evidence.full.look),
                attention_before=self._shown(evidence.before.look),
                found=tuple(self.found),
            ),
        )

    def _tokens_shown(self) -> tuple[int, ...]:
        rank, head = self._reader()
        most = np.argsort(-self.evidence.full.look[rank, head], kind="stable")[:SHOWN_TOKENS]
        return tuple(sorted({*self.evidence.fact, *most.tolist()}))

    def _shown(self, look: np.ndarray) -> tuple[float, ...]:
        rank, head = self._reader()
        return tuple(float(mass) for mass in look[rank, head, list(self._tokens_shown())])

    def _reader(self) -> tuple[int, int]:
        layer, head = self.evidence.reader(self.prompt.layers)
        return self.prompt.layers.index(layer), head
