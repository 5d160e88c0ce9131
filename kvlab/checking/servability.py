"""Servability of a method, observed: run it on a prompt and some decode steps, and look at the slots that it leaves."""

from dataclasses import dataclass, field, fields, replace
from functools import lru_cache
from typing import Any

import numpy as np
import torch
from torch import Tensor

from kvlab.core import NATIVE, Amount, asset_path
from kvlab.core.cache import CompressedCache, make_cache
from kvlab.core.contract.parts import OPTIONAL, Capabilities, capabilities_of, optional
from kvlab.core.contract.pipeline import Pipeline
from kvlab.core.contract.plan import Plan
from kvlab.core.contract.view import AttentionPass, Slots, View
from kvlab.core.methods import Method, make_method
from kvlab.models.load import LoadedModel
from kvlab.planning import serving_table

# What the attributes of a pass give, as an engine must provide it.
READS = {
    **dict.fromkeys(
        ("column_mass", "column_max", "column_rms", "last_mass", "last_logits", "recalled_mass"),
        serving_table.ATTENTION,
    ),
    **dict.fromkeys(
        ("query", "logits_of", "recalled_logits", "recalled_queries", "project_queries"), serving_table.QUERIES
    ),
    "hidden_states": serving_table.HIDDEN,
}
TAKES_PASS = ("update", "accumulate", "score_second_pass", "statistic")  # functions of slots and a pass
PROMPT_TOKENS = 384
STEPS = 12
BUFFER = 8
SAME = 1e-3  # relative: rotating by 0 and back rounds
HAYSTACK = "alice_in_wonderland.txt"


def check_servability(
    method: Method, loaded: LoadedModel, budget: Amount = 0.2, tokens: int = PROMPT_TOKENS, name: str = ""
) -> serving_table.Servability:
    """Run the method on a text of `tokens` tokens at this budget, and inspect its tables, after decode steps too.

    Methods that decide after several generated tokens do so after 8, so that a short run shows it. Slots are held
    natively, as rounding is the store's matter. `name` replaces the method's name.
    """
    steps = STEPS + method.page - 1  # as whole pages may leave so much room
    ids = text_ids(loaded, tokens + steps)
    buffer = {"buffer": BUFFER} if "buffer" in type(method).model_fields else {}
    watch = Watch()
    cache = make_cache(loaded, method.model_copy(update={"store": NATIVE, **buffer}), budget, observer=watch)
    parts = {one.name: getattr(cache.settings.pipeline, one.name) for one in fields(Pipeline)}
    parts |= {part: WatchedPart(parts[part], watch) for part in ("score", "allocate")}
    cache.settings.pipeline = WatchedPipeline(**parts, watch=watch)
    whole = full_states(loaded, tokens)
    with torch.inference_mode():
        loaded.model(ids[:, :tokens], past_key_values=cache)
        kept = kept_tokens(cache, tokens)
        held = held_by(cache, whole)
        watch.decoding = True
        for step in range(steps):
            loaded.model(ids[:, tokens + step : tokens + step + 1], past_key_values=cache)
    later = held_by(cache, whole)
    last = kept_tokens(cache, tokens + steps)
    lost = bool((kept & ~last[..., :tokens]).any()) or not last[..., tokens:].all()
    held = replace(
        held,
        log_mass=held.log_mass or later.log_mass,
        merged_keys=held.merged_keys or watch.merges,
        new_values=held.new_values or watch.merges_values,
        state=watch.state,
    )
    again = cache.settings.second_pass
    return serving_table.Servability(
        method=name or method.name,
        title=method.title,
        held=held,
        reads_prompt=tuple(sorted(watch.prompt)),
        reads_decode=tuple(sorted(watch.decode)),
        decodes=lost,
        second_pass=again is not None and again.done,
        store=method.store,
        kept=float(kept.mean()),
        freed={page: serving_table.Freed.from_kept(kept, page) for page in serving_table.PAGES},
        fragmentation={
            page: (serving_table.fragmentation(kept, page), serving_table.fragmentation(last, page))
            for page in serving_table.PAGES
        },
    )


@dataclass
class Watch:
    """An observer that notes what decisions read of a pass, and whether they changed keys or values."""

    prompt: set[str] = field(default_factory=set)
    decode: set[str] = field(default_factory=set)
    decoding: bool = False
    merges: bool = False
    merges_values: bool = False
    state: bool = False

    def attended(self, layer_idx: int, slots: Slots, layer_pass: Any, output: Tensor) -> None:
        """Note a state besides the slots."""
        self.state |= layer_pass.has_state

    def compressed(self, layer_idx: int, view: View, plan: Plan, before: Slots, after: Slots) -> None:
        """Note merges."""
        edges = plan.edges
        if edges is not None and bool(edges.active.any()):
            self.merges |= edges.key_weight is not None and bool((edges.key_weight * edges.active != 0).any())
            self.merges_values = True


@dataclass(frozen=True, eq=False)
class WatchedPass:
    """A pass that notes what is read of it."""

    _layer_pass: AttentionPass
    _watch: Watch

    def __getattr__(self, name: str) -> Any:
        if name in READS:
            (self._watch.decode if self._watch.decoding else self._watch.prompt).add(READS[name])
        return getattr(self._layer_pass, name)


@dataclass(frozen=True, eq=False)
class WatchedPart:
    """A scorer or an allocator that gets watched passes; everything else is the part's own."""

    _part: Any
    _watch: Watch

    def __getattr__(self, name: str) -> Any:
        found = optional(self._part, name) if name in OPTIONAL else getattr(self._part, name)
        return self._with_watch(found) if name in TAKES_PASS else found

    @property
    def capabilities(self) -> Capabilities:
        """The part's own, whose functions get watched passes too."""
        inner = capabilities_of(self._part)
        declared = {one.name: getattr(inner, one.name) for one in fields(Capabilities)}
        return Capabilities(**declared | {name: self._with_watch(declared[name]) for name in ("recall", "note")})

    def _with_watch(self, function: Any) -> Any:
        return (
            None
            if function is None
            else lambda slots, layer_pass, *more, **named: function(
                slots, WatchedPass(layer_pass, self._watch), *more, **named
            )
        )

    def head_budgets(self, view: View) -> Tensor | None:
        """An allocator's."""
        return self._part.head_budgets(replace(view, layer_pass=WatchedPass(view.layer_pass, self._watch)))


@dataclass(frozen=True)
class WatchedPipeline(Pipeline):
    """A pipeline whose parts get watched passes."""

    watch: Watch = field(default_factory=Watch, compare=False)

    def plan(self, view: View) -> Plan:
        """The decision, from a watched pass."""
        return super().plan(replace(view, layer_pass=WatchedPass(view.layer_pass, self.watch)))


def text_ids(loaded: LoadedModel, tokens: int) -> Tensor:
    """The first tokens (1, `tokens`) of a story that ships with kvlab."""
    text = (asset_path("prompts/haystack") / HAYSTACK).read_text(encoding="utf-8")[: 12 * tokens]
    ids: Tensor = loaded.tokenizer(text, return_tensors="pt").input_ids[:, :tokens]
    return ids.to(loaded.model.device)


@lru_cache(maxsize=2)
def full_states(loaded: LoadedModel, tokens: int) -> tuple[tuple[Tensor, Tensor], ...]:
    """Keys and values (H, T, d) of every compressed layer, as the model computed them."""
    cache = make_cache(loaded, make_method("full"), 1.0)
    with torch.inference_mode():
        loaded.model(text_ids(loaded, tokens), past_key_values=cache)
    slots = [layer.slots for layer in cache.compressed_layers()]
    return tuple((table.keys[0, :, :tokens], table.values[0, :, :tokens]) for table in slots if table is not None)


def kept_tokens(cache: CompressedCache, tokens: int) -> np.ndarray:
    """Mask (layers, heads, `tokens`) bool of the tokens that name a slot."""
    masks = []
    for layer in cache.compressed_layers():
        slots = layer.slots
        assert slots is not None
        place = slots.position[0].long().clamp(0, tokens - 1)
        mask = torch.zeros(place.shape[0], tokens, dtype=torch.int32, device=place.device)
        masks.append(mask.scatter_add(1, place, slots.valid[0].int()).cpu().numpy() > 0)
    return np.stack(masks)


def held_by(cache: CompressedCache, whole: tuple[tuple[Tensor, Tensor], ...]) -> serving_table.Held:
    """Inspect the cache's tables; only states of the prompt are compared, as later ones depend on the cache."""
    counts = []
    rows = []
    gaps = []
    mass = merged = changed = False
    for layer, (keys, values) in zip(cache.compressed_layers(), whole, strict=True):
        slots = layer.slots
        tokens = keys.shape[1]
        assert slots is not None
        valid = slots.valid[0]
        position = slots.position[0].long()
        counts.append(slots.live()[0].cpu().numpy())
        rows.append([frozenset(places[there].tolist()) for places, there in zip(position, valid, strict=True)])
        mass |= bool((slots.log_mass_of_heads()[0].masked_fill(~valid[:, None], 0) != 0).any())
        prompt = valid & (position < tokens)
        place = position.clamp(0, tokens - 1)[..., None]
        of_keys, of_values = (
            states.gather(1, place.expand(*place.shape[:2], states.shape[-1])) for states in (keys, values)
        )
        # Tokens (H, S) that left between each slot and the next token.
        order = position.masked_fill(~valid, torch.iinfo(position.dtype).max).argsort(-1).argsort(-1)
        later = int(layer.tokens_seen[0]) - position
        missing = torch.where(valid, later - (valid.sum(-1, keepdim=True) - order), 0)
        rotary = cache.settings.rotary
        turned = of_keys
        if rotary is not None:
            turned = rotary.turn(of_keys, missing).to(of_keys.dtype)
        stays, moves = (_equal(slots.keys[0], expected, prompt) for expected in (of_keys, turned))
        merged |= not (stays or moves)
        changed |= not _equal(slots.values[0], of_values, prompt)
        shift = missing.masked_fill(~valid, -1)
        gaps.append(
            not (moves and rotary is not None) and bool(((shift != shift.amax(-1, keepdim=True)) & valid).any())
        )
    by_head, by_layer = serving_table.held_counts(np.stack(counts))
    apart = any(kept != heads[0] for heads in rows for kept in heads)
    return serving_table.Held(by_head, by_layer, apart, any(gaps), mass, merged, changed)


def _equal(held: Tensor, other: Tensor, where: Tensor) -> bool:
    apart = (held - other).float().norm(dim=-1)
    return bool((apart <= SAME * other.float().norm(dim=-1))[where].all())
