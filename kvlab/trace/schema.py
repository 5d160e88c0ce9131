"""Format of the run folder: the record in `run.json` and the columns of every table.

A slot is named by the position of its pivot token, unique within a layer and KV head, so folding `events` over the
prompt reconstructs every slot at every step.
"""

from datetime import UTC, datetime
from typing import Annotated, Literal

import pyarrow as pa
from pydantic import (
    AfterValidator,
    AliasChoices,
    BaseModel,
    ConfigDict,
    Field,
    JsonValue,
    TypeAdapter,
    ValidationError,
    model_validator,
)

from kvlab.common.formatting import model_title
from kvlab.core import Bytes, Fraction, Restore, SlotCount, UserError
from kvlab.requests.compare import RecordLevel
from kvlab.requests.facts import Fact
from kvlab.requests.generation_settings import GenerationSettings
from kvlab.requests.recording import Recording
from kvlab.requests.repeats import Repeat

# 2: added `checksums`, and a checksum of the record itself (see `kvlab.trace.record`).
SCHEMA_VERSION = 2

RunStatus = Literal["running", "complete", "cancelled", "failed"]


def _is_time(text: str) -> str:
    """The text, if it is a sortable ISO time with zone."""
    try:
        moment = datetime.fromisoformat(text)
        moment.astimezone(UTC)
    except (ValueError, OverflowError):
        moment = None
    if moment is None or moment.tzinfo is None:
        raise ValueError("should be an ISO 8601 time with its zone, such as 2026-01-31T12:00:00+00:00")
    return text


Time = Annotated[str, AfterValidator(_is_time)]
Name = Annotated[
    str, Field(pattern=r"^[^./\\\x00-\x1f][^/\\\x00-\x1f]{0,254}$", description="the name of a folder, never a path")
]
LONGEST_ID = 160  # bytes of a comparison id, to which run folders append number and method
FileName = Annotated[str, Field(pattern=r"^([a-z]+/)?[a-z0-9][a-z0-9_-]*\.[a-z0-9]+$")]
Checksum = Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]
Count = Annotated[int, Field(ge=0, lt=2**31, strict=True, description="range of the tables' count columns")]
Index = Annotated[int, Field(ge=1, lt=2**15, strict=True, description="range of the tables' index columns")]


def check_id(comparison_id: str) -> str:
    """The id, if it is a valid folder name.

    Raises UserError if it is a path, starts with a dot, has invalid characters, or is too long.
    """
    try:
        if len(comparison_id.encode()) <= LONGEST_ID:
            return TypeAdapter(Name).validate_python(comparison_id)
    except (ValidationError, UnicodeEncodeError):
        pass
    raise UserError(
        f"Invalid comparison id {comparison_id[:80]!r}: ids name folders, so use at most {LONGEST_ID} letters, digits, "
        "dots and dashes, without slashes or a leading dot."
    )


class ModelShape(BaseModel):
    """Properties of the model that figures need."""

    model_config = ConfigDict(frozen=True)

    name: str
    family: str
    num_hidden_layers: Index
    num_attention_heads: Index
    num_key_value_heads: Index
    head_dim: Index
    dtype: str
    parameters: int = Field(ge=0)
    step_weight_bytes: int | None = Field(
        None,
        ge=0,
        description="bytes of the weights that a decode step reads: all but an input embedding that is not tied; "
        "None: a run older than this field",
    )
    rotary_inverse_frequencies: tuple[float, ...] | None = Field(
        None,
        description="radians per position; coordinate i is rotated with i + n, the rest is not rotated. None: the "
        "model does not rotate its keys or changes the frequencies with length, or the run is older than this field",
    )
    rotary_interleaved: bool = Field(False, description="coordinate 2 i is rotated with 2 i + 1 instead (Cohere, GLM)")
    rotary_scaling: float = Field(1.0, gt=0, description="scale factor of rotated coordinates (YaRN)")
    unrotated_layers: tuple[int, ...] = Field((), description="layers without rotation in a model with rotation")
    quantization: str = Field("", description="type of the weights in a GGUF file, such as Q4_1; they run in `dtype`")
    checksum: str = Field("", description="SHA-256 of that file")
    rounding_kl: float | None = Field(
        None, description="of weights in bf16: KL to float32 with the full cache on a fixed text, nats a token"
    )

    @property
    def title(self) -> str:
        """Its name in headings, with what rounded weights lose."""
        lost = "" if self.rounding_kl is None else f", weights in bf16 (KL to float32: {self.rounding_kl:.2g})"
        return model_title(self.name) + lost

    @model_validator(mode="after")
    def _groups_are_whole(self) -> "ModelShape":
        if self.num_attention_heads % self.num_key_value_heads:
            raise ValueError(
                f"{self.num_attention_heads} query heads cannot share {self.num_key_value_heads} KV heads evenly"
            )
        return self


class SpeedReading(BaseModel):
    """Tokens per second of some decode steps without recording, eager or from a captured graph."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    way: Literal["eager", "captured"]
    rate: float = Field(gt=0)


class RunRecord(BaseModel):
    """`run.json`: everything needed to read the run, name it, and run it again."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    schema_version: int = Field(SCHEMA_VERSION, ge=1, le=SCHEMA_VERSION, strict=True)
    run_id: Name
    comparison_id: Name
    created: Time
    status: RunStatus
    message: str = ""
    title: str = ""
    owner: str = Field("", description="the user who requested it on a shared server; empty otherwise")
    private: bool = Field(False, description="visible only to its owner")
    prompt: str
    answer: str | None = Field(None, min_length=1, description="expected answer, matched as whole words")
    other_answers: tuple[str, ...] = Field((), description="other correct answers")
    facts: tuple[Fact, ...] = Field((), description="character spans of the prompt that the answer needs")
    repeat: Repeat | None = Field(None, description="repeat of a batch; none: a single comparison")
    method: str
    budget: SlotCount | Fraction | Bytes
    hyper_parameters: dict[str, JsonValue] = Field(description="resolved: defaults filled in")
    preset: str = Field("default", description="the requested preset")
    departures: dict[str, JsonValue] | None = Field(
        None, description="the paper's values that differ; none: no paper, or a run older than this field"
    )
    notes: tuple[str, ...] = Field(
        (), description="omitted parts of the prompt's file, and effects of the settings at this budget and length"
    )
    label: str
    force_keep: tuple[int, ...] = Field((), description="positions of tokens the method was not allowed to drop")
    returned: Restore | None = Field(None, description="what was given back on top of the budget")
    level: RecordLevel
    max_new_tokens: Count
    compress_every: int = Field(1, ge=1)
    seed: int = Field(ge=-(2**63), lt=2**64)
    generation_config: GenerationSettings = Field("ignore", description="whether the checkpoint's settings were used")
    device: str
    chat: dict[str, JsonValue] | None = Field(
        None,
        description="system prompt, thinking switch and think tags of the chat template; None: plain text",
    )
    loading: dict[str, JsonValue] = Field(default_factory=dict, description="requested placement, weights, revision")
    model: ModelShape
    versions: dict[str, str]
    prompt_tokens: Count
    sliding_layers: tuple[int, ...] = Field((), description="layers with an own window or state, which record nothing")
    recording: Recording = Field(Recording(), description="requested recording of keys, values and probe")
    states: Recording | None = Field(None, description="actual recording of keys and values; none: as requested")
    attention_rows: Recording = Field(Recording(), description="actual recording of attention rows")
    left_out: dict[str, str] = Field(
        default_factory=dict, description="by array, a sentence on what was not recorded for lack of space"
    )
    thinned: str = Field("", max_length=10, description="day its arrays were removed to free space; or empty")
    array_error: dict[str, float] = Field(
        default_factory=dict,
        description="keys and values: the largest |stored - cached| / |cached| of any token, layer and KV head",
    )
    seconds_prefill: float | None = Field(None, description="as if alone: of a pass shared with other runs, its part")
    seconds_compress: float | None = Field(None, description="part of prefill spent compressing")
    seconds_second_pass: float | None = Field(
        None,
        validation_alias=AliasChoices("seconds_second_pass", "seconds_rehearse"),  # the latter of earlier versions
        description="part of prefill spent on a second pass over the context",
    )
    decode_tokens_per_second: float | None = Field(None, description="decoding alone after the prompt, unrecorded")
    speed_readings: tuple[SpeedReading, ...] = Field((), description="further ones, in turns with the other runs")
    recorded_tokens_per_second: float | None = Field(None, description="with the time that recording added to a step")
    joules: float | None = Field(
        None, description="energy of the device in the pass that read the prompt and decoded, of all its runs together"
    )
    energy: str = Field("", description="the energy counter, or why there is none; empty: older than this field")
    free_text: str = Field("", description="the method's own greedy continuation")
    forced_text: str = Field("", description="the full cache's greedy continuation")
    worker_pid: Count | None = None
    checksums: dict[FileName, Checksum] | None = Field(
        None,
        description="SHA-256 of every other file by relative path. None: the run has not ended, its worker was killed, "
        "or it is older than this field",
    )

    @property
    def recorded_states(self) -> Recording:
        """What keys and values were recorded of."""
        return self.states or self.recording

    @property
    def state_note(self) -> str:
        """Precision of the recorded keys and values as a sentence; "" if not measured."""
        if not self.array_error:
            return ""
        worst = max(self.array_error.values())
        return f"Keys and values are recorded in half precision, with an error of at most {100 * worst:.2g} %."

    @property
    def remarks(self) -> tuple[str, ...]:
        """`notes` and everything left out."""
        return (*self.notes, *self.left_out.values(), *([self.thinned_note] if self.thinned else []))

    @property
    def thinned_note(self) -> str:
        """Sentence for a run whose arrays were removed."""
        return (
            f"The arrays of this run (keys, values, attention rows) were removed on {self.thinned} to free space; "
            "tables and texts remain. Run it again to get them back."
        )

    @model_validator(mode="after")
    def _numbers_exist(self) -> "RunRecord":
        unknown = [layer for layer in self.sliding_layers if not 0 <= layer < self.model.num_hidden_layers]
        if unknown:
            raise ValueError(f"sliding layer {unknown[0]} is none of {self.model.num_hidden_layers} layers")
        beyond = [position for position in self.force_keep if not 0 <= position < self.prompt_tokens]
        if beyond:
            raise ValueError(f"the kept position {beyond[0]} is none of {self.prompt_tokens} prompt tokens")
        if any(stop > len(self.prompt) for _, stop in self.facts):
            raise ValueError("a fact lies beyond the prompt's end")
        return self


TOKENS = pa.schema(
    [
        ("phase", pa.string()),  # prompt | forced | free
        ("position", pa.int32()),  # logical position of the token
        ("id", pa.int32()),
        ("text", pa.string()),  # the token's text, exactly as in the prompt or continuation
        ("special", pa.bool_()),  # shown by name, not part of the text: special and end tokens; null in older runs
        ("logprob", pa.float32()),  # nats the compressed run gave this token; null in phase prompt
        ("logprob_full", pa.float32()),  # nats the full cache gave it; null in phases prompt and free
        ("kl", pa.float32()),  # KL(full || compressed) of the distribution that predicted it, nats; null in free
        ("top1_agree", pa.bool_()),  # both distributions have the same most likely token; null in free
    ]
)

# Masses and errors of step 0 are those of the last prompt query repeated after compression (prefill itself attends to
# everything); those of later steps are of the step's query, before that step's own compression.
STEPS = pa.schema(
    [
        ("step", pa.int32()),  # 0 is prefill, k is the k-th forced decode step
        ("layer", pa.int16()),
        ("head", pa.int16()),  # KV head
        ("live_slots", pa.int32()),
        ("tokens_seen", pa.int32()),
        ("budget_slots", pa.int32()),  # budget of this head; equals tokens_seen for the full cache
        ("evicted", pa.int32()),  # slots that left by eviction in this step
        ("merged", pa.int32()),  # slots that left by a merge or a pool in this step
        ("max_votes", pa.float32()),
        ("guard_activations", pa.int32()),  # in this step
        ("non_finite", pa.int32()),  # slots with infinity or NaN after the step; null at level light
        ("key_growth", pa.float32()),  # largest norm of a merged key over its longest part's, 1: none grew; level full
        ("value_growth", pa.float32()),  # likewise
        ("kept_mass", pa.float32()),  # true mass of tokens that still have a slot of their own (votes 1)
        ("merged_true_mass", pa.float32()),  # true mass of tokens in merged slots
        ("merged_mass", pa.float32()),  # attention received by merged slots
        ("sag", pa.float32()),  # merged_true_mass - merged_mass
        ("regret", pa.float32()),  # true mass of tokens already dropped
        ("output_error", pa.float32()),  # ||o' - o|| / ||o|| against the shadow, mean over the group's query heads
        ("score_error", pa.float32()),  # relative error of the method's predicted score; null without prediction
        ("unread_mass", pa.float32()),  # true mass of tokens in slots that the step left out; null if it is dense
    ]
)

EVENTS = pa.schema(
    [
        ("step", pa.int32()),
        ("layer", pa.int16()),
        ("head", pa.int16()),
        ("kind", pa.string()),  # evict | merge | pool
        ("source", pa.int32()),  # position naming the slot that left
        ("target", pa.int32()),  # position naming the target slot; -1 for an eviction
        ("similarity", pa.float32()),  # cosine of the two keys; null for an eviction
        ("key_weight", pa.float32()),  # share of the source in the target's new key; 0 for an eviction
        ("value_weight", pa.float32()),
        ("votes_source", pa.float32()),  # votes of the source before it left
        ("votes_target", pa.float32()),  # votes of the target before; null for an eviction
        ("votes_after", pa.float32()),  # votes of the target after all merges of this step
        ("mass_source", pa.float32()),  # attention at this step's last query, before the step
        ("mass_target", pa.float32()),
        ("mass_after", pa.float32()),  # attention of the target after all merges of this step, same query
        ("sag", pa.float32()),  # of the target's whole group: sum of masses before - mass after
        ("perturbation", pa.float32()),  # relative change of this head's output by the whole step, same query
    ]
)

# The event columns needed for a head's history, much faster to read than all.
HISTORY = (
    *("step", "head", "kind", "source", "target"),
    *("similarity", "value_weight", "votes_source", "mass_source", "perturbation"),
)

MEMORY = pa.schema(
    [
        ("step", pa.int32()),
        ("layer", pa.int16()),
        ("logical_tokens", pa.int32()),
        ("physical_slots", pa.int32()),  # slots the tensors have room for, mean over KV heads
        ("live_slots", pa.float32()),  # valid slots, mean over KV heads
        ("live_bytes", pa.int64()),  # valid slots with their metadata
        ("allocated_bytes", pa.int64()),  # size of the tensors
        ("codes_bytes", pa.int64()),  # of that, codes of quantised slots; null for native slots
        ("scales_bytes", pa.int64()),  # and their scales, minima and norms
        ("bytes_read", pa.int64()),  # by this decode step, index included; null: all that is live
        ("peak_bytes", pa.int64()),  # most bytes of this layer at once in this step; in old runs, in any step so far
        ("cache_peak_bytes", pa.int64()),  # and of all layers, in each layer's row; null in old runs
    ]
)

TABLES: dict[str, pa.Schema] = {"tokens": TOKENS, "steps": STEPS, "events": EVENTS, "memory": MEMORY}

# arrays/<name>-layer-000.safetensors, level `full` only, half precision except `decision`, of the layers and KV heads
# in `RunRecord.recording` as far as they fit (`states`, `attention_rows`), in their order:
#   keys, values  "unit" (heads, tokens, head_dim) unit vectors as cached (keys rotated), "norm" (heads, tokens)
#   attention     "true_mass" (steps, heads, tokens) attention this run's query would give each token, nothing dropped
#                 (group mean; in other runs than the full cache's not what that run's query gives),
#                 "slot_mass" likewise of each slot alive after the step from this step's last query, in the column of
#                 the position naming it
#   slots_read    "read" (steps, heads, tokens / 8) bytes, if attention is sparse: bit t % 8 (the lowest first) of byte
#                 t // 8 says whether a query head of the group read the slot named by position t at that step, every
#                 step, of the layers and heads in `RunRecord.recording`
#   decision      "score" (heads, prompt tokens) float32 when the method decided about the prompt, NaN for tokens that
#                 had left before; "kept" likewise, whether the token's slot stayed (1 or 0), bytes. Of fewer layers
#                 beyond `kvlab.requests.recording.MOST_DECISION_BYTES`; none where nothing had to leave or in old runs
# tokens = prompt + forced continuation; attention row r is of step r * attention_rows.every, step 0 the last prompt
# query. Of unit vectors float16 is 8 times as exact as bfloat16. `RunRecord.array_error` says how far unit * norm is
# from what was cached (at most 1.1e-3 by the format, where norms are between 6e-5 and 65,504).
# `kvlab.trace.checksums.SUMS` stands beside them: SHA-256 of every 64 KiB, so that a head is checked by itself.
#
# The probe, one pass of the full cache, is in a comparison's first run only (`Run.has_probe`):
#   history       "mass", "log_score" (rows, heads, tokens): attention of the last prompt queries and of every forced
#                 token (at most 64 each), group mean, and the log of the unnormalised exp score, -inf where a query
#                 cannot look. Of fewer layers beyond `kvlab.requests.recording.MOST_HISTORY_BYTES`
#   hidden        of the attention module's inputs over the prompt without sinks (`kvlab.engine.probe`):
#                 "mean", "deviation", "skew", "kurtosis", "kurtosis_with_sinks", "distance" (hidden,), "histogram"
#                 (17, 48), "quantiles" (17, 33)
#   sampled       GVote's samples against the true queries (`kvlab.engine.probe`): "true", "synthetic", "ballots"
#                 (heads, prompt tokens), "overlap", "usage", "inner_overlap", "inner_usage" (heads, samples),
#                 "true_usage", "inner_true_usage", "step_budget" (heads,), "union", "covered" (heads, samples + 1),
#                 "future" (heads, later queries)
PROBE_ARRAYS = ("history", "hidden", "sampled")
EXACT_ARRAYS = ("decision", "slots_read")  # float16 would make neighbours in rank equal
ARRAYS = ("keys", "values", "attention", *EXACT_ARRAYS, *PROBE_ARRAYS)
