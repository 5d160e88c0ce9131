"""Measure prompts of one shape with many choices: generated answers, or likelihoods against the full cache."""

import zlib
from collections.abc import Sequence
from dataclasses import dataclass, replace

from kvlab.core.cache import CompressedCache
from kvlab.core.choice import FULL, MethodChoice
from kvlab.evaluation.generate import Sampling, Stops, generate_together
from kvlab.evaluation.prepare import KeptContexts, PreparedPrompt
from kvlab.evaluation.results.outcome import CacheMaker, Outcome
from kvlab.evaluation.scoring.likelihood import Leader, compare, forced_together
from kvlab.evaluation.scoring.order import loop_tokens
from kvlab.evaluation.scoring.survival import HiddenTokenTracker, Survival
from kvlab.evaluation.several_questions import Questions, ask_each
from kvlab.evaluation.shared_prompt import Check, nothing
from kvlab.models.load import LoadedModel


@dataclass(eq=False)
class Measurer:
    """Run prompts of one shape with many choices in shared passes."""

    loaded: LoadedModel
    make_cache: CacheMaker
    question_aware: bool
    prefill_chunk: int | None = None
    kept: KeptContexts | None = None  # where compressed contexts are opened, and kept once read
    check: Check = nothing  # called between layers and steps; may raise to stop

    def measure(
        self, prompts: Sequence[PreparedPrompt], choices: Sequence[MethodChoice]
    ) -> list[list[Outcome] | Exception]:
        """For each choice one outcome per prompt, or the error of its method; all prompts must have one shape."""
        first = prompts[0]
        if first.is_forced:
            return self._force(first, choices)
        # A context that is compressed alone: its cache serves other questions too.
        alone = len(prompts) == 1 and first.in_sight(self.question_aware) == len(first.context) > 0
        if self.kept is not None and alone and not first.sample.temperature and not first.decoded:
            return self._ask(first, choices)
        caches = [self.make_cache(choice) for choice in choices]
        for cache in caches:
            cache.limit_second_pass(len(first.context))
        # Observers of the prompts' hidden tokens, if there are some.
        trackers: list[HiddenTokenTracker | None] = [None] * len(caches)
        for number, cache in enumerate(caches if first.hidden else ()):
            tracker = HiddenTokenTracker(
                [prompt.hidden for prompt in prompts],
                self.loaded.device,
                [prompt.parts for prompt in prompts],
                cache.settings.pipeline.can.select.protected,
            )
            cache.settings.observer = tracker
            trackers[number] = tracker
        if first.further:
            return self._ask(first, choices, caches, trackers)
        survived: dict[tuple[int, int], Survival] = {}

        def leave(number: int, gone: dict[int, int], stay: list[int]) -> None:
            tracker = trackers[number]
            if tracker is not None:
                found = tracker.survival(caches[number])
                survived.update({(number, prompt): found[row] for row, prompt in gone.items()})
                tracker.keep_rows(stay)

        sampling = None
        if first.sample.temperature:
            # The same seed for every method, so that only the cache differs.
            one = first.identity
            seed = zlib.crc32(f"{one.seed}/{one.task}/{one.index}/{one.content}".encode())
            sampling = Sampling(first.sample.temperature, seed)
        results = generate_together(
            self.loaded,
            [prompt.context + prompt.question for prompt in prompts],
            caches,
            first.in_sight(self.question_aware),
            first.sample.max_new_tokens,
            _stops(first),
            self.prefill_chunk,
            sampling,
            self.check,
            leave,
            first.decoded,
        )
        return [
            outcomes
            if isinstance(outcomes, Exception)
            else [replace(outcome, survival=survived.get((number, row))) for row, outcome in enumerate(outcomes)]
            for number, outcomes in enumerate(results)
        ]

    def _ask(
        self,
        prompt: PreparedPrompt,
        choices: Sequence[MethodChoice],
        caches: Sequence[CompressedCache] = (),
        trackers: Sequence[HiddenTokenTracker | None] = (),
    ) -> list[list[Outcome] | Exception]:
        """Ask all questions of the prompt; its survival is that after the last answer.

        Without caches those that are kept are asked; the others read the context, and are kept then. There is no
        survival in this case: a kept cache does not tell what was merged into what.
        """
        kept = None if caches else self.kept
        opened = [None if kept is None else kept.open(prompt, choice) for choice in choices]
        if not caches:
            caches = [cache or self.make_cache(choice) for cache, choice in zip(opened, choices, strict=True)]
        sample = prompt.sample
        questions = Questions(
            prompt.context,
            [prompt.question, *prompt.further],
            sample.max_new_tokens,
            _stops(prompt),
            sample.keeps_answers,
            first_in_sight=prompt.in_sight(self.question_aware) > len(prompt.context),
        )
        results = ask_each(self.loaded, questions, caches, self.prefill_chunk, self.check)
        outcomes: list[list[Outcome] | Exception] = []
        for number, answers in enumerate(results):
            if isinstance(answers, Exception):
                outcomes.append(answers)
                continue
            if kept is not None and opened[number] is None:
                kept.keep(prompt, choices[number], answers.context, answers.prompt_seconds)
            tracker = trackers[number] if trackers else None
            texts = answers.texts
            # All answers of the prompt as one; several are lines.
            outcome = Outcome(
                texts[0] if len(texts) == 1 else "\n".join(" ".join(text.split()) for text in texts),
                answers.memory,
                answers.seconds,
                answers.prompt_seconds,
                survival=None if tracker is None else tracker.survival(answers.cache)[0],
                answer_tokens=sum(map(len, answers.ids)),
                loop_tokens=max(map(loop_tokens, answers.ids)),
            )
            outcomes.append([outcome])
        return outcomes

    def _force(self, prompt: PreparedPrompt, choices: Sequence[MethodChoice]) -> list[list[Outcome] | Exception]:
        """Score the forced text with every choice, and with the full cache for comparison.

        Without a given text, the full cache chooses it as it goes.
        """
        full = next((number for number, choice in enumerate(choices) if choice.method == FULL.method), len(choices))
        caches = [self.make_cache(choice) for choice in (*choices, *([FULL] if full == len(choices) else []))]
        text = list(prompt.continuation)
        leader = None
        if not text:
            leader = Leader(self.loaded, full, _stops(prompt), prompt.sample.max_new_tokens)
            for cache in caches:
                cache.limit_second_pass(len(prompt.context))
        in_sight = prompt.in_sight(self.question_aware) if leader else len(prompt.context)
        prefix = prompt.context + prompt.question
        found = forced_together(self.loaded, prefix, text, caches, in_sight, self.prefill_chunk, self.check, leader)
        reference = found[full]
        text_bytes = max(1, len(str(self.loaded.tokenizer.decode(text[1:])).encode()))  # of the scored part
        if isinstance(reference, Exception):
            raise reference
        compared = [
            one if isinstance(one, Exception) else compare(*one, reference[1], text, text_bytes)
            for one in found[: len(choices)]
        ]
        written = leader.text if leader else ""
        return [one if isinstance(one, Exception) else [replace(one, prediction=written)] for one in compared]


def _stops(prompt: PreparedPrompt) -> Stops:
    return Stops((prompt.sample.stop,) if prompt.sample.stop else (), open_tag=prompt.open_tag, tags=prompt.tags)
