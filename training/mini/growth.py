"""Grow a trained model in depth and width without changing its function.

Width follows Net2Net (Chen, Goodfellow, Shlens 2016): every channel, head and feed-forward unit is doubled, and each
weight that reads a doubled channel is split unevenly between the two, so that their gradients differ from then on.
"""

from __future__ import annotations

import torch
from torch import Tensor
from transformers import LlamaForCausalLM

from training.mini.shape import HEAD_DIM, Shape, build_model

_SPLIT_SPREAD = 0.3  # the two halves carry 0.5 +- this of a weight


def _layer_name(layer: int, rest: str) -> str:
    return f"model.layers.{layer}.{rest}"


def grow_depth(model: LlamaForCausalLM, shape: Shape, places: tuple[int, ...], seed: int) -> LlamaForCausalLM:
    """A deeper model whose layer places[i] is the old layer i; all other layers add nothing yet.

    Their output projections are zero, so the function is unchanged; raises ValueError if widths differ.
    """
    old = model.state_dict()
    if len(places) != model.config.num_hidden_layers or model.config.hidden_size != shape.hidden_size:
        raise ValueError("grow_depth needs one place for each old layer and an equal width")
    grown = build_model(shape, seed)
    new = grown.state_dict()
    for name, tensor in new.items():
        if name.endswith(("o_proj.weight", "down_proj.weight")):
            tensor.zero_()
        if not name.startswith("model.layers."):
            tensor.copy_(old[name])
    for source, target in enumerate(places):
        prefix = _layer_name(source, "")
        for name in [name for name in old if name.startswith(prefix)]:
            new[_layer_name(target, name.removeprefix(prefix))].copy_(old[name])
    return grown


def _split_columns(weight: Tensor, generator: torch.Generator) -> Tensor:
    share = 0.5 + _SPLIT_SPREAD * (2 * torch.rand(weight.shape, generator=generator) - 1)
    return torch.cat([weight * share, weight * (1 - share)], dim=1)


def _split_heads(weight: Tensor, generator: torch.Generator) -> Tensor:
    """Split an output projection's input so that each head is followed by its copy."""
    rows, columns = weight.shape
    share = 0.5 + _SPLIT_SPREAD * (2 * torch.rand(weight.shape, generator=generator) - 1)
    heads = torch.stack([weight * share, weight * (1 - share)], dim=1).view(rows, 2, columns // HEAD_DIM, HEAD_DIM)
    return heads.transpose(1, 2).reshape(rows, 2 * columns)


def _repeat_heads(weight: Tensor) -> Tensor:
    return weight.view(-1, HEAD_DIM, weight.shape[1]).repeat_interleave(2, dim=0).reshape(-1, weight.shape[1])


def _widen(name: str, weight: Tensor, generator: torch.Generator) -> Tensor:
    if name.endswith(("embed_tokens.weight", "lm_head.weight")):
        return weight.repeat(1, 2)
    if name == "model.norm.weight":
        return weight.repeat(2) / 2  # each logit is now the sum over twice the channels
    if weight.ndim == 1:
        return weight.repeat(2)
    if name.endswith(("q_proj.weight", "k_proj.weight", "v_proj.weight")):
        return _split_columns(_repeat_heads(weight), generator)
    if name.endswith("o_proj.weight"):
        return _split_heads(weight, generator).repeat(2, 1)
    return _split_columns(weight, generator).repeat(2, 1)


def grow_width(model: LlamaForCausalLM, shape: Shape, seed: int, noise: float = 0.0) -> LlamaForCausalLM:
    """A model twice as wide with the same function, up to `noise` (relative) on the embeddings.

    Grouped queries keep their groups: heads are doubled next to themselves. Raises ValueError unless `shape` doubles
    hidden and feed-forward width at equal depth.
    """
    config = model.config
    doubled = (2 * config.hidden_size, 2 * config.intermediate_size, config.num_hidden_layers)
    if doubled != (shape.hidden_size, shape.intermediate_size, shape.num_hidden_layers):
        raise ValueError("grow_width doubles hidden and intermediate size and keeps the depth")
    generator = torch.Generator().manual_seed(seed)
    grown = build_model(shape, seed)
    state = {name: _widen(name, weight, generator) for name, weight in model.state_dict().items()}
    embedding = state["model.embed_tokens.weight"]
    embedding += noise * embedding.std() * torch.randn(embedding.shape, generator=generator)
    state["lm_head.weight"] = embedding
    grown.load_state_dict(state)
    return grown
