"""What a method makes of a text depends on the text alone: not on other rows, on passes, or on what the cache held."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from kvlab.cache import CompressedCache, make_cache
from kvlab.errors import UserError
from kvlab.models.load import LoadedModel, load_model
from tests.conformance.variants import Variant, every_variant

PROMPT, TURNS = 60, (1, 1, 3, 1)  # tokens of the prompt, and of the passes that follow
PADS = (0, 13, 37)  # padding in front of each row
EXACT = {"rtol": 0, "atol": 1e-4}
# A packed number may be rounded the other way where a sum is taken in another order.
VARIANTS = every_variant()


@pytest.fixture(scope="module")
def lab(tiny_model_folder: Path) -> LoadedModel:
    """With a tokenizer: some methods read requests of their own, or where sentences end."""
    return load_model(str(tiny_model_folder), device="cpu")


@cache
def text() -> tuple[Tensor, Tensor]:
    """(ids, mask), a row for each of `PADS`."""
    ids = torch.randint(5, 250, (len(PADS), PROMPT + sum(TURNS)), generator=torch.Generator().manual_seed(3))
    mask = torch.ones_like(ids)
    for row, pads in enumerate(PADS):
        mask[row, :pads] = 0
    return ids * mask, mask


# What makes short texts come in several pieces, and few of their queries be kept.
FEW: dict[str, dict[str, Any]] = {"attention-matching": {"queries": 5}, "exactmerge2": {"queries": 5}}


def fresh(lab: LoadedModel, variant: Variant, budget: float | int | str = 0.3) -> CompressedCache:
    return make_cache(lab, variant.method, budget, **FEW.get(variant.method, {}) | variant.settings)


def read(lab: LoadedModel, compressed: CompressedCache, ids: Tensor, mask: Tensor, *passes: int) -> Tensor:
    """(rows, passes, vocabulary) logits behind each pass; without sizes the prompt's pass and `TURNS`."""
    prompt, found, end = ids.shape[1] - sum(TURNS), [], 0
    with torch.inference_mode():
        for count in (*(passes or (prompt,)), *TURNS):
            begun, end = end, end + count
            position = (mask[:, :end].cumsum(-1) - 1)[:, begun:].clamp_min(0)
            given = {"attention_mask": mask[:, :end], "position_ids": position, "past_key_values": compressed}
            found.append(lab.model(ids[:, begun:end], **given).logits[:, -1])
    return torch.stack(found, 1)


@pytest.mark.parametrize("variant", VARIANTS, ids=str)
def test_a_row_alone_is_the_row_in_a_batch(lab: LoadedModel, variant: Variant) -> None:
    ids, mask = text()
    together = read(lab, fresh(lab, variant), ids, mask)
    for row, pads in enumerate(PADS):
        alone = read(lab, fresh(lab, variant), ids[row : row + 1, pads:], mask[row : row + 1, pads:])
        torch.testing.assert_close(together[row], alone[0], **EXACT, msg=lambda said, row=row: f"row {row}: {said}")
