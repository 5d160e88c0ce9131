"""KeepKV's predicted score: an exponential moving average of exp scores, in log space."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import ClassVar

import torch
from torch import Tensor

from kvlab.core.contract import SHORT_TEXT, AttentionPass, Byte, Capabilities, Slots, log_total
from kvlab.core.contract.numerics import BYTE, fits_byte, missing, note_average

EMA = "ema"
RAW_EMA = "raw_ema"
SEEN_ROWS = "ema_rows"


@dataclass(frozen=True)
class EmaScore:
    """E_j = log of the EMA of exp(logit_j) over queries, log-mean-exp over the group (KeepKV eq. 8, in log space).

    There are two averages. `ema` centres each query's logits by their log-sum-exp, so that no outlier query dominates;
    it predicts attention probabilities. `raw_ema` (if `raw`) averages the exp scores as printed, which KeepKV's printed
    key rule needs. The bias correction is 1 - alpha^n with n the queries that saw the slot: the printed 1 - alpha^t
    uses the absolute step although the sum has only the window's terms.
    """

    alpha: float = 0.9
    window: int = 32
    raw: bool = False
    counted_state: ClassVar[str] = SEEN_ROWS
    every_step: bool = True
    needs_hidden_states: bool = False

    @property
    def capabilities(self) -> Capabilities:
        """The printed average needs logits, so only the centred one can be updated from probabilities (`note`).

        Wrapping scorers may skip queries, so they must store counts.
        """
        return Capabilities(
            prompt_rows=lambda tokens: self.window,
            note=None if self.raw else self.note,
            rate=self.rate,
        )

    @property
    def state(self) -> Mapping[str, float]:
        """Slot state: uncorrected averages and the number of queries seen."""
        columns = {EMA: -math.inf, SEEN_ROWS: Byte(0) if fits_byte(self.alpha) else 0}
        return columns | {RAW_EMA: -math.inf} if self.raw else columns

    def update(self, slots: Slots, layer_pass: AttentionPass, first: bool) -> dict[str, Tensor]:
        """The averages and, if counts are stored, those and `score`, the predicted log attention with log mass."""
        rows = min(self.window, layer_pass.num_new) if first else layer_pass.num_new
        logits = layer_pass.last_logits(rows)  # (B, H, G, r, S)
        weighted = logits + slots.log_mass_of_heads()[:, :, :, None]
        normalizer = log_total(weighted, layer_pass.sinks)
        # Padding in front of a later turn is no query and ages no average.
        queries = layer_pass.rows_seen(rows) if rows > 1 else 1
        centred = weighted - slots.log_mass[:, :, None, None] - normalizer
        changed = {EMA: self._average(slots.extra[EMA], centred, queries)}
        if self.raw:
            changed[RAW_EMA] = self._average(slots.extra[RAW_EMA], logits, queries)
        if SEEN_ROWS not in slots.extra:
            return changed
        most = BYTE if fits_byte(self.alpha) else SHORT_TEXT
        changed[SEEN_ROWS] = (slots.extra[SEEN_ROWS].int() + layer_pass.rows_seen(rows)).clamp_max(most)
        return changed | {"score": self.rate(replace(slots, extra=slots.extra | changed))}

    def note(self, slots: Slots, layer_pass: AttentionPass) -> None:
        """Update the averages in place after a single query, from its probabilities.

        The score is left to `rate`, since it is not read between decisions. No counts are stored in this case.
        """
        note_average(slots.extra[EMA], layer_pass.last_mass(), slots.log_mass, self.alpha)

    def rate(self, slots: Slots) -> Tensor:
        return (slots.extra[EMA] - missing(slots.extra[SEEN_ROWS], self.alpha)).add_(slots.log_mass)

    def _average(self, old: Tensor, logits: Tensor, queries: Tensor | int) -> Tensor:
        """`old` (B, H, S) after the rows of `logits` (B, H, G, r, S), of which `queries` are no padding."""
        group = logits.shape[2]
        rows = logits.shape[3]
        age = torch.arange(rows - 1, -1, -1, device=logits.device, dtype=torch.float32)
        weight = age * math.log(self.alpha) + math.log(1 - self.alpha) - math.log(group)
        new = torch.logsumexp(torch.nan_to_num(logits, nan=-math.inf) + weight[:, None], dim=(2, 3))
        return torch.logaddexp(old + queries * math.log(self.alpha), new)
