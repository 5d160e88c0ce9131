"""Mode `together`: what comparing and evaluating many methods costs next to one, in whole seconds of the program.

A comparison and an evaluation read a prompt once for all methods. Everything a user waits for until the answers is
measured, run folders included, on a generated prompt of a needle task; all figures of a context are measured in turns.
The speeds that a comparison measures behind its answers are a figure of their own.
"""

import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path

import torch

from kvlab.bench.bench import Bench, complete_row
from kvlab.bench.device import spread
from kvlab.bench.rows import Row
from kvlab.core.cache import make_cache
from kvlab.core.cache.settings import synchronize
from kvlab.core.choice import FULL, MethodChoice
from kvlab.core.methods import make_method
from kvlab.engine.compare import compare
from kvlab.evaluation.generate import Stops, generate_together
from kvlab.models.chat import load_tokenizer
from kvlab.models.load import LoadedModel
from kvlab.requests.compare import CompareRequest, RecordLevel
from kvlab.tasks.registry import get_task

EVALUATED = (0.05, 0.1, 0.2, 0.4)  # budgets of the evaluation
GENERATE = "generate"
PAIR = "compare one method"
ALL = "compare all"
RECORDED = "compare all, level full"
SPEEDS = "speeds behind the answers of all"
ONE_ANSWER = "evaluate the full cache"
ANSWERS = "evaluate all methods and budgets"
# Figures and those they are divided by.
RATIOS = ((ALL, PAIR), (ALL, GENERATE), (RECORDED, ALL), (ANSWERS, ONE_ANSWER))


def measure(bench: Bench) -> Iterator[Row]:
    """Seconds of each kind of work, then the ratios.

    Shapes with random weights have no tokenizer and take `mini`'s: their text means nothing, and its length is right.
    """
    tokenizer = bench.model.tokenizer or load_tokenizer("mini")[0]
    loaded = LoadedModel(bench.model.model, tokenizer, bench.model.name)
    for context in bench.request.contexts:
        yield from _at_context(bench, loaded, bench.request.shortened(context))


def _at_context(bench: Bench, loaded: LoadedModel, context: int) -> Iterator[Row]:
    sample = get_task("needle").generate(loaded.tokenizer, context, 0, 0)
    prompt = sample.context + sample.question
    choices = bench.request.choices_run()
    new = max(bench.request.shortened(bench.request.new_tokens), 1)
    compared = partial(_compare, loaded, prompt, new, bench.request.compress_every)
    ids = loaded.encode(prompt)
    evaluated = [choice.model_copy(update={"budget": budget}) for choice in choices for budget in EVALUATED]
    works: dict[str, Callable[[], float | None]] = {
        GENERATE: lambda: _generate(bench, ids, new),
        PAIR: lambda: compared(choices[:1], "light"),
        ALL: lambda: compared(choices, "light"),
        RECORDED: lambda: compared(choices, "full"),
        ONE_ANSWER: lambda: _answer(loaded, ids, new, [FULL]),
        ANSWERS: lambda: _answer(loaded, ids, new, evaluated),
    }
    for work in works.values():
        work()  # first calls compile and fill caches
    samples: dict[str, list[float]] = {name: [] for name in (*works, SPEEDS)}
    for _ in range(bench.request.repeats):
        for name, work in works.items():
            synchronize(loaded.device)
            begun = time.perf_counter()
            answered = work()
            synchronize(loaded.device)
            whole = time.perf_counter() - begun
            samples[name].append(whole if answered is None else answered)
            if name == ALL and answered is not None:
                samples[SPEEDS].append(whole - answered)
    for name, seconds in samples.items():
        yield complete_row(_row(bench, context, name, "s"), spread(seconds))
    for name, other in RATIOS:
        ratios = [numerator / denominator for numerator, denominator in zip(samples[name], samples[other], strict=True)]
        yield complete_row(_row(bench, context, f"{name} / {other}", "ratio"), spread(ratios))


def _compare(
    loaded: LoadedModel, prompt: str, new: int, every: int, choices: Sequence[MethodChoice], level: RecordLevel
) -> float:
    """Seconds until every method has its answer."""
    request = CompareRequest(
        prompt=prompt,
        model=loaded.name,
        choices=tuple(choices),
        max_new_tokens=new,
        level=level,
        compress_every=every,
        chat="no",
    )
    answered: list[float] = []
    with tempfile.TemporaryDirectory() as folder:
        begun = time.perf_counter()
        compare(request, Path(folder), loaded=loaded, answered=lambda _: answered.append(time.perf_counter() - begun))
    return answered[0]


def _answer(loaded: LoadedModel, ids: torch.Tensor, new: int, choices: Sequence[MethodChoice]) -> None:
    caches = [
        make_cache(loaded, make_method(choice.method, **choice.hyper_parameters), choice.budget) for choice in choices
    ]
    for outcome in generate_together(loaded, ids.tolist(), caches, ids.shape[1], new, Stops()):
        if isinstance(outcome, Exception):
            raise outcome


@torch.inference_mode()
def _generate(bench: Bench, ids: torch.Tensor, new: int) -> None:
    """Plain transformers: its own cache and attention function."""
    model = bench.model.model
    options = {"max_new_tokens": new, "min_new_tokens": new, "do_sample": False}
    with bench.model.attention("sdpa"):
        model.generate(ids, attention_mask=torch.ones_like(ids), pad_token_id=0, **options)  # type: ignore[operator]  # a method of every model


def _row(bench: Bench, context: int, figure: str, unit: str) -> Row:
    request = bench.request
    return Row(
        mode=request.mode,
        figure=figure,
        model=bench.model.name,
        method=f"{len(request.choices)} methods",
        batch=1,
        context=context,
        unit=unit,
        asked_context=context,
        new_tokens=request.shortened(request.new_tokens),
        asked_new_tokens=request.new_tokens,
    )
