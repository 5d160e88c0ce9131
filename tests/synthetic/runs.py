"""Writes run folders of random but consistent content, for tests and for trying figures without a model."""

from __future__ import annotations

import math
import zlib
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

import numpy as np

from kvlab.requests.compare import RecordLevel
from kvlab.trace.schema import ModelShape, RunRecord, RunStatus
from kvlab.trace.writer import RunWriter
from tests.synthetic.probe import probe_arrays
from tests.synthetic.slots import SyntheticLayer, attention_rows, budget_slots

HEAD_DIM = 32
BYTES_PER_SLOT = 2 * HEAD_DIM * 2 + 17  # key and value in half precision, position, votes, log mass, score, valid
WORDS = (
    " the ship", " harbour", " lamp", " old", " captain", " wrote", ",", " a", " key", " under", " stone", " of",
    " river", ".", " Then", " she", " carried", " seven", " letters", " to", " Ardenne", " and", " rain", "\n",
)  # fmt: skip


@dataclass(frozen=True)
class _Plan:
    """The numbers every table of one synthetic run is made from."""

    method: str
    level: RecordLevel
    layers: int
    heads: int
    prompt_tokens: int
    steps: int
    budget: int | float

    @property
    def total_tokens(self) -> int:
        return self.prompt_tokens + self.steps

    @property
    def slots(self) -> int:
        return self.total_tokens if self.method == "full" else budget_slots(self.budget, self.prompt_tokens)


def write_synthetic_run(
    root: Path,
    *,
    layers: int = 2,
    heads: int = 2,
    prompt_tokens: int = 64,
    steps: int = 16,
    seed: int = 0,
    method: str = "keepkv",
    level: RecordLevel = "full",
    comparison_id: str = "synthetic",
    budget: int | float = 0.25,
    status: RunStatus = "complete",
    title: str = "",
    prompt: str | None = None,
    **fields: object,
) -> Path:
    """The folder of a new run whose tables, arrays and record agree with each other; the text depends on `seed` only.

    `keepkv` and `zsmerge` merge, `pool` pools, `full` drops nothing, any other name evicts. A given `prompt` is cut
    into pieces of a few characters and sets `prompt_tokens`; `fields` are further ones of the record.
    """
    texts = np.random.default_rng(seed)
    pieces = _prompt_pieces(prompt, prompt_tokens, texts)
    plan = _Plan(method, level, layers, heads, len(pieces), steps, budget)
    forced = list(texts.choice(WORDS, steps))
    free = list(texts.choice(WORDS, steps)) if method != "full" else forced
    record = _record(plan, seed, comparison_id, title, pieces, forced, free)
    record = RunRecord.model_validate(record.model_dump() | fields)
    writer = RunWriter(Path(root), record)
    _write_tokens(writer, plan, pieces, forced, free, seed)
    for layer in range(layers if level != "off" else 0):
        _write_layer(writer, plan, layer, seed)
    writer.flush()
    if status != "running":
        writer.finish(status, "" if status in ("complete", "running") else f"made {status} on purpose")
    return writer.path


def _prompt_pieces(prompt: str | None, prompt_tokens: int, texts: np.random.Generator) -> list[str]:
    """Texts of the prompt's tokens; the first is the model's BOS token."""
    if prompt is None:
        return ["<s>", *texts.choice(WORDS, prompt_tokens - 1)]
    return ["<s>", *(prompt[start : start + 4] for start in range(0, len(prompt), 4))]


def _record(
    plan: _Plan, seed: int, comparison_id: str, title: str, pieces: list[str], forced: list[str], free: list[str]
) -> RunRecord:
    model = ModelShape(
        name="synthetic", family="random", num_hidden_layers=plan.layers, num_attention_heads=2 * plan.heads,
        num_key_value_heads=plan.heads, head_dim=HEAD_DIM, dtype="float16", parameters=0,
    )  # fmt: skip
    budget = 1.0 if plan.method == "full" else plan.budget
    percent = f"{100 * budget:g} %" if isinstance(budget, float) else f"{budget} slots"
    created = datetime.now(UTC)
    return RunRecord(
        run_id=f"{comparison_id}-{plan.method}-{percent.replace(' %', 'pc').replace(' ', '-')}-{seed}",
        comparison_id=comparison_id, created=created.isoformat(), status="running", title=title,
        prompt="".join(pieces[1:]), method=plan.method, budget=budget,
        hyper_parameters={"sink": 4, "recent": 8}, label=f"{plan.method} {percent}",
        level=plan.level, max_new_tokens=plan.steps, seed=seed, device="none", model=model,
        versions={"synthetic": "1"}, prompt_tokens=len(pieces), seconds_prefill=0.5, seconds_compress=0.1,
        decode_tokens_per_second=40.0 if plan.method == "full" else 55.0, free_text="".join(free),
        forced_text="".join(forced), sliding_layers=(),
    )  # fmt: skip


def _write_tokens(
    writer: RunWriter, plan: _Plan, pieces: list[str], forced: list[str], free: list[str], seed: int
) -> None:
    shared, own = np.random.default_rng(seed + 1), _generator(plan, seed)
    count = len(pieces)
    prompt_logprob = -shared.exponential(2.0, count)
    prompt_logprob[0] = np.nan
    kl = np.zeros(count)
    writer.append("tokens", _token_rows("prompt", 0, pieces, prompt_logprob, prompt_logprob, kl, kl == 0))
    forced_full = -shared.exponential(0.8, plan.steps)
    kl = (
        np.zeros(plan.steps)
        if plan.method == "full"
        else own.gamma(0.6, 0.15, plan.steps) * (np.arange(plan.steps) > 0)
    )
    forced_own = np.minimum(forced_full - own.normal(0, 0.5, plan.steps) * np.sqrt(kl), -1e-4)
    writer.append("tokens", _token_rows("forced", count, forced, forced_own, forced_full, kl, kl < 0.25))
    writer.append("tokens", _token_rows("free", count, free, -own.exponential(0.8, plan.steps)))


def _token_rows(
    phase: str, start: int, texts: list[str], logprob: np.ndarray,
    full: np.ndarray | None = None, kl: np.ndarray | None = None, agree: np.ndarray | None = None,
) -> dict[str, np.ndarray | list]:  # fmt: skip
    rows: dict[str, np.ndarray | list] = {
        "phase": [phase] * len(texts),
        "position": start + np.arange(len(texts)),
        "id": [zlib.crc32(text.encode()) % 32_000 for text in texts],
        "text": [str(text) for text in texts],
        "logprob": logprob,
    }
    measured = {"logprob_full": full, "kl": kl, "top1_agree": agree}
    return rows | {name: values for name, values in measured.items() if values is not None}


def _write_layer(writer: RunWriter, plan: _Plan, layer: int, seed: int) -> None:
    random = _generator(plan, seed, layer)
    true_mass = attention_rows(np.random.default_rng((seed, layer)), plan.steps, plan.heads, plan.prompt_tokens)
    state = SyntheticLayer(plan.method, plan.heads, plan.prompt_tokens, plan.total_tokens, plan.slots, random)
    slot_mass = np.zeros_like(true_mass)
    for step in range(plan.steps + 1):
        events = state.advance(step, true_mass[step])
        slot_mass[step] = state.slot_mass
        if plan.level == "full" and step == 0 and len(events["source"]):
            read = slice(0, plan.prompt_tokens)
            decided = {"score": state.score[:, read].astype(np.float32), "kept": state.alive[:, read]}
            writer.write_arrays("decision", layer, decided)
        if plan.level == "full" and len(events["source"]):
            constant = {"step": np.full(len(events["source"]), step), "layer": np.full(len(events["source"]), layer)}
            writer.append("events", constant | events)
        measured = state.measure(true_mass[step]) if plan.level == "full" else {}
        place = {"step": np.full(plan.heads, step), "layer": np.full(plan.heads, layer), "head": np.arange(plan.heads)}
        writer.append("steps", place | state.counts() | measured)
        writer.append("memory", _memory_row(plan, step, layer, float(state.alive.sum(1).mean())))
    if plan.level == "full":
        _write_arrays(writer, plan, layer, seed, true_mass, slot_mass)


def _memory_row(plan: _Plan, step: int, layer: int, live_slots: float) -> dict[str, list]:
    logical = plan.prompt_tokens + step
    physical = min(plan.slots + 1, logical)
    uncompressed = plan.prompt_tokens if step == 0 else physical  # of the layer that decides last
    per_slot = BYTES_PER_SLOT * plan.heads
    return {
        "step": [step], "layer": [layer], "logical_tokens": [logical], "physical_slots": [physical],
        "live_slots": [live_slots], "live_bytes": [round(live_slots * per_slot)],
        "allocated_bytes": [physical * per_slot], "peak_bytes": [uncompressed * per_slot],
        "cache_peak_bytes": [((plan.layers - 1) * physical + uncompressed) * per_slot],
    }  # fmt: skip


def _write_arrays(
    writer: RunWriter, plan: _Plan, layer: int, seed: int, true_mass: np.ndarray, slot_mass: np.ndarray
) -> None:
    shared = np.random.default_rng((seed, layer, 1))  # every method of a comparison caches the same keys
    for name, locality in (("keys", 0.9), ("values", 0.2)):
        vectors = _correlated_vectors(shared, (plan.heads, plan.total_tokens, HEAD_DIM), locality)
        norm = np.linalg.norm(vectors, axis=-1)
        writer.write_arrays(name, layer, {"unit": vectors / norm[..., None], "norm": norm})
    writer.write_arrays("attention", layer, {"true_mass": true_mass, "slot_mass": slot_mass})
    if plan.method == "full" and plan.steps:  # a comparison's probe lies in its first run
        for name, arrays in probe_arrays(
            np.random.default_rng((seed, layer, 2)), true_mass, plan.prompt_tokens
        ).items():
            writer.write_arrays(name, layer, arrays)


def _correlated_vectors(random: np.random.Generator, shape: tuple[int, int, int], locality: float) -> np.ndarray:
    """Random vectors that share a component within stretches of text, as real keys do along a passage."""
    heads, tokens, size = shape
    passage = np.cumsum((random.random((heads, tokens)) < 1 / 12).astype(np.int64), axis=1)
    centres = random.standard_normal((heads, int(passage.max()) + 1, size), dtype=np.float32)
    shared = np.take_along_axis(centres, passage[..., None], axis=1)
    # Python's floats keep the arrays in single precision; numpy's own would double them, and the time with them.
    vectors = math.sqrt(locality) * shared + math.sqrt(1 - locality) * random.standard_normal(shape, dtype=np.float32)
    return vectors + locality


def _generator(plan: _Plan, seed: int, *more: int) -> np.random.Generator:
    return np.random.default_rng((seed, zlib.crc32(plan.method.encode()), *more))
