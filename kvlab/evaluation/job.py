"""Run an evaluation, or one of its prompts as a recorded comparison, as a job of the queue."""

import math
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from rich.console import Console
from rich.progress import Progress as Bar

from kvlab.common.formatting import format_duration
from kvlab.common.terminal import progress_columns
from kvlab.core import MOST_NEW_TOKENS, UserError
from kvlab.engine.progress import download_reporter
from kvlab.evaluation.harness import Listener, evaluate
from kvlab.evaluation.plan import make_plan
from kvlab.evaluation.request import EvalJob, SampleJob
from kvlab.models.chat import chat_of, window_of
from kvlab.models.load import held_model
from kvlab.requests.compare import CompareRequest, ModelRequest, Progress
from kvlab.requests.facts import LONGEST_ANSWER, find_facts
from kvlab.tasks.sample import Sample

LINE_SECONDS = 15.0


@contextmanager
def shown_progress(console: Console) -> Iterator[Listener]:
    """Yield a listener that shows progress reports; rows found on disk do not count towards the speed."""
    if not console.is_terminal:
        yield _Lines(console)
        return
    with Bar(*progress_columns(), console=console, transient=True) as bar:
        task = bar.add_task("loading", total=None)

        def listen(progress: Progress) -> None:
            bar.update(task, completed=progress.done, total=progress.total, description=progress.stage)
            if progress.stage == "start":
                bar.reset(task, completed=progress.done, total=progress.total, description="start")

        yield listen


@dataclass
class Pace:
    """The time left at the speed so far; rows found on disk took none of it.

    One pass measures many rows, which are reported at once, so the speed is that up to the report before the latest.
    """

    begun: float = field(default_factory=time.monotonic)
    reported: float = field(default_factory=time.monotonic)
    resumed: int = 0
    done: int = 0

    def seconds_left(self, progress: Progress) -> float:
        """To be asked at each report; infinite before the second of a measured row."""
        now = time.monotonic()
        if progress.stage == "start":
            self.begun = now
            self.resumed = progress.done
            self.done = progress.done
        measured = self.done - self.resumed
        seconds = self.reported - self.begun
        self.reported = now
        self.done = progress.done
        return seconds / measured * (progress.total - progress.done) if measured else math.inf


@dataclass
class _Lines:
    """Print a line every `LINE_SECONDS`, for logs."""

    console: Console
    last_line: float = field(default_factory=time.monotonic)
    pace: Pace = field(default_factory=Pace)

    def __call__(self, progress: Progress) -> None:
        now = time.monotonic()
        left = self.pace.seconds_left(progress)
        if progress.stage == "start":
            self.console.print(f"{progress.total} measurements, {progress.done} of them already on disk")
        elif now - self.last_line >= LINE_SECONDS or progress.done == progress.total:
            self.last_line = now
            left_text = f", about {format_duration(left)} left" if math.isfinite(left) else ""
            self.console.print(f"{progress.done}/{progress.total}{left_text} ({progress.stage})")


FOLDER = "eval"
Report = Callable[[Progress], None]


def run_evaluation(job: EvalJob, root: Path, *, progress: Report, cancelled: Callable[[], bool]) -> Path:
    """Evaluate into `<root>/eval/<name>` and return the folder; rows already there are not measured again.

    Notes are printed for the job's log. Raises as `evaluate`.
    """
    folder = Path(root) / FOLDER / job.name
    listener = PromptProgress(len(job.request.all_choices), progress)
    result = evaluate(job.request, folder, on_progress=listener, cancelled=cancelled)
    for note in result.notes:
        print(note, flush=True)
    return folder


@dataclass
class PromptProgress:
    """Report progress in prompts with the estimated time left; rows found on disk do not count towards the speed."""

    choices: int
    report: Report
    pace: Pace = field(default_factory=Pace)

    def __call__(self, progress: Progress) -> None:
        left = self.pace.seconds_left(progress)
        count = f"{progress.done // self.choices} of {progress.total // self.choices} prompts"
        is_known = math.isfinite(left) and progress.done < progress.total
        words = [count, *([f"about {format_duration(left, rough=True)} left"] if is_known else []), progress.stage]
        self.report(progress.model_copy(update={"stage": " · ".join(words)}) if progress.total > 1 else progress)


LEAST_NEW_TOKENS = 16


def run_sample(
    job: SampleJob,
    root: Path,
    *,
    progress: Callable[[Progress], None],
    cancelled: Callable[[], bool],
    compare: Callable[..., list[Path]],
) -> list[Path]:
    """Generate the prompt again, run `compare` on it with the job's methods, and return the run folders.

    Context and question are read as one text, question-aware, even if the evaluation was not; of several questions it
    is the first. Raises UserError if the
    prompt no longer exists, and as `compare`.
    """
    loaded = held_model(job.request, download_reporter(progress))
    has_chat = chat_of(job.request, loaded.tokenizer) is not None
    plan = make_plan(job.request, loaded.tokenizer, window_of(loaded.model.config), has_chat)
    matches = [prompt for prompt in plan.prompts if prompt.identity.content == job.content]
    if not matches:
        raise UserError("The file of this evaluation no longer contains this prompt: restore the file.")
    return compare(comparison_of(job, matches[-1].make(), has_chat), root, progress=progress, cancelled=cancelled)


def comparison_of(job: SampleJob, sample: Sample, has_chat: bool = False) -> CompareRequest:
    """The comparison request of a sample: its first answer is expected, its hidden statements are the facts.

    In a chat the sample's system prompt is the request's. Rules are no text that an answer could have.
    """
    apart = sample.system if has_chat and sample.chat else ""
    prompt = sample.context.removeprefix(apart).lstrip("\n" if apart else "") + sample.question
    is_text = sample.answers and sample.max_new_tokens and not sample.metric.endswith("rules")
    answer = sample.answers[0].strip() if is_text else ""
    statements = sample.meta.get("statements")
    hidden = [str(text) for text in statements] if isinstance(statements, list) else []
    return CompareRequest(
        prompt=prompt,
        choices=job.request.all_choices,
        max_new_tokens=min(max(sample.max_new_tokens, LEAST_NEW_TOKENS), MOST_NEW_TOKENS),
        level="full",
        prefill_chunk=job.request.prefill_chunk,
        answer=answer if 0 < len(answer) <= LONGEST_ANSWER else None,
        facts=find_facts(prompt, [text for text in hidden if text.strip() and text.strip() in prompt]),
        title=job.title,
        private=job.private,
        owner=job.owner,
        **{name: getattr(job.request, name) for name in ModelRequest.model_fields if name != "system"},
        system="\n".join(filter(None, [job.request.system, apart])),
    )
