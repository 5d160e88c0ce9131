"""The request of a benchmark. Torch-free."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Literal, get_args

from pydantic import AliasChoices, Field, ValidationError, model_validator

from kvlab.core.choice import MOST_NEW_TOKENS, MethodChoice
from kvlab.core.errors import UserError
from kvlab.core.validation import Seed, Strict, Text, as_option, in_one_sentence, quote_value
from kvlab.requests.compare import Weights

Mode = Literal["decode", "prefill", "memory", "generate", "together"]
MODES: tuple[Mode, ...] = get_args(Mode)
Fill = Literal["synthetic", "prefill"]
MOST_SIZE = 2**24  # of a context or a batch


class BenchRequest(Strict):
    """One measurement: a mode, a model, and methods with budgets, over every batch and context.

    `shorten` divides contexts, new tokens and budgets in slots; the rows also state the requested values.
    """

    mode: Mode
    model: str = "mini"
    choices: tuple[MethodChoice, ...] = ()
    contexts: tuple[int, ...] = Field((4096,), min_length=1)
    batches: tuple[int, ...] = Field((1,), min_length=1)
    new_tokens: int = Field(
        0, ge=0, le=MOST_SIZE, description="modes generate, together; memory: decode steps before the bytes are read"
    )
    repeats: int = Field(5, ge=1, le=1000)
    steps: int = Field(8, ge=1, le=100_000, description="decode steps in one timed repeat")
    warmup: int = Field(2, ge=0, le=1000)
    points: int = Field(3, ge=2, le=50, description="mode generate: lengths at which a step is timed")
    fill: Fill = "synthetic"
    prefill_chunk: int | None = Field(
        None, ge=1, le=MOST_SIZE, description="tokens per pass of a real prompt; none: all in one"
    )
    compress_every: int = Field(1, ge=1, le=MOST_NEW_TOKENS)
    capture: Literal["auto", "on", "off"] = "auto"
    scale: int = Field(1, ge=1, le=MOST_SIZE, description="layers and width of a shape are divided by this")
    shorten: int = Field(1, ge=1, le=MOST_SIZE)
    device: str = "auto"
    dtype: Literal["auto", "float32", "bfloat16", "float16"] = "auto"
    placement: Literal["single", "auto"] = Field("single", description="auto: spread over all devices by accelerate")
    weights: Weights = Field(None, validation_alias=AliasChoices("weights", "load_in"))
    revision: str | None = None
    cache_dir: str | None = None
    seed: Seed = 0
    preset: str = ""

    @property
    def hub(self) -> dict[str, Any]:
        """Options for loading a model that is not a shape."""
        return {name: getattr(self, name) for name in ("placement", "weights", "revision", "cache_dir")}

    @property
    def timed_steps(self) -> int:
        """`steps`, rounded up so that every repeat has the same number of decisions."""
        return -(-self.steps // self.compress_every) * self.compress_every

    @property
    def warm_steps(self) -> int:
        """`warmup`, at least until the first decision while decoding."""
        return max(self.warmup, self.compress_every) if self.compress_every > 1 else self.warmup

    def shortened(self, tokens: int) -> int:
        """`tokens` after `shorten`."""
        return max(1, tokens // self.shorten) if tokens else 0

    def choices_run(self) -> tuple[MethodChoice, ...]:
        """The choices, with budgets in slots shortened like the contexts."""
        return tuple(
            choice.model_copy(update={"budget": self.shortened(choice.budget)})
            if isinstance(choice.budget, int)
            else choice
            for choice in self.choices
        )


def make_request(**fields: object) -> BenchRequest:
    """Build a request from field values; raises UserError for the first invalid one."""
    try:
        request = BenchRequest.model_validate(fields)
    except ValidationError as error:
        raise UserError(in_one_sentence(error, as_option)) from None
    for name, numbers in (("--contexts", request.contexts), ("--batches", request.batches)):
        wrong = [number for number in numbers if not 1 <= number <= MOST_SIZE]
        if wrong:
            raise UserError(
                f"{name} takes whole numbers of at least 1 and at most {MOST_SIZE:,}, not {quote_value(wrong[0])}."
            )
    if request.mode in ("generate", "together") and request.new_tokens < 1:
        raise UserError(f"Mode {request.mode} needs --new-tokens of at least 1.")
    if request.mode == "together" and not request.choices:
        raise UserError("Mode together needs --methods to compare.")
    if request.placement == "auto" and request.model.startswith("shape:"):
        raise UserError("--set placement=auto distributes a loaded model: shapes are created on one device.")
    if request.placement == "auto" and request.capture == "on":
        raise UserError("Steps over several devices cannot be captured: leave capture out with --set placement=auto.")
    if request.scale > 1 and not request.model.startswith("shape:"):
        raise UserError("--set scale reduces shapes, not trained models: use it with --model shape:NAME.")
    return request


class BenchJob(Strict):
    """Benchmarks for the queue, with rows in `<runs>/bench/<name>.parquet`; existing rows are kept.

    Either `requests`, or those of a preset with `changes` to their fields.
    """

    kind: Literal["bench"] = "bench"
    name: Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,99}$")]
    requests: tuple[BenchRequest, ...] = ()
    preset: str = ""
    changes: dict[str, int | str] = Field(default_factory=dict)
    title: Text = ""
    private: bool = Field(False, description="on a shared server its owner alone sees it")

    @model_validator(mode="after")
    def _asks_for_something(self) -> "BenchJob":
        if bool(self.requests) == bool(self.preset):
            raise ValueError("give requests or a preset")
        return self


def parts_of(requests: Sequence[BenchRequest]) -> tuple[BenchRequest, ...]:
    """Split into one request per mode, batch and context; each is measured completely or not at all."""
    split = [
        request.model_copy(update={"batches": (batch,), "contexts": (context,)})
        for request in requests
        for context in request.contexts
        for batch in request.batches
    ]
    return tuple({part.model_dump_json(): part for part in split}.values())


SEVEN = "shape:llama2-7b"
THIRTEEN = "shape:llama2-13b"


@dataclass(frozen=True)
class Preset:
    """Requests as dicts of fields."""

    title: str
    requests: tuple[dict[str, Any], ...]
    device: str = "cuda"


# Presets run shapes with random weights, for which no fitted files exist.
ON_RANDOM_WEIGHTS: dict[str, dict[str, Any]] = {
    "less": {"weights": "untrained"},
    "duoattention": {"profile": "even"},
    "headkv": {"profile": "even"},
    "lukv": {"curves": "even"},
    "kvzap": {"heads": "untrained"},
    "kvzap-threshold": {"heads": "untrained"},
    "fast-kvzip": {"gates": "untrained"},
    "triattention": {"queries": "untrained"},
    "qfilter": {"queries": "untrained"},
}


def _at(budget: float | int, *methods: str, **settings: str) -> tuple[MethodChoice, ...]:
    """Methods at a budget; with `preset="paper"` they have their papers' settings, for the papers' experiments."""
    return tuple(
        MethodChoice(method=method, budget=budget, hyper_parameters=settings | ON_RANDOM_WEIGHTS.get(method, {}))
        for method in methods
    )


_FIGURE_3 = {
    "model": SEVEN,
    "contexts": (20000, 28000, 36000, 45000, 54000),
    "choices": _at(18000, "zsmerge", preset="paper"),
}
_TABLE_1 = {"mode": "generate", "choices": _at(0.05, "h2o", "less", "zsmerge", preset="paper"), "repeats": 3}
_TABLE_2 = {
    "mode": "memory",
    "contexts": (3900,),
    "new_tokens": 1024,
    "fill": "prefill",
    "choices": (*_at(0.5, "kvmerger", preset="paper"), *_at(0.35, "kvmerger", preset="paper-35")),
}


_TWELVE = {
    "choices": _at(
        0.2, "keepkv", "streaming-llm", "h2o", "snapkv", "zsmerge", "kvmerger", "pyramid-pool", "gvote", "d2o", "kvzip",
        "attention-matching", "exactmerge2",
    )
}  # fmt: skip
# Scores of a window, of keys alone, of all queries, and of a second reading.
_EVERY_SCORE = ("streaming-llm", "snapkv", "keydiff", "h2o", "keepkv", "kvzip")
PRESETS = {
    "zsmerge-fig3": Preset(
        "ZSMerge, figure 3: memory and decode rate from 20k to 54k tokens at a budget of 18k slots",
        ({"mode": "decode", **_FIGURE_3}, {"mode": "memory", **_FIGURE_3}),
    ),
    "zsmerge-table1": Preset(
        "ZSMerge, table 1: throughput of whole requests at 5 %",
        (
            {"model": SEVEN, "contexts": (4096,), "new_tokens": 4096, "batches": (4, 8), **_TABLE_1},
            {"model": SEVEN, "contexts": (2048,), "new_tokens": 2048, "batches": (16,), **_TABLE_1},
            {"model": THIRTEEN, "contexts": (4096,), "new_tokens": 4096, "batches": (16,), **_TABLE_1},
        ),
    ),
    "keepkv-table1": Preset(
        "KeepKV, table 1: decode rate at 4k tokens and 20 %",
        (
            {
                "mode": "decode",
                "model": SEVEN,
                "batches": (2, 8),
                "choices": _at(0.2, "h2o", "d2o", "keepkv", preset="paper"),
            },
        ),
    ),
    "kvmerger-table2": Preset(
        "KVMerger, table 2: cache and peak memory of 3,900 + 1,024 tokens at 100, 50 and 35 %",
        ({"model": SEVEN, **_TABLE_2}, {"model": THIRTEEN, **_TABLE_2}),
    ),
    "one-pass": Preset(
        "What twelve methods cost next to one: a comparison and an evaluation on mini, 1,500 tokens and 32 new ones",
        ({"mode": "together", "model": "mini", "contexts": (1500,), "new_tokens": 32, "repeats": 3, **_TWELVE},),
        device="cpu",
    ),
    "limit": Preset(
        "How near to the limit by bytes: decoding at 5 % beside 4k to 16k tokens of SmolLM2, its prompt, its memory, "
        "and twelve methods in one comparison",
        (
            {
                "mode": "decode",
                "model": "smollm2",
                "contexts": (4096, 8192, 16384),
                "choices": _at(0.05, *_EVERY_SCORE),
                "compress_every": 16,
                "repeats": 5,
            },
            {"mode": "prefill", "model": "smollm2", "contexts": (4096,), "choices": _at(0.05, *_EVERY_SCORE)},
            {"mode": "memory", "model": "smollm2", "contexts": (4096,), "choices": _at(0.05, *_EVERY_SCORE)},
            {
                "mode": "together",
                "model": "smollm2",
                "contexts": (1513,),
                "new_tokens": 33,
                "repeats": 3,
                "choices": _at(
                    0.2,
                    *("streaming-llm", "h2o", "snapkv", "pyramidkv", "adakv", "zsmerge", "keepkv", "kvmerger"),
                    *("pyramid-pool", "cam", "d2o", "kvzip"),
                ),
            },
        ),
        device="cpu",
    ),
}


def preset_requests(name: str, **changes: Any) -> tuple[BenchRequest, ...]:
    """The preset's requests with `changes` applied; raises UserError for an unknown preset or an invalid change."""
    preset = find_preset(name)
    return tuple(make_request(**(fields | {"preset": name} | changes)) for fields in preset.requests)


def find_preset(name: str) -> Preset:
    """The named preset; raises UserError if it does not exist."""
    if name not in PRESETS:
        raise UserError(f"There is no preset {name!r}; choose one of {', '.join(PRESETS)}.")
    return PRESETS[name]
