"""What an evaluation would read of a file, before it costs anything: benchmark, lines, lengths, and what is cut."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import groupby, islice
from pathlib import Path
from typing import Any

import numpy as np
from transformers import PreTrainedTokenizerBase

from kvlab.common.errors import UserError
from kvlab.evaluate.plan import fitted, make_plan
from kvlab.evaluate.request import EvalRequest
from kvlab.evaluate.scoring.metrics import check_metric
from kvlab.models.chat import chat_of
from kvlab.models.tokenizer import load_tokenizer
from kvlab.tasks.loaders import LOADERS, load_file
from kvlab.tasks.recognition import recognise
from kvlab.tasks.sample import Sample
from kvlab.tasks.task import DEFAULT_LENGTHS
from kvlab.tasks.tokens import Cut, count_tokens


@dataclass(frozen=True)
class Lengths:
    """Of some numbers of tokens."""

    median: float
    p95: float
    longest: int

    @classmethod
    def of(cls, tokens: list[int]) -> Lengths:
        """The lengths' middle, the one that 95 % do not exceed, and the longest."""
        return cls(float(np.median(tokens)), float(np.percentile(tokens, 95)), max(tokens))


@dataclass(frozen=True)
class Checked:
    """What stands in a file; `malformed` has a sentence for each bad line, `notes` for what would stop a run."""

    path: Path
    form: str
    benchmark: str
    tasks: dict[str, int]
    prompts: Lengths
    answers: Lengths
    new_tokens: int
    metrics: tuple[str, ...]
    window: int
    most: int  # tokens a prompt may have
    cut: Cut
    shortened: tuple[int, ...]  # tokens of the prompts that lose some
    lost: int  # tokens of all of them that are lost
    malformed: tuple[str, ...]
    notes: tuple[str, ...]

    @property
    def count(self) -> int:
        """Prompts that can be used."""
        return sum(self.tasks.values())


def check_file(
    path: Path,
    tokenizer: PreTrainedTokenizerBase,
    window: int,
    form: str = "",
    max_prompt: int | None = None,
    cut: Cut = "middle",
    options: dict[str, Any] | None = None,
) -> Checked:
    """Read the whole file as an evaluation would, malformed lines left out.

    `form` names the loader; without one the fields of the records tell. Raises UserError where the file cannot be read,
    is nothing known, or has no usable line.
    """
    if form and form not in LOADERS:
        raise LOADERS.unknown(form)
    believed = None if form else recognise(path)
    form = believed.form if believed else form
    given = dict(options or {})
    if form == "text":
        given.setdefault("length", min(DEFAULT_LENGTHS[0], window))
    loaded = load_file(form, path, tokenizer, True, **given)
    samples, notes = loaded.samples, [*loaded.notes]
    short: list[Sample] = []
    try:
        short = [fitted(sample, tokenizer, window, max_prompt, cut) for sample in samples]
    except UserError as error:
        notes.append(str(error))
    for metric in sorted({sample.metric for sample in samples}):
        try:
            check_metric(metric)
        except UserError as error:
            notes.append(str(error))
    cuts = [(int(str(one.meta["shortened_from"])), one.length) for one in short if "shortened_from" in one.meta]
    tasks: dict[str, int] = {}
    for sample in samples:
        tasks[sample.task] = tasks.get(sample.task, 0) + 1
    answers = [max(count_tokens(tokenizer, answer) for answer in sample.answers) for sample in samples]
    longest_answer = max(sample.max_new_tokens for sample in samples)
    return Checked(
        path=path,
        form=form,
        benchmark=believed.benchmark if believed else f"read as {form}, as asked",
        tasks=tasks,
        prompts=Lengths.of([sample.length for sample in samples]),
        answers=Lengths.of(answers),
        new_tokens=longest_answer,
        metrics=tuple(sorted({sample.metric for sample in samples})),
        window=window,
        most=max(0, min(max_prompt or window, window - longest_answer)),
        cut=cut,
        shortened=tuple(before for before, _ in cuts),
        lost=sum(before - after for before, after in cuts),
        malformed=tuple(loaded.skipped),
        notes=tuple(notes),
    )


TRIED = 4  # prompts of each task, length and depth: names and numbers differ, and with them what a prompt needs


def check_tasks(request: EvalRequest) -> None:
    """Make the first prompts of every task.

    A model whose tokenizer cannot be had is not judged, nor are files: whoever loads it says what is wrong.

    Raises:
        UserError: a length cannot hold its task, does not fit the model, or a task or its difficulty is unknown.
    """
    if not request.tasks:
        return
    try:
        tokenizer, window = load_tokenizer(request.model, request.revision, request.cache_dir)
    except UserError:
        return
    chat = chat_of(request, tokenizer)
    turn = 0 if chat is None else sum(map(len, chat.around()))
    few = request.model_copy(update={"files": (), "samples": min(request.samples, TRIED)})
    plan = make_plan(few, tokenizer, window - turn)
    for _, cell in groupby(plan.prompts, lambda prompt: (prompt.identity.task, prompt.identity.length)):
        for prompt in islice(cell, TRIED):
            prompt.make()
