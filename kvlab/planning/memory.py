"""The phases of a comparison and the memory each holds at its peak, following the engine and the cache.

Validated against torch's own allocator on CPU (`tests/planning/test_measured.py`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from importlib.util import find_spec

from kvlab.core.budget import Amount
from kvlab.planning import recording_bytes
from kvlab.planning.footprint import Footprint
from kvlab.planning.parts import Part, Phase, Place
from kvlab.planning.recording_bytes import SHADOW
from kvlab.planning.workload import FLOAT, PlannedCache, Workload, full_cache, states_bytes

PROCESS_BYTES = 520_000_000  # Python with torch and transformers: 450 MB on Linux after the import, more after running
COMPILER_BYTES = 140_000_000  # added by numba if CPU decisions are compiled
CONTEXT_BYTES = 600_000_000  # CUDA and its libraries, before the first tensor
STANDING = ("weights", "the process", "weights on their way")
DEQUANTISED_COPIES = 2  # of a GGUF file's largest tensor, in float32: 1.5 to 2.7 were measured
LOGITS_PART = "logits"
LOGITS_COPIES = 2  # made of a step's logits: their log-probabilities, and what these are compared in
LOADING, DECODING, TIMING = "loading the weights", "decoding", "timing"
ATTENTION, FEED_FORWARD, LOGITS = "prompt: attention", "prompt: feed-forward", "prompt: logits"
READ_AGAIN, REFERRED = "reading the prompt again", "deciding by its queries"
MOMENTS = (ATTENTION, FEED_FORWARD, LOGITS)
CROSSING = "falcon_h1"  # a family whose layers hold slots and a recurrent state together
Choices = Sequence[tuple[str, Footprint, Amount]]  # label, the method's footprint, budget


def phases(work: Workload, choices: Choices, device: str, most: int | None = None) -> list[Phase]:
    """Every phase of a comparison, in order; at most `most` of its runs share a pass."""
    common = _common(work, choices, device)
    caches = [PlannedCache(work, *choice) for choice in choices]
    together = [cache for cache in caches if shares(work, cache.holds)]
    size = max(1, most or len(together))
    groups = [together[first : first + size] for first in range(0, len(together), size)] or [[]]
    passes = []
    for index, group in enumerate(groups):
        label = f"part {index + 1} of {len(groups)}, " if len(groups) > 1 else ""
        passes.append(Pass(work, tuple(group), device, label=label, compares=True, leads=index == 0))
    passes += [
        Pass(work, (cache,), device, label=f"{cache.label}, ", compares=True)
        for cache in caches
        if cache not in together
    ]
    found, copies = [Phase(LOADING, (*common, *_loading(work, device)))], 0
    common = (*common, _reference_rows(work))
    for one in passes:
        found += one.phases(common, copies)
        copies += one.copies
    return _with_slack([*found, _timing(work, caches, (*common, *_copies(copies)))], device)


def phases_of_evaluation(work: Workload, choices: Choices, device: str, together: bool) -> list[Phase]:
    """Every phase of an evaluation's batch, without a full cache that leads or copies to time.

    `together`: methods that can share passes do so; else they run one after another.
    """
    common = _common(work, choices, device)
    caches = [PlannedCache(work, *choice) for choice in choices]
    shared = tuple(cache for cache in caches if together and shares(work, cache.holds))
    passes = [Pass(work, shared, device)] if shared else []
    passes += [Pass(work, (one,), device, label=f"{one.label}, ") for one in caches if one not in shared]
    found = [phase for one in passes for phase in one.phases(common)]
    return _with_slack([Phase(LOADING, (*common, *_loading(work, device))), *found], device)


def shares(work: Workload, holds: Footprint) -> bool:
    """Whether a run can share passes with others (`kvlab.core.cache.fan_out.fan_out_cache.shares_passes`)."""
    return not (holds.block or holds.saves_prefill or work.model.family == CROSSING)


def _with_slack(in_order: list[Phase], device: str) -> list[Phase]:
    """Add freed blocks that the host's allocator keeps: half of the most, without the largest parts, alive so far.

    Peak RSS of separate processes grew by up to 1.5 times what was alive (`tests/planning/test_resident.py`).
    """
    if device == "cuda":
        return in_order
    why, most, with_slack = "what the host's allocator does not return, about half of what was alive", 0, []
    for phase in in_order:
        tensors = (part for part in phase.parts if part.place == "device" or part.name == SHADOW)
        most = max(most, sum(part.bytes for part in tensors if part.name not in (*STANDING, LOGITS_PART)))
        with_slack.append(Phase(phase.name, (*phase.parts, Part("freed blocks", "host", most // 2, why))))
    return with_slack


def _common(work: Workload, choices: Choices, device: str) -> tuple[Part, ...]:
    """Parts that are always there. On a CPU decisions while decoding are compiled where numba is installed."""
    deciding = any(holds.compresses and holds.decode for _, holds, _ in choices)
    weights = Part("weights", "device", work.weight_bytes, f"{work.model.parameters:,} numbers")
    process = Part("the process", "host", PROCESS_BYTES, "Python, torch and transformers")
    if deciding and device == "cpu" and find_spec("numba") is not None:
        process = Part("the process", "host", PROCESS_BYTES + COMPILER_BYTES, "Python, torch, transformers and numba")
    context = Part("CUDA itself", "device", CONTEXT_BYTES, "its context and libraries")
    return (weights, process, context) if device == "cuda" else (weights, process)


def _loading(work: Workload, device: str) -> tuple[Part, ...]:
    model, parts = work.model, list[Part]()
    if device != "cpu":
        parts.append(Part("weights on their way", "host", work.weight_bytes, "the weights pass through host memory"))
    if model.file_bytes:
        table, why = (
            FLOAT * model.vocabulary * model.hidden,
            "the file's pages, and its largest tensor twice in float32",
        )
        parts.append(Part("the GGUF file", "host", model.file_bytes + DEQUANTISED_COPIES * table, why))
    return tuple(parts)


def _reference_rows(work: Workload) -> Part:
    why = "the full cache's, of every new token over the vocabulary"
    return Part("log-probabilities to compare with", "host", work.kept_rows_bytes(), why)


def _copies(size: int) -> tuple[Part, ...]:
    why = "of every finished run's cache after the prompt, with which its decode steps are timed"
    return (Part("caches to time", "device", size, why),) if size else ()


def _timing(work: Workload, caches: Sequence[PlannedCache], common: tuple[Part, ...]) -> Phase:
    """Decode steps of one run at a time, on a copy of its cache after the prompt."""
    largest = max(cache.ended + (cache.last if cache.grows else 0) for cache in caches) + work.sliding_bytes()
    return Phase(TIMING, (*common, Part("cache that is timed", "device", largest, "a copy of one run's cache")))


@dataclass(frozen=True)
class Pass:
    """Runs whose caches read the prompt in one pass and then decode in one loop.

    `compares`: as in a comparison, with recordings, copies to time, and a copy of a run's cache for its own text.
    `leads`: a full cache writes the reference, one of the runs or one beside them.
    """

    work: Workload
    runs: tuple[PlannedCache, ...]
    device: str
    label: str = ""
    compares: bool = False
    leads: bool = False

    @property
    def caches(self) -> list[PlannedCache]:
        """The runs' caches, after the one that leads."""
        beside = self.leads and all(not cache.is_full for cache in self.runs)
        return [*([full_cache(self.work)] if beside else []), *self.runs]

    @property
    def copies(self) -> int:
        """Bytes of the caches after the prompt that are kept to time decoding."""
        if not self.compares:
            return 0
        return sum(cache.settled + self.work.sliding_bytes() for cache in self.runs)

    @property
    def watched(self) -> bool:
        """Whether everything is recorded."""
        return self.work.level == "full"

    def phases(self, common: tuple[Part, ...], copies: int = 0) -> list[Phase]:
        """The phases of the pass, in order; before it there are the parts `common` and `copies` bytes to time."""
        before, after = (*common, *_copies(copies)), (*common, *_copies(copies + self.copies))
        return [*(self._moment(before, at) for at in MOMENTS), *self._again(before), self._decoding(after)]

    def _moment(self, common: tuple[Part, ...], at: str) -> Phase:
        tables, working = self._attending() if at == ATTENTION else (self._after_prompt(), self._working(at))
        parts = self._tables(tables + self.work.sliding_bytes(), self._leading(self.work.tokens))
        if self.watched:
            parts += [*self._recorded(), self._compared()]
        return Phase(f"{self.label}{at}", (*common, *parts, working))

    def _leading(self, tokens: int) -> int:
        """Keys, values and metadata of the full caches, in tensors that waiting methods share."""
        full = [cache for cache in self.caches if cache.is_full]
        columns = sum(cache.columns(tokens) for cache in full)
        return self.work.model.full_layers * (states_bytes(self.work, tokens) + columns) if full else 0

    def _tables(self, total: int, full: int, why: str = "") -> list[Part]:
        """The caches as parts: of `total` bytes, `full` are the full cache's."""
        model = self.work.model
        layers = f"{model.full_layers} layers x {model.key_value_heads} KV heads"
        shared = f"{layers}; methods that wait share its keys and values"
        parts = [Part("full cache", "device", full, shared)] if full else []
        rest = [Part("compressed caches", "device", total - full, why or layers)] if total > full else []
        return [*parts, *rest]

    def _earlier(self, tokens: int) -> int:
        """Tables of a layer that has read the prompt, while others still read."""
        whole = [cache for cache in self.caches if not cache.settles]
        shared = states_bytes(self.work, tokens) if whole else 0
        return shared + sum(cache.columns(tokens) if not cache.settles else cache.first for cache in self.caches)

    def _beside(self) -> int:
        return sum(cache.beside for cache in self.caches)

    def _attending(self) -> tuple[int, Part]:
        """(tables, working memory) while the last layer reads the prompt: the worst moment of its caches in turn."""
        work, layers = self.work, self.work.model.full_layers
        states, worst = states_bytes(work, work.tokens), (0, 0)
        earlier = (layers - 1) * self._earlier(work.tokens) + self._beside()
        every = sum(cache.columns(work.tokens) for cache in self.caches) + states
        results = 0
        for index, cache in enumerate(self.caches):
            there = [one.first if one.settles else one.columns(work.tokens) for one in self.caches[:index]]
            there += [one.columns(work.tokens) for one in self.caches[index:]]
            scoring = work.scoring_bytes(cache.holds, cache.budget)
            if self.watched and self.leads and cache.is_full:
                scoring = max(scoring, recording_bytes.gathering_bytes(work))
            needed = results + work.states_bytes() + scoring
            needed = max(needed, work.attention_bytes(cache.holds, cache.budget)) if index == 0 else needed
            worst = max(worst, (earlier + states + sum(there), needed), key=sum)
            if work.chunked and index == 0:  # the first layer of the last chunk: nothing is compressed yet
                worst = max(worst, (layers * every + self._beside(), needed), key=sum)
            results += cache.results
        open_table = every - self._earlier(work.tokens) if len(self.caches) == 1 else 0
        tables, needed = worst
        sliding = work.sliding_attention_bytes() - max(open_table, 0)
        why = "queries, repeated keys and values, and a method's scores of a layer"
        return tables, Part("prefill's attention", "device", max(needed, sliding), why)

    def _after_prompt(self) -> int:
        """Tables after the last layer has read the prompt; those that read it again still hold all of it."""
        work = self.work
        whole = [cache for cache in self.caches if not cache.drops or cache.holds.again is not None]
        shared = states_bytes(work, work.tokens) if whole else 0
        tables = sum(cache.columns(work.tokens) if cache in whole else cache.first for cache in self.caches)
        return work.model.full_layers * (shared + tables) + self._beside()

    def _working(self, at: str) -> Part:
        work = self.work
        if at == FEED_FORWARD:
            return Part(
                "prefill's feed-forward", "device", work.feed_forward_bytes(), "gate, up and product of a layer"
            )
        size = work.logits_bytes()
        rows = "each prompt token" if size > 2 * work.model.vocabulary * FLOAT else "the last token"
        return Part(LOGITS_PART, "device", size, f"float32, twice, of {rows} over the vocabulary")

    def _again(self, common: tuple[Part, ...]) -> list[Phase]:
        """Methods read the prompt, still whole in every layer, a second time, those with one plan together."""
        found, work = [], self.work
        waiting = [cache for cache in self.caches if cache.holds.again is not None and cache.drops]
        while waiting:
            again = waiting[0].holds.again
            assert again is not None
            alike = [one for one in waiting if one.holds.again is not None and one.holds.again.reads_as(again)]
            waiting = [one for one in waiting if one not in alike]
            others = [one for one in self.caches if one not in alike]
            whole = [one for one in others if not one.drops or one in waiting]
            tables = states_bytes(work, work.tokens) if whole else 0
            tables += sum(one.columns(work.tokens) if one in whole else one.first for one in others)
            held = work.model.full_layers * tables + self._beside()
            found += self._reading(common, alike, held)
        return found

    def _reading(self, common: tuple[Part, ...], alike: list[PlannedCache], held: int) -> list[Phase]:
        """The second pass of the caches `alike`, while others hold `held` bytes."""
        work, names = self.work, ", ".join(cache.label for cache in alike)
        named = "" if len(self.caches) == 1 else f" for {names}"
        recording = [*self._recorded(), self._compared()] if self.watched else []
        again = next(cache.holds.again for cache in alike if cache.holds.again is not None)
        longer = work.read_again(again)
        copies = 2 if any(cache.holds.again and cache.holds.again.on_policy for cache in alike) else 1
        reading = max(*(longer.reading_bytes(cache.holds) for cache in alike), longer.feed_forward_bytes())
        plans = [cache.holds.again for cache in alike if cache.holds.again is not None]
        references = sum(work.reference_bytes(plan) for plan in plans)
        moments = [(READ_AGAIN, longer, "reading again", reading, "attention and scores of a piece over the prompt")]
        if references:
            most = max(plan.references for plan in plans)
            why = f"attention of {most} queries of each query head, and what is fitted to it"
            moments.append((REFERRED, work, "deciding", max(work.referred_bytes(plan) for plan in plans), why))
        found = []
        for at, load, name, size, why in moments:
            own = states_bytes(load, load.tokens) + sum(cache.columns(load.tokens) for cache in alike)
            tables = copies * (load.model.full_layers * own + load.sliding_bytes()) + held + references
            caches = self._tables(tables, self._leading(work.tokens), "the whole prompt, and the queries that are kept")
            logits = Part(LOGITS_PART, "device", work.prompt_logits_bytes(), "of the prompt, which the model returns")
            parts = (*common, *recording, *caches, logits, Part(name, "device", size, why))
            found.append(Phase(f"{self.label}{at}{named}", parts))
        return found

    def _decoding(self, common: tuple[Part, ...]) -> Phase:
        """The last step: every run's cache, and in a comparison a copy for its own text and one after the prompt."""
        work, caches = self.work, self.caches
        forks = [cache for cache in self.runs if self.compares and not (self.leads and cache.is_full)]
        tables = sum(cache.ended for cache in [*caches, *forks])
        rows, model = len(caches) + len(forks), work.model
        tables += (rows + (rows > 1)) * work.sliding_bytes()
        full = sum(cache.ended for cache in caches if cache.is_full)
        text = " and a copy of it for its own text" if self.compares else ""
        parts = self._tables(tables, full, f"every run's cache{text}")
        if self.watched:
            parts += [*self._recorded(), recording_bytes.attention_rows(work, len(self.runs))]
        step = rows * model.vocabulary * FLOAT
        parts += [Part("logits of a step", "device", step, f"of {rows} rows over the vocabulary"), self._changing(step)]
        return Phase(f"{self.label}{DECODING}", (*common, *parts))

    def _compared(self) -> Part:
        return recording_bytes.compared_attention(self.work, len(self.runs))

    def _changing(self, logits: int) -> Part:
        """The largest of what is not there at once: a table that is copied, what is made of a step's `logits`, and the
        probe's results when the text ends."""
        moved = max((cache.grows + self.watched) * cache.last for cache in self.caches)
        probing = recording_bytes.probing_bytes(self.work) if self.watched and self.leads else 0
        if probing > max(moved, LOGITS_COPIES * logits):
            return Part("the probe", "device", probing, "its results for one layer when the text has ended")
        if moved > LOGITS_COPIES * logits:
            return Part("a table that changes", "device", moved, "of one layer, while its slots are copied")
        return Part("log-probabilities of a step", "device", LOGITS_COPIES * logits, "of every row over the vocabulary")

    def _recorded(self) -> list[Part]:
        work, count = self.work, len(self.runs)
        size = sum(recording_bytes.waiting_bytes(work, cache.holds, cache.budget) for cache in self.runs)
        parts = [recording_bytes.shadow(work, count)]
        parts.append(Part("rows that wait to be written", "host", size, "of the tables events and steps"))
        if self.device == "cuda":
            parts.append(recording_bytes.blocks(work, count))
        return [*parts, *(recording_bytes.probe_states(work) if self.leads else [])]


def on(phase: Phase, device: str) -> dict[Place, int]:
    """Bytes of a phase by place; a CPU has one memory, `host`."""
    device_bytes, host = phase.bytes_on("device"), phase.bytes_on("host")
    return {"device": 0, "host": device_bytes + host} if device == "cpu" else {"device": device_bytes, "host": host}
