"""Run lm-eval's tasks under every method and budget with one loaded model; results are kvlab rows."""

from __future__ import annotations

import importlib.util
from collections.abc import Mapping, Sequence
from functools import partial
from importlib.metadata import version
from pathlib import Path
from types import ModuleType
from typing import Any

from kvlab.core.choice import MethodChoice
from kvlab.core.errors import UserError
from kvlab.engine.environment import device_name, versions
from kvlab.engine.progress import download_reporter
from kvlab.evaluate.harness import EvalResult, Listener, cache_maker, default_batch_rows, model_digest, settings_of
from kvlab.evaluate.results.outcome import Loaded
from kvlab.evaluate.results.rows import budget_unit, canonical_json, row_key
from kvlab.evaluate.results.store import ResultStore
from kvlab.lmeval.answers import Answering, SharedAnswers
from kvlab.lmeval.journal import Journal
from kvlab.lmeval.likelihood import check_simulated
from kvlab.lmeval.request import LmEvalRequest
from kvlab.lmeval.rows import CHOICES, GENERATION, ROLLING, Prompt, RowMaker, select_metric
from kvlab.models.chat import Chat, chat_of
from kvlab.models.load import held_model
from kvlab.models.placement import input_device
from kvlab.models.tokenizer import window_of
from kvlab.requests.compare import Progress


def run_lm_eval(
    request: LmEvalRequest, out: Path, loaded: Loaded | None = None, on_progress: Listener = lambda progress: None
) -> EvalResult:
    """Return the rows of a request; methods whose rows are already in the folder `out` are skipped.

    If a method raises, the others are run to the end, then its error is raised.
    Raises UserError before the first forward pass if lm-eval is not installed, for an unknown task, method or budget,
    and for a kind of request that the protocol does not support.
    """
    harness = _import_harness()
    for choice in request.all_choices:
        settings_of(choice)  # raises for an unknown method or option before a model is loaded
        if request.protocol == "simulated":
            check_simulated(choice)
    tasks = harness.find_tasks(request)
    loaded = loaded or held_model(request, download_reporter(on_progress))
    chat = chat_of(request, loaded.tokenizer)
    make_cache = cache_maker(loaded)
    for choice in request.all_choices:
        make_cache(choice)
    prompts = harness.plan_prompts(request, tasks, chat, loaded)
    check_kinds(request, prompts)
    keys = _row_keys(request, prompts, loaded, chat)
    notes: dict[str, None] = {}
    with ResultStore.opened(out) as store:
        stored = store.keys()
        progress = _RequestProgress(on_progress, request.all_choices, prompts)
        waiting = [number for number, choice_keys in enumerate(keys) if not stored.issuperset(choice_keys)]
        for number in range(len(keys)):
            if number not in waiting:
                progress.finish(number, "on disk")
        choices = [request.all_choices[number] for number in waiting]
        journals = [Journal(out, _answer_settings(request, choice, loaded, chat)) for choice in choices]
        window, rows = window_of(loaded.model.config), request.batch_rows or default_batch_rows(loaded)
        report = partial(progress.add_of, waiting)
        shared = SharedAnswers(loaded, make_cache, request, choices, journals, window, rows, report, notes)
        try:
            for place, (number, choice, journal) in enumerate(zip(waiting, choices, journals, strict=True)):
                model = harness.KvlabLM(loaded, chat, Answering(shared, place))
                try:
                    results = harness.evaluate_tasks(request, tasks, model)
                except Exception as error:
                    if shared.errors.get(place) is not error:
                        raise
                    continue  # raised again once the other choices are done
                maker = RowMaker(request, choice, settings_of(choice), _constants(loaded, chat))
                new = _rows(maker, prompts, keys[number], results, journal)
                store.append([row for row in new if row["key"] not in stored])
                store.flush()
                journal.remove()
                progress.finish(number, choice.label)
                notes |= dict.fromkeys(_few_shot_notes(request, results["n-shot"]))
        finally:
            for journal in journals:
                journal.close()
        for failure in shared.errors.values():
            raise failure
        frame = store.frame().set_index("key", drop=False)
        rows_in_order = frame.loc[[key for choice_keys in keys for key in choice_keys]].reset_index(drop=True)
        damaged = [f"{path} is damaged: what it held was measured again." for path in store.damaged]
    return EvalResult(rows_in_order, [*notes, *damaged])


def _row_keys(request: LmEvalRequest, prompts: Sequence[Prompt], loaded: Loaded, chat: Chat | None) -> list[list[str]]:
    """The keys of each choice's rows, in the order of the prompts."""
    chat_settings = None if chat is None else chat.settings
    common = True, loaded.name, model_digest(loaded.model), request.prefill_chunk, chat_settings
    identities = [prompt.identity(request) for prompt in prompts]
    return [
        [row_key(identity, choice, settings_of(choice), *common) for identity in identities]
        for choice in request.all_choices
    ]


def _answer_settings(
    request: LmEvalRequest, choice: MethodChoice, loaded: Loaded, chat: Chat | None
) -> dict[str, object]:
    """Everything that an answer depends on besides its request."""
    return {
        "choice": choice.model_dump(mode="json"),
        "unit": budget_unit(choice),
        "settings": settings_of(choice),
        "way": request.settings,
        "chunk": request.prefill_chunk,
        "digest": model_digest(loaded.model),
        "chat": None if chat is None else chat.settings,
    }


def _constants(loaded: Loaded, chat: Chat | None) -> dict[str, object]:
    """The columns with one value per run."""
    return {
        "model": loaded.name,
        "model_digest": model_digest(loaded.model),
        "chat": None if chat is None else canonical_json(chat.settings),
        "device": device_name(input_device(loaded.model)),
        "versions": canonical_json(versions() | {"lm_eval": version("lm_eval")}),
    }


def _import_harness() -> ModuleType:
    """`kvlab.lmeval.harness`; raises UserError if lm-eval is not installed."""
    if importlib.util.find_spec("lm_eval") is None:
        raise UserError("lm-eval is not installed: pip install -c constraints.txt 'kvlab[lm-eval]'.")
    from kvlab.lmeval import harness

    return harness


def check_kinds(request: LmEvalRequest, prompts: Sequence[Prompt]) -> None:
    """Raise UserError for a task whose kind of request the protocol does not support, and for a useless hold-back."""
    tasks = {prompt.kind: prompt.task for prompt in reversed(prompts)}
    if request.protocol == "simulated" and GENERATION in tasks:
        raise UserError(f"Task {tasks[GENERATION]!r} generates text: --protocol simulated only scores given texts.")
    if request.protocol == "decode" and ROLLING in tasks:
        raise UserError(
            f"Task {tasks[ROLLING]!r} scores whole texts, which have no context to compress: use --protocol simulated."
        )
    if request.protocol == "decode" and CHOICES in tasks and request.hold_back == 0:
        raise UserError(
            "--hold-back 0 would score the first token of every choice with the uncompressed context, so that choices "
            "of one token would show no effect at all: use at least 1."
        )


def _rows(
    maker: RowMaker, prompts: Sequence[Prompt], keys: Sequence[str], results: Mapping[str, Any], journal: Journal
) -> list[dict[str, object]]:
    better = results["higher_is_better"]
    metrics = {
        task: select_metric(task, maker.request.metric, samples, better.get(task, {}))
        for task, samples in results["samples"].items()
    }
    samples = {
        (task, sample["doc_id"]): sample
        for task, task_samples in results["samples"].items()
        for sample in task_samples
        if sample["filter"] == metrics[task].filter
    }
    return [
        maker.row(key, prompt, samples[prompt.task, prompt.index], metrics[prompt.task], journal.answers)
        for key, prompt in zip(keys, prompts, strict=True)
    ]


def _few_shot_notes(request: LmEvalRequest, shots: Mapping[str, int]) -> list[str]:
    """A note for each task that fixes its number of few-shot examples."""
    requested = request.num_fewshot
    fixed = sorted(task for task, count in shots.items() if requested is not None and count != requested)
    return [f"{task} has {shots[task]} few-shot examples by its own settings, not {requested}." for task in fixed]


class _RequestProgress:
    """Reports progress in requests over all choices."""

    def __init__(self, listener: Listener, choices: Sequence[MethodChoice], prompts: Sequence[Prompt]) -> None:
        self.listener, self.choices = listener, choices
        self.per_choice = sum(len(prompt.requests) for prompt in prompts)
        self.done = [0] * len(choices)
        self._tell("start")

    def add_of(self, numbers: Sequence[int], place: int, count: int) -> None:
        """Count more answers of the choice `numbers[place]`."""
        if count:
            number = numbers[place]
            self.done[number] = min(self.done[number] + count, self.per_choice)
            self._tell(self.choices[number].label)

    def finish(self, number: int, stage: str) -> None:
        """Count all requests of a choice, also those that are repeated, which are answered once."""
        self.done[number] = self.per_choice
        self._tell(stage)

    def _tell(self, stage: str) -> None:
        total = self.per_choice * len(self.done)
        self.listener(Progress(stage=stage, done=sum(self.done), total=total))
