"""A run of a comparison in progress: its cache, the text it is forced along, its own text, and its tables."""

from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from kvlab.common.formatting import format_bytes
from kvlab.common.thoughts import MORE_TOKENS, declared_tags, is_unfinished, open_tag
from kvlab.core.cache import CompressedCache
from kvlab.core.cache.fan_out_layer import Branch
from kvlab.engine.forward import Choose, end_ids
from kvlab.engine.prepare import Prepared, PreparedRun
from kvlab.engine.prompt import Reference, continuation, prompt_pieces
from kvlab.engine.recording.recorder import ObserverGroup, Recorder, memory_columns
from kvlab.trace import RunWriter

UNFINISHED_THINKING = f"The text ends within thinking, which is not judged as an answer: {MORE_TOKENS} (--new-tokens)."


@dataclass
class OwnText:
    """The continuation that a method writes itself; `branch` is None as long as it equals the forced text, and `row` is
    its row of that branch."""

    choose: Choose
    ids: list[int] = field(default_factory=list)
    logprobs: list[Tensor] = field(default_factory=list)  # scalar tensors
    branch: Branch | None = None
    row: int = 0
    ended: bool = False


@dataclass(eq=False)
class ActiveRun:
    """A run between its prompt and its end. `prompt_cache` is a copy of its cache after the prompt, to time decoding.

    `forced` holds (3,) tensors per token of the forced text: log-probability, KL(full || run), and whether the most
    likely token is the full cache's.
    """

    prepared: Prepared
    run: PreparedRun
    writer: RunWriter
    cache: CompressedCache
    recorder: Recorder | None
    observers: ObserverGroup
    own_text: OwnText
    forced: list[Tensor] = field(default_factory=list)
    prompt_cache: CompressedCache | None = None
    measured: dict[str, Any] = field(default_factory=dict)  # fields of the record
    prompt_texts: list[str] = field(default_factory=list)  # of its tokens

    def end_step(self) -> None:
        """Queue the recorded rows of a pass that just ended."""
        if self.recorder is not None:
            begun = self.observers.now()
            self.recorder.end_step(self.cache)
            self.observers.seconds += self.observers.now() - begun

    def end_prompt(self, seconds: float) -> None:
        """Write the prompt's rows of `tokens`, and note what it would take alone: `seconds` with its recording."""
        settings = self.cache.settings
        recording = self.observers
        self.measured = {
            "seconds_prefill": max(seconds - recording.seconds, 0.0),
            "seconds_compress": max(settings.prefill_compress_seconds - recording.decision_seconds, 0.0),
            "seconds_second_pass": settings.second_pass_seconds if settings.second_pass is not None else None,
        }
        # Layers that are not compressed record nothing: a note says what they hold.
        memory = self.cache.memory()
        if memory.sliding_bytes:
            held = memory.live_bytes + memory.sliding_bytes
            full = self.cache.full_bytes() + memory.sliding_bytes
            note = (
                "Bytes are those of compressed layers. The other layers (a window, a state, or keys and values that "
                f"further layers read) hold {format_bytes(memory.sliding_bytes)} more: after the prompt "
                f"{format_bytes(held)} in all, {100 * held / full:.0f} % of the {format_bytes(full)} of a full cache."
            )
            self.writer.update(notes=(*self.writer.record.notes, note))
        ids = self.prepared.ids[0].tolist()
        tokenizer = self.prepared.loaded.tokenizer
        special = set(tokenizer.all_special_ids)
        self.prompt_texts = prompt_pieces(tokenizer, self.prepared.request.prompt, ids, self.prepared.chat)
        shown: Any = {"text": self.prompt_texts, "special": [token in special for token in ids]}
        self._append("prompt", 0, ids, **shown)

    def finish(self, reference: Reference) -> None:
        """Write the rest of the tables and end the run as complete."""
        loaded = self.prepared.loaded
        prompt_tokens = self.prepared.ids.shape[1]
        written = continuation(loaded.tokenizer, reference.ids, end_ids(loaded))
        logprob, kl, agrees = torch.stack(self.forced).double().T.tolist() if self.forced else ([], [], [])
        scores = {
            "logprob": logprob,
            "logprob_full": [float(row[token]) for token, row in zip(reference.ids, reference.logprobs, strict=True)],
            "kl": [max(one, 0.0) for one in kl],
            "top1_agree": [bool(one) for one in agrees],
        }
        self._append("forced", prompt_tokens, reference.ids, text=written.shown, special=written.special, **scores)
        self.writer.update(forced_text=written.text)
        if self.recorder is not None:
            self.recorder.write_arrays()
        # The run's own text.
        ids = self.own_text.ids
        text = continuation(loaded.tokenizer, ids, end_ids(loaded))
        if self.prepared.request.level == "off":  # nothing was recorded, but the final memory costs nothing to read
            cache = self.cache if self.own_text.branch is None else self.own_text.branch.cache
            self.writer.append("memory", memory_columns(cache, max(len(ids) - 1, 0)))
        logprob = torch.stack(self.own_text.logprobs).tolist() if ids else []
        self._append("free", prompt_tokens, ids, text=text.shown, special=text.special, logprob=logprob)
        tags = declared_tags(self.writer.record.chat)
        if is_unfinished(text.text, bool(open_tag("".join(self.prompt_texts), tags)), tags):
            self.measured["notes"] = (*self.writer.record.notes, UNFINISHED_THINKING)
        self.writer.finish("complete", free_text=text.text, **self.measured)

    def _append(self, phase: str, first: int, ids: list[int], **columns: list[Any]) -> None:
        """Write rows of `tokens` from position `first` on."""
        place: dict[str, list[Any]] = {
            "phase": [phase] * len(ids),
            "position": list(range(first, first + len(ids))),
            "id": ids,
        }
        self.writer.append("tokens", place | columns)
