"""Several methods over one prompt: each decodes the full cache's continuation (recorded) and its own (timed)."""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any

import torch
from pydantic import ValidationError
from torch import Tensor

from kvlab.budget import Budget
from kvlab.cache import CompressedCache, make_cache
from kvlab.cache.cache import nothing_to_compress
from kvlab.cache.chunks import check_chunks
from kvlab.engine.environment import device_name, model_shape, versions
from kvlab.engine.forward import decode_one, greedy, prefill, synchronize
from kvlab.engine.probe import probe
from kvlab.engine.prompt import continuation_pieces, encode_prompt, prompt_pieces
from kvlab.engine.recorder import Recorder, memory_columns
from kvlab.engine.reference import Reference, divergence, full_cache_reference
from kvlab.engine.room import room
from kvlab.engine.turns import read_in_turns
from kvlab.engine.watch import Cancelled, Watch, before_steps
from kvlab.errors import UserError
from kvlab.given import in_one_sentence, path_of, shown
from kvlab.methods import Method, make_method
from kvlab.methods.eviction.gvote import GVote
from kvlab.methods.giving_back import giving_back
from kvlab.methods.presets import PAPER
from kvlab.methods.selectors.keeping import keeping
from kvlab.models.chat import chat_of
from kvlab.models.held import held_model
from kvlab.models.hybrids import compressed_only
from kvlab.models.load import LoadedModel, pick_device
from kvlab.planning.limits import TURNS_SHARE
from kvlab.recording import Recording, attention_that_fits, states_that_fit
from kvlab.requests import CompareRequest, MethodChoice, Progress, RecordLevel
from kvlab.trace import Run, RunWriter, open_run
from kvlab.trace.schema import RunRecord, check_id

ASKED_OF_LOADING = ("placement", "load_in", "revision")  # device and type are recorded as they came out


def compare(
    request: CompareRequest,
    root: Path | str = "runs",
    *,
    comparison_id: str | None = None,
    progress: Callable[[Progress], None] | None = None,
    cancelled: Callable[[], bool] | None = None,
    loaded: LoadedModel | None = None,
) -> list[Path]:
    """Run every choice of `request` over its prompt and return the run folders, in order.

    With more than one choice the full cache is always run too, first. A stop (`cancelled`, or Ctrl-C) leaves the
    finished runs complete and the current one marked cancelled, then returns or re-raises.
    Raises UserError for bad input before anything is run or written, and where memory runs out: the finished runs
    stay, the current one is marked failed, and the device has its memory back.
    """
    if not isinstance(request, CompareRequest):
        raise UserError(f"A comparison cannot be made of {shown(request)}: give a kvlab.requests.CompareRequest.")
    root = path_of(root, "The folder of runs")
    if request.repeats:
        raise UserError("A request with repeats makes several comparisons: give it to kvlab.jobs.batch.run_batch.")
    comparison_id = check_id(comparison_id or f"{datetime.now(UTC):%Y%m%d-%H%M%S}-{uuid.uuid4().hex[:6]}")
    choices = request.runs
    for choice in choices:
        make_method(choice.method, **choice.hyper_parameters)
        Budget(choice.budget)
    if loaded is None:
        with room(request, pick_device(request.device), 1, root, "loading the model"):
            loaded = held_model(request, before_steps(progress, cancelled))
    chat = chat_of(request, loaded.tokenizer)
    ids = encode_prompt(loaded, request.prompt, request.max_new_tokens, chat)
    for choice in choices:  # what a method or a model refuses is said before anything runs
        if not make_cache(loaded, make_method(choice.method, **choice.hyper_parameters), choice.budget).has_compressed:
            raise UserError(nothing_to_compress(loaded.model.config.get_text_config(decoder=True)))
    _check_positions(choices, ids.shape[1])
    shape = model_shape(loaded)
    request.record.check(shape.num_hidden_layers, shape.num_key_value_heads)
    if request.prefill_chunk is not None:
        for choice in choices:
            pipeline = make_method(choice.method, **choice.hyper_parameters).pipeline()
            check_chunks(pipeline, ids.shape[1], request.prefill_chunk)
    torch.manual_seed(request.seed)
    begun = time.perf_counter()
    steps = 1 + request.max_new_tokens
    watch = Watch(steps * (1 + 2 * len(choices)), progress, cancelled)
    paths: list[Path] = []
    try:
        with room(request, loaded.device, ids.shape[1], root, "full cache"):
            reference = full_cache_reference(loaded, ids, request.max_new_tokens, watch, request.prefill_chunk)
        for index, choice in enumerate(choices):
            watch.reach(steps * (1 + 2 * index), choice.label)
            record = _record(request, choice, loaded, ids, comparison_id, index, len(reference.ids), len(choices))
            with RunWriter(root, record) as writer:
                paths.append(writer.path)
                watch.run_id = record.run_id
                with room(request, loaded.device, ids.shape[1], root, choice.label):
                    if index == 0 and request.level == "full":
                        _probe(request, loaded, ids, reference, writer, watch)
                    _run_one(request, choice, loaded, ids, reference, writer, watch)
        makers = [partial(_cache, request, choice, loaded) for choice in choices]
        with room(request, loaded.device, ids.shape[1], root, "timing in turns"):
            allowed = TURNS_SHARE * (time.perf_counter() - begun)
            read_in_turns(paths, makers, loaded, ids, request.prefill_chunk, allowed, watch)
        watch.reach(watch.total, "done")
    except Cancelled:
        pass
    return paths


def run(
    prompt: str,
    method: str = "keepkv",
    budget: float | int | str = 0.2,
    *,
    model: str | LoadedModel = "mini",
    max_new_tokens: int = 64,
    level: RecordLevel = "full",
    root: Path | str = "runs",
    compress_every: int = 1,
    record: Recording | str = "",
    seed: int = 0,
    **hyper_parameters: Any,
) -> Run:
    """Run one method over one prompt, record it, and return the opened run.

    Its tables are pandas frames: `.tokens`, `.steps`, `.events`, `.memory`. `record` bounds its arrays, such as
    "layers=0-3,8,heads=0,every=4". Raises UserError for bad input.
    """
    amount = Budget.parse(budget) if isinstance(budget, str) else Budget(budget)
    loaded = model if isinstance(model, LoadedModel) else None
    try:
        request = CompareRequest(
            prompt=prompt,
            model=model.name if isinstance(model, LoadedModel) else model,
            choices=(MethodChoice(method=method, budget=amount.amount, hyper_parameters=hyper_parameters),),
            max_new_tokens=max_new_tokens,
            level=level,
            compress_every=compress_every,
            record=Recording.parse(record) if isinstance(record, str) else record,
            seed=seed,
        )
    except ValidationError as error:
        raise UserError(in_one_sentence(error)) from None
    return open_run(compare(request, root, loaded=loaded)[0])


def _check_positions(choices: tuple[MethodChoice, ...], tokens: int) -> None:
    for choice in choices:
        kept = (*choice.force_keep, *(choice.returned.tokens if choice.returned else ()))
        if kept and max(kept) >= tokens:
            raise UserError(f"Token {max(kept)} cannot be kept: the prompt has {tokens:,} tokens, counted from 0.")


def _run_one(
    request: CompareRequest,
    choice: MethodChoice,
    loaded: LoadedModel,
    ids: Tensor,
    reference: Reference,
    writer: RunWriter,
    watch: Watch,
) -> None:
    try:
        recorded = _forced_pass(request, choice, loaded, ids, reference, writer, watch)
        timings = _free_pass(request, choice, loaded, ids, writer, watch)
        writer.finish("complete", recorded_tokens_per_second=recorded, **timings)
    except Cancelled:
        writer.finish("cancelled", "stopped by the user")
        raise


def _probe(
    request: CompareRequest, loaded: LoadedModel, ids: Tensor, reference: Reference, writer: RunWriter, watch: Watch
) -> None:
    """Once a comparison: how Gaussian its hidden states are, and how good the queries GVote would sample."""
    asked = next((choice.hyper_parameters for choice in request.choices if choice.method == GVote.name), {})
    watch.advance("probing the full cache", 0)
    voting = make_method(GVote.name, **asked)
    assert isinstance(voting, GVote)
    probe(loaded, ids, reference.ids, writer, voting, request.seed, request.prefill_chunk, request.record)


def _cache(request: CompareRequest, choice: MethodChoice, loaded: LoadedModel, **options: Any) -> Any:
    method = make_method(choice.method, **choice.hyper_parameters)
    cache = make_cache(
        loaded, method, choice.budget, compress_every=request.compress_every, seed=request.seed, **options
    )
    cache.settings.pipeline = keeping(cache.settings.pipeline, choice.force_keep)
    if choice.returned is not None:
        layers = [layer.layer_idx for layer in cache.compressed_layers()]
        cache.settings.pipeline = giving_back(cache.settings.pipeline, choice.returned, layers, request.max_new_tokens)
    return cache


def _forced_pass(
    request: CompareRequest,
    choice: MethodChoice,
    loaded: LoadedModel,
    ids: Tensor,
    reference: Reference,
    writer: RunWriter,
    watch: Watch,
) -> float | None:
    """Decode the reference's tokens, recording every step; returns tokens a second where recorded."""
    steps = max(len(reference.ids) - 1, 0)
    asked = request.level, ids.shape[1], steps, writer.record.recorded_states, writer.record.attention_rows
    recorder = None if request.level == "off" else Recorder(writer, *asked)
    cache = _cache(request, choice, loaded, observer=recorder)
    watch.advance(f"{choice.label}: prompt")
    start = prefill(loaded, cache, ids, request.prefill_chunk, watch.check)
    _write_prompt(request, loaded, ids, start.prompt_logprobs, reference, writer)
    rows = [start.next_logprobs]
    if recorder is not None:
        recorder.end_step(cache)
    synchronize(loaded.device)
    begun = time.perf_counter()
    for token in reference.ids[:-1]:
        watch.advance(f"{choice.label}: decoding the full cache's continuation")
        rows.append(decode_one(loaded, cache, torch.tensor(token, device=loaded.device)))
        if recorder is not None:
            recorder.end_step(cache)
    synchronize(loaded.device)
    seconds = time.perf_counter() - begun
    _write_forced(loaded, ids.shape[1], reference, rows, writer)
    if recorder is not None:
        recorder.write_arrays()
    return steps / seconds if steps and recorder is not None else None


def _free_pass(
    request: CompareRequest, choice: MethodChoice, loaded: LoadedModel, ids: Tensor, writer: RunWriter, watch: Watch
) -> dict[str, Any]:
    """Decode the method's own continuation with recording off, timed; returns the record's timing fields."""
    cache = _cache(request, choice, loaded, timed=True)
    watch.advance(f"{choice.label}: its own continuation")
    synchronize(loaded.device)
    begun = time.perf_counter()
    start = prefill(loaded, cache, ids, request.prefill_chunk, watch.check)
    synchronize(loaded.device)
    prefilled = time.perf_counter()
    step = lambda: watch.advance(f"{choice.label}: its own continuation")  # noqa: E731
    chosen = list(greedy(loaded, cache, start.next_logprobs, request.max_new_tokens, step))
    synchronize(loaded.device)
    seconds = time.perf_counter() - prefilled
    free = [token for token, _ in chosen]
    if request.level == "off":
        # Nothing was watched, but what the cache holds in the end costs nothing to say.
        writer.append("memory", memory_columns(cache, max(len(free) - 1, 0)))
    writer.append(
        "tokens",
        {
            "phase": ["free"] * len(free),
            "position": list(range(ids.shape[1], ids.shape[1] + len(free))),
            "id": free,
            "text": continuation_pieces(loaded.tokenizer, free),
            "logprob": [float(row[token]) for token, row in chosen],
        },
    )
    return {
        "seconds_prefill": prefilled - begun,
        "seconds_compress": cache.settings.prefill_compress_seconds,
        "seconds_rehearse": cache.settings.rehearsal_seconds if cache.settings.rehearsal is not None else None,
        # The first token comes from the prompt's pass: len - 1 decode steps were timed.
        "decode_tokens_per_second": (len(free) - 1) / seconds if len(free) > 1 else None,
        "free_text": loaded.tokenizer.decode(free, skip_special_tokens=True),
    }


def _write_prompt(
    request: CompareRequest,
    loaded: LoadedModel,
    ids: Tensor,
    logprobs: Tensor | None,
    reference: Reference,
    writer: RunWriter,
) -> None:
    known, chat = ids[0].tolist(), chat_of(request, loaded.tokenizer)
    nothing = [None] * (len(known) - 1)
    given = nothing if logprobs is None else logprobs.tolist()
    full = nothing if reference.prompt_logprobs is None else reference.prompt_logprobs.tolist()
    writer.append(
        "tokens",
        {
            "phase": ["prompt"] * len(known),
            "position": list(range(len(known))),
            "id": known,
            "text": prompt_pieces(loaded.tokenizer, request.prompt, known, chat),
            "logprob": [None, *given],
            "logprob_full": [None, *full],
        },
    )


def _write_forced(
    loaded: LoadedModel, prompt_tokens: int, reference: Reference, rows: list[Tensor], writer: RunWriter
) -> None:
    pairs = [divergence(full, given) for full, given in zip(reference.logprobs, rows, strict=True)]
    writer.append(
        "tokens",
        {
            "phase": ["forced"] * len(reference.ids),
            "position": list(range(prompt_tokens, prompt_tokens + len(reference.ids))),
            "id": reference.ids,
            "text": continuation_pieces(loaded.tokenizer, reference.ids),
            "logprob": [float(row[token]) for token, row in zip(reference.ids, rows, strict=True)],
            "logprob_full": [float(row[t]) for t, row in zip(reference.ids, reference.logprobs, strict=True)],
            "kl": [kl for kl, _ in pairs],
            "top1_agree": [same for _, same in pairs],
        },
    )
    writer.update(forced_text=loaded.tokenizer.decode(reference.ids, skip_special_tokens=True))


def _label(choice: MethodChoice, method: Method) -> str:
    """The legend's name; what takes no budget does not show one."""
    if method.family == "reference":
        return "full cache"
    return choice.label if method.needs_budget else choice.label.replace(" 100 %", "", 1)


def _budget_notes(choice: MethodChoice, method: Method, tokens: int) -> list[str]:
    """What the method says of so many slots; nothing of bytes, which are only slots once the prompt was read."""
    return [] if isinstance(choice.budget, str) else method.notes(Budget(choice.budget).slots(tokens), tokens)


def _layers_note(cache: CompressedCache, loaded: LoadedModel) -> tuple[str, ...]:
    """Which layers a hybrid's compression is of; nothing for other models and for the full cache."""
    kinds = getattr(loaded.model.config.get_text_config(decoder=True), "layer_types", None) or []
    sentence = compressed_only(kinds, [layer.layer_idx for layer in cache.compressed_layers()])
    return (sentence,) if sentence and cache.settings.compresses else ()


def _paper(choice: MethodChoice) -> str:
    """The paper's settings a run is held against: those it asked for, where a paper has several."""
    return str(choice.preset) if str(choice.preset).startswith(PAPER) else PAPER


def _record(
    request: CompareRequest,
    choice: MethodChoice,
    loaded: LoadedModel,
    ids: Tensor,
    comparison_id: str,
    index: int,
    steps: int,
    runs: int,
) -> RunRecord:
    method = make_method(choice.method, **choice.hyper_parameters)
    cache = make_cache(loaded, method, choice.budget)
    chat = chat_of(request, loaded.tokenizer)
    compressed, model = [layer.layer_idx for layer in cache.compressed_layers()], model_shape(loaded)
    rows = states = request.record
    left_out: dict[str, str] = {}
    if request.level == "full":
        tokens, asked = ids.shape[1] + max(steps - 1, 0), (request.record, compressed, model.num_key_value_heads)
        states, left_out["keys"] = states_that_fit(*asked, model.head_dim, tokens, runs)
        rows, left_out["attention"] = attention_that_fits(*asked, tokens, max(steps, 1))
    return RunRecord(
        run_id=f"{comparison_id}-{index:02d}-{choice.method}",
        comparison_id=comparison_id,
        created=datetime.now(UTC).isoformat(timespec="seconds"),
        status="running",
        title=request.title,
        prompt=request.prompt,
        answer=request.answer,
        facts=request.facts,
        repeat=request.repeat,
        method=choice.method,
        budget=choice.budget,
        hyper_parameters=method.model_dump(mode="json"),
        preset=str(choice.preset),
        departures=method.departures(_paper(choice)) if PAPER in method.presets else None,
        notes=(*_budget_notes(choice, method, ids.shape[1]), *_layers_note(cache, loaded)),
        label=_label(choice, method),
        force_keep=choice.force_keep,
        returned=choice.returned,
        level=request.level,
        max_new_tokens=request.max_new_tokens,
        compress_every=request.compress_every,
        seed=request.seed,
        chat=None if chat is None else chat.settings,
        loading={name: value for name, value in request.loading.items() if name in ASKED_OF_LOADING and value},
        device=device_name(loaded.device),
        model=model,
        versions=versions(),
        prompt_tokens=ids.shape[1],
        recording=request.record,
        states=states,
        attention_rows=rows,
        left_out={name: sentence for name, sentence in left_out.items() if sentence},
        sliding_layers=tuple(index for index in range(len(cache.layers)) if index not in compressed),
    )
