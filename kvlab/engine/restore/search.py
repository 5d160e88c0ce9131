"""For a run with a wrong answer, find the smallest sets of each kind whose restoration corrects it."""

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Generic, TypeVar

import numpy as np

from kvlab.common.formatting import format_duration
from kvlab.core import Budget, Restore, RestoreKind, UserError
from kvlab.core.methods import make_method
from kvlab.engine.out_of_memory import memory_guard
from kvlab.engine.progress import Cancelled
from kvlab.engine.restore.failed_run import Evidence, Prompt, decode_forced, gather_evidence, read_prompt
from kvlab.models.load import LoadedModel, held_model, pick_device
from kvlab.requests.compare import CompareRequest, Progress, RestoreRequest
from kvlab.trace import Run, open_run
from kvlab.trace.record import choice_of, model_fields
from kvlab.trace.restore_results import NeededBudget, RestoreResult, SearchResult, save_result
from kvlab.trace.user_labels import load_labels

Item = TypeVar("Item")
Test = Callable[[Sequence[tuple[Item, ...]]], list[bool]]  # whether each of several subsets has the property
AHEAD = 2  # steps of a bisection whose possible tests run together: 3 tests


class _LimitReached(Exception):
    pass


@dataclass(frozen=True)
class Part(Generic[Item]):
    """The smallest subset found with the property, or the whole set if none has it (`does` is false).

    `complete`: the search finished within its limit. `tried` are all tested sets with their results.
    """

    items: tuple[Item, ...]
    does: bool
    complete: bool
    tried: tuple[tuple[frozenset[Item], bool], ...]


@dataclass
class _Tests(Generic[Item]):
    """Results of tests by subset, at most `most`; the empty set is assumed not to have the property."""

    test: Test[Item]
    most: int
    results: dict[frozenset[Item], bool] = field(default_factory=lambda: {frozenset(): False})

    def prepare(self, parts: Iterable[Sequence[Item]]) -> None:
        """Test several subsets together, as many as the limit allows, the first ones first."""
        unknown = {frozenset(part): tuple(part) for part in parts if frozenset(part) not in self.results}
        chosen = list(unknown.values())[: self.most + 1 - len(self.results)]
        if chosen:
            self.results |= zip(map(frozenset, chosen), self.test(chosen), strict=True)

    def ask(self, part: Sequence[Item]) -> bool:
        """Whether a subset has the property."""
        self.prepare([part])
        if frozenset(part) not in self.results:
            raise _LimitReached
        return self.results[frozenset(part)]


def smallest(items: Sequence[Item], test: Test[Item], most: int, unlikely: bool = False) -> Part[Item]:
    """The smallest subset found with at most `most` tests; the empty set is assumed not to have the property.

    If the property is monotone, the result is minimal. The last item of the shortest prefix of `items` with the
    property is necessary: it is kept, and the search continues among the items before it until the kept ones suffice,
    with about log2(n) rounds per item of the result. Put the likeliest items first. With `unlikely` the whole set is
    tested first.
    """
    tests = _Tests(test, most)
    complete = True
    among = list(items)
    found = list(items)
    try:
        found = _necessary(tests, among, unlikely)
        while (best := _least(tests)) and len(best) < len(found):  # a smaller set was tried on the way
            found = _necessary(tests, [item for item in items if item in best], False)
    except _LimitReached:
        complete = False
    best = _least(tests)
    tried = tuple(tests.results.items())[1:]
    chosen = frozenset(items) if best is None else frozenset(found) if len(found) == len(best) else best
    chosen = chosen if best is None or tests.results.get(chosen) else best
    return Part(tuple(item for item in items if item in chosen), best is not None, complete, tried)


def _least(tests: _Tests[Item]) -> frozenset[Item] | None:
    """The smallest tested subset with the property."""
    doing = [part for part, did in tests.results.items() if did]
    return min(doing, key=len) if doing else None


def _necessary(tests: _Tests[Item], items: list[Item], unlikely: bool) -> list[Item]:
    """Items that are necessary one by one, until they have the property or no prefix has."""
    kept: list[Item] = []
    rest = items
    while rest and not tests.ask(kept) and (not unlikely or tests.ask([*kept, *rest])):
        length = _shortest(tests, kept, rest)
        if length is None:
            break
        kept = [*kept, rest[length - 1]]
        rest = rest[: length - 1]
    tests.ask(kept)
    return kept


def _shortest(tests: _Tests[Item], kept: list[Item], rest: list[Item]) -> int | None:
    """The smallest number of items of `rest` that has the property beside `kept`, small ones first; None if none has.

    The first item is tested alone, then lengths that double together, then the lengths that the next steps of the
    bisection may ask for.
    """

    def part(length: int) -> list[Item]:
        return [*kept, *rest[:length]]

    if tests.ask(part(1)):
        return 1
    lengths = [min(2**power, len(rest)) for power in range(len(rest).bit_length() + 1)]
    tests.prepare(part(length) for length in lengths)
    low = 0
    high = 1
    while not tests.ask(part(high)):
        if high == len(rest):
            return None
        low = high
        high = min(2 * high, len(rest))
    while high - low > 1:
        tests.prepare(part(length) for length in _middles(low, high, AHEAD))
        middle = (low + high) // 2
        low, high = (low, middle) if tests.ask(part(middle)) else (middle, high)
    return high


def _middles(low: int, high: int, steps: int) -> list[int]:
    """The lengths that the next `steps` of a bisection between `low` and `high` may ask for, the first step's first."""
    if steps == 0 or high - low <= 1:
        return []
    middle = (low + high) // 2
    return [middle, *_middles(low, middle, steps - 1), *_middles(middle, high, steps - 1)]


MOST_TOKENS = 64  # candidates if the fact is unknown or not sufficient
MOST_UNREAD = 512  # likewise for what was not read, as their slots cost nothing
UNLIKELY = ("evict", "apart")  # searches that test the whole set first
SHOWN_TOKENS = 16  # whose attention is saved in addition to the fact's


def restore(
    request: RestoreRequest,
    root: Path | str = "runs",
    *,
    progress: Callable[[Progress], None] | None = None,
    cancelled: Callable[[], bool] | None = None,
    loaded: LoadedModel | None = None,
) -> Path:
    """Search what restores the answer of a recorded run, save it next to the runs, and return the file.

    The prompt is read once; each rerun repeats the decision and generates its text, several at a time. Results are
    saved after each search, so a stop (`cancelled`) keeps them. Raises UserError if the run is right, if the full cache
    is wrong too, or if the run cannot be repeated here.
    """
    root = Path(root)
    run = open_run(root / request.run_id)
    record = run.record
    if record.method == "full":
        raise UserError("This run is the full cache itself, which drops nothing: choose a compressed run.")
    if record.returned is not None:
        raise UserError(f"{record.label} already has something restored: choose the run it was derived from.")
    repeated = CompareRequest(
        prompt=record.prompt,
        choices=(choice_of(record),),
        max_new_tokens=record.max_new_tokens,
        compress_every=record.compress_every,
        seed=record.seed,
        generation_config=record.generation_config,
        **model_fields(record) | {"device": request.device},
    )
    with memory_guard(pick_device(repeated.device), "restoring the answer"):
        loaded = held_model(repeated) if loaded is None else loaded
        watch = _Reruns(request.most_reruns, progress, cancelled)
        watch.report("reading the prompt")
        prompt = read_prompt(loaded, repeated)
        evidence = gather_evidence(run, load_labels(root, run.record.comparison_id), prompt)
        search = _Search(run, root, prompt, evidence, watch)
        try:
            search.all()
            search.budget = needed_budget(repeated, loaded, evidence, prompt, watch)
        except Cancelled:
            return search.save("Stopped; earlier results are kept.")
    return search.save("" if watch.done < watch.most else f"All {watch.most} reruns were used.")


def needed_budget(
    request: CompareRequest, loaded: LoadedModel, evidence: Evidence, prompt: Prompt, reruns: "_Reruns"
) -> NeededBudget | None:
    """Bisect for the smallest budget, in whole percent of the prompt's tokens, at which the run answers right.

    Each rerun reads the prompt again, and counts beside the reruns of the searches. The run is wrong at its own budget
    and right with all tokens; between these, a larger budget is taken to be right where a smaller one is. None for a
    budget in bytes, and for a method that takes none.
    """
    choice = request.choices[0]
    budget = Budget(choice.budget)
    if isinstance(budget.amount, str) or not make_method(choice.method, **choice.hyper_parameters).needs_budget:
        return None
    low = min(budget.slots(prompt.tokens) / prompt.tokens, 0.99)
    right = 100
    wrong = int(100 * low)
    of_head = None
    tried = 0
    while right - wrong > 1:
        percent = (wrong + right) // 2
        reruns.report(f"budget: would {percent} % have been enough?")
        more = choice.model_copy(update={"budget": percent / 100})
        again = read_prompt(loaded, request.model_copy(update={"choices": (more,)}))
        ids = again.write(None, partial(evidence.wanted.is_settled, again.texts))
        tried += 1
        if evidence.wanted.is_there(ids, again.texts(ids)):
            right = percent
            layer, head = evidence.reader(prompt.layers)
            slots = again.cache(None).compressed_layers()[prompt.layers.index(layer)].slots
            of_head = None if slots is None else float(slots.valid[0, head].sum()) / prompt.tokens
        else:
            wrong = percent
    return NeededBudget(right_at=right / 100, wrong_at=max(wrong / 100, low), of_head=of_head, tried=tried)


@dataclass
class _Reruns:
    """Count reruns, report progress with the time left, and check for cancellation."""

    most: int
    progress: Callable[[Progress], None] | None
    cancelled: Callable[[], bool] | None
    done: int = 0
    seconds: float = 0.0

    def report(self, stage: str) -> None:
        """Report progress; raise Cancelled if a stop was requested."""
        if self.cancelled is not None and self.cancelled():
            raise Cancelled
        if self.progress is not None:
            self.progress(Progress(stage=stage, done=self.done, total=self.most))

    @contextmanager
    def writing(self, search: str, count: int) -> Iterator[None]:
        """Count and time the `count` texts that are written together inside the context."""
        seconds = self.seconds / max(self.done, 1) * (self.most - self.done)
        left = f", at most {format_duration(seconds, rough=True)} left" if self.done else ""
        which = f"rerun {self.done + 1}" if count == 1 else f"reruns {self.done + 1} to {self.done + count}"
        self.report(f"{search}: {which} of at most {self.most}{left}")
        begun = time.perf_counter()
        yield
        self.seconds += time.perf_counter() - begun
        self.done += count


def _in_heads(heads: Sequence[tuple[int, int]], kind: RestoreKind = "tokens", tokens: tuple[int, ...] = ()) -> Restore:
    return Restore(kind=kind, tokens=tokens, heads=tuple(heads))


def _of_tokens(tokens: Sequence[int], kind: RestoreKind = "tokens") -> Restore:
    return Restore(kind=kind, tokens=tuple(sorted(tokens)))


@dataclass
class _Search:
    """The searches for one run, each with a share of the reruns."""

    run: Run
    root: Path
    prompt: Prompt
    evidence: Evidence
    reruns: _Reruns
    found: list[SearchResult] = field(default_factory=list)
    budget: NeededBudget | None = None

    def __post_init__(self) -> None:
        """Choose the tokens whose attention by the reader is saved: the fact's, and those it attends to most."""
        layer, head = self.evidence.reader(self.prompt.layers)
        self.reader = self.prompt.layers.index(layer), head
        most = np.argsort(-self.evidence.full.look[self.reader], kind="stable")[:SHOWN_TOKENS]
        self.shown_tokens = tuple(sorted({*self.evidence.fact, *most.tolist()}))

    def all(self) -> None:
        """Search every kind; tokens that restore the answer are then restricted to as few heads as possible."""
        layers = self.prompt.layers
        if self.prompt.prefix.prompt_cache.settings.sparse_attention is not None:  # its decode steps leave slots out
            self.unread()
        if not self.evidence.lost.any():
            return
        tokens = self.tokens()
        if tokens:
            readers = self.evidence.heads(layers, tokens)
            self.look_for("reading heads", readers, partial(_in_heads, tokens=tokens), 0.6)
        self.look_for("heads", self.evidence.heads(layers), partial(_in_heads, kind="heads"), 0.6)
        merges = bool((self.run.select("steps", columns=["merged"])["merged"] > 0).any())
        for kind in ("evict", "apart") if merges else ():
            self.look_for(kind, self.evidence.heads(layers), partial(_in_heads, kind=kind), 0.5)

    def tokens(self) -> tuple[int, ...]:
        """Tokens to restore in every head: the fact's, or if these do not suffice, those that lost most attention."""
        order = self.evidence.tokens(self.prompt.tokens)
        fact = [token for token in order if token in self.evidence.fact]
        if fact and (found := self.look_for("tokens", fact, _of_tokens, 0.4)).restores:
            return found.returned.tokens
        found = self.look_for("more tokens", order[:MOST_TOKENS], _of_tokens, 0.4)
        return found.returned.tokens if found.restores else ()

    def unread(self) -> None:
        """Search what sparse attention left out: slots of tokens, in as few heads as possible, and heads."""
        layers = self.prompt.layers
        unread = self.evidence.unread
        back = partial(_of_tokens, kind="read")
        order = self.evidence.tokens(self.prompt.tokens, unread)
        fact = [token for token in order if token in self.evidence.fact]
        found = self.look_for("unread fact", fact, back, 0.3) if fact else None
        if found is None or not found.restores:
            found = self.look_for("unread tokens", order[:MOST_UNREAD], back, 0.3) if order else None
        if found is not None and found.restores:
            tokens = found.returned.tokens
            readers = self.evidence.heads(layers, tokens, unread)
            self.look_for("unread heads", readers, partial(_in_heads, kind="read", tokens=tokens), 0.5)
        self.look_for(
            "reading everything", self.evidence.heads(layers, None, unread), partial(_in_heads, kind="read"), 0.5
        )

    def look_for(
        self, name: str, items: Sequence, returned: Callable[[Sequence], Restore], share: float
    ) -> SearchResult:
        """Find and save the smallest part of `items` that restores the answer, in a share of the remaining reruns."""
        before = self.reruns.done
        prompt = self.prompt
        most = max(round(share * (self.reruns.most - before)), 1)

        def test(parts: Sequence[Sequence]) -> list[bool]:
            """Whether the answer is right with each of `parts` restored."""
            wanted = self.evidence.wanted
            with self.reruns.writing(name, len(parts)):
                texts = prompt.write_together(
                    [returned(some) for some in parts], partial(wanted.is_settled, prompt.texts)
                )
                return [wanted.is_there(ids, prompt.texts(ids)) for ids in texts]

        part = smallest(items, test, most, name in UNLIKELY)
        back = returned(part.items)
        decoded = decode_forced(prompt, back, self.evidence.reference, self.evidence.rows, self.evidence.answer_rows)
        found = SearchResult(
            search=name,
            returned=back,
            restores=part.does,
            complete=part.complete,
            tried=self.reruns.done - before,
            slots=decoded.held - self.evidence.before.held,
            text="".join(prompt.texts(prompt.write(back, lambda ids: False))),
            kl=decoded.kl,
            attention=self._shown(decoded.look),
        )
        self.found.append(found)
        self.save("Not finished.")
        return found

    def save(self, ending: str) -> Path:
        """Save all results so far."""
        evidence = self.evidence
        record = self.run.record
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
                tokens=self.shown_tokens,
                attention_full=self._shown(evidence.full.look),
                attention_before=self._shown(evidence.before.look),
                found=tuple(self.found),
                budget=self.budget,
            ),
        )

    def _shown(self, look: np.ndarray) -> tuple[float, ...]:
        return tuple(float(mass) for mass in look[self.reader][list(self.shown_tokens)])
