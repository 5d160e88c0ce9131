"""What is known of a run before it begins, as its record says it."""

from __future__ import annotations

import shutil
from datetime import UTC, datetime
from pathlib import Path

from torch import Tensor

from kvlab.cache import CompressedCache, make_cache
from kvlab.common.errors import UserError
from kvlab.common.liveness import is_being_written
from kvlab.engine.environment import device_name, model_shape, versions
from kvlab.methods import Method, make_method
from kvlab.methods.core.published_settings import PAPER
from kvlab.models.chat import chat_of, tokenizer_info
from kvlab.models.hybrids import compressed_only
from kvlab.models.load import LoadedModel
from kvlab.requests.budget import Budget
from kvlab.requests.compare import CompareRequest, MethodChoice
from kvlab.requests.generation_settings import generation_notes
from kvlab.requests.prompt_notes import prompt_notes
from kvlab.requests.recording import attention_that_fits, states_that_fit
from kvlab.server.users import acting
from kvlab.trace.record import read_record
from kvlab.trace.schema import RunRecord

# What a record says as the request and the choice do.
OF_REQUEST = (
    "title", "private", "prompt", "answer", "other_answers", "facts", "repeat", "level", "max_new_tokens",
    "compress_every", "seed", "generation_config",
)  # fmt: skip
OF_CHOICE = ("method", "budget", "force_keep", "returned")
ASKED_OF_LOADING = ("placement", "load_in", "revision")  # device and type are recorded as they came out


def record_of(
    request: CompareRequest,
    choice: MethodChoice,
    loaded: LoadedModel,
    ids: Tensor,
    comparison_id: str,
    index: int,
    steps: int,
    runs: int,
) -> RunRecord:
    """The record of a run that begins: the `index`-th of `runs`, over a continuation of `steps` tokens."""
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
        run_id=run_id_of(request, comparison_id, index),
        comparison_id=comparison_id,
        created=datetime.now(UTC).isoformat(timespec="seconds"),
        status="running",
        **{name: getattr(request, name) for name in OF_REQUEST},
        **{name: getattr(choice, name) for name in OF_CHOICE},
        owner=acting().name,
        hyper_parameters=method.model_dump(mode="json"),
        preset=str(choice.preset),
        departures=method.departures(_paper(choice)) if PAPER in method.presets else None,
        notes=(
            *request.notes,
            *_budget_notes(choice, method, ids.shape[1]),
            *_layers_note(cache, loaded),
            *_generation_notes(loaded, request),
            *prompt_notes(
                request.prompt,
                loaded.tokenizer.convert_ids_to_tokens(ids[0].tolist()),
                chat is not None,
                tokenizer_info(loaded.tokenizer),
            ),
        ),
        label=_label(choice, method),
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


def _generation_notes(loaded: LoadedModel, request: CompareRequest) -> list[str]:
    """Notes on the settings in the checkpoint's generation_config, and whether this run honours them."""
    settings = loaded.model.generation_config
    return [] if settings is None else generation_notes(settings.to_dict(), request.generation_config)


def _paper(choice: MethodChoice) -> str:
    """The paper's settings a run is held against: those it asked for, where a paper has several."""
    return str(choice.preset) if str(choice.preset).startswith(PAPER) else PAPER


def run_id_of(request: CompareRequest, comparison_id: str, index: int) -> str:
    """What the `index`-th run of a comparison is called."""
    return f"{comparison_id}-{index:02d}-{request.runs[index].method}"


def finished(request: CompareRequest, root: Path, comparison_id: str) -> dict[int, Path]:
    """The folders of the complete runs of a comparison, by their place in the request.

    Raises:
        UserError: another process writes one of its runs, or they were made of another request.
    """
    found = {}
    for index, choice in enumerate(request.runs):
        path = root / run_id_of(request, comparison_id, index)
        record = _record(path)
        if record is None:
            continue
        if record.status == "running" and is_being_written(path, record.worker_pid, record.created):
            raise UserError(f"{path.name} is still being written: wait until it ends, or stop it.")
        same = record.prompt == request.prompt and record.budget == choice.budget and record.level == request.level
        if not same:
            raise UserError(f"{path.name} was made of another request: ask for a comparison of its own.")
        if record.status == "complete":
            found[index] = path
    return found


def make_way(path: Path) -> None:
    """Remove what an interrupted run left where the same run is about to be made again."""
    shutil.rmtree(path, ignore_errors=True)


def _record(path: Path) -> RunRecord | None:
    try:
        return read_record(path)
    except UserError:  # killed before its record was written, or damaged: it is made again
        return None
