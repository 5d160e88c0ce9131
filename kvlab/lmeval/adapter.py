"""The one module that imports lm-eval: its tasks, its evaluation, and a model of its kind that asks `Answering`."""

from __future__ import annotations

import difflib
import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lm_eval import simple_evaluate
from lm_eval import utils as windows
from lm_eval.api.model import LM, TemplateLM
from lm_eval.models.utils import has_bos_prefix, normalize_gen_kwargs
from lm_eval.tasks import TaskManager

from kvlab.common.errors import UserError
from kvlab.common.token_ids import check_ids
from kvlab.evaluate.results.outcome import Loaded
from kvlab.lmeval.answering import Answering
from kvlab.lmeval.journal import merged, request_key
from kvlab.lmeval.request import LmEvalRequest
from kvlab.lmeval.rows import CHOOSING, ROLLING, WRITING, Prompt, Sample
from kvlab.lmeval.texts import Tokens
from kvlab.lmeval.write import Asking, options_of
from kvlab.models.chat import SWITCH, Chat

MOST_WRITTEN = 256  # new tokens where a task says nothing: the harness's number
SAID = 240  # of another's message, letters in a sentence of ours

logging.getLogger("lm_eval").setLevel(logging.ERROR)


@dataclass(frozen=True)
class Found:
    """What the harness made of the answers: by task its samples, and whether more is better of each metric."""

    samples: Mapping[str, Sequence[Sample]]
    better: Mapping[str, Mapping[str, Any]]
    shots: Mapping[str, int]


def find_tasks(request: LmEvalRequest) -> list[Any]:
    """The harness's tasks of a request, loaded; groups and tags are those they name.

    The harness's own list is only read where a name is not in the given folder, as that takes long. Raises UserError
    for a folder that is not there, an unknown name, and a task whose data cannot be loaded.
    """
    folder = request.include_path
    if folder is not None and not Path(folder).is_dir():
        raise UserError(f"{folder} is no folder: --include-path takes the folder of your tasks' YAML files.")
    managers = [TaskManager(include_path=str(folder), include_defaults=False)] if folder is not None else []
    if not managers or _unknown(managers[0], request.tasks):
        managers.append(TaskManager(include_path=None if folder is None else str(folder)))
    manager = managers[-1]
    for name in _unknown(manager, request.tasks):
        near = difflib.get_close_matches(name, manager.all_tasks, 3)
        meant = f" Did you mean {' or '.join(near)}?" if near else " `lm_eval ls tasks` lists them."
        raise UserError(f"The harness has no task {name!r}.{meant}")
    names = list(dict.fromkeys(found for name in request.tasks for found in manager.match_tasks([name])))
    return list(_in_one_sentence(names, lambda: manager.load(names))["tasks"].values())


def _unknown(manager: TaskManager, names: Sequence[str]) -> list[str]:
    return [name for name in names if not manager.match_tasks([name])]


def _in_one_sentence(names: Sequence[str], make: Callable[[], Any]) -> Any:
    """What `make` returns; another's error becomes a sentence."""
    try:
        return make()
    except UserError:
        raise
    except Exception as error:  # tasks run code of their own, and data comes from anywhere
        said = " ".join(f"{type(error).__name__}: {error}".split())[:SAID].rstrip(".")
        raise UserError(f"The harness cannot make {', '.join(names)} ({said}).") from error


def plan_prompts(request: LmEvalRequest, tasks: Sequence[Any], chat: Chat | None, loaded: Loaded) -> list[Prompt]:
    """Every prompt of the tasks with its requests, from an evaluation that is not answered.

    Raises UserError for a task that cannot be made, or that wants another kind of request.
    """
    listener, names = _Listening(loaded, chat), [task.task_name for task in tasks]

    def listen() -> None:
        try:
            _evaluate(request, tasks, chat, listener)
        except Exception:  # metrics may stumble over what was never said
            if not listener.heard:
                raise

    _in_one_sentence(names, listen)
    prompts: dict[tuple[str, int], list[Any]] = {}
    for instance in listener.heard:
        prompts.setdefault((instance.task_name, instance.doc_id), []).append(instance)
    return [_prompt(task, index, found) for (task, index), found in prompts.items()]


def _prompt(task: str, index: int, found: list[Any]) -> Prompt:
    found = sorted(found, key=lambda instance: instance.idx)
    kinds = {instance.request_type for instance in found}
    kind = ROLLING if ROLLING in kinds else WRITING if WRITING in kinds else CHOOSING
    if len(kinds) > 1 and kinds != {CHOOSING, "multiple_choice"}:
        raise UserError(f"Task {task!r} asks for {' and '.join(sorted(kinds))} together, which is not supported.")
    once = {instance.idx: tuple(instance.args) for instance in found}  # one asked several times stands there as often
    return Prompt(task, index, kind, tuple(once.values()))


def run_tasks(request: LmEvalRequest, tasks: Sequence[Any], chat: Chat | None, answering: Answering) -> Found:
    """The harness's evaluation of one choice."""
    results = _evaluate(request, tasks, chat, KvlabLM(answering, chat))
    return Found(results["samples"], results["higher_is_better"], results["n-shot"])


def _evaluate(request: LmEvalRequest, tasks: Sequence[Any], chat: Chat | None, model: LM) -> dict[str, Any]:
    return simple_evaluate(
        model=model,
        tasks=list(tasks),
        num_fewshot=request.num_fewshot,
        limit=request.limit,
        bootstrap_iters=0,
        log_samples=True,
        use_cache=None,  # it knows neither model nor method
        task_manager=TaskManager(include_defaults=False),  # the tasks are loaded: reading its list would take long
        apply_chat_template=chat is not None,
        system_instruction=chat.system or None if chat is not None else None,
        random_seed=request.seed,
        numpy_random_seed=request.seed,
        torch_random_seed=request.seed,
        fewshot_random_seed=request.seed,
    )


class KvlabLM(TemplateLM):
    """A loaded model under one method's cache, as the harness sees it. Tokens are those of its own HFLM."""

    def __init__(self, answering: Answering, chat: Chat | None) -> None:
        super().__init__()
        self.answering, self.chat = answering, chat
        self.tokenizer: Any = answering.loaded.tokenizer

    @property
    def eot_token_id(self) -> int:
        """What ends a text."""
        return int(self.tokenizer.eos_token_id)

    @property
    def prefix_token_id(self) -> int:
        """What stands before a text without a context."""
        start = self.tokenizer.bos_token_id
        return self.eot_token_id if start is None else int(start)

    @property
    def tokenizer_name(self) -> str:
        """Names the tokenizer in the harness's files."""
        return self.answering.loaded.name.replace("/", "__")

    def tok_encode(self, string: str, add_special_tokens: bool | None = None, **kwargs: Any) -> list[int]:
        """Ids with what the tokenizer itself puts first, unless the text has it already."""
        if add_special_tokens is None and has_bos_prefix(string, self.tokenizer.decode(self.prefix_token_id)):
            add_special_tokens = False
        given = {} if add_special_tokens is None else {"add_special_tokens": add_special_tokens}
        ids = list(self.tokenizer.encode(string, **given))
        check_ids(ids, self.answering.loaded.model, self.tokenizer)
        return ids

    def apply_chat_template(self, chat_history: list[dict[str, str]], add_generation_prompt: bool = True) -> str:
        """The messages in the model's template."""
        return rendered(self.tokenizer, self.chat, chat_history, add_generation_prompt)

    def loglikelihood(self, requests: list[Any], disable_tqdm: bool = True) -> list[tuple[float, bool]]:
        """As the harness, without its bars."""
        return super().loglikelihood(requests, disable_tqdm=True)

    def _loglikelihood_tokens(self, requests: list[Any], **kwargs: Any) -> list[tuple[float, bool]]:
        keys = [request_key(CHOOSING, texts) for texts, _, _ in requests]
        return self.answering.likelihoods(keys, [(tuple(first), tuple(second)) for _, first, second in requests])

    def loglikelihood_rolling(self, requests: list[Any], disable_tqdm: bool = True) -> list[float]:
        """Each text in windows that do not overlap, as HFLM cuts them."""
        keys: list[str] = []
        pairs: list[tuple[Tokens, Tokens]] = []
        owners: list[int] = []
        for owner, (text,) in enumerate(request.args for request in requests):
            ids, most = self.tok_encode(text), self.answering.window
            cut = windows.get_rolling_token_windows(ids, self.prefix_token_id, most, 1)
            for number, window in enumerate(cut):
                context, continuation = windows.make_disjoint_window(window)
                keys.append(request_key(ROLLING, [text, number]))
                pairs.append((tuple(context), tuple(continuation)))
                owners.append(owner)
        found, journal = self.answering.likelihoods(keys, pairs), self.answering.journal
        totals = []
        for owner, request in enumerate(requests):
            own = [place for place, one in enumerate(owners) if one == owner]
            totals.append(sum(found[place][0] for place in own))
            measured = merged([journal.found[keys[place]][1] for place in own])
            journal.add(request_key(ROLLING, request.args), totals[-1], measured)
        return totals

    def generate_until(self, requests: list[Any], disable_tqdm: bool = True) -> list[str]:
        """Texts up to a stop string or the model's end."""
        keys: list[str] = []
        asked: list[Asking] = []
        end = self.tokenizer.decode([self.eot_token_id], skip_special_tokens=False)
        for place, (context, settings) in enumerate(request.args for request in requests):
            given: dict[str, Any] = dict(normalize_gen_kwargs(settings, MOST_WRITTEN))
            until, most = [*given.pop("until"), end], given.pop("max_gen_toks")
            room = self.answering.window - most
            if room < 1:
                raise UserError(f"A task writes up to {most:,} tokens, more than the model's window of "
                                f"{self.answering.window:,}: choose another task or model.")  # fmt: skip
            keys.append(request_key(WRITING, (context, settings)))
            ids = tuple(self.tok_encode(context)[-room:])
            asked.append(Asking(ids, tuple(until), most, options_of(given), place))
        return self.answering.texts(keys, asked)


class _Listening(LM):
    """Notes all requests and answers none."""

    def __init__(self, loaded: Loaded, chat: Chat | None) -> None:
        super().__init__()
        self.loaded, self.chat = loaded, chat
        self.heard: list[Any] = []

    tokenizer_name = "none"

    def apply_chat_template(self, chat_history: list[dict[str, str]], add_generation_prompt: bool = True) -> str:
        return rendered(self.loaded.tokenizer, self.chat, chat_history, add_generation_prompt)

    def loglikelihood(self, requests: list[Any]) -> list[tuple[float, bool]]:
        self.heard += requests
        return [(-1.0, False)] * len(requests)

    def loglikelihood_rolling(self, requests: list[Any]) -> list[float]:
        self.heard += requests
        return [-1.0] * len(requests)

    def generate_until(self, requests: list[Any]) -> list[str]:
        self.heard += requests
        return ["none"] * len(requests)


def rendered(tokenizer: Any, chat: Chat | None, messages: list[dict[str, str]], go_on: bool) -> str:
    """Messages in the chat template; raises UserError where it does not take them."""
    options = {} if chat is None or chat.thinking is None else {SWITCH: chat.thinking}
    try:
        text = tokenizer.apply_chat_template(
            messages, tokenize=False, add_generation_prompt=go_on, continue_final_message=not go_on, **options
        )
    except Exception as error:  # a template is a program of its own
        said = " ".join(str(error).split())[:SAID].rstrip(".")
        raise UserError(f"The model's chat template refuses these messages ({said}); give --chat no.") from None
    return str(text)
