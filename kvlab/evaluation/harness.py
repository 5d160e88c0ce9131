"""Run an evaluation: measure every prompt once per method and budget, and write rows as they are measured."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TypeVar

import pandas as pd

from kvlab.common.thoughts import MORE_TOKENS, is_unfinished
from kvlab.core import FULL, MethodChoice, UserError
from kvlab.core.cache.chunked_prefill import check_chunks
from kvlab.core.cache.factory import make_cache
from kvlab.core.fitted.files import model_digest
from kvlab.core.methods import make_method
from kvlab.engine.energy import energy_counter
from kvlab.engine.environment import device_name, versions
from kvlab.engine.progress import Cancelled, Watch, download_reporter
from kvlab.evaluation.measure import Measurer
from kvlab.evaluation.plan import BLOCK, Shard, blocks, make_plan
from kvlab.evaluation.prepare import KeptContexts
from kvlab.evaluation.request import EvalRequest, remember_files
from kvlab.evaluation.results.outcome import CacheMaker
from kvlab.evaluation.results.rows import PromptIdentity, ResultStore, canonical_json, row_key
from kvlab.evaluation.scoring.metrics import tags_of_rows
from kvlab.evaluation.shared_prompt import nothing
from kvlab.evaluation.work import Backoff, RowMaker, Unit, batches
from kvlab.models.chat import Chat, chat_of, window_of
from kvlab.models.load import LoadedModel, held_model
from kvlab.requests.compare import CompareRequest, Progress
from kvlab.requests.generation_settings import generation_notes

Listener = Callable[[Progress], None]

_GPU_BATCH_ROWS = 8


@dataclass(frozen=True)
class EvalResult:
    """The requested rows, prompt by prompt, and a sentence for each omitted line or part."""

    rows: pd.DataFrame
    notes: list[str]


def evaluate(
    request: EvalRequest,
    out: Path,
    loaded: LoadedModel | None = None,
    make_cache: CacheMaker | None = None,
    on_progress: Listener = lambda progress: None,
    cancelled: Callable[[], bool] = lambda: False,
    prefixes: Path | None = None,
    shard: Shard | None = None,
) -> EvalResult:
    """Return the result rows of a request, or of a part of it; rows already in the folder `out` are not measured again.

    Any number of processes may measure parts in the same folder at once.
    With `prefixes`, a folder of runs, contexts that are compressed alone are kept there as prefixes, and opened.
    When `cancelled` returns true, it stops and returns the rows measured so far. If a method raises, the other methods
    are measured to the end, then its error is raised.
    Raises UserError for an unknown task, method, budget or file, before the first forward pass.
    """
    loaded = loaded or held_model(request, download_reporter(on_progress))
    evaluation = prepare_evaluation(request, loaded, make_cache)
    if shard is not None:
        evaluation = evaluation.part(shard)
    kept = None if prefixes is None else KeptContexts(prefixes, loaded, request)
    if kept is not None:
        evaluation = replace(evaluation, batch_rows=1)
        evaluation.maker.measurer.kept = kept
    with ResultStore.opened(out, shared=shard is not None) as store:
        remember_files(out, request.files)
        _measure_missing(evaluation, store, on_progress, cancelled)
        store.flush()
        stored = store.frame().set_index("key", drop=False)
        order = [key for unit in evaluation.units for key in unit.keys.values() if key in stored.index]
        rows = stored.loc[order].reset_index(drop=True)
        damaged = [f"{path} is damaged: its rows were measured again." for path in store.damaged]
    if kept is not None:
        damaged.append(f"Contexts: {kept.opened} opened from prefixes, {kept.kept} read and kept in {prefixes}.")
    notes = [*evaluation.notes, *damaged]
    if most := evaluation.maker.backoff.most:
        together = "one row" if most == 1 else f"{most} rows"
        notes.append(f"The batch size was reduced to {together} because memory ran out.")
    # Rows whose metric raised, with the first error, and answers that end within thinking.
    errors = rows["error"].dropna()
    if not errors.empty:
        failed = f"{len(errors)} of {len(rows)} answers have no score"
        notes.append(f"{failed}, as their check failed. The first: {errors.iloc[0]}")
    texts = zip(rows["prediction"], tags_of_rows(rows), strict=True)
    ended = sum(is_unfinished(text, tags=tags) for text, tags in texts if isinstance(text, str))
    if ended:
        within = f"{ended} of {len(rows)} texts end within thinking"
        notes.append(f"{within}, which no metric counts as an answer: {MORE_TOKENS}.")
    return EvalResult(rows, notes)


@dataclass(frozen=True)
class Evaluation:
    """A request prepared for a loaded model, or a part of it."""

    units: Sequence[Unit]  # every prompt, with its row keys by choice index
    maker: RowMaker
    batch_rows: int
    chat: Chat | None
    notes: Sequence[str]  # a sentence per omitted part of a file

    def part(self, shard: Shard) -> "Evaluation":
        """Every `count`-th prompt from the `number`-th on; of prompts that run in batches, every `count`-th block."""
        size = BLOCK if self.batch_rows > 1 else 1
        mine = blocks([unit.prompt.identity for unit in self.units], size)[shard.number - 1 :: shard.count]
        return replace(self, units=[unit for start, stop in mine for unit in self.units[start:stop]])

    def measured(self, units: Sequence[Unit]) -> Iterator[tuple[PromptIdentity, MethodChoice, list[dict[str, object]]]]:
        """Measure units and yield, per batch and choice: the first prompt's identity, the choice, and the rows.

        A batch never crosses the borders of `blocks`, so a block's rows do not depend on which process measures it.
        """
        for start, stop in blocks([unit.prompt.identity for unit in units]):
            for batch in batches(units[start:stop], self.maker.measurer.loaded, self.batch_rows, self.chat):
                for choice, rows in self.maker.rows(batch):
                    yield batch[0].prompt.identity, choice, rows


def prepare_evaluation(request: EvalRequest, loaded: LoadedModel, make_cache: CacheMaker | None = None) -> Evaluation:
    """Prepare `request` for a loaded model. Raises UserError as `evaluate`."""
    chat = chat_of(request, loaded.tokenizer)
    turn = 0 if chat is None else sum(map(len, chat.around()))
    make_cache = make_cache or cache_maker(loaded)
    for choice in request.all_choices:
        make_cache(choice)  # report an impossible budget or hyper-parameter early
    plan = make_plan(request, loaded.tokenizer, window_of(loaded.model.config) - turn, chat is not None)
    if (prefill_chunk := request.prefill_chunk) is not None:
        # Chunks must not change a method's result for the longest prompt.
        longest = max((prompt.identity.length for prompt in plan.prompts), default=0)  # 0: a user's own prompt
        for choice in request.all_choices:
            pipeline = make_method(choice.method, **choice.hyper_parameters).pipeline()
            try:
                check_chunks(pipeline, longest, prefill_chunk)
            except UserError as error:
                raise UserError(f"{choice.label} and a prefill chunk of {prefill_chunk:,}: {error}") from None
    digest = model_digest(loaded.model)
    settings = [settings_of(choice) for choice in request.all_choices]
    shared = loaded.name, digest, request.prefill_chunk
    units = []
    for prompt in plan.prompts:
        chat_settings = chat.settings if chat is not None and prompt.chat else None
        aware = request.question_aware and not prompt.context_alone
        pairs = enumerate(zip(request.all_choices, settings, strict=True))
        keys = {
            index: row_key(prompt.identity, choice, method_settings, aware, *shared, chat_settings)
            for index, (choice, method_settings) in pairs
        }
        units.append(Unit(prompt, keys))
    config = loaded.model.generation_config
    notes = [*plan.notes, *getattr(loaded, "notes", ())]  # those of a GGUF file
    notes += generation_notes(config.to_dict(), can_honour=False) if config is not None else ()
    measurer = Measurer(loaded, make_cache, request.question_aware, request.prefill_chunk)
    maker = RowMaker(
        measurer,
        Backoff(measurer),
        request.all_choices,
        settings,
        digest,
        {"device": device_name(loaded.device, loaded.rounding_kl), "versions": canonical_json(versions())},
        None if chat is None else canonical_json(chat.settings),
        energy_counter(loaded.device),
    )
    # On a CPU batching gains nothing.
    return Evaluation(
        units,
        maker,
        request.batch_rows or (1 if loaded.device.type == "cpu" else _GPU_BATCH_ROWS),
        chat,
        notes,
    )


def _measure_missing(
    evaluation: Evaluation, store: ResultStore, on_progress: Listener, cancelled: Callable[[], bool]
) -> None:
    done = store.keys()
    rest = [
        Unit(unit.prompt, {index: key for index, key in unit.keys.items() if key not in done})
        for unit in evaluation.units
    ]
    missing = [unit for unit in rest if unit.keys]
    total = sum(len(unit.keys) for unit in evaluation.units)
    finished = total - sum(len(unit.keys) for unit in missing)
    on_progress(Progress(stage="start", done=finished, total=total))
    evaluation.maker.measurer.check = Watch(total, None, cancelled).check
    try:
        for prompt, choice, rows in evaluation.measured(missing):
            store.append(rows)
            finished += len(rows)
            arm = "full cache" if choice.method == FULL.method else choice.label
            on_progress(Progress(stage=f"{prompt.task}: {arm}", done=finished, total=total))
    except Cancelled:
        return
    finally:
        evaluation.maker.measurer.check = nothing
    for error in evaluation.maker.errors.values():
        raise error


def settings_of(choice: MethodChoice) -> dict[str, object]:
    """All hyper-parameters of a choice, defaults included."""
    return make_method(choice.method, **choice.hyper_parameters).model_dump(mode="json")


def cache_maker(loaded: LoadedModel) -> CacheMaker:
    """The function that makes a choice's cache for this model."""
    return lambda choice: make_cache(loaded, make_method(choice.method, **choice.hyper_parameters), choice.budget)


Request = TypeVar("Request", CompareRequest, EvalRequest)


def without_refused(request: Request) -> tuple[Request, tuple[str, ...]]:
    """The request without refused methods and tasks, and their names.

    A request that would keep no method or no task is returned as it is, with no names. Loads the model; raises
    UserError if that fails.
    """
    loaded = held_model(request)
    make_cache = cache_maker(loaded)
    kept: dict[str, list[object]] = {"choices": []}
    names: list[str] = []
    for choice in request.choices:
        try:
            make_cache(choice)
            kept["choices"].append(choice)
        except UserError:
            names.append(choice.method)
    if isinstance(request, EvalRequest):
        kept["tasks"] = []
        for task in request.tasks:
            alone = request.model_copy(update={"tasks": (task,), "files": ()})
            try:
                make_plan(alone, loaded.tokenizer, window_of(loaded.model.config))
                kept["tasks"].append(task)
            except UserError:
                names.append(task.task)
    if not names or not all(kept.values()):
        return request, ()
    changes = {name: tuple(values) for name, values in kept.items()}
    return request.model_copy(update=changes), tuple(dict.fromkeys(names))
