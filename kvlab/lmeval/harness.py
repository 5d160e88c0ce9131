"""Tasks, evaluation and model class for lm-eval; the only module that imports it."""

from __future__ import annotations

import contextlib
import difflib
import logging
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from lm_eval import simple_evaluate
from lm_eval.api.model import TemplateLM
from lm_eval.models.utils import handle_stop_sequences, has_bos_prefix, normalize_gen_kwargs
from lm_eval.tasks import TaskManager
from lm_eval.utils import get_rolling_token_windows, make_disjoint_window

from kvlab.core.errors import UserError
from kvlab.core.validation import check_ids
from kvlab.evaluate.results.outcome import Loaded
from kvlab.lmeval.answers import Answering
from kvlab.lmeval.generation import GenerationRequest, generate_options
from kvlab.lmeval.journal import mean_measurement, request_key
from kvlab.lmeval.likelihood import Tokens
from kvlab.lmeval.request import LmEvalRequest
from kvlab.lmeval.rows import CHOICES, GENERATION, ROLLING, Prompt
from kvlab.models.chat import SWITCH, Chat

DEFAULT_NEW_TOKENS = 256  # if a task sets no limit: HFLM's default
MESSAGE_CHARACTERS = 240  # quoted from other packages' messages

logging.getLogger("lm_eval").setLevel(logging.ERROR)


def find_tasks(request: LmEvalRequest) -> list[Any]:
    """Load the requested tasks, with groups and tags expanded.

    Reading lm-eval's own list of tasks takes long, so it is read only for names that are not in the given folder.
    Raises UserError for a missing folder, an unknown name, and a task whose data cannot be loaded.
    """
    folder = request.include_path
    if folder is not None and not Path(folder).is_dir():
        raise UserError(f"{folder} is no folder: --include-path takes the folder of your tasks' YAML files.")
    manager = None if folder is None else TaskManager(include_path=str(folder), include_defaults=False)
    if manager is None or _unknown(manager, request.tasks):
        manager = TaskManager(include_path=None if folder is None else str(folder))
    for name in _unknown(manager, request.tasks):
        close = difflib.get_close_matches(name, manager.all_tasks, 3)
        hint = f" Did you mean {' or '.join(close)}?" if close else " `lm_eval ls tasks` lists them."
        raise UserError(f"lm-eval has no task {name!r}.{hint}")
    names = list(dict.fromkeys(match for name in request.tasks for match in manager.match_tasks([name])))
    return list(_call(names, lambda: manager.load(names))["tasks"].values())


def _unknown(manager: TaskManager, names: Sequence[str]) -> list[str]:
    return [name for name in names if not manager.match_tasks([name])]


def _call(names: Sequence[str], action: Callable[[], Any]) -> Any:
    """Return the action's result; raises UserError in place of lm-eval's exceptions."""
    try:
        return action()
    except UserError:
        raise
    except Exception as error:  # tasks run code of their own, and their data may come from anywhere
        message = " ".join(f"{type(error).__name__}: {error}".split())[:MESSAGE_CHARACTERS].rstrip(".")
        raise UserError(f"lm-eval cannot load {', '.join(names)} ({message}).") from error


def plan_prompts(request: LmEvalRequest, tasks: Sequence[Any], chat: Chat | None, loaded: Loaded) -> list[Prompt]:
    """Every prompt of the tasks with its requests.

    Raises UserError for a task that fails or that mixes kinds of requests.
    """
    model = KvlabLM(loaded, chat)

    def stop(requests: list[Any]) -> None:
        raise _RequestsBuiltError

    for kind in (CHOICES, ROLLING, GENERATION):
        setattr(model, kind, stop)

    def build() -> None:
        with contextlib.suppress(_RequestsBuiltError):
            evaluate_tasks(request, tasks, model)

    _call([task.task_name for task in tasks], build)
    prompts: dict[tuple[str, int], list[Any]] = {}
    for instance in (instance for task in tasks for instance in task.instances):
        prompts.setdefault((instance.task_name, instance.doc_id), []).append(instance)
    return [_prompt(task, index, instances) for (task, index), instances in prompts.items()]


class _RequestsBuiltError(Exception):
    """lm-eval builds the requests of all tasks before it calls the model for the first time."""


def _prompt(task: str, index: int, instances: list[Any]) -> Prompt:
    kinds = {instance.request_type for instance in instances}
    kind = ROLLING if ROLLING in kinds else GENERATION if GENERATION in kinds else CHOICES
    if len(kinds) > 1 and kinds != {CHOICES, "multiple_choice"}:
        raise UserError(f"Task {task!r} has both {' and '.join(sorted(kinds))} requests, which is not supported.")
    # A request that is repeated is listed as often.
    requests = {instance.idx: tuple(instance.args) for instance in sorted(instances, key=lambda one: one.idx)}
    return Prompt(task, index, kind, tuple(requests.values()))


def evaluate_tasks(request: LmEvalRequest, tasks: Sequence[Any], model: KvlabLM) -> dict[str, Any]:
    """lm-eval's results, with `samples`, `higher_is_better` and `n-shot` by task."""
    chat = model.chat
    results: dict[str, Any] = simple_evaluate(
        model=model,
        tasks=list(tasks),
        num_fewshot=request.num_fewshot,
        limit=request.limit,
        bootstrap_iters=0,
        log_samples=True,
        use_cache=None,  # its keys contain neither model nor method
        task_manager=TaskManager(include_defaults=False),  # the tasks are loaded; reading lm-eval's list takes long
        apply_chat_template=chat is not None,
        system_instruction=chat.system or None if chat is not None else None,
        random_seed=request.seed,
        numpy_random_seed=request.seed,
        torch_random_seed=request.seed,
        fewshot_random_seed=request.seed,
    )
    return results


class KvlabLM(TemplateLM):
    """A loaded model under one method's cache as an lm-eval model; tokenizes as lm-eval's HFLM does."""

    def __init__(self, loaded: Loaded, chat: Chat | None, answering: Answering | None = None) -> None:
        super().__init__()
        self.loaded, self.chat = loaded, chat
        self.tokenizer: Any = loaded.tokenizer
        if answering is not None:
            self.answering = answering

    @property
    def eot_token_id(self) -> int:
        """The end-of-text token."""
        return int(self.tokenizer.eos_token_id)

    @property
    def prefix_token_id(self) -> int:
        """The token in front of a text without a context."""
        bos = self.tokenizer.bos_token_id
        return self.eot_token_id if bos is None else int(bos)

    @property
    def tokenizer_name(self) -> str:
        """Name of the tokenizer in lm-eval's files."""
        return self.loaded.name.replace("/", "__")

    def tok_encode(self, string: str, add_special_tokens: bool | None = None, **kwargs: Any) -> list[int]:
        """Token ids, with the tokenizer's special tokens unless the text already starts with BOS."""
        if add_special_tokens is None and has_bos_prefix(string, self.tokenizer.decode(self.prefix_token_id)):
            add_special_tokens = False
        options = {} if add_special_tokens is None else {"add_special_tokens": add_special_tokens}
        ids = list(self.tokenizer.encode(string, **options))
        check_ids(ids, self.loaded.model, self.tokenizer)
        return ids

    def apply_chat_template(self, chat_history: list[dict[str, str]], add_generation_prompt: bool = True) -> str:
        """The messages in the model's chat template; raises UserError if the template rejects them."""
        options: dict[str, Any] = {"add_generation_prompt": add_generation_prompt}
        options |= {"continue_final_message": not add_generation_prompt}
        if self.chat is not None and self.chat.thinking is not None:
            options[SWITCH] = self.chat.thinking
        try:
            return str(self.tokenizer.apply_chat_template(chat_history, tokenize=False, **options))
        except Exception as error:  # a template is a program of its own
            message = " ".join(str(error).split())[:MESSAGE_CHARACTERS].rstrip(".")
            raise UserError(f"The model's chat template rejects these messages ({message}); use --chat no.") from None

    def loglikelihood(self, requests: list[Any], disable_tqdm: bool = True) -> list[tuple[float, bool]]:
        """Log-likelihoods of continuations, without lm-eval's progress bars."""
        return super().loglikelihood(requests, disable_tqdm=True)

    def _loglikelihood_tokens(self, requests: list[Any], **kwargs: Any) -> list[tuple[float, bool]]:
        keys = [request_key(CHOICES, texts) for texts, _, _ in requests]
        return self.answering.likelihoods(keys, [(tuple(context), tuple(choice)) for _, context, choice in requests])

    def loglikelihood_rolling(self, requests: list[Any], disable_tqdm: bool = True) -> list[float]:
        """Log-likelihood of each text, summed over disjoint windows as in HFLM."""
        pairs: dict[str, tuple[Tokens, Tokens]] = {}
        keys_of_requests: list[list[str]] = []
        for (text,) in (request.args for request in requests):
            windows = get_rolling_token_windows(
                self.tok_encode(text), self.prefix_token_id, self.answering.window, context_len=1
            )
            keys_of_requests.append([])
            for number, (context, continuation) in enumerate(map(make_disjoint_window, windows)):
                keys_of_requests[-1].append(key := request_key(ROLLING, [text, number]))
                pairs[key] = tuple(context), tuple(continuation)
        answers = dict(zip(pairs, self.answering.likelihoods(list(pairs), list(pairs.values())), strict=True))
        journal, totals = self.answering.journal, []
        for request, keys in zip(requests, keys_of_requests, strict=True):
            totals.append(sum(answers[key][0] for key in keys))
            measured = mean_measurement([journal.answers[key][1] for key in keys])
            journal.add(request_key(ROLLING, request.args), totals[-1], measured)
        return totals

    def generate_until(self, requests: list[Any], disable_tqdm: bool = True) -> list[str]:
        """Generated texts up to a stop string or the end-of-text token."""
        keys: list[str] = []
        generations: list[GenerationRequest] = []
        eos = self.tokenizer.decode([self.eot_token_id], skip_special_tokens=False)
        for index, (context, settings) in enumerate(request.args for request in requests):
            options: dict[str, Any] = dict(normalize_gen_kwargs(settings, DEFAULT_NEW_TOKENS))
            until, new_tokens = handle_stop_sequences(options.pop("until"), eos), options.pop("max_gen_toks")
            context_tokens = self.answering.window - new_tokens
            if context_tokens < 1:
                raise UserError(f"A task generates up to {new_tokens:,} tokens, more than the model's context window "
                                f"of {self.answering.window:,}: choose another task or model.")  # fmt: skip
            keys.append(request_key(GENERATION, (context, settings)))
            ids = tuple(self.tok_encode(context)[-context_tokens:])
            generations.append(GenerationRequest(ids, tuple(until), new_tokens, generate_options(options), index))
        return self.answering.texts(keys, generations)
