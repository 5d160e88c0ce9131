"""One pass over the prompt and one decode loop for several runs of a comparison.

The rows of the batch are the full cache, which leads, each run's cache, which decodes the full cache's tokens and is
recorded, and the run's own text from the first token on that differs: a second row of that cache if only counts are
recorded, otherwise a copy of it.
"""

from collections.abc import Sequence
from functools import partial

import torch
from torch import Tensor

from kvlab.core.cache import CompressedCache
from kvlab.core.cache.cache_copy import copy_cache
from kvlab.core.cache.fan_out_cache import FanOutCache
from kvlab.core.cache.fan_out_layer import Branch
from kvlab.engine.active_run import ActiveRun
from kvlab.engine.energy import describe_energy, energy_counter, joule_meter
from kvlab.engine.forward import Choose, chooser, end_check, prefill
from kvlab.engine.live_texts import LiveComparison
from kvlab.engine.prepare import Prepared
from kvlab.engine.probe import Probe
from kvlab.engine.progress import Watch
from kvlab.engine.prompt import Reference
from kvlab.engine.recording.recorder import ObserverGroup


class SharedPass:
    """Reads the prompt of a comparison once and decodes for all `runs` together.

    `leader` is the full cache that writes the reference: the first run's, or one that is not recorded. None if the
    `reference` was written by an earlier pass. A run that fails is marked, and the others go on; errors of the leader
    and out-of-memory errors are raised.
    """

    def __init__(
        self,
        prepared: Prepared,
        runs: Sequence[ActiveRun],
        leader: CompressedCache | None,
        reference: Reference,
        watch: Watch,
        probe: Probe | None = None,
        live: LiveComparison | None = None,
    ) -> None:
        request = prepared.request
        loaded = prepared.loaded
        self.prepared, self.runs, self.reference, self.watch, self.probe = prepared, list(runs), reference, watch, probe
        self.errors: list[Exception] = []
        self._live = LiveComparison(prepared) if live is None else live
        caches = [run.cache for run in runs]
        unrecorded = [] if leader is None or any(leader is cache for cache in caches) else [leader]
        self.fan_out = FanOutCache([*unrecorded, *caches], loaded.device, timed=True)
        self.branch_of = {id(branch.cache): branch for branch in self.fan_out.branches}
        self.leader = None if leader is None else self.branch_of[id(leader)]
        if leader is not None and probe is not None:
            if isinstance(own_observers := leader.settings.observer, ObserverGroup):
                own_observers.observers.append(probe)
            else:
                leader.settings.observer = probe
            leader.settings.part_observer = probe
        self.choose = chooser(loaded, prepared.ids, request.max_new_tokens, request.generation_config)
        self.has_ended = end_check(loaded, prepared.ids, request.generation_config)
        self.most = request.max_new_tokens
        self.forced_ended = False

    @torch.inference_mode()
    def run(self) -> None:
        """Read the prompt, decode, and finish every run."""
        counter = energy_counter(self.prepared.loaded.device)
        joules_since_now = joule_meter(counter)
        texts = partial(self._live.read, self.runs, self.reference.ids)  # of lists that grow and shrink
        prepared = self.prepared
        fan_out = self.fan_out
        # Read the prompt; behind it every branch has its own row.
        for run in self.runs:
            run.observers.now = fan_out.now
        begun = fan_out.now()
        check = partial(self.watch.advance, "prompt", live=texts)
        next_logits = prefill(prepared.loaded, fan_out, prepared.ids, prepared.request.prefill_chunk, check)
        common = fan_out.common_seconds(fan_out.now() - begun)
        fan_out.copy_recurrent_states()
        self._end_failed()
        for run in self.runs:
            run.end_prompt(common + self._branch(run).own_seconds())
            run.end_step()
            run.observers.seconds = 0.0  # from here on, of decode steps
            run.prompt_cache = copy_cache(run.cache)
        fan_out.split()
        for run in self.runs:
            run.observers.now = fan_out.now
        rows = next_logits.expand(fan_out.num_rows, -1)
        # Decode.
        index = 0
        for index in range(self.most):
            tokens = self._choose(rows, index)
            fan_out.drop([branch for branch in fan_out.branches if branch not in tokens])
            if not tokens:
                break
            together = fan_out.num_rows
            stage = "decoding" if together == 1 else f"decoding {together} rows together"
            self.watch.advance(stage, live=texts)
            rows = self._step(tokens)
        self.watch.skip("decoding", self.most - index)
        self.watch.show("writing the recordings", texts)
        joules = joules_since_now()
        for run in self.runs:
            run.measured |= {"joules": joules, "energy": describe_energy(counter)}
            run.finish(self.reference)

    def _choose(self, rows: Tensor, index: int) -> dict[Branch, list[int]]:
        """The next tokens of every branch that goes on, one a row, from logits (R, V); notes scores and own texts."""
        logprobs = torch.log_softmax(rows, -1)
        likeliest = rows.argmax(-1).tolist()
        last = index == self.most - 1
        pick = partial(_pick, rows, likeliest)
        if self.leader is not None and not self.forced_ended:
            self.reference.ids.append(pick(self.leader.rows.start, self.choose))
            self.reference.logprobs.append(logprobs[self.leader.rows.start].clone().cpu())
        tokens: dict[Branch, list[int]] = {}
        forced = None if self.forced_ended else self.reference.ids[index]
        if forced is not None:
            # How each run predicts the forced token next to the full cache.
            if self.runs:
                leader = self.leader
                written = self.reference.logprobs[index]
                full = written.to(logprobs.device) if leader is None else logprobs[leader.rows.start]
                predicted = logprobs[[self._branch(run).rows.start for run in self.runs]]
                gap = torch.where(torch.isneginf(full), 0.0, full.exp() * (full - predicted)).sum(-1)
                agrees = predicted.argmax(-1) == full.argmax()
                scores = torch.stack([predicted[:, forced], gap, agrees.to(gap)], -1)
                for run, row in zip(self.runs, scores, strict=True):
                    run.forced.append(row)
            leading = [] if self.leader is None else [self.leader]
            self.forced_ended = last or self.has_ended(self.reference.ids[: index + 1])
            if not self.forced_ended:
                tokens = {branch: [forced] for branch in (*leading, *map(self._branch, self.runs))}
            elif self.leader is not None and self.probe is not None and self.probe.waits_for(index):
                tokens[self.leader] = [forced]
                self.leader.cache.settings.observer = self.probe  # the step after the last is not recorded
        writing = [run for run in self.runs if not run.own_text.ended]
        for run in writing:
            text = run.own_text
            row = (text.branch or self._branch(run)).rows.start + text.row
            token = pick(row, text.choose)
            text.ids.append(token)
            text.logprobs.append(logprobs[row, token].clone())  # a view would keep all rows
            text.ended = last or self.has_ended(text.ids)
        for run in writing:  # once every row has been read, as rows move
            # Its own text gets a row if it leaves the forced text, and the row of a text that ended ends.
            text = run.own_text
            branch = self._branch(run)
            if text.row and (text.ended or self.forced_ended):
                self.fan_out.keep_rows(branch, [0 if text.ended else text.row])
                branch.cache.settings.texts = 1
                text.row = 0
            if text.branch is None and not text.ended and text.ids[-1] != forced:
                settings = branch.cache.settings
                if run.recorder is not None and not self.forced_ended and not settings.observes_slots:
                    # A second text continues the branch's only row in one more, whose counts stay those of the first.
                    self.fan_out.keep_rows(branch, [0, 0])
                    settings.texts = 2
                    text.branch = branch
                    text.row = 1
                else:
                    text.branch = self.fan_out.fork(branch)
            if self.forced_ended and text.branch is branch:
                branch.cache.settings.observer = None
            if text.branch is not None and not text.ended:
                tokens.setdefault(text.branch, []).append(text.ids[-1])
        return tokens

    def _step(self, tokens: dict[Branch, list[int]]) -> Tensor:
        """Logits (R, V) after one more token of every row."""
        loaded = self.prepared.loaded
        fan_out = self.fan_out
        rows = [(branch, token) for branch in fan_out.branches for token in tokens[branch]]
        given = torch.tensor([[token] for _, token in rows], device=loaded.device)
        logits: Tensor = loaded.model(given, past_key_values=fan_out, use_cache=True).logits[:, -1].float()
        kept = [branch.error is None for branch, _ in rows]
        if not all(kept):
            logits = logits[[row for row, stays in enumerate(kept) if stays]]
            self._end_failed()
        for run in [] if self.forced_ended else self.runs:
            run.end_step()
        return logits

    def _end_failed(self) -> None:
        """Mark the runs of failed branches as failed; raises the leader's error."""
        failed = self.fan_out.take_failed()
        if not failed:
            return
        if self.leader in failed:
            assert self.leader is not None and self.leader.error is not None
            raise self.leader.error
        for run in list(self.runs):
            branches = [branch for branch in {self._branch(run), run.own_text.branch} if branch is not None]
            error = next((branch.error for branch in branches if branch.error is not None), None)
            if error is not None:
                run.writer.finish("failed", str(error) or type(error).__name__)
                self.errors.append(error)
                self.runs.remove(run)
                self.fan_out.drop([branch for branch in branches if branch.error is None])

    def _branch(self, run: ActiveRun) -> Branch:
        return self.branch_of[id(run.cache)]


def _pick(rows: Tensor, likeliest: list[int], row: int, choose: Choose) -> int:
    """The row's token: the likeliest, unless `choose` processes its logits."""
    return likeliest[row] if choose is torch.argmax else int(choose(rows[row]))
