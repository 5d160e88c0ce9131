"""A prompt of an evaluation once more, as a recorded comparison, so that one can look at what became of it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from kvlab.common.errors import UserError
from kvlab.engine.progress import before_steps
from kvlab.evaluate.harness import model_window
from kvlab.evaluate.plan import make_plan
from kvlab.evaluate.request import SampleJob
from kvlab.models.model_cache import held_model
from kvlab.requests.compare import MOST_NEW_TOKENS, CompareRequest, ModelRequest, Progress
from kvlab.requests.facts import LONGEST_ANSWER, find_facts
from kvlab.tasks.sample import Sample

LEAST_NEW_TOKENS = 16


def run_sample(
    job: SampleJob,
    root: Path,
    *,
    progress: Callable[[Progress], None],
    cancelled: Callable[[], bool],
    compare: Callable[..., list[Path]],
) -> list[Path]:
    """Make the prompt again, run `compare` over it with the job's methods, and return the run folders.

    The comparison reads context and question as one text with the question in sight, whatever the evaluation did.
    Raises UserError where the prompt is not to be found any more, and as `compare`.
    """
    loaded = held_model(job.request, before_steps(progress))
    plan = make_plan(job.request, loaded.tokenizer, model_window(loaded))
    found = [prompt for prompt in plan.prompts if prompt.identity.content == job.content]
    if not found:
        raise UserError("The file of this evaluation no longer holds this prompt: put the file back as it was.")
    return compare(comparison_of(job, found[-1].make()), root, progress=progress, cancelled=cancelled)


def comparison_of(job: SampleJob, sample: Sample) -> CompareRequest:
    """The recorded comparison of a sample: its first answer is the expected one, its hidden statements the facts."""
    prompt = sample.context + sample.question
    answer = sample.answers[0].strip() if sample.answers and sample.max_new_tokens else ""
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
        **{name: getattr(job.request, name) for name in ModelRequest.model_fields},
    )
