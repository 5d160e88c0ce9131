"""Agreement of vLLM with kvlab's own run, in the situations of a serving engine."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import Any

from kvlab.core.cache import make_cache
from kvlab.core.cache.cache_copy import copy_cache
from kvlab.engine.prefix import Prefix
from kvlab.extras.vllm.engine import PAGE, Engine, EngineShape, Generated, started_engine
from kvlab.extras.vllm.own_run import OwnRun, compare_caches, run_alone
from kvlab.extras.vllm.session import Choice, Session
from kvlab.models.load import LoadedModel
from kvlab.tasks.registry import get_task
from kvlab.tasks.tokens import prompt_ids

# requests of a step; tokens of a step where prompts are split
ROWS = 4
STEP_TOKENS = 96
TASK = "needle"
SEED = 0


@dataclass(frozen=True)
class Agreement:
    """One cell of the table: of `prompts`, how many end with equal slots, and with equal tokens.

    heads: share of heads that keep the same tokens. note: what breaks, and why, or what took place. No prompts: the
    situation ended with the error in the note.
    """

    model: str
    method: str
    situation: str
    prompts: int
    slots: int
    tokens: int
    heads: float
    note: str = ""


@dataclass(frozen=True)
class Prompt:
    """A context and a question as token ids, and the number of tokens to generate."""

    text: str
    context: list[int]
    question: list[int]
    tokens: int

    @property
    def ids(self) -> list[int]:
        """All of the prompt."""
        return self.context + self.question


def make_prompts(loaded: LoadedModel, number: int, length: int, tokens: int) -> list[Prompt]:
    """Needle prompts of different lengths up to `length`; a third of the answers is shorter, so that requests leave and
    join a batch.
    """
    made = []
    task = get_task(TASK)
    for index in range(number):
        sample = task.generate(loaded.tokenizer, length - 24 * (index % 4), SEED, index)
        context, question = prompt_ids(loaded.tokenizer, sample)
        made.append(Prompt(sample.context, context, question, tokens - (tokens // 4) * (index % 3 == 1)))
    return made


@dataclass
class Trial:
    """A method, the prompts, and kvlab's own runs of them, which all situations are compared with."""

    loaded: LoadedModel
    name: str
    choice: Choice
    prompts: list[Prompt]

    @cached_property
    def own_runs(self) -> list[OwnRun]:
        """kvlab's own run of each prompt."""
        return [self.alone(prompt.ids, prompt.tokens) for prompt in self.prompts]

    def alone(self, ids: Sequence[int], tokens: int, rows: int = 1) -> OwnRun:
        """kvlab's own run of one prompt."""
        cache = make_cache(self.loaded, self.choice.method, self.choice.budget)
        return run_alone(self.loaded, cache, ids, tokens, rows)

    def session(self, **changed: Any) -> Session:
        """A session with this method, and settings of the backend that differ."""
        return Session(self.loaded, replace(self.choice, **changed), keep_finished=True)

    def compared(self, situation: str, made: Sequence[Generated], runs: Sequence[OwnRun] | None = None) -> Agreement:
        """Compare what vLLM generated with kvlab's own runs."""
        slots = 0
        heads = list[float]()
        notes = Counter[str]()
        runs = self.own_runs if runs is None else runs
        for run, given in zip(runs, made, strict=True):
            request = given.request
            if request is None or request.cache is None:
                notes[request.reason if request else "vLLM's own attention"] += 1
                continue
            like = compare_caches(run.cache, request.cache)
            slots = slots + like.equal
            heads = [*heads, like.heads]
        equal = sum(run.tokens == given.tokens for run, given in zip(runs, made, strict=True))
        reused = sum(given.reused > 0 for given in made)
        preempted = sum(given.request is not None and given.request.preemptions > 0 for given in made)
        notes_text = [f"{number}: {note}" for note, number in notes.items()]
        notes_text += [f"{reused} took pages from the prefix cache"] * (reused > 0)
        notes_text += [f"{preempted} were preempted"] * (preempted > 0)
        share = sum(heads) / len(heads) if heads else 0.0
        return Agreement(self.loaded.name, self.name, situation, len(runs), slots, equal, share, "; ".join(notes_text))

    def answered(self, engine: Engine, session: Session | None, *, reuse: bool = False) -> list[Generated]:
        """All prompts together."""
        return engine.generate(
            [prompt.ids for prompt in self.prompts], [prompt.tokens for prompt in self.prompts], session, reuse=reuse
        )


Compare = Callable[[Trial, Engine, str], Agreement]


def native(trial: Trial, engine: Engine, name: str) -> Agreement:
    """vLLM by itself, without the backend's slots, which a full cache must agree with."""
    return trial.compared(name, trial.answered(engine, None))


def serve(
    trial: Trial, engine: Engine, name: str, *, singly: bool = False, twice: bool = False, **changed: Any
) -> Agreement:
    """All requests at once; the engine's shape says how many share a step, and whether prompts are split.

    With `singly` one comes after the other; with `twice` every prompt comes again, when its pages are in the prefix
    cache. `changed` are settings of the backend: nothing is kept besides keys and values, or a preempted request loses
    its slots, as it loses its pages.
    """
    session = trial.session(**changed)
    if singly:
        made = [engine.generate([prompt.ids], [prompt.tokens], session)[0] for prompt in trial.prompts]
        return trial.compared(name, made)
    if twice:
        engine.forget()
        trial.answered(engine, session)
    return trial.compared(name, trial.answered(engine, session, reuse=twice))


STALE = "pages of the answer were written after compression"


def next_turn(trial: Trial, engine: Engine, name: str) -> Agreement:
    """Prompt, answer and question again as one prompt: pages of the answer were written after compression."""
    session = trial.session()
    engine.forget()
    first = trial.answered(engine, session)
    turns = [[*prompt.ids, *given.tokens, *prompt.question] for prompt, given in zip(trial.prompts, first, strict=True)]
    tokens = [prompt.tokens for prompt in trial.prompts]
    expected = [trial.alone(*turn) for turn in zip(turns, tokens, strict=True)]
    found = trial.compared(name, engine.generate(turns, tokens, session, reuse=True), expected)
    differing = found.prompts - found.slots
    return replace(found, note=f"{differing}: {STALE}; {found.note}") if differing else found


def handed_prefix(trial: Trial, engine: Engine, name: str) -> Agreement:
    """The context as a `kvlab.Prefix` that kvlab compressed before; the question continues from its slots."""
    made = []
    expected = []
    for prompt in trial.prompts:
        method = trial.choice.method
        given = method.model_dump(mode="json")
        prefix = Prefix.make(trial.loaded, prompt.text, method.name, trial.choice.budget, chat="no", **given)
        session = trial.session(prefix=prefix)
        made += engine.generate([prompt.ids], [prompt.tokens], session)
        expected.append(run_alone(trial.loaded, copy_cache(prefix.cache), prompt.question, prompt.tokens))
    return trial.compared(name, made, expected)


def control(trial: Trial) -> Agreement:
    """kvlab against itself, with the text in two rows of a batch: what the rounding of float32 alone changes."""
    runs = [trial.alone(prompt.ids, prompt.tokens, rows=2) for prompt in trial.prompts]
    likes = [compare_caches(one.cache, two.cache) for one, two in zip(trial.own_runs, runs, strict=True)]
    equal = sum(one.tokens == two.tokens for one, two in zip(trial.own_runs, runs, strict=True))
    share = sum(like.heads for like in likes) / len(likes)
    slots = sum(like.equal for like in likes)
    return Agreement(trial.loaded.name, trial.name, CONTROL, len(runs), slots, equal, share)


CONTROL = "kvlab in two rows"
NATIVE = "vLLM alone"
PLAIN = "plain"
FULL = "full"
# By the engine that they need: enough pages; short steps; few pages.
SITUATIONS: dict[str, dict[str, Compare]] = {
    PLAIN: {
        "alone": partial(serve, singly=True),
        "batch": serve,
        "prefix cache": partial(serve, twice=True),
        "prefix cache without queries": partial(serve, twice=True, keep_queries=False),
        "next turn": next_turn,
        "kvlab prefix": handed_prefix,
    },
    "short steps": {"chunked": serve, "chunked without queries": partial(serve, keep_queries=False)},
    "few pages": {"preempted": serve, "preempted without slots": partial(serve, hold_preempted=False)},
}
# In the order of the table.
NAMES = [NATIVE, CONTROL, *(name for group in SITUATIONS.values() for name in group)]


def shape_of_engine(kind: str, prompts: Sequence[Prompt]) -> EngineShape:
    """The engine of some situations: with few pages, their prompts fit and their answers do not."""
    longest = max(2 * len(one.question) + len(one.ids) + 2 * one.tokens for one in prompts)
    window = -(-longest // PAGE) * PAGE
    if kind == "short steps":
        return EngineShape(window, ROWS, STEP_TOKENS)
    if kind == "few pages":
        held = sorted(-(-len(one.ids) // PAGE) for one in prompts)[-ROWS:]
        return EngineShape(window, ROWS, pages=max(sum(held), window // PAGE))
    return EngineShape(window, ROWS)


def agreements(trials: Sequence[Trial], folder: str, wanted: Sequence[str]) -> Iterator[Agreement]:
    """Every wanted situation of every trial, in vLLM with the model of a safetensors folder.

    A situation that raises is a row with the error, and the next one gets a new engine.
    """
    if CONTROL in wanted:
        yield from map(control, trials)
    for kind, situations in SITUATIONS.items():
        asked = {name: compare for name, compare in situations.items() if name in wanted}
        left = [(trial, name, compare) for trial in trials for name, compare in asked.items()]
        if kind == PLAIN and left:
            left = [(trial, NATIVE, native) for trial in trials if trial.name == FULL] + left
        while left:
            with started_engine(folder, shape_of_engine(kind, trials[0].prompts)) as engine:
                raised = False
                while left and not raised:  # after an error the engine still holds requests
                    trial, name, compare = left.pop(0)
                    try:
                        row = compare(trial, engine, name)
                    except Exception as error:
                        message = " ".join(f"{type(error).__name__}: {error}".split()).replace("; ", ", ")
                        note = f"{len(trial.prompts)}: ended with {message[:200]}"
                        row = Agreement(trial.loaded.name, trial.name, name, 0, 0, 0, 0.0, note)
                        raised = True
                    yield row
