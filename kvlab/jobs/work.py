"""All kinds of jobs the queue accepts. Torch-free: the web side writes requests."""

from pydantic import TypeAdapter

from kvlab.bench.request import BenchJob
from kvlab.core import Restore, UserError
from kvlab.evaluation.request import EvalJob, SampleJob
from kvlab.models.fitting.request import FitJob
from kvlab.requests.compare import CompareRequest, ImportRequest, RestoreRequest
from kvlab.requests.live_session import LiveJob
from kvlab.trace.record import choice_of, repeat_request
from kvlab.trace.schema import RunRecord

Work = CompareRequest | RestoreRequest | ImportRequest | EvalJob | SampleJob | BenchJob | FitJob | LiveJob


def read_request(text: str | bytes) -> Work:
    """Parse a job's request from JSON; raises pydantic's ValidationError."""
    return TypeAdapter(Work).validate_json(text)


def rerun_with_restored(record: RunRecord, returned: Restore) -> CompareRequest:
    """A request for two runs over the same prompt: the method as it ran, and with `returned` on top of its budget."""
    with_it = choice_of(record).model_copy(update={"returned": returned})
    return repeat_request(record, with_it, f"{record.label} {returned.description}")


def counterfactual(record: RunRecord, first: int, last: int) -> CompareRequest:
    """A request for two runs over the same prompt: the method as it ran, and with tokens `first` to `last` kept.

    Tokens that the run was forced to keep stay kept in both. Raises UserError if a token is outside the prompt, or
    there are more tokens than the run's budget has slots.
    """
    chosen = tuple(range(first, last + 1))
    if not chosen or chosen[0] < 0 or chosen[-1] >= record.prompt_tokens:
        raise UserError(f"Choose tokens of the prompt, 0 to {record.prompt_tokens - 1}: only they can be kept.")
    places = record.budget if isinstance(record.budget, int) else int(record.budget * record.prompt_tokens)
    if len(chosen) >= places and record.method != "gvote":
        raise UserError(f"{len(chosen)} tokens do not fit into a budget of {places} slots: choose fewer.")
    kept = choice_of(record).model_copy(update={"force_keep": tuple(sorted({*record.force_keep, *chosen}))})
    return repeat_request(record, kept, f"What if tokens {first} to {last} had stayed ({record.label})")
