"""A prompt's pass that is held, so that another method can decide about the same prompt without the model's pass.

Layers of a compressed cache depend on a prompt only through keys, values and queries (and hidden states, for some
scorers). The full cache holds the keys and values; this holds the rest.
"""

from dataclasses import dataclass, field

import torch
from torch import Tensor
from transformers import PreTrainedModel

from kvlab.core.attention.layer_handoff import AttentionCall, take_offered_layer
from kvlab.core.attention.pass_view import PassView
from kvlab.core.cache.cache import CompressedCache
from kvlab.core.cache.fan_out_cache import shares_passes
from kvlab.core.cache.layers.compressed_layer import CompressedLayer
from kvlab.core.cache.second_pass import run_second_pass
from kvlab.core.contract import Plan, Slots, View


@dataclass
class PromptPass:
    """Observer (`kvlab.core.cache.settings.Observer`) of a full cache while it reads a prompt of one row in one pass.

    Holds queries (1, Hq, q, d), and hidden states where they are recorded, of every layer, at most `most_bytes`
    together; beyond that nothing is held.
    """

    most_bytes: int
    held_bytes: int = 0
    passes: dict[int, tuple[Tensor, AttentionCall]] = field(default_factory=dict)

    def attended(self, layer_idx: int, slots: Slots, layer_pass: PassView, output: Tensor) -> None:
        """Hold what the layer's attention was given."""
        self.held_bytes += sum(part.nbytes for part in (layer_pass.query, layer_pass.hidden_states) if part is not None)
        if self.held_bytes > self.most_bytes:
            self.passes.clear()
        elif layer_pass.alibi is None and layer_pass.sinks is None:
            call = AttentionCall(
                layer_pass.scaling, layer_pass.softcap, module=layer_pass.module, hidden_states=layer_pass.hidden_states
            )
            self.passes[layer_idx] = layer_pass.query, call

    def compressed(self, layer_idx: int, view: View, plan: Plan, before: Slots, after: Slots) -> None:
        """Nothing to do: a full cache drops nothing."""

    def serves(self, cache: CompressedCache) -> bool:
        """Whether an empty cache can take the prompt from here.

        Not if a layer has a state beside its slots, or turns keys by frequencies that depend on the text's length.
        """
        settings = cache.settings
        needs_hidden_states = settings.pipeline.score.needs_hidden_states
        return (
            shares_passes(cache)
            and settings.changing_rotary is None
            and all(type(layer) is CompressedLayer for layer in cache.layers)
            and len(self.passes) == len(cache.layers)
            and not (needs_hidden_states and any(call.hidden_states is None for _, call in self.passes.values()))
        )

    @torch.inference_mode()
    def fill(self, cache: CompressedCache, full: CompressedCache, ids: Tensor, model: PreTrainedModel) -> None:
        """Let an empty cache read and compress the prompt `ids` (1, q), whose keys and values `full` holds.

        Only a method that reads the prompt a second time runs the model.
        """
        tokens = ids.shape[1]
        settings = cache.settings
        cache.expect(tokens)
        if settings.pipeline.reads_text:
            settings.prompt_ids.append(ids)
        if settings.second_pass is not None:
            settings.second_pass.ids.append(ids)
        for index, layer in enumerate(full.compressed_layers()):
            query, call = self.passes[layer.layer_idx]
            (table,) = layer.tables
            keys, values = (part[:, :, :tokens] for part in (table.slots.keys, table.slots.values))
            keys, values = cache.update(keys, values, index)
            cache.compressed_layers()[index].buckets[0].table.shares_states = True  # the full cache's stay as they are
            attending = take_offered_layer(keys)
            assert attending is not None, "a compressed layer always attends by itself"
            attending.attend(query, keys, values, call)
        if settings.second_pass is not None and settings.pending:
            run_second_pass(model, [cache]).check()
