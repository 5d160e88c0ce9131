"""kvlab's methods and OpenVINO's modes on the same prompts at equal tokens kept: what is run, and its rows."""

import hashlib
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd
import torch

from kvlab.core import UserError, format_spec, read_json
from kvlab.evaluation.generate import Stops
from kvlab.evaluation.harness import Listener, evaluate, prepare_evaluation
from kvlab.evaluation.prepare import PreparedPrompt, prepare
from kvlab.evaluation.request import EvalRequest
from kvlab.evaluation.scoring.metrics import score
from kvlab.extras.engines.modes import MODES, Mode
from kvlab.models.chat import decode_answer
from kvlab.models.info.model_faults import gguf_file
from kvlab.models.info.offered_models import place_of
from kvlab.models.load import LoadedModel, held_model

OPENVINO_SIDE = Path(__file__).with_name("openvino_side.py")  # OpenVINO's own Python runs it
# files in the folder of results
ROWS = "openvino.jsonl"
TIMES = "times.jsonl"
LOG = "openvino.log"
STEPS = 64  # decode steps that are timed
ROUND = 10  # prompts of each task that every cache answers before any answers the next ones
OPENVINO = "OpenVINO"
KVLAB = "kvlab"
SAME_NLL = 0.02  # nats a token by which the full caches of the same model may differ on the same text
ATTEMPTS = 3  # starts of a process that a signal kills before it has written a row
Report = Callable[[str], None]


@dataclass(frozen=True)
class Comparison:
    """What is compared: `request` names kvlab's methods, each with its tokens, and the tasks. `python` has OpenVINO.

    `timed` prompts are read alone by every cache, in a process of its own on `threads` threads.
    """

    request: EvalRequest
    kept: int
    python: Path
    threads: int = 1
    timed: int = 1
    modes: tuple[Mode, ...] = MODES

    @property
    def command(self) -> list[str]:
        """What starts OpenVINO's side, beside the job."""
        return [str(self.python), str(OPENVINO_SIDE)]

    @property
    def model_file(self) -> Path:
        """The GGUF file that both read. Raises UserError for a model of another kind."""
        file = gguf_file(place_of(self.request.model))
        if file is None:
            raise UserError(f"OpenVINO reads GGUF files: {self.request.model} is none, so choose --model smollm2.")
        return file


@dataclass(frozen=True)
class Answer:
    """One prompt, one cache: how it scored."""

    engine: str
    method: str
    task: str
    index: int
    score: float
    prediction: str


def compare_engines(comparison: Comparison, out: Path, on_progress: Listener, report: Report) -> Iterator[list[Answer]]:
    """Answer all prompts with kvlab's methods and OpenVINO's modes, and yield all answers so far after every round.

    A round is `ROUND` prompts of each task, answered by every cache; rows that the folder has are not measured again.
    Raises UserError for a task whose last tokens are held back, a model that is no GGUF file, and an engine that fails.
    """
    file = comparison.model_file
    loaded = held_model(comparison.request)
    asked = comparison.request.samples
    for samples in [*range(ROUND, asked, ROUND), asked]:
        request = comparison.request.model_copy(update={"samples": samples})
        prompts = prepared_prompts(request, loaded)
        report(f"{samples} of {asked} prompts a task: kvlab")
        rows = evaluate(request, out, loaded, on_progress=on_progress).rows
        answers = [
            Answer(
                KVLAB,
                format_spec(row["method"], json.loads(row["hyper_parameters"])),
                row["task"],
                int(row["index"]),
                float(row["score"]),
                row["prediction"],
            )
            for row in rows.to_dict("records")
        ]
        for mode in comparison.modes:
            jobs = [_asked(prompt, comparison, mode.as_data(comparison.kept)) for prompt in prompts]
            report(f"{samples} of {asked} prompts a task: OpenVINO, {mode.name}")
            job = {"model": str(file), "threads": comparison.threads, "mode": mode.as_data(comparison.kept)}
            found = run_side(comparison.command, job, jobs, out / ROWS, out / LOG)
            answers += [
                _scored(mode.name, prompt, found[one["key"]]["ids"], loaded)
                for prompt, one in zip(prompts, jobs, strict=True)
            ]
        yield answers


@dataclass(frozen=True)
class FullCaches:
    """Mean negative log-likelihood of one text's tokens under each side's full cache."""

    kvlab: float
    engine: float


@torch.inference_mode()
def compare_full_caches(comparison: Comparison, out: Path) -> FullCaches:
    """Let both full caches score the first prompt."""
    loaded = held_model(comparison.request)
    ids = prepared_prompts(comparison.request, loaded)[0].context
    mode = MODES[0].as_data(comparison.kept)
    logits = loaded.model(torch.tensor([ids], device=loaded.device)).logits[0, :-1].float()
    losses = torch.nn.functional.cross_entropy(logits, torch.tensor(ids[1:], device=loaded.device))
    job = {"model": str(comparison.model_file), "threads": comparison.threads, "mode": mode}
    key = f"nll of {_digest(ids)}"
    asked = {"key": key, "ids": ids, "new_tokens": 1, "to_the_end": True, "scored": True}
    found = run_side(comparison.command, job, [asked], out / ROWS, out / LOG)[key]
    return FullCaches(float(losses), float(found["nll"]))


def time_engines(comparison: Comparison, out: Path, report: Report) -> pd.DataFrame:
    """Read the first prompts alone with each cache, each in a process of its own, and give means over prompts.

    Columns: engine, method, tokens_per_second and first_seconds, both of processor time, which other work on the
    machine changes little; held_tokens, held_bytes, and the process's loaded_bytes and peak_bytes. Each prompt is read
    by every cache before the next one is.
    """
    loaded = held_model(comparison.request)
    prompts = prepared_prompts(comparison.request, loaded)[: comparison.timed]
    ours: list[tuple[str, str, dict[str, Any]]] = []
    for one in comparison.request.all_choices:
        spec = format_spec(one.method, one.hyper_parameters)
        ours.append((KVLAB, spec, {"spec": spec, "budget": one.budget}))
    theirs = [(OPENVINO, mode.name, mode.as_data(comparison.kept)) for mode in comparison.modes]
    lines = []
    for number, prompt in enumerate(prompts, 1):
        for engine, name, mode in [*ours, *theirs]:
            report(f"alone, prompt {number} of {len(prompts)}: {engine}, {name}")
            asked = {**_asked(prompt, comparison, mode, STEPS), "to_the_end": True}
            command = [sys.executable, "-m", "kvlab.extras.engines.kvlab_side"]
            model = comparison.request.model
            if engine == OPENVINO:
                command = comparison.command
                model = str(comparison.model_file)
            job = {"model": model, "threads": comparison.threads, "mode": mode}
            row = run_side(command, job, [asked], out / TIMES, out / LOG)[asked["key"]]
            speed = (row["steps"] - 1) / (row["processor_seconds"] - row["first_processor_seconds"])
            sizes = {key: row[key] for key in ("held_tokens", "held_bytes", "loaded_bytes", "peak_bytes")}
            first = row["first_processor_seconds"]
            lines.append(
                {"engine": engine, "method": name, "tokens_per_second": speed, "first_seconds": first, **sizes}
            )
    return pd.DataFrame(lines).groupby(["engine", "method"], sort=False, as_index=False).mean()


def prepared_prompts(request: EvalRequest, loaded: LoadedModel) -> list[PreparedPrompt]:
    """The request's prompts as tokens. Raises UserError for a task of which the engine could not ask the same."""
    plain = prepare_evaluation(request.model_copy(update={"choices": ()}), loaded)
    prompts = [prepare(unit.prompt, loaded, plain.chat) for unit in plain.units]
    for prompt in prompts:
        sample = prompt.sample
        if sample.hold_back or sample.further or prompt.is_forced or sample.temperature:
            raise UserError(
                f"{sample.task} cannot be compared: the engine reads the whole prompt, compresses it and writes one "
                "answer, so choose tasks such as needle or ruler_niah_multikey_1."
            )
    return prompts


def run_side(
    command: Sequence[str], job: dict[str, Any], prompts: Sequence[dict[str, Any]], rows: Path, log: Path
) -> dict[str, dict[str, Any]]:
    """Rows by key of all prompts; those that `rows` lacks are answered by a process of `command`.

    One that ends before it has written all is started again for the others, and noted in `log`. Raises UserError if it
    ends without any row by an error of its own, or is killed by a signal so `ATTEMPTS` times; rows written before stay.
    """
    known = _read_rows(rows)
    fruitless = 0
    while missing := [one for one in prompts if one["key"] not in known]:
        with tempfile.TemporaryDirectory() as folder, log.open("a", encoding="utf-8") as errors:
            file = Path(folder) / "job.json"
            file.write_text(json.dumps({**job, "rows": str(rows.absolute()), "prompts": missing}), encoding="utf-8")
            environment = os.environ | {"OMP_NUM_THREADS": str(job["threads"])}
            line = [*command, str(file)]
            try:
                status = subprocess.run(line, env=environment, stdout=errors, stderr=errors).returncode
            except OSError as error:
                raise UserError(f"{command[0]} cannot be started: install OpenVINO with `make openvino`.") from error
        before = len(known)
        known = _read_rows(rows)
        fruitless = 0 if len(known) > before else fruitless + 1
        if fruitless and (status >= 0 or fruitless == ATTEMPTS):
            raise UserError(f"The engine's process ended with status {status}: {log} says why.")
        if status:
            with log.open("a", encoding="utf-8") as lines:
                lines.write(f"status {status} after {len(known) - before} rows of {json.dumps(job)}\n")
    return known


def _read_rows(file: Path) -> dict[str, dict[str, Any]]:
    """Rows by key; a line that was cut off is left out."""
    if not file.is_file():
        return {}
    found = []
    for line in file.read_text(encoding="utf-8").splitlines():
        try:
            found.append(read_json(line))
        except ValueError:
            continue
    return {row["key"]: row for row in found}


def _asked(
    prompt: PreparedPrompt, comparison: Comparison, mode: dict[str, Any], steps: int | None = None
) -> dict[str, Any]:
    """A prompt for a side, under a key of all that could change its row."""
    ids = prompt.context + prompt.question
    asked = {"ids": ids, "new_tokens": steps or prompt.sample.max_new_tokens, "to_the_end": False}
    settings = [mode, comparison.request.model, comparison.threads, asked]
    return {**asked, "key": _digest(settings)}


def _digest(settings: Any) -> str:
    return hashlib.sha256(json.dumps(settings, sort_keys=True).encode()).hexdigest()[:24]


def _scored(mode: str, prompt: PreparedPrompt, ids: Iterable[int], loaded: LoadedModel) -> Answer:
    sample = prompt.sample
    stops = Stops((sample.stop,) if sample.stop else (), open_tag=prompt.open_tag, tags=prompt.tags)
    text = stops.cut(decode_answer(loaded.tokenizer, list(ids)))
    found = score(sample.metric, text, sample.answers, tags=prompt.tags)
    return Answer(OPENVINO, mode, prompt.identity.task, prompt.identity.index, float(found), text)
