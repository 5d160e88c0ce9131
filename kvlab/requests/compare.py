"""The request for a comparison: one prompt, one model, some methods and budgets. Torch-free."""

from functools import partial
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, AliasChoices, BeforeValidator, Field, model_validator

from kvlab.core import FULL, MOST_NEW_TOKENS, Frozen, MethodChoice, Seed, Strict, Text, check_text
from kvlab.requests.conversation import MOST_TURNS, Turn, as_text, check_turns
from kvlab.requests.facts import Fact, check_answer, find_facts
from kvlab.requests.generation_settings import GenerationSettings
from kvlab.requests.live_texts import LiveTexts
from kvlab.requests.recording import Recording
from kvlab.requests.repeats import MOST_REPEATS, BatchName, Planting, Repeat

LARGEST_PROMPT_BYTES = 2 * 1024 * 1024
LARGEST_PROMPTS_BYTES = 8 * LARGEST_PROMPT_BYTES  # of all prompts of one request

# of one prompt
MOST_ANSWERS = 100
MOST_NOTES = 20
MOST_RUNS = 1000  # of one request: each is a folder

RecordLevel = Literal["off", "light", "full"]
Weights = Literal["bf16", "8bit", "4bit"] | None

ModelName = Annotated[str, AfterValidator(partial(check_text, what="The model"))]
Revision = Annotated[str, AfterValidator(partial(check_text, what="The revision"))]
Folder = Annotated[str, AfterValidator(partial(check_text, what="The folder of downloads"))]
Answer = Annotated[str, AfterValidator(check_answer)]


class ModelRequest(Strict):
    """The model, where its weights go, and its chat format."""

    model: ModelName = "mini"
    device: str = Field("auto", pattern=r"^(auto|cpu|mps|cuda(:\d{1,3})?)$")
    dtype: Literal["auto", "float32", "bfloat16", "float16"] = "auto"
    placement: Literal["single", "auto"] = Field("single", description="auto: spread over all devices by accelerate")
    weights: Weights = Field(
        None, validation_alias=AliasChoices("weights", "load_in"), description="type of the weights; none: as they are"
    )
    revision: Revision | None = Field(None, description="a branch, tag or commit of a hub name")
    cache_dir: Folder | None = Field(None, description="where a hub model's files are kept; none: the hub's own folder")
    chat: Literal["auto", "no"] = Field("auto", description="auto: in the model's chat template where it has one")
    system: Text = Field("", max_length=LARGEST_PROMPT_BYTES, description="a system prompt, before the user's turn")
    thinking: bool | None = Field(None, description="the template's enable_thinking; none: as the template has it")

    @property
    def loading(self) -> dict[str, Any]:
        """Keyword arguments of `kvlab.load_model`."""
        return {name: getattr(self, name) for name in LOADING}


LOADING = ("device", "dtype", "placement", "weights", "revision", "cache_dir")


class ChatRequest(ModelRequest):
    """A request with a chat format, and turns if the prompt is a conversation."""

    turns: tuple[Turn, ...] = Field(
        (), max_length=MOST_TURNS, description="a conversation, its system prompt too; none: the prompt is a turn"
    )


def _check_turns(request: Any) -> Any:
    if request.turns and request.prompt != as_text(check_turns(request.turns)):
        raise ValueError("a conversation is given as its turns alone, and its prompt follows from them")
    return request


def _filled_in(given: Any) -> Any:
    """Fill in the prompt's text from its turns, and the positions of facts given as text."""
    if not isinstance(given, dict):
        return given
    turns = given.get("turns") or ()
    prompts = given.get("prompts") or ()
    if turns and "prompt" not in given:
        given = given | {"prompt": as_text(tuple(Turn.model_validate(turn) for turn in turns))}
    if prompts and "prompt" not in given:
        given = given | {"prompt": OnePrompt.model_validate(prompts[0]).prompt}
    if given.get("facts") and isinstance(given.get("prompt"), str):
        given = given | {"facts": find_facts(given["prompt"], given["facts"])}
    return given


class OnePrompt(Strict):
    """One of several prompts of a request."""

    name: Text = Field("", max_length=200, description="its name in lists")
    prompt: Text
    turns: tuple[Turn, ...] = Field((), max_length=MOST_TURNS)
    answer: Answer | None = None
    other_answers: tuple[Answer, ...] = Field((), max_length=MOST_ANSWERS, description="also right")
    facts: tuple[Fact, ...] = ()
    notes: tuple[Text, ...] = Field(
        (), max_length=MOST_NOTES, description="parts of its file that are not in the prompt"
    )

    _fill_in = model_validator(mode="before")(_filled_in)

    _turns_can_be_answered = model_validator(mode="after")(_check_turns)


class CompareRequest(ChatRequest):
    """Several methods over one prompt; all decode the full cache's continuation (forced) and their own (free)."""

    prompt: Text = Field(description="the text; of a conversation `kvlab.requests.conversation.as_text`")
    choices: tuple[MethodChoice, ...]
    max_new_tokens: int = Field(64, ge=1, le=MOST_NEW_TOKENS)
    level: RecordLevel = "full"
    compress_every: int = Field(1, ge=1, le=MOST_NEW_TOKENS)
    prefill_chunk: int | None = Field(
        None, ge=1, lt=2**31, description="prompt tokens a pass; none: the whole prompt in one"
    )
    generation_config: GenerationSettings = Field(
        "ignore", description="the checkpoint's own: whether its penalties, suppressed tokens and so on are applied"
    )
    record: Recording = Field(Recording(), description="layers, KV heads and steps whose arrays are recorded")
    seed: Seed = 0
    title: Text = ""
    answer: Answer | None = Field(None, description="words that a right continuation contains")
    other_answers: tuple[Answer, ...] = Field((), max_length=MOST_ANSWERS, description="also right")
    facts: tuple[Fact, ...] = Field((), description="spans the answer needs; given as text, the first match counts")
    notes: tuple[Text, ...] = Field(
        (), max_length=MOST_NOTES, description="parts of its file that are not in the prompt"
    )
    repeats: tuple[Planting, ...] = Field(
        (), max_length=MOST_REPEATS, description="needles in the prompt: one comparison each, see `kvlab.jobs.batch`"
    )
    prompts: tuple[OnePrompt, ...] = Field(
        (), max_length=MOST_REPEATS, description="several prompts: one comparison each, `prompt` being the first"
    )
    batch: BatchName | None = Field(None, description="the batch that repeats go on with; none: a new one")
    repeat: Repeat | None = Field(None, description="which repeat of a batch this comparison is")
    private: bool = Field(False, description="on a shared server its owner alone sees it")
    owner: str = Field("", exclude=True, description="whose runs these are on a shared server; the queue says it")
    aside: bool = Field(False, description="a preview: its runs are kept with the queue and in no list")

    _fill_in = model_validator(mode="before")(_filled_in)

    @property
    def runs(self) -> tuple[MethodChoice, ...]:
        """Every run in order; with several choices the full cache is added as the first."""
        alone = len(self.choices) == 1 or any(choice.method == "full" for choice in self.choices)
        return self.choices if alone else (FULL, *self.choices)

    @property
    def comparisons(self) -> int:
        """Number of comparisons: one, or one per repeat or prompt."""
        return len(self.repeats) or len(self.prompts) or 1

    @property
    def is_batch(self) -> bool:
        """Whether it has repeats or several prompts, which `kvlab.jobs.batch.run_batch` runs."""
        return bool(self.repeats or self.prompts)

    @model_validator(mode="after")
    def _has_choices(self) -> "CompareRequest":
        if not self.choices:
            raise ValueError("name at least one method")
        if len(self.choices) > MOST_RUNS:
            raise ValueError(f"{len(self.choices):,} runs were asked for: ask for at most {MOST_RUNS:,} at once")
        if self.repeats and (self.answer is not None or self.facts):
            raise ValueError("repeats plant their own answers and facts: leave out both")
        if self.repeats and (self.prompts or self.turns):
            raise ValueError("a needle is planted in one text: give several prompts or a conversation without repeats")
        if self.prompts and (self.answer is not None or self.facts or self.turns):
            raise ValueError("several prompts have an answer, facts and turns each: give them there")
        if sum(len(one.prompt) for one in self.prompts) > LARGEST_PROMPTS_BYTES:
            raise ValueError(f"all prompts together may have {LARGEST_PROMPTS_BYTES // 2**20} million characters")
        if self.turns and self.system.strip():
            raise ValueError("a conversation has its system prompt as its first turn: leave out the other")
        if self.other_answers and self.answer is None:
            raise ValueError("other answers need an answer: give the first of them as the answer")
        return self

    _turns_can_be_answered = model_validator(mode="after")(_check_turns)


def run_id_of(request: CompareRequest, comparison_id: str, index: int) -> str:
    """The id of run `index` of a comparison."""
    return f"{comparison_id}-{index:02d}-{request.runs[index].method}"


# Queues of earlier versions say "rescue".
KindOfRestore = Annotated[Literal["restore"], BeforeValidator(lambda kind: "restore" if kind == "rescue" else kind)]


class RestoreRequest(Strict):
    """Find what to restore in a recorded run with a wrong answer, so that it answers right."""

    kind: KindOfRestore = "restore"
    run_id: str = Field(pattern=r"^[^./\\\x00-\x1f][^/\\\x00-\x1f]{0,254}$", description="a folder's name, no path")
    most_reruns: int = Field(40, ge=1, le=1000)
    device: str = Field("auto", pattern=r"^(auto|cpu|mps|cuda(:\d{1,3})?)$")
    title: str = ""
    private: bool = Field(False, description="as the run is")


RECORDINGS = Path(".jobs", "recordings")  # in a folder of runs: what was uploaded and is not imported yet


class ImportRequest(ModelRequest):
    """Make runs of a recording of another cache (`kvlab.watch`), uploaded to `RECORDINGS`."""

    kind: Literal["import"] = "import"
    file: str = Field(pattern=r"^[0-9a-f]{12}/[^/\\\x00-\x1f]{1,200}\.kvlab$", description="in `RECORDINGS`")
    title: Text = ""
    owner: str = Field("", exclude=True, description="as of a comparison")


class Progress(Frozen):
    """One progress report of a running request; a few times per second at most with the texts written so far."""

    stage: str
    done: int
    total: int
    run_id: str | None = None
    live: LiveTexts | None = None
    expected_end: float | None = Field(None, description="Unix time, by what the steps of this run took so far")
