"""Build the record of a run before it starts, and find complete runs to resume from."""

from datetime import UTC, datetime
from pathlib import Path

from kvlab.common.liveness import is_being_written
from kvlab.core import Budget, UserError
from kvlab.core.contract.preset import PAPER
from kvlab.core.families import compressed_only
from kvlab.engine.environment import device_name, versions
from kvlab.engine.prepare import Prepared, PreparedRun
from kvlab.models.chat import tokenizer_info
from kvlab.requests.compare import CompareRequest, run_id_of
from kvlab.requests.generation_settings import generation_notes
from kvlab.requests.prompt_notes import prompt_notes, template_notes
from kvlab.requests.recording import attention_that_fits, states_that_fit
from kvlab.trace.record import read_record
from kvlab.trace.schema import RunRecord

# Fields that a record copies from the request and the choice.
OF_REQUEST = (
    "title", "private", "prompt", "answer", "other_answers", "facts", "repeat", "level", "max_new_tokens",
    "compress_every", "seed", "generation_config",
)  # fmt: skip
OF_CHOICE = ("method", "budget", "force_keep", "returned")
LOADING_FIELDS = ("placement", "weights", "revision")  # device and dtype are recorded as resolved


def record_of(prepared: Prepared, index: int, comparison_id: str, steps: int) -> RunRecord:
    """The record of run `index` of the comparison, over a continuation of `steps` tokens."""
    request = prepared.request
    loaded = prepared.loaded
    ids = prepared.ids
    model = prepared.shape
    run = prepared.runs[index]
    notes = _notes(prepared, prepared.runs[index])
    choice = run.choice
    method = run.method
    label = choice.label if method.needs_budget else choice.label.replace(" 100 %", "", 1)
    if method.family == "reference":
        label = "full cache"
    preset = str(run.choice.preset)
    paper = preset if preset.startswith(PAPER) else PAPER  # a paper may have several presets
    rows = states = request.record
    left_out: dict[str, str] = {}
    if request.level == "full":
        tokens = ids.shape[1] + max(steps - 1, 0)
        wanted = request.record, prepared.compressed_layers, model.num_key_value_heads
        states, left_out["keys"] = states_that_fit(*wanted, model.head_dim, tokens, len(prepared.runs))
        rows, left_out["attention"] = attention_that_fits(*wanted, tokens, max(steps, 1))
    return RunRecord(
        run_id=run_id_of(request, comparison_id, index),
        comparison_id=comparison_id,
        status="running",
        created=datetime.now(UTC).isoformat(timespec="seconds"),
        owner=request.owner,
        **{name: getattr(request, name) for name in OF_REQUEST},
        **{name: getattr(choice, name) for name in OF_CHOICE},
        label=label,
        hyper_parameters=method.model_dump(mode="json"),
        preset=preset,
        departures=method.differences(paper) if PAPER in method.presets else None,
        notes=tuple(notes),
        chat=None if prepared.chat is None else prepared.chat.settings,
        prompt_tokens=ids.shape[1],
        loading={name: value for name, value in request.loading.items() if name in LOADING_FIELDS and value},
        device=device_name(loaded.device, loaded.rounding_kl),
        model=model,
        versions=versions(),
        sliding_layers=prepared.other_layers,
        recording=request.record,
        states=states,
        attention_rows=rows,
        left_out={name: sentence for name, sentence in left_out.items() if sentence},
    )


def _notes(prepared: Prepared, run: PreparedRun) -> list[str]:
    """Notes of the record: the run's budget, layers and prompt, and whether generation settings were used."""
    request = prepared.request
    loaded = prepared.loaded
    tokens = prepared.ids.shape[1]
    notes = [*request.notes, *loaded.notes]
    budget = run.choice.budget
    settings = loaded.model.generation_config
    if not isinstance(budget, str):  # the slots of a budget in bytes are known only after the prompt
        notes += run.method.notes(Budget(budget).slots(tokens), tokens)
    config = loaded.model.config.get_text_config(decoder=True)
    hybrid = compressed_only(getattr(config, "layer_types", None) or [], list(prepared.compressed_layers))
    if hybrid and run.settings.compresses:
        notes.append(hybrid)
    if settings is not None:
        notes += generation_notes(settings.to_dict(), request.generation_config)
    words = loaded.tokenizer.convert_ids_to_tokens(prepared.ids[0].tolist())
    chat = prepared.chat
    known = tokenizer_info(loaded.tokenizer)
    if chat is not None:
        notes += template_notes(chat.rendered(request.prompt), chat.turns, known.template)
    return [*notes, *prompt_notes(request.prompt, words, chat is not None, known)]


def complete_runs(request: CompareRequest, root: Path, comparison_id: str) -> dict[int, Path]:
    """Folders of the complete runs of a comparison, by their index in the request.

    Raises UserError if another process is writing one of them, or if they belong to a different request.
    """
    complete = {}
    for index, choice in enumerate(request.runs):
        path = root / run_id_of(request, comparison_id, index)
        try:
            record = read_record(path)
        except UserError:  # killed before its record was written, or damaged: it runs again
            continue
        if record.status == "running" and is_being_written(path, record.worker_pid, record.created):
            raise UserError(f"{path.name} is still being written: wait until it ends, or stop it.")
        same = record.prompt == request.prompt and record.budget == choice.budget and record.level == request.level
        if not same:
            raise UserError(f"{path.name} belongs to a different request: start a new comparison.")
        if record.status == "complete":
            complete[index] = path
    return complete
