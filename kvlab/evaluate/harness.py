"""Run an evaluation: every prompt under every method and budget, each measured once, rows on disk as they come."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pandas as pd
from transformers import Cache

import kvlab
from kvlab.engine.environment import device_name, versions
from kvlab.engine.watch import before_steps
from kvlab.evaluate.fingerprint import model_digest
from kvlab.evaluate.measure import Measurer
from kvlab.evaluate.outcome import CacheMaker, Loaded
from kvlab.evaluate.passes import check_choices
from kvlab.evaluate.plan import make_plan
from kvlab.evaluate.request import EvalRequest
from kvlab.evaluate.rows import canonical_json, row_key
from kvlab.evaluate.store import ResultStore
from kvlab.evaluate.work import RowMaker, Unit, batches
from kvlab.methods import make_method
from kvlab.models.chat import Chat, chat_of
from kvlab.models.held import held_model
from kvlab.models.placing import input_device
from kvlab.requests import MethodChoice, Progress

Listener = Callable[[Progress], None]

_GPU_BATCH_ROWS = 8
_ANY_WINDOW = 1 << 30  # for a model that names none


@dataclass(frozen=True)
class EvalResult:
    """The rows that were asked for, prompt by prompt, and a sentence for each line or part that was left out."""

    rows: pd.DataFrame
    notes: list[str]


def evaluate(
    request: EvalRequest,
    out: Path,
    loaded: Loaded | None = None,
    make_cache: CacheMaker | None = None,
    on_progress: Listener = lambda progress: None,
    cancelled: Callable[[], bool] = lambda: False,
) -> EvalResult:
    """Return the result rows of a request; what the folder `out` already holds is not measured again.

    Once `cancelled` says so it ends with the rows that are there by then.
    Raises UserError for an unknown task, method, budget or file, before the first forward pass.
    """
    loaded = loaded or held_model(request, before_steps(on_progress))
    chat = chat_of(request, loaded.tokenizer)
    turn = 0 if chat is None else sum(map(len, chat.around()))
    make_cache = make_cache or _cache_maker(loaded)
    for choice in request.all_choices:
        make_cache(choice)  # an impossible budget or hyper-parameter is known at once
    plan = make_plan(request, loaded.tokenizer, model_window(loaded) - turn)
    if request.prefill_chunk is not None:
        longest = max((prompt.identity.length for prompt in plan.prompts), default=0)  # 0: a user's own prompt
        check_choices(request.all_choices, longest, request.prefill_chunk)
    digest, settings = model_digest(loaded.model), [settings_of(choice) for choice in request.all_choices]
    asked = request.question_aware, loaded.name, digest, request.prefill_chunk
    units = [
        Unit(
            prompt,
            {
                number: row_key(
                    prompt.identity,
                    choice,
                    settings[number],
                    *asked,
                    chat.settings if chat is not None and prompt.chat else None,
                )
                for number, choice in enumerate(request.all_choices)
            },
        )
        for prompt in plan.prompts
    ]
    maker = RowMaker(
        Measurer(loaded, make_cache, request.question_aware, request.prefill_chunk),
        request.all_choices,
        settings,
        digest,
        {"device": device_name(input_device(loaded.model)), "versions": canonical_json(versions())},
        None if chat is None else canonical_json(chat.settings),
    )
    with ResultStore.opened(out) as store:
        rows_together = request.batch_rows or default_batch_rows(loaded)
        _measure_missing(units, maker, rows_together, store, on_progress, cancelled, chat)
        store.flush()
        there = store.frame().set_index("key", drop=False)
        order = [key for unit in units for key in unit.keys.values() if key in there.index]
        rows = there.loc[order].reset_index(drop=True)
        damaged = [f"{path} is damaged: what it held was measured again." for path in store.damaged]
    return EvalResult(rows, [*plan.notes, *damaged, *filter(None, [maker.backoff.note])])


def _measure_missing(
    units: list[Unit],
    maker: RowMaker,
    batch_rows: int,
    store: ResultStore,
    on_progress: Listener,
    cancelled: Callable[[], bool],
    chat: Chat | None = None,
) -> None:
    done = store.keys()
    missing = [
        Unit(unit.prompt, {number: key for number, key in unit.keys.items() if key not in done}) for unit in units
    ]
    total = sum(len(unit.keys) for unit in units)
    finished = total - sum(len(unit.keys) for unit in missing)
    on_progress(Progress(stage="start", done=finished, total=total))
    for batch in batches([unit for unit in missing if unit.keys], maker.measurer.loaded, batch_rows, chat):
        for choice, rows in maker.rows(batch):
            store.append(rows)
            finished += len(rows)
            stage = f"{batch[0].prompt.identity.task}: {choice.label}"
            on_progress(Progress(stage=stage, done=finished, total=total))
            if cancelled():
                return


def model_window(loaded: Loaded) -> int:
    """Return how many tokens the model was made for."""
    config = loaded.model.config.get_text_config(decoder=True)
    return getattr(config, "max_position_embeddings", None) or _ANY_WINDOW


def default_batch_rows(loaded: Loaded) -> int:
    """Return how many prompts run together: on a CPU a second one gains nothing."""
    return 1 if input_device(loaded.model).type == "cpu" else _GPU_BATCH_ROWS


def settings_of(choice: MethodChoice) -> dict[str, object]:
    """Return every hyper-parameter a choice runs with."""
    return make_method(choice.method, **choice.hyper_parameters).model_dump(mode="json")


def _cache_maker(loaded: Loaded) -> CacheMaker:
    def make(choice: MethodChoice) -> Cache:
        return kvlab.make_cache(loaded, make_method(choice.method, **choice.hyper_parameters), choice.budget)

    return make
