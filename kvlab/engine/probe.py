"""Probe the full cache on prompt and continuation: attention statistics, and what some method samples of them.

An observer of the full cache while it decodes, once per comparison, at level `full`; its arrays are written into the
first run. It costs, per layer, the attention of `PROMPT_ROWS` + continuation + sampled queries, and on mini
(1,676 tokens, 48 more) 19 MB on disk.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from kvlab.common.limits import MOST_FUTURE, PROMPT_ROWS
from kvlab.core.attention.layer_handoff import watch_hidden_states
from kvlab.core.attention.pass_view import PassView
from kvlab.core.attention.queries import num_key_value_heads
from kvlab.core.attention.slot_attention import probabilities
from kvlab.core.cache import make_cache
from kvlab.core.cache.settings import Observer
from kvlab.core.contract import Slots
from kvlab.core.errors import UserError
from kvlab.core.methods import Method, registered
from kvlab.models.load import LoadedModel
from kvlab.requests.recording import Recording, history_that_fits
from kvlab.trace import RunWriter

SHOWN_CHANNELS = 16
MOST_ROWS = 4096  # of the prompt, evenly spaced, for statistics that need sorting
MOST_POOLED = 1_000_000
EDGES = torch.linspace(-6, 6, 49)  # standard deviations
PROBABILITIES = (torch.arange(33) + 0.5) / 33
CONSTANT = 1e-6  # variation below this share of the mean is rounding


NOTHING = torch.zeros(())


@dataclass(eq=False)
class Moments:
    """Mean and central moments per channel, accumulated over parts (Pébay 2008, equations 2.1 and 3.1)."""

    count: int = 0
    mean: Tensor = NOTHING
    # Sums of powers about the mean.
    second: Tensor = NOTHING
    third: Tensor = NOTHING
    fourth: Tensor = NOTHING

    def add(self, rows: Tensor) -> None:
        """Add `rows` (n, hidden); the sums are float64 on the host."""
        if not len(rows):
            return
        rows, n, m = rows.float(), self.count, len(rows)
        part_mean = rows.mean(0)
        centred = rows - part_mean
        s2, s3, s4 = (centred.pow(power).sum(0).cpu().double() for power in (2, 3, 4))
        mean = part_mean.cpu().double()
        d = mean - self.mean
        all_ = n + m
        fourth = d**4 * (n * m * (n * n - n * m + m * m) / all_**3)
        fourth = fourth + 6 * d**2 * (n * n * s2 + m * m * self.second) / (all_ * all_)
        self.fourth = self.fourth + s4 + fourth + 4 * d * (n * s3 - m * self.third) / all_
        third = d**3 * (n * m * (n - m) / all_**2) + 3 * d * (n * s2 - m * self.second) / all_
        self.third = self.third + s3 + third
        self.second = self.second + s2 + d**2 * (n * m / all_)
        self.mean = self.mean + d * (m / all_)
        self.count = all_

    @property
    def constant(self) -> Tensor:
        """(hidden,) bool: channels that do not vary."""
        return self.deviation <= CONSTANT * self.mean.abs()

    @property
    def deviation(self) -> Tensor:
        """(hidden,) standard deviation, n - 1; zeros for a single row."""
        return (self.second / max(self.count - 1, 1)).sqrt()

    def standardised(self, power: int) -> Tensor:
        """(hidden,) standardised third or fourth moment; NaN where a channel does not vary."""
        sums = self.third if power == 3 else self.fourth
        return (sums / self.count / self.deviation.pow(power)).masked_fill(self.constant, torch.nan)


class HiddenStatistics:
    """Statistics of a prompt's hidden states, accumulated over parts; the first `sinks` of `tokens` are left out.

    Between parts it holds eight numbers per channel and `MOST_ROWS` rows, on the host.
    """

    def __init__(self, tokens: int, sinks: int) -> None:
        self.sinks = sinks
        self.tokens_read = 0
        self.whole, self.inner = Moments(), Moments()
        inner = max(tokens - sinks, 0)
        self.rows = sinks + torch.linspace(0, inner - 1, min(MOST_ROWS, inner)).round().long()  # kept for sorting
        self.kept: list[Tensor] = []

    def add(self, states: Tensor) -> None:
        """Add the next tokens' `states` (n, hidden)."""
        inner = states[max(self.sinks - self.tokens_read, 0) :]
        self.whole.add(states)
        self.inner.add(inner)
        rows = (
            self.rows[(self.rows >= self.tokens_read) & (self.rows < self.tokens_read + len(states))] - self.tokens_read
        )
        self.kept.append(states[rows.to(states.device)].cpu())
        self.tokens_read += len(states)

    def statistics(self, device: torch.device | str = "cpu") -> dict[str, Tensor]:
        """Float32 statistics on `device`, where the rows are sorted. Call once: the rows are released.

        `mean`, `deviation`, `skew`, `kurtosis` (excess), `kurtosis_with_sinks` and `distance` (Kolmogorov-Smirnov, to
        the normal distribution of the same mean and deviation), each (hidden,). `histogram` (1 + 16, 48) densities
        between `EDGES` and `quantiles` (1 + 16, 33) at `PROBABILITIES`, both in standard deviations: all channels
        together, then 16 evenly spaced ones.
        """
        inner = self.inner
        of_channels = {
            "mean": inner.mean,
            "deviation": inner.deviation,
            "skew": inner.standardised(3),
            "kurtosis": inner.standardised(4) - 3,
            "kurtosis_with_sinks": self.whole.standardised(4) - 3,
        }
        found = {name: values.float().to(device) for name, values in of_channels.items()}
        rows = torch.cat(self.kept).to(device).float()  # a copy, modified in place
        self.kept.clear()
        constant = inner.constant.to(device)
        scale = found["deviation"].masked_fill(constant, torch.inf)  # makes a constant channel zero
        ordered = _sorted(rows.sub_(found["mean"]).div_(scale))  # (n, hidden)
        del rows
        hidden = ordered.shape[1]
        channels = torch.linspace(0, hidden - 1, min(SHOWN_CHANNELS, hidden)).round().long().to(device)
        pooled = _sorted(ordered[:: max(1, ordered.numel() // MOST_POOLED)].flatten())
        shown = [pooled, *ordered[:, channels].unbind(1)]
        # Kolmogorov-Smirnov distance to the normal distribution, per column of sorted values.
        normal = torch.special.ndtr(ordered)
        count = len(ordered)
        above = torch.arange(1, count + 1, device=ordered.device)[:, None] / count
        bins = len(EDGES) - 1, float(EDGES[0]), float(EDGES[-1])
        width = float(EDGES[1] - EDGES[0])
        quantiles = []
        for values in shown:
            place = PROBABILITIES.to(values.device) * (len(values) - 1)
            low = place.long()
            high = (low + 1).clamp_max(len(values) - 1)
            quantiles.append(values[low] + (place - low) * (values[high] - values[low]))
        return found | {
            "distance": torch.maximum((above - normal).abs(), (normal - above + 1 / count).abs())
            .amax(0)
            .masked_fill(constant, torch.nan),
            "histogram": torch.stack([torch.histc(values, *bins) / len(values) / width for values in shown]),
            "quantiles": torch.stack(quantiles),
        }


def _sorted(numbers: Tensor) -> Tensor:
    """Sort along the first dimension; on a CPU with numpy, which is ten times faster than torch."""
    if numbers.device.type == "cpu":
        return torch.from_numpy(np.sort(numbers.numpy(), axis=0))
    return numbers.sort(0).values


EVERYTHING = Recording()
ROWS_AT_ONCE = 16


@dataclass
class Gathered:
    """One layer so far: statistics of hidden states, and the newest queries."""

    hidden: HiddenStatistics
    query: Tensor | None = None  # (1, Hq, r, d), the newest


@dataclass(eq=False)
class Probe(Observer):
    """Observer of the full cache, for any number of passes over the text.

    Once the text has `tokens`, its last queries (`rows` of the prompt and all later ones) are evaluated for `layers`;
    the attention of the last `history_rows` prompt queries and all later ones is written for `history_layers` and
    `heads`.
    """

    writer: RunWriter
    prompt_tokens: int
    tokens: int
    rows: int
    samples: Any  # see `Method.query_probe`
    layers: Sequence[int]
    heads: list[int]
    history_layers: Sequence[int]
    history_rows: int
    gathered: dict[int, Gathered] = field(default_factory=dict)  # by layer
    written: set[int] = field(default_factory=set)  # layers
    compressed = Observer.compressed  # a full cache decides nothing

    def waits_for(self, generated: int) -> bool:
        """Whether the token after `generated` ones is still to be read; it is the last of the text."""
        if self.prompt_tokens + generated >= self.tokens:
            return False
        self.tokens = self.prompt_tokens + generated + 1
        return True

    def attended(self, layer_idx: int, slots: Slots, layer_pass: PassView, output: Tensor) -> None:
        """Collect this layer's pass; write the results when the text is complete."""
        if layer_idx not in self.layers or layer_idx in self.written:
            return
        self.attended_part(layer_idx, layer_pass)
        if layer_pass.key.shape[2] == self.tokens:
            gathered = self.gathered.pop(layer_idx)
            self.written.add(layer_idx)
            assert gathered.query is not None
            # The pass with its queries replaced by the text's last queries (1, Hq, r, d).
            alibi = layer_pass.alibi
            if alibi is not None:
                alibi = replace(alibi, queries=slots.position[:, :, -gathered.query.shape[2] :])
            nothing: Any = dict.fromkeys(("row_valid", "hidden_states", "_last_logits", "_last_mass"))
            layer_pass = replace(layer_pass, query=gathered.query, alibi=alibi, **nothing)
            hidden = gathered.hidden
            if hidden.tokens_read >= self.prompt_tokens > self.samples.sinks + 2:
                dtype = hidden.kept[0].dtype
                self.writer.write_arrays("hidden", layer_idx, _host(hidden.statistics(layer_pass.key.device)))
                moments = hidden.inner.mean, hidden.inner.deviation
                try:
                    arrays = self.samples.arrays(slots, layer_pass, self.prompt_tokens, moments, dtype)
                except UserError:
                    pass  # unknown query projection of this model family: skip only these arrays
                else:
                    self.writer.write_arrays("sampled", layer_idx, _host(arrays))
            if layer_idx in self.history_layers:
                rows = history(layer_pass, self.history_rows + self.tokens - self.prompt_tokens)
                of_heads = {name: array[:, self.heads] for name, array in rows.items()}
                self.writer.write_arrays("history", layer_idx, of_heads)

    def attended_part(self, layer_idx: int, layer_pass: PassView) -> None:
        """Collect the hidden states and newest queries of a pass."""
        if layer_idx not in self.layers:
            return
        if layer_idx not in self.gathered:
            self.gathered[layer_idx] = Gathered(HiddenStatistics(self.prompt_tokens, self.samples.sinks))
        gathered = self.gathered[layer_idx]
        seen_tokens = layer_pass.key.shape[2]
        if layer_pass.hidden_states is not None:
            gathered.hidden.add(layer_pass.hidden_states[0, : self.prompt_tokens - gathered.hidden.tokens_read])
        parts = [layer_pass.query] if gathered.query is None else [gathered.query, layer_pass.query]
        rows = self.rows + max(seen_tokens - self.prompt_tokens, 0)
        gathered.query = torch.cat([part[:, :, -rows:] for part in parts], 2)[:, :, -rows:]


def make_probe(
    loaded: LoadedModel,
    prompt_tokens: int,
    most: int,
    writer: RunWriter,
    methods: Sequence[Method],
    recording: Recording,
) -> Probe:
    """A probe that writes `history`, `hidden` and `sampled` (see `kvlab.trace.schema.ARRAYS`) of every full-attention
    layer, for up to `most` generated tokens.

    Samples are those of the first of `methods` that draws any, else of the first registered one, with the same seed as
    in a run. `recording` selects layers and, for `history`, KV heads;
    if that exceeds the limit, less is kept and the record says so.
    """
    watch_hidden_states(loaded.model)
    everyone = [*methods, *(kind() for kind in registered().values())]
    samples = next(probe for method in everyone if (probe := method.query_probe()) is not None)
    later = min(most, MOST_FUTURE)
    prompt_rows = min(PROMPT_ROWS, prompt_tokens)
    rows = min(max(prompt_rows, samples.rows), prompt_tokens)
    layers = recording.of_layers([layer.layer_idx for layer in make_cache(loaded, "full").compressed_layers()])
    heads = recording.of_heads(num_key_value_heads(loaded.model.config.get_text_config(decoder=True)))
    tokens = prompt_tokens + later
    kept, history_rows, sentence = history_that_fits(layers, len(heads), tokens, prompt_rows, later)
    if sentence:
        writer.update(left_out=writer.record.left_out | {"history": sentence})
    return Probe(writer, prompt_tokens, tokens, rows, samples, layers, heads, kept, history_rows)


def history(layer_pass: PassView, rows: int) -> dict[str, np.ndarray]:
    """Attention of the last `rows` queries, by KV head: `mass` and `log_score`.

    Both (rows, H, tokens): the group's mean probability, and the log of its mean exp score,
    -inf at masked positions.
    """
    tokens = layer_pass.key.shape[2]
    masses = []
    scores = []
    for first in range(tokens - rows, tokens, ROWS_AT_ONCE):
        last = min(first + ROWS_AT_ONCE, tokens)
        logits = layer_pass.up_to(last).last_logits(last - first)[0]  # (H, G, r, last)
        padding = (0, tokens - last)
        mass = probabilities(logits[None], None, layer_pass.sinks)[0]
        masses.append(torch.nn.functional.pad(mass.mean(1), padding))
        score = torch.logsumexp(logits, 1) - torch.tensor(float(logits.shape[1])).log()
        scores.append(torch.nn.functional.pad(score, padding, value=-torch.inf))
    return _host({"mass": torch.cat(masses, 1).transpose(0, 1), "log_score": torch.cat(scores, 1).transpose(0, 1)})


def _host(arrays: dict[str, Tensor]) -> dict[str, np.ndarray]:
    return {name: tensor.half().cpu().numpy() for name, tensor in arrays.items()}
