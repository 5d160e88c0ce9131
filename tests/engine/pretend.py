"""A pretend accelerator: tensors that compute on the CPU but say they lie on `cuda`, and refuse to meet others.

What runs under it runs with its real numbers, so the prompt, decisions that read on the host and whole comparisons can
be walked, which torch's FakeTensorMode cannot. It sees what Python calls, not what a CUDA kernel would do.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, nullcontext
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from kvlab.checking.properties import NoReading

CUDA, HOST = torch.device("cuda:0"), torch.device("cpu")
MOVES = {"to", "cuda", "cpu", "copy_"}
FLASH = "_scaled_dot_product_flash_attention"
MAKES = {"tensor", "as_tensor"}  # from numbers of the host


class OnPretendCuda(Tensor):
    """A tensor said to lie on the accelerator."""


class PretendCuda(TorchFunctionMode):
    """Gives device `cuda` to what is made there; raises AssertionError where host and device tensors meet.

    With `steady` also where numbers travel between the two, which a captured step must not do.
    """

    steady = False

    def __torch_function__(
        self, function: Callable, types: Any, given: tuple = (), named: dict[str, Any] | None = None
    ) -> Any:
        named, name = named or {}, getattr(function, "__name__", "")
        leaves = [*_leaves(given), *_leaves(named.values())]
        tensors = [leaf for leaf in leaves if isinstance(leaf, Tensor)]
        ours = [leaf for leaf in tensors if isinstance(leaf, OnPretendCuda)]
        if name == "__get__" and ours and function == Tensor.device.__get__:
            return CUDA
        if name == "__get__" and ours and function == Tensor.is_cuda.__get__:
            return True
        if name == "__get__":
            with torch._C.DisableTorchFunctionSubclass():
                found = function(*given)
            return _label(found) if ours else found
        if function is torch.device:  # a copied device is made anew from its words
            return function(*given, **named)
        if name == "__deepcopy__" and ours:  # torch's own makes an empty one first, and not of this class
            return given[1].setdefault(id(given[0]), _label(copy.deepcopy(given[0].as_subclass(Tensor))))
        place = _asked_device(name, leaves)
        on_device = bool(ours) if place is None else place == CUDA
        from_host = [leaf for leaf in tensors if not isinstance(leaf, OnPretendCuda) and leaf.dim() > 0]
        if self.steady:
            travels = (ours and place == HOST) or (on_device and (from_host or name in MAKES))
            assert not travels, f"{name} takes numbers from the host to the device or back"
            # Arithmetic takes a number of the host along with its launch; this one copies it to the device first.
            copies = name == "where" and ours and len(ours) < len(tensors)
            assert not copies, f"{name} copies a number of the host to the device"
        assert not (from_host and (ours or on_device)) or name in MOVES | MAKES, f"{name} mixes host and device"
        if place is not None:
            given, named = _each(_to_host, given), _each(_to_host, named)
        function, given, named = _as_the_host_has_it(name, function, given, named)
        with torch._C.DisableTorchFunctionSubclass():
            result = function(*given, **named)
        if name == "copy_" or not (ours or on_device):
            return result
        return _each(_label if on_device else _unlabel, result)


def _as_the_host_has_it(name: str, function: Callable, given: Any, named: Any) -> tuple[Callable, Any, Any]:
    """Kernels of half precision that only CUDA has, by what says the same on a CPU."""
    if name == FLASH:
        return torch.ops.aten._scaled_dot_product_flash_attention_for_cpu, given[:5], named
    if name == "bmm" and "out_dtype" in named:
        return function, tuple(factor.to(named["out_dtype"]) for factor in given), {}
    return function, given, named


def _leaves(parts: Iterable[Any]) -> list[Any]:
    found: list[Any] = []
    for part in parts:
        if isinstance(part, (tuple, list, dict)):
            found.extend(_leaves(part.values() if isinstance(part, dict) else part))
        else:
            found.append(part)
    return found


def _each(change: Callable[[Any], Any], tree: Any) -> Any:
    """torch's own trees take most of the time that such a run takes."""
    if isinstance(tree, Tensor):
        return change(tree)
    if isinstance(tree, dict):
        return {name: _each(change, part) for name, part in tree.items()}
    if isinstance(tree, torch.Size) or not isinstance(tree, (tuple, list)):
        return change(tree)
    parts = [_each(change, part) for part in tree]
    return type(tree)(parts)


def _asked_device(name: str, leaves: list[Any]) -> torch.device | None:
    asked = [leaf for leaf in leaves if isinstance(leaf, torch.device)]
    words = [leaf for leaf in leaves if isinstance(leaf, str)]
    asked += [torch.device(word) for word in words if word.split(":")[0] in ("cuda", "cpu")]
    if name in ("cuda", "cpu"):
        return torch.device(name)
    if name == "to" and len(leaves) > 1 and isinstance(leaves[1], Tensor):
        asked.append(CUDA if isinstance(leaves[1], OnPretendCuda) else HOST)
    return None if not asked else CUDA if asked[-1].type == "cuda" else HOST


def _to_host(leaf: Any) -> Any:
    if isinstance(leaf, torch.device) and leaf.type == "cuda":
        return HOST
    return "cpu" if isinstance(leaf, str) and leaf.split(":")[0] == "cuda" else leaf


def _label(leaf: Any) -> Any:
    return leaf.as_subclass(OnPretendCuda) if isinstance(leaf, Tensor) else leaf


def _unlabel(leaf: Any) -> Any:
    return leaf.as_subclass(Tensor) if isinstance(leaf, Tensor) else leaf


def put_there(model: nn.Module) -> nn.Module:
    """A copy of the model whose weights and buffers lie on the pretend accelerator."""
    moved = copy.deepcopy(model)
    for module in moved.modules():
        for name, weight in module._parameters.items():
            if weight is not None:
                module._parameters[name] = nn.Parameter(_label(weight.data), requires_grad=False)
        for name, buffer in module._buffers.items():
            if buffer is not None:
                module._buffers[name] = _label(buffer)
        for name, value in vars(module).items():
            if isinstance(value, Tensor):
                setattr(module, name, _label(value))
    return moved


@contextmanager
def pretend_cuda(patch: pytest.MonkeyPatch) -> Iterator[PretendCuda]:
    """Run what is inside as if there were a GPU; random numbers come from the CPU's generator."""
    generator = torch.Generator
    with patch.context() as only_here, PretendCuda() as pretence:

        def in_no_step(what: str, result: Callable[[], Any] = lambda: None) -> Callable[..., Any]:
            def called(device: Any = None) -> Any:
                assert not pretence.steady, f"a captured step cannot {what}"
                return result()

            return called

        only_here.setattr(torch, "Generator", in_no_step("begin new random numbers", generator))
        for module in (torch.cuda, torch.accelerator):
            only_here.setattr(module, "synchronize", in_no_step("wait for the device"))
        only_here.setattr(torch.cuda, "get_device_name", lambda device=None: "pretended")
        yield pretence


def decode_there(
    model: nn.Module,
    cache: Any,
    ids: Tensor,
    pretence: PretendCuda | None,
    steps: int,
    is_steady: Callable[[int], bool],
) -> Tensor:
    """Logits (steps + 1, rows, vocabulary) of the prompt's end and of decode steps; steady steps may read nothing."""
    tokens, kept = [torch.full((len(ids), 1), 3 + step, device=ids.device) for step in range(steps)], []
    with torch.inference_mode():
        kept.append(model(ids, past_key_values=cache).logits[:, -1])
        for step, token in enumerate(tokens):
            steady = pretence is not None and is_steady(step)
            if pretence is not None:
                pretence.steady = steady
            with NoReading() if steady else nullcontext():
                kept.append(model(token, past_key_values=cache).logits[:, -1])
    if pretence is not None:
        pretence.steady = False
    return torch.stack(kept)
