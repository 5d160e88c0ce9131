"""Run the harness: its tasks under every method and budget with one loaded model, rows beside those of `kvlab eval`."""

from __future__ import annotations

import importlib.util
from collections.abc import Mapping, Sequence
from importlib.metadata import version
from pathlib import Path
from types import ModuleType
from typing import Any

import kvlab
from kvlab.cache import CompressedCache
from kvlab.common.errors import UserError
from kvlab.engine.environment import device_name, versions
from kvlab.engine.progress import download_reporter
from kvlab.evaluate.fingerprint import model_digest
from kvlab.evaluate.harness import EvalResult, Listener, default_batch_rows, model_window, settings_of
from kvlab.evaluate.results.outcome import Loaded
from kvlab.evaluate.results.rows import budget_unit, canonical_json, row_key
from kvlab.evaluate.results.store import ResultStore
from kvlab.lmeval.answering import Answering
from kvlab.lmeval.journal import Journal
from kvlab.lmeval.request import LmEvalRequest
from kvlab.lmeval.rows import CHOOSING, ROLLING, WRITING, Prompt, RowMaker, metric_of
from kvlab.lmeval.score import check_simulated
from kvlab.methods import make_method
from kvlab.models.chat import Chat, chat_of
from kvlab.models.model_cache import held_model
from kvlab.models.placement import input_device
from kvlab.requests.compare import MethodChoice, Progress


def run_lm_eval(
    request: LmEvalRequest,
    out: Path,
    loaded: Loaded | None = None,
    on_progress: Listener = lambda progress: None,
) -> EvalResult:
    """Return the rows of a request; a method whose rows the folder `out` holds already is not run again.

    Raises UserError where lm-eval is not installed, and for an unknown task, method or budget, or a kind of request
    that the protocol does not have, before the first forward pass.
    """
    harness = _harness()
    for choice in request.all_choices:
        settings_of(choice)  # an unknown method or option is known before a model is loaded
        if request.protocol == "simulated":
            check_simulated(choice)
    tasks = harness.find_tasks(request)
    loaded = loaded or held_model(request, download_reporter(on_progress))
    chat = chat_of(request, loaded.tokenizer)
    maker = _cache_maker(loaded)
    for choice in request.all_choices:
        maker(choice)
    prompts = harness.plan_prompts(request, tasks, chat, loaded)
    check_kinds(request, prompts)
    keys = _keys(request, prompts, loaded, chat)
    told = _Told(on_progress, keys, prompts)
    notes: dict[str, None] = {}
    with ResultStore.opened(out) as store:
        done = store.keys()
        told.start()
        for choice, own in zip(request.all_choices, keys, strict=True):
            if done.issuperset(own):
                told.all_there()
                continue
            journal = Journal(out, _answered_by(request, choice, loaded, chat))
            told.choice, rows_together = choice.label, request.batch_rows or default_batch_rows(loaded)
            window = model_window(loaded)
            answering = Answering(loaded, maker, choice, request, journal, window, rows_together, told, notes)
            try:
                found = harness.run_tasks(request, tasks, chat, answering)
            finally:
                journal.close()
            making = RowMaker(request, choice, settings_of(choice), _made_by(loaded, chat))
            store.append([row for row in _rows(making, prompts, own, found, journal) if row["key"] not in done])
            store.flush()
            journal.remove()
            notes |= dict.fromkeys(_shots_notes(request, found.shots))
        there = store.frame().set_index("key", drop=False)
        rows = there.loc[[key for own in keys for key in own]].reset_index(drop=True)
        damaged = [f"{path} is damaged: what it held was measured again." for path in store.damaged]
    return EvalResult(rows, [*notes, *damaged])


def _keys(request: LmEvalRequest, prompts: Sequence[Prompt], loaded: Loaded, chat: Chat | None) -> list[list[str]]:
    """The keys of each choice's rows, in the order of the prompts."""
    said = None if chat is None else chat.settings
    asked = True, loaded.name, model_digest(loaded.model), request.prefill_chunk, said
    identities = [prompt.identity(request) for prompt in prompts]
    return [
        [row_key(identity, choice, settings_of(choice), *asked) for identity in identities]
        for choice in request.all_choices
    ]


def _answered_by(request: LmEvalRequest, choice: MethodChoice, loaded: Loaded, chat: Chat | None) -> dict[str, object]:
    """All that an answer depends on beside its request."""
    return {
        "choice": choice.model_dump(mode="json"),
        "unit": budget_unit(choice),
        "settings": settings_of(choice),
        "way": request.way,
        "chunk": request.prefill_chunk,
        "digest": model_digest(loaded.model),
        "chat": None if chat is None else chat.settings,
    }


def _made_by(loaded: Loaded, chat: Chat | None) -> dict[str, object]:
    """The columns that are the same in all rows of a run."""
    return {
        "model": loaded.name,
        "model_digest": model_digest(loaded.model),
        "chat": None if chat is None else canonical_json(chat.settings),
        "device": device_name(input_device(loaded.model)),
        "versions": canonical_json(versions() | {"lm_eval": version("lm_eval")}),
    }


def _harness() -> ModuleType:
    """`kvlab.lmeval.adapter`; raises UserError where lm-eval is not installed."""
    if importlib.util.find_spec("lm_eval") is None:
        raise UserError("lm-eval is not installed: pip install -c constraints.txt 'kvlab[lm-eval]'.")
    from kvlab.lmeval import adapter

    return adapter


def check_kinds(request: LmEvalRequest, prompts: Sequence[Prompt]) -> None:
    """Raise UserError for a task whose kind of request the protocol does not have, or no hold-back where one counts."""
    kinds = {prompt.kind: prompt.task for prompt in reversed(prompts)}
    if request.protocol == "simulated" and WRITING in kinds:
        raise UserError(f"Task {kinds[WRITING]!r} lets the model write: --protocol simulated only scores given texts.")
    if request.protocol == "decode" and ROLLING in kinds:
        raise UserError(
            f"Task {kinds[ROLLING]!r} scores whole texts, which have no context to compress: give --protocol simulated."
        )
    if request.protocol == "decode" and CHOOSING in kinds and request.hold_back == 0:
        raise UserError(
            "--hold-back 0 would score the first token of every choice by the uncompressed context, so that choices of "
            "one token show no effect at all: give at least 1."
        )


def _rows(
    maker: RowMaker, prompts: Sequence[Prompt], keys: Sequence[str], found: Any, journal: Journal
) -> list[dict[str, object]]:
    metrics = {
        task: metric_of(task, maker.request.metric, samples, found.better.get(task, {}))
        for task, samples in found.samples.items()
    }
    samples = {
        (task, sample["doc_id"]): sample
        for task, of_task in found.samples.items()
        for sample in of_task
        if sample["filter"] == metrics[task].filter
    }
    return [
        maker.row(key, prompt, samples[prompt.task, prompt.index], metrics[prompt.task], journal.found)
        for key, prompt in zip(keys, prompts, strict=True)
    ]


def _shots_notes(request: LmEvalRequest, shots: Mapping[str, int]) -> list[str]:
    """A task may fix its number of worked examples at none, whatever is asked for."""
    asked = request.num_fewshot
    other = sorted(task for task, count in shots.items() if asked is not None and count != asked)
    return [f"{task} has {shots[task]} worked examples by its own settings, not {asked}." for task in other]


def _cache_maker(loaded: Loaded) -> Any:
    def make(choice: MethodChoice) -> CompressedCache:
        return kvlab.make_cache(loaded, make_method(choice.method, **choice.hyper_parameters), choice.budget)

    return make


class _Told:
    """Progress in requests."""

    def __init__(self, listener: Listener, keys: Sequence[object], prompts: Sequence[Prompt]) -> None:
        self.listener, self.done, self.choice = listener, 0, "on disk"
        self.of_choice = sum(len(prompt.requests) for prompt in prompts)
        self.total = len(keys) * self.of_choice

    def start(self) -> None:
        """Nothing is done yet."""
        self.listener(Progress(stage="start", done=0, total=self.total))

    def __call__(self, count: int) -> None:
        """So many more were answered."""
        self.done = min(self.done + count, self.total)
        self.listener(Progress(stage=self.choice, done=self.done, total=self.total))

    def all_there(self) -> None:
        """A choice's rows were there already."""
        self(self.of_choice)
