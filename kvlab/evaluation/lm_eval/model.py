"""lm-eval's model class HFLM with a compressed cache, under one of two protocols.

*decode*: the context without its last h tokens is prefilled and compressed, and the rest is fed token by token. Prefill
attends to the full prompt, so with h = 0 the first token of every continuation would be scored as with the full cache.
*simulated*: the whole text is fed token by token, with a decision after each; a budget given as a share is one of all
tokens fed, as in H2O's code for lm-eval.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import accumulate
from typing import Any

import torch
from lm_eval.models.huggingface import HFLM
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence
from transformers import GenerationConfig

from kvlab.core import UserError, check_ids
from kvlab.core.cache import CompressedCache
from kvlab.core.cache.replay import supports_token_by_token, token_by_token
from kvlab.engine.forward import end_ids
from kvlab.evaluation.lm_eval.request import LmEvalRequest
from kvlab.evaluation.lm_eval.rows import (
    CHOICES,
    GENERATION,
    ROLLING,
    Answers,
    Measurement,
    mean_measurement,
    request_key,
)
from kvlab.evaluation.results.outcome import Stopwatch, read_memory
from kvlab.models.chat import SWITCH, Chat, window_of
from kvlab.models.load import LoadedModel

MESSAGE_CHARACTERS = 240  # quoted from other packages' messages
TRUNCATED = "Contexts longer than the model's window were truncated on the left, as in lm-eval."

Scored = tuple[tuple[str, str] | None, list[int], list[int]]  # texts, context and continuation
Likelihood = tuple[float, bool]  # log-probability in nats, and whether greedy decoding would generate it


class KvlabLM(HFLM):
    """A loaded model under one method's cache; one context after the other, as padding would be counted and kept.

    Requests with an answer in `answers` are not run again, but for sampled texts.
    """

    def __init__(
        self,
        loaded: LoadedModel,
        chat: Chat | None,
        request: LmEvalRequest,
        make_cache: Callable[[], CompressedCache],
        answers: Answers,
        on_answer: Callable[[int], None] = lambda answered: None,
    ) -> None:
        switch = {} if chat is None or chat.thinking is None else {SWITCH: chat.thinking}
        super().__init__(
            pretrained=loaded.model,
            tokenizer=loaded.tokenizer,
            batch_size=1,
            max_length=window_of(loaded.model.config),
            chat_template_args=switch,
        )
        self.loaded = loaded
        self.chat = chat
        self.request = request
        self.make_cache = make_cache
        self.answers = answers
        self.on_answer = on_answer
        self.answered = 0
        self.notes: dict[str, None] = {}
        self.measured: list[Measurement] = []  # of what was run last

    def tok_encode(self, string: str, *arguments: Any, **options: Any) -> list[int]:
        """As HFLM; raises UserError for a token that the model cannot read."""
        ids: list[int] = super().tok_encode(string, *arguments, **options)
        check_ids(ids, self.loaded.model, self.loaded.tokenizer)
        return ids

    def apply_chat_template(self, *arguments: Any, **options: Any) -> str:
        """As HFLM; raises UserError if the template rejects the messages."""
        try:
            return str(super().apply_chat_template(*arguments, **options))
        except Exception as error:  # a template is a program of its own
            message = " ".join(str(error).split())[:MESSAGE_CHARACTERS].rstrip(".")
            raise UserError(
                f"The model's chat template rejects these messages ({message}); use --set chat=no."
            ) from None

    def loglikelihood(self, requests: list[Any], disable_tqdm: bool = True) -> list[Likelihood]:
        """Log-likelihoods of continuations after their contexts."""
        missing = {}
        for request in requests:
            key = request_key(CHOICES, request.args)
            if key not in self.answers.known:
                missing[key] = request
        if missing:
            super().loglikelihood(list(missing.values()), disable_tqdm=True)  # adds the answers
        found = (self.answers.known[request_key(CHOICES, request.args)][0] for request in requests)
        return [(float(logprob), bool(greedy)) for logprob, greedy in found]

    def loglikelihood_rolling(self, requests: list[Any], disable_tqdm: bool = True) -> list[float]:
        """Log-likelihood of each text, summed over disjoint windows."""
        run = super().loglikelihood_rolling
        return [float(self._answer(ROLLING, request, run, float)) for request in requests]

    def generate_until(self, requests: list[Any], disable_tqdm: bool = True) -> list[str]:
        """Texts up to a stop string or the end-of-text token."""
        run = super().generate_until
        return [str(self._answer(GENERATION, request, run, str)) for request in requests]

    def _answer(self, kind: str, request: Any, run: Callable[..., list[Any]], stored: type[float] | type[str]) -> Any:
        """The answer to a request, of type `stored`, run unless it is known."""
        key = request_key(kind, request.args)
        sampled = kind == GENERATION and request.args[1].get("do_sample")
        if sampled or key not in self.answers.known:
            self.measured = []
            (answer,) = run([request], disable_tqdm=True)
            self._add(key, stored(answer), mean_measurement(self.measured))
        return self.answers.known[key][0]

    def _add(self, key: str, answer: Any, measured: Measurement) -> None:
        self.answers.add(key, answer, measured)
        self.answered += 1
        self.on_answer(self.answered)

    def _loglikelihood_tokens(
        self, requests: list[Scored], disable_tqdm: bool = True, override_bs: int | None = None
    ) -> list[Likelihood]:
        simulated = self.request.protocol == "simulated"
        groups: dict[tuple[int, ...], list[int]] = {}
        for index, (_, context, _) in enumerate(requests):
            groups.setdefault(tuple(context), []).append(index)
        found: dict[int, Likelihood] = {}
        for indices in groups.values():
            group = [requests[index] for index in indices]
            self.measured = [] if group[0][0] is not None else self.measured
            scored = super()._loglikelihood_tokens(group, True, 1) if simulated else self._decoded(group)
            found |= zip(indices, scored, strict=True)
            for (texts, _, _), (logprob, greedy) in zip(group, scored, strict=True):
                if texts is not None:  # windows of a whole text have none
                    measured = mean_measurement(self.measured, sharing=len(group))
                    self._add(request_key(CHOICES, texts), [float(logprob), bool(greedy)], measured)
        return [found[index] for index in range(len(requests))]

    @torch.inference_mode()
    def _decoded(self, group: Sequence[Scored]) -> list[Likelihood]:
        """Likelihoods of continuations of one context by protocol decode: each in a row of the prefilled cache."""
        continuations = [continuation for _, _, continuation in group]
        longest = max(map(len, continuations))
        # The last token of a continuation is predicted but never fed.
        room = self.max_length + 1 - longest
        if room < 1:
            raise UserError(
                f"A continuation of {longest:,} tokens does not fit the model's context window of "
                f"{self.max_length:,}: choose another task or model."
            )
        context = group[0][1][-room:]
        if len(context) < len(group[0][1]):
            self.notes[TRUNCATED] = None
        ids = torch.tensor([context], device=self.device)
        cache = self.make_cache()
        watch = Stopwatch(self.device)
        with watch.running():
            prefill = max(1, ids.shape[1] - self.request.hold_back)
            start = 0
            for end in [*accumulate(cache.expect(prefill, None)), *range(prefill + 1, ids.shape[1] + 1)]:
                logits = self._fed(cache, ids[:, start:end])
                start = end
        prompt_seconds = watch.seconds
        memory = read_memory(cache, 1)[0]
        rows = torch.zeros(len(group), dtype=torch.long, device=self.device)
        tokens = pad_sequence([torch.tensor(one, device=self.device) for one in continuations], batch_first=True)
        with watch.running():
            steps = [_token_scores(logits[rows], tokens[:, 0])]
            if longest > 1:
                cache.batch_select_indices(rows)
            for place in range(1, longest):
                logits = self._fed(cache, tokens[:, place - 1 : place])
                steps.append(_token_scores(logits, tokens[:, place]))
        in_sight = max(1, len(context) - self.request.hold_back)
        sizes = len(context) + longest, in_sight
        self.measured.append(Measurement(*sizes, **vars(memory), seconds=watch.seconds, prompt_seconds=prompt_seconds))
        logprobs, greedy = (torch.stack(column, 1) for column in zip(*steps, strict=True))
        return [
            (logprobs[row, :count].sum().item(), bool(greedy[row, :count].all()))
            for row, count in enumerate(map(len, continuations))
        ]

    def _fed(self, cache: CompressedCache, ids: Tensor) -> Tensor:
        model: Any = self.loaded.model
        logits: Tensor = model(ids, past_key_values=cache, use_cache=True, logits_to_keep=1).logits[:, -1]
        return logits

    def _model_call(self, inps: Tensor, attn_mask: Tensor | None = None, labels: Tensor | None = None) -> Tensor:
        """Protocol simulated: in one pass in which only the cache works token by token, if possible."""
        cache = self.make_cache()
        model = self.loaded.model
        watch = Stopwatch(self.device)
        cache.settings.text_tokens = inps.shape[1]
        with watch.running(), torch.inference_mode():
            if supports_token_by_token(cache):
                with token_by_token(cache):
                    logits: Tensor = model(inps, past_key_values=cache, use_cache=True).logits
            else:
                steps = [model(one, past_key_values=cache, use_cache=True).logits for one in inps.split(1, 1)]
                logits = torch.cat(steps, 1)
        sizes = (inps.shape[1] + 1, 1)
        memory = vars(read_memory(cache, 1)[0])
        self.measured.append(Measurement(*sizes, **memory, seconds=watch.seconds, prompt_seconds=None))
        return logits

    def _model_generate(self, context: Tensor, max_length: int, stop: list[str], **options: Any) -> Tensor:
        """Generate after a context that is prefilled and compressed, but for the tokens held back."""
        check_ids(context[0].tolist(), self.loaded.model, self.loaded.tokenizer)
        cache = self.make_cache()
        model: Any = self.loaded.model
        # The checkpoint's penalties, suppressed tokens and so on are ignored, as in a comparison; its end tokens stay.
        checkpoint_settings = model.generation_config
        plain = GenerationConfig(eos_token_id=sorted(end_ids(self.loaded)) or None)
        watch = Stopwatch(self.device)
        in_sight = max(1, context.shape[1] - self.request.hold_back)
        ends = list(accumulate(cache.expect(in_sight, None)))
        start = 0
        with watch.running(), watch.until(model, len(ends)) as times, torch.inference_mode():
            for end in ends:
                if end < context.shape[1]:  # `generate` runs the last pass itself, for the first token of the answer
                    self._fed(cache, context[:, start:end])
                    start = end
            if start:  # `generate` gives each beam a row of its own, but not in a cache that has been filled
                cache.batch_repeat_interleave(options.get("num_beams") or 1)
            try:
                model.generation_config = plain
                ids: Tensor = super()._model_generate(context, max_length, stop, past_key_values=cache, **options)
            finally:
                model.generation_config = checkpoint_settings
        sizes = (context.shape[1], in_sight)
        memory = vars(read_memory(cache, 1)[0])
        prompt_seconds = sum(end - begin for begin, end in zip(times[::2], times[1::2], strict=True))
        self.measured.append(Measurement(*sizes, **memory, seconds=watch.seconds, prompt_seconds=prompt_seconds))
        return ids


def _token_scores(logits: Tensor, tokens: Tensor) -> tuple[Tensor, Tensor]:
    """Log-probabilities (N,) in float64, normalized in float32, of `tokens` (N,) under (N, V); which are the argmax."""
    logprobs = torch.log_softmax(logits.float(), -1)
    return logprobs.gather(1, tokens[:, None])[:, 0].double(), logprobs.argmax(-1) == tokens
