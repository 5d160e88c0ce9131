"""What every method keeps and merges in texts that repeat themselves, as JSON.

PyTorch chooses its sums by the processor (ATEN_CPU_CAPABILITY, read when it is imported), so each choice is a process.
"""

from __future__ import annotations

import hashlib
import json
import sys

import torch
from torch import Tensor

from kvlab.core.cache import make_cache
from kvlab.models.load import prepare
from tests.conformance.variants import every_variant
from tests.families import tiny_model

TOKENS, STEPS = 40, 4
PLAIN = torch.randint(3, 97, (TOKENS,), generator=torch.Generator().manual_seed(7))
TEXTS = {
    "one token": torch.full((TOKENS,), 11),
    "two tokens": torch.tensor([11, 12]).repeat(TOKENS // 2),
    "plain": PLAIN,
    "blanks and duplicates": torch.where(torch.arange(TOKENS) % 3 == 0, PLAIN, 5)[torch.arange(TOKENS) // 2],
}


def kept_in(text: Tensor, method: str, settings: dict) -> list[str]:
    """After each pass a digest of all layers: positions and votes of the slots of each head."""
    model = prepare(tiny_model("llama"))
    cache = make_cache(model, method, 0.4, **settings)
    found = []
    with torch.inference_mode():
        for ids in [text[None], *[text[None, :1]] * STEPS]:
            model(ids, past_key_values=cache)
            held = []
            for layer in cache.compressed_layers():
                slots = layer.slots
                assert slots is not None
                for head in range(slots.valid.shape[1]):
                    valid = slots.valid[0, head]
                    pairs = zip(
                        slots.position[0, head][valid].tolist(), slots.votes[0, head][valid].tolist(), strict=True
                    )
                    held.append(sorted(pairs))
            found.append(hashlib.sha256(json.dumps(held).encode()).hexdigest()[:12])
    return found


def survey() -> dict[str, list[str]]:
    """Digests by method and text; of the methods that arguments name, or of all."""
    variants = [variant for variant in every_variant() if not variant.changed]
    variants = [variant for variant in variants if variant.method in sys.argv[1:] or not sys.argv[1:]]
    return {
        f"{variant}, {name}": kept_in(text, variant.method, variant.settings)
        for variant in variants
        for name, text in TEXTS.items()
    }


if __name__ == "__main__":
    json.dump(survey(), sys.stdout)
