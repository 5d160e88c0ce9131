"""Generate answers to prompts of equal length with several compressed caches in shared passes: greedy, or sampled."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from kvlab.common.thoughts import Tags, answer_spans
from kvlab.core.cache import CompressedCache
from kvlab.core.cache.fan_out_cache import FanOutCache
from kvlab.core.cache.fan_out_layer import Branch
from kvlab.engine.forward import end_ids
from kvlab.evaluation.results.outcome import Memory, Outcome, read_memory
from kvlab.evaluation.scoring.order import loop_tokens
from kvlab.evaluation.shared_prompt import Check, SharedPrompt, failures_in_branches, nothing, sharing_groups
from kvlab.models.chat import decode_answer
from kvlab.models.load import LoadedModel

# Given the number of a cache, the prompts of the rows that leave (by row), and the rows that stay.
Leaving = Callable[[int, dict[int, int], list[int]], None]


@dataclass(frozen=True)
class Sampling:
    """Sample from the full vocabulary at a temperature, with an own seed."""

    temperature: float
    seed: int


@dataclass(frozen=True)
class Stops:
    """Texts that end an answer, which is cut there. If it `strips`, white space around the answer is cut off first.

    Those within thinking end nothing. `open_tag`: the tag that opens thinking at the prompt's end; texts begin with it.
    """

    texts: tuple[str, ...] = ()
    strips: bool = True
    open_tag: str = ""
    tags: Tags | None = None  # those of thinking that only the chat template declares

    def are_in(self, text: str) -> bool:
        """Whether any of them is in the answer."""
        _, answer = self._parts(text)
        return any(stop in answer for stop in self.texts)

    def cut(self, text: str) -> str:
        """The text without the first of them in the answer and what follows."""
        thinking, answer = self._parts(text)
        for stop in self.texts:
            answer = answer.split(stop)[0]
        whole = thinking + answer
        return whole.rstrip() if self.strips else whole

    def _parts(self, text: str) -> tuple[str, str]:
        """What comes before the answer, and the answer with all that follows."""
        whole = self.open_tag + text
        spans = answer_spans(whole, tags=self.tags)
        start = spans[0][0] if spans else len(whole)
        thinking = whole[:start]
        answer = whole[start:]
        if not self.strips:
            return thinking, answer
        bare = answer.lstrip()
        return (thinking + answer[: len(answer) - len(bare)]) if thinking else "", bare


def generate_together(
    loaded: LoadedModel,
    prompts: Sequence[list[int]],
    caches: Sequence[CompressedCache],
    in_sight: int,
    max_new_tokens: int,
    stops: Stops,
    prefill_chunk: int | None = None,
    sampling: Sampling | None = None,
    check: Check = nothing,
    leaving: Leaving | None = None,
    decoded: int = 0,
) -> list[list[Outcome] | Exception]:
    """For each cache one outcome per prompt, or the error that ended it; all prompts must have one length.

    The first `in_sight` tokens are prefilled and compressed, at once or in chunks; the rest follows as a second turn,
    its first `decoded` tokens one by one. Every cache has one row per prompt; a row leaves the batch when its answer
    ends. `check` is called before every layer of the prompt and every step, and may raise to stop. `leaving` is called
    just before rows leave. Raises UserError for a method whose result chunks would change.
    """
    results: list[list[Outcome] | Exception] = [[] for _ in caches]
    for group in sharing_groups(caches):
        shared = SharedPrompt(
            loaded, [caches[number] for number in group], prompts, in_sight, prefill_chunk, check, decoded
        )
        answering = _Answering(loaded, shared, group, len(prompts), max_new_tokens, stops, sampling, leaving)
        with failures_in_branches(shared.fan_out):
            answering.run(shared.read(), check)
        for number in group:
            results[number] = answering.results(number)
    return results


@dataclass(eq=False)
class _Answers:
    """The answers that one cache's rows write. `running`: the prompt of each row of its branch."""

    number: int
    branch: Branch
    running: list[int]
    generators: list[torch.Generator]
    ids: dict[int, list[int]] = field(default_factory=dict)
    memory: dict[int, Memory] = field(default_factory=dict)
    decode_seconds: float = 0.0


class _Answering:
    """The decode loop of all answers."""

    def __init__(
        self,
        loaded: LoadedModel,
        shared: SharedPrompt,
        group: Sequence[int],
        prompts: int,
        most: int,
        stops: Stops,
        sampling: Sampling | None,
        leaving: Leaving | None,
    ) -> None:
        self.loaded = loaded
        self.shared = shared
        self.most = most
        self.stops = stops
        self.leaving = leaving
        self.fan_out: FanOutCache = shared.fan_out
        self.temperature = sampling.temperature if sampling is not None else 1.0
        self.ends = end_ids(loaded)
        self.prompts = prompts
        self.answers: dict[int, _Answers] = {}
        for number, branch in zip(group, shared.branches, strict=True):
            every = list(range(prompts))
            seeds = [] if sampling is None else [sampling.seed] * prompts
            drawn = [torch.Generator(shared.device).manual_seed(seed) for seed in seeds]
            self.answers[number] = _Answers(number, branch, every, drawn, {prompt: [] for prompt in every})

    def run(self, logits: Tensor, check: Check) -> None:
        """Decode until every answer has ended; `logits` (R, V) are those after the prompts."""
        for index in range(self.most):
            tokens = self._choose(logits / self.temperature, index == self.most - 1)
            if not tokens:
                return
            check()
            logits = self.shared.step(tokens)

    def results(self, number: int) -> list[Outcome] | Exception:
        """The outcomes of one cache, by prompt, or its error."""
        answers = self.answers[number]
        if answers.branch.error is not None:
            return answers.branch.error
        prompt_seconds = self.shared.prompt_seconds(answers.branch) / self.prompts
        seconds = prompt_seconds + self.shared.decode_seconds(answers.branch) / self.prompts
        written = [answers.ids[prompt] for prompt in range(self.prompts)]
        texts = [decode_answer(self.loaded.tokenizer, ids) for ids in written]
        return [
            Outcome(
                self.stops.cut(text),
                answers.memory[prompt],
                seconds,
                prompt_seconds,
                answer_tokens=len(written[prompt]),
                loop_tokens=loop_tokens(written[prompt]),
            )
            for prompt, text in enumerate(texts)
        ]

    def _choose(self, logits: Tensor, last: bool) -> list[int]:
        """Add a token to every answer that runs; returns those of the rows that stay, in the order of the batch."""
        kept: list[int] = []
        alive = [answers for answers in self.answers.values() if answers.branch in self.fan_out.branches]
        likeliest = logits.argmax(-1).tolist()  # read from the device once for all rows
        chosen: list[tuple[_Answers, list[int]]] = []
        for one in alive:
            tokens = likeliest[one.branch.rows]
            if one.generators:
                pairs = zip(torch.softmax(logits[one.branch.rows], -1), one.running, strict=True)
                tokens = [int(torch.multinomial(row, 1, generator=one.generators[prompt])) for row, prompt in pairs]
            chosen.append((one, tokens))
        for answers, tokens in chosen:
            for prompt, token in zip(answers.running, tokens, strict=True):
                answers.ids[prompt].append(token)
            ended = []
            for prompt in answers.running:
                ids = answers.ids[prompt]
                over = last or ids[-1] in self.ends
                if not over and self.stops.texts:
                    over = self.stops.are_in(decode_answer(self.loaded.tokenizer, ids))
                ended.append(over)
            kept += [token for token, over in zip(tokens, ended, strict=True) if not over]
            if not any(ended):
                continue
            # Rows whose answers have ended leave the batch.
            memory = read_memory(answers.branch.cache, len(answers.running))
            gone = {row: answers.running[row] for row, over in enumerate(ended) if over}
            stay = [row for row, over in enumerate(ended) if not over]
            answers.memory |= {prompt: memory[row] for row, prompt in gone.items()}
            if self.leaving is not None:
                self.leaving(answers.number, gone, stay)
            answers.running = [answers.running[row] for row in stay]
            if stay:
                self.fan_out.keep_rows(answers.branch, stay)
            else:
                self.fan_out.drop([answers.branch])
        return kept
