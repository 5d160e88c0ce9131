"""Which stores lose much of a model's keys because a few channels are far larger than the others."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from kvlab.checking.servability import full_states
from kvlab.core.cache.rotary import find_rotary
from kvlab.core.contract.rotary import Rotary
from kvlab.core.stores import STORES, Store
from kvlab.core.stores.store import keys_as_held
from kvlab.models.load import load_model

TOKENS = 512
# Where KL rose on mini with loud channels put into its keys (docs/stores.md).
TIMES = 10.0
SHARE = 0.02


@dataclass(frozen=True)
class KeyLoss:
    """What a store loses of keys, in the layer where that is most in proportion.

    Attributes:
        layer: index among the layers that kvlab compresses.
        share: mean squared error of the layer's keys over the variance across slots of the head's median channel.
        times: that share over the store's share of the same keys with all channels brought to mean 0 and variance 1.
    """

    layer: int
    share: float
    times: float

    @property
    def loud(self) -> bool:
        """Whether a few large channels cost the others much."""
        return self.times >= TIMES and self.share >= SHARE


def check_keys(model: str) -> dict[str, str]:
    """A sentence for each store, by name: `ok` or `WARNING`, for the keys of one text of `TOKENS` tokens.

    Raises UserError for an unknown model.
    """
    loaded = load_model(model)
    rotary = find_rotary(loaded.model)
    keys = [layer_keys[None] for layer_keys, _ in full_states(loaded, TOKENS)]
    sentences = {}
    for name, store in STORES.items():
        if store.packs:
            loss = key_loss(store, keys, rotary)
            found = (
                f"layer {loss.layer} loses {100 * loss.share:.1f} % of a median channel's variance, {loss.times:.1f} "
                "times as much as keys with equal channels"
            )
            warning = "so a few loud channels cost the others much: compare its KL with another store's"
            sentences[f"store {name}"] = f"WARNING: {found}, {warning}" if loss.loud else f"ok: {found}"
    return sentences


def key_loss(store: Store, layers: Sequence[Tensor], rotary: Rotary | None) -> KeyLoss:
    """What `store` loses of each layer's keys (1, H, S, d), rotated at positions 0 to S - 1."""
    shares = []
    times = []
    for layer_keys in layers:
        keys = layer_keys.float()
        deviation, mean = torch.std_mean(keys, 2, keepdim=True)
        # What all slots lose alike leaves attention as it is, so only its differences count.
        loss = _error(store, keys, rotary).var(2).mean(-1) / deviation.square().median(-1).values[..., 0]
        even = _error(store, (keys - mean) / deviation.clamp_min(1e-6), rotary).var(2).mean(-1)
        shares.append(loss.mean())
        times.append((loss / even.clamp_min(1e-12)).mean())
    worst = int(torch.stack(times).argmax())
    return KeyLoss(worst, float(shares[worst]), float(times[worst]))


def _error(store: Store, keys: Tensor, rotary: Rotary | None) -> Tensor:
    """(1, H, n, d): of the slots that are not native."""
    count = keys.shape[2]
    order = torch.arange(count, device=keys.device).expand(*keys.shape[:2], -1)
    live = torch.full(keys.shape[:2], count, device=keys.device)
    place, _ = store.coded(live, count)
    turn = None if rotary is None else rotary.turn
    error = keys_as_held(store, keys, order, live, turn, order) - keys
    return error[:, :, int(place.min()) : count - store.residual]
