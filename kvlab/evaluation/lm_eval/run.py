"""Run lm-eval's tasks under every method and budget with one loaded model; results are kvlab rows."""

from __future__ import annotations

import difflib
import importlib.util
import logging
from collections.abc import Mapping, Sequence
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kvlab.core import FULL, MethodChoice, UserError
from kvlab.core.methods import make_method
from kvlab.engine.environment import device_name, versions
from kvlab.engine.progress import download_reporter
from kvlab.evaluation.harness import EvalResult, Listener, cache_maker, model_digest, settings_of
from kvlab.evaluation.lm_eval.request import LmEvalRequest
from kvlab.evaluation.lm_eval.rows import (
    CHOICES,
    GENERATION,
    KINDS,
    ROLLING,
    Answers,
    RowMaker,
    identity_of,
    select_metric,
)
from kvlab.evaluation.results.rows import ResultStore, budget_unit, canonical_json, row_key
from kvlab.models.chat import chat_of
from kvlab.models.load import LoadedModel, held_model
from kvlab.requests.compare import Progress

if TYPE_CHECKING:
    from kvlab.evaluation.lm_eval.model import KvlabLM

MESSAGE_CHARACTERS = 240  # quoted from other packages' messages


def run_lm_eval(
    request: LmEvalRequest, out: Path, loaded: LoadedModel | None = None, on_progress: Listener = lambda progress: None
) -> EvalResult:
    """Return the rows of a request; answers that are already in the folder `out` are not computed again.

    If a method raises, the others are run to the end, then its error is raised.
    Raises UserError before the first forward pass if lm-eval is not installed, for an unknown task, method or budget,
    and for a kind of request that the protocol does not support.
    """
    if importlib.util.find_spec("lm_eval") is None:
        raise UserError("lm-eval is not installed: pip install -c constraints.txt 'kvlab[lm-eval]'.")
    for choice in request.all_choices:
        settings_of(choice)  # raises for an unknown method or option before a model is loaded
        if request.protocol == "simulated":
            check_simulated(choice)
    from kvlab.evaluation.lm_eval.model import KvlabLM

    logging.getLogger("lm_eval").setLevel(logging.ERROR)
    tasks = find_tasks(request)
    check_kinds(request, {task.task_name: KINDS.get(task.OUTPUT_TYPE, task.OUTPUT_TYPE) for task in tasks})
    loaded = loaded or held_model(request, download_reporter(on_progress))
    chat = chat_of(request, loaded.tokenizer)
    make_cache = cache_maker(loaded)
    for choice in request.all_choices:
        make_cache(choice)
    errors: list[Exception] = []
    notes: dict[str, None] = {}
    keys: list[str] = []
    with ResultStore.opened(out) as store:
        stored = store.keys()
        for number, choice in enumerate(request.all_choices):
            # Everything that an answer depends on besides its request.
            answers = Answers(
                out,
                {
                    "choice": choice.model_dump(mode="json"),
                    "unit": budget_unit(choice),
                    "settings": settings_of(choice),
                    "protocol": request.protocol,
                    "hold_back": request.hold_back,
                    "digest": model_digest(loaded.model),
                    "chat": None if chat is None else chat.settings,
                },
            )
            tell = partial(_tell, on_progress, request, number, tasks)
            model = KvlabLM(loaded, chat, request, partial(make_cache, choice), answers, tell)
            try:
                rows = _rows(request, choice, tasks, model)
            except Exception as error:
                if not number:  # with the full cache no method is to blame
                    raise
                errors.append(error)
                continue
            store.append([row for row in rows if row["key"] not in stored])
            store.flush()
            keys += [str(row["key"]) for row in rows]
            notes |= model.notes
        for failure in errors:
            raise failure
        frame = store.frame().set_index("key", drop=False).loc[keys].reset_index(drop=True)
        damaged = [f"{path} is damaged: what it held was measured again." for path in store.damaged]
    return EvalResult(frame, [*notes, *damaged])


def _tell(listener: Listener, request: LmEvalRequest, number: int, tasks: Sequence[Any], answered: int) -> None:
    count = sum(len(task.instances) for task in tasks)
    choices = request.all_choices
    listener(Progress(stage=choices[number].label, done=number * count + answered, total=count * len(choices)))


def _rows(
    request: LmEvalRequest, choice: MethodChoice, tasks: Sequence[Any], model: KvlabLM
) -> list[dict[str, object]]:
    """The rows of one choice, in the order of tasks and prompts."""
    from lm_eval import simple_evaluate
    from lm_eval.tasks import TaskManager

    loaded = model.loaded
    chat = model.chat
    results: dict[str, Any] = simple_evaluate(
        model=model,
        tasks=list(tasks),
        num_fewshot=request.num_fewshot,
        limit=request.limit,
        bootstrap_iters=0,
        log_samples=True,
        task_manager=TaskManager(include_defaults=False),  # the tasks are loaded; reading lm-eval's list takes long
        apply_chat_template=chat is not None,
        system_instruction=chat.system or None if chat is not None else None,
        random_seed=request.seed,
        numpy_random_seed=request.seed,
        torch_random_seed=request.seed,
        fewshot_random_seed=request.seed,
    )
    # A note for each task that fixes its number of few-shot examples.
    shots = results["n-shot"]
    requested = request.num_fewshot
    fixed = sorted(task for task, count in shots.items() if requested is not None and count != requested)
    model.notes |= dict.fromkeys(
        [f"{task} has {shots[task]} few-shot examples by its own settings, not {requested}." for task in fixed]
    )
    common = True, loaded.name, model_digest(loaded.model), None, None if chat is None else chat.settings
    # The columns with one value per run.
    maker = RowMaker(
        request,
        choice,
        settings_of(choice),
        model.answers,
        {
            "model": loaded.name,
            "model_digest": model_digest(loaded.model),
            "chat": None if chat is None else canonical_json(chat.settings),
            "device": device_name(loaded.device, loaded.rounding_kl),
            "versions": canonical_json(versions() | {"lm_eval": version("lm_eval")}),
        },
    )
    rows = []
    for task in tasks:
        name = task.task_name
        kind = KINDS.get(task.OUTPUT_TYPE, task.OUTPUT_TYPE)
        samples = results["samples"][name]
        metric = select_metric(name, request.metric, samples, results["higher_is_better"].get(name, {}))
        for sample in sorted((one for one in samples if one["filter"] == metric.filter), key=lambda one: one["doc_id"]):
            identity = identity_of(request, name, sample)
            key = row_key(identity, choice, settings_of(choice), *common)
            rows.append({"key": key} | maker.row(identity, kind, sample, metric))
    return rows


def find_tasks(request: LmEvalRequest) -> list[Any]:
    """Load the requested tasks, with groups and tags expanded.

    Reading lm-eval's own list of tasks takes long, so it is read only for names that are not in the given folder.
    Raises UserError for a missing folder, an unknown name, and a task whose data cannot be loaded.
    """
    from lm_eval.tasks import TaskManager

    folder = request.include_path
    if folder is not None and not Path(folder).is_dir():
        raise UserError(f"{folder} is no folder: --set include_path takes the folder of your tasks' YAML files.")
    manager = None if folder is None else TaskManager(include_path=str(folder), include_defaults=False)
    if manager is None or not all(manager.match_tasks([name]) for name in request.tasks):
        manager = TaskManager(include_path=None if folder is None else str(folder))
    matches = {name: manager.match_tasks([name]) for name in request.tasks}
    for name in [name for name, found in matches.items() if not found]:
        close = difflib.get_close_matches(name, manager.all_tasks, 3)
        hint = f" Did you mean {' or '.join(close)}?" if close else " `lm_eval ls tasks` lists them."
        raise UserError(f"lm-eval has no task {name!r}.{hint}")
    names = list(dict.fromkeys(match for found in matches.values() for match in found))
    try:
        return list(manager.load(names)["tasks"].values())
    except Exception as error:  # tasks run code of their own, and their data may come from anywhere
        message = " ".join(f"{type(error).__name__}: {error}".split())[:MESSAGE_CHARACTERS].rstrip(".")
        raise UserError(f"lm-eval cannot load {', '.join(names)} ({message}).") from error


def check_simulated(choice: MethodChoice) -> None:
    """Raise UserError for a method that never acts during decoding."""
    method = make_method(choice.method, **choice.hyper_parameters)
    if choice.method == FULL.method or method.pipeline().decode:
        return
    alternative = f", or {choice.method}:decode=budget" if "decode" in type(method).model_fields else ""
    raise UserError(
        f"{choice.label} compresses only prompts, so it would keep every token of a text fed token by token: "
        f"choose --set protocol=decode{alternative}."
    )


def check_kinds(request: LmEvalRequest, kinds: Mapping[str, str]) -> None:
    """Raise UserError for a task whose kind of request the protocol does not support, and for a useless hold-back."""
    tasks = {kind: task for task, kind in reversed(list(kinds.items()))}
    if request.protocol == "simulated" and GENERATION in tasks:
        raise UserError(f"Task {tasks[GENERATION]!r} generates text: --set protocol=simulated only scores given texts.")
    if request.protocol == "decode" and ROLLING in tasks:
        raise UserError(
            f"Task {tasks[ROLLING]!r} scores whole texts, which have no context to compress: use --set "
            "protocol=simulated."
        )
    if request.protocol == "decode" and CHOICES in tasks and request.hold_back == 0:
        raise UserError(
            "--set hold_back=0 would score the first token of every choice with the uncompressed context, so that "
            "choices of one token would show no effect at all: use at least 1."
        )
