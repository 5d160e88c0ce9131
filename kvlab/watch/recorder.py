"""Record what the KV cache of any transformers model really holds, whoever wrote it.

This file stands alone: Python 3.9, torch 2.1, transformers 4.38 or later; it imports nothing of kvlab. Copy it into the
project whose cache is looked at (`kvlab watch --write kvlab_watch.py`) and use it so:

    from kvlab_watch import watch
    with watch(model, title="my press") as recording:
        model.generate(...)
    recording.save("my_press.kvlab")

How it works. Every token's values are caught where the value projection makes them, and its keys where they are handed
to the cache. After each pass the slots of every layer are compared with them, bit by bit:

    kept       a slot whose key and value are those of one token
    moved      the value of a token with another key: the key was rotated to another place
    merged     a weighted sum of several tokens, found by least squares over keys and values together
    changed    the key of one token, and a value that was written to and is no sum of few
    quantised  nearest of all tokens to the one of its place, with the relative error
    unknown    nothing of that. It is counted, never guessed

Memory: keys and values of all tokens seen stay in the memory of the device until the recording ends, as much as an
uncompressed cache, and those of a pass twice more while it runs. Time: a few coordinates of each slot are read after
each pass; slots that are no token's cost more.
"""

from __future__ import annotations

import hashlib
import json
import os
import struct
import sys
import tempfile
import time
import zlib
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

MAGIC = b"kvlab recording\n"
FORMAT = 1
FLUSH_SECONDS = 1.0  # the longest that a pass waits in memory before it is on the disk
KINDS = ("kept", "moved", "merged", "changed", "quantised", "masked", "unknown", "absent")
UNKNOWN = -1
MERGED = -2
MASKED = -3  # the slot is there and a mask keeps it from being read: nothing was freed
ABSENT = -4  # heads of unlike length: this one has no such slot
TAKEN_APART = 16  # most parents of a merged slot
BEAM = 16  # first parents that are tried
NEAR = {torch.float32: 1e-4, torch.float64: 1e-7, torch.float16: 2e-3, torch.bfloat16: 1e-2}  # residual of a merge
QUANTISED = 0.35  # relative error below which a slot is taken for its place's token without a look at the others


def watch(
    model: nn.Module, title: str = "", cache: Any = None, path: str | None = None, logits: bool = True
) -> Recorder:
    """A context in which every pass of `model` is recorded.

    Args:
        model: any transformers model; its forward is hooked, nothing of it is changed.
        title: what stands on labels.
        cache: the cache, where the model does not get it by `past_key_values` or `cache`.
        path: file that is written while recording; default: one in the temporary folder.
        logits: whether the logits of each pass's last token are kept, in half precision.
    """
    return Recorder(model, title, cache, path, logits)


class Recorder:
    """What `watch` returns. `save` writes the file; `summary` says what was recognised."""

    def __init__(self, model: nn.Module, title: str, cache: Any, path: str | None, logits: bool) -> None:
        self.model = model
        self.title = title
        self.cache = cache
        self.logits = logits
        self.path = path or tempfile.mkstemp(prefix="kvlab-watch-", suffix=".kvlab")[1]
        self.config = getattr(model.config, "text_config", None) or model.config
        # Attention modules in the order of layers, each with the name of its value (or fused) projection.
        names = ("v_proj", "value", "qkv_proj", "query_key_value", "c_attn", "Wqkv", "W_pack", "att_proj")
        self.attentions: list[tuple[nn.Module, str]] = []
        for module in model.modules():
            for name in names:
                part = getattr(module, name, None)
                weight = getattr(part, "weight", None)
                size = getattr(part, "out_features", 0) if weight is None else weight.numel()
                if isinstance(part, nn.Module) and not isinstance(part, nn.ModuleList) and size:
                    self.attentions.append((module, name))
                    break
        if not self.attentions:
            raise ValueError(
                "watch() finds no attention layer in this model: no module has a value projection (v_proj, c_attn, "
                "qkv_proj, query_key_value, Wqkv or W_pack)."
            )
        self.layers: dict[int, LayerHistory] = {}
        self.passes = 0
        self.tokens = 0
        self.sequence = 0  # a new one begins with a pass over an empty cache
        self.counts: dict[str, int] = {}
        self.notes: list[str] = []
        self._undo: list[Any] = []
        self._depth = 0
        self._frames: list[bytes] = []
        self._written = time.monotonic()
        self._pending: dict[str, Any] | None = None
        self._updated: Any = None  # the cache whose `update` was called last
        self._logits: Tensor | None = None

    # ---- context

    def __enter__(self) -> Recorder:
        with open(self.path, "wb") as file:
            file.write(MAGIC)
        self._write("header", header(self.model, self.config, self.title, len(self.attentions)), {})
        # The module that reads tokens and holds all layers: what a pipeline calls that wants no logits.
        decoder = self.model
        base = getattr(self.model, "base_model", self.model)
        for candidate in (getattr(base, "decoder", None), base):
            if isinstance(candidate, nn.Module):
                inside = set(candidate.modules())
                if all(attention in inside for attention, _ in self.attentions):
                    decoder = candidate
                    break
        self._undo = [
            decoder.register_forward_pre_hook(self._before_pass, with_kwargs=True).remove,
            decoder.register_forward_hook(self._after_pass, with_kwargs=True).remove,
        ]
        if decoder is not self.model:
            self._undo.append(self.model.register_forward_pre_hook(lambda *_: self._finish_pass()).remove)
            self._undo.append(self.model.register_forward_hook(self._after_model).remove)
        for layer, (attention, projection) in enumerate(self.attentions):
            index = getattr(attention, "layer_idx", None)
            layer = layer if index is None else int(index)
            history = self.layers.setdefault(layer, LayerHistory(self.config, attention, projection))
            self._undo.append(
                getattr(attention, projection).register_forward_hook(partial(_catch, history.caught)).remove
            )
            keys = getattr(attention, "k_norm", None) or getattr(attention, "k_proj", None)
            if isinstance(keys, nn.Module):
                self._undo.append(keys.register_forward_hook(partial(_catch, history.caught_keys)).remove)
        for module in self.model.modules():
            if type(module).__name__.endswith("RotaryEmbedding"):
                self._undo.append(module.register_forward_hook(self._after_rotary, with_kwargs=True).remove)
        from transformers import cache_utils

        undo: list[Any] = []
        classes: list[Any] = [cache_utils.Cache]
        for kind in classes:
            classes.extend(other for other in kind.__subclasses__() if other not in classes)
        for kind in classes:
            original = kind.__dict__.get("update")
            if original is None or not callable(original):
                continue
            kind.update = _wrapped(self, original)
            undo.append(lambda kind=kind, original=original: setattr(kind, "update", original))
        self._undo.extend(undo)
        return self

    def __exit__(self, kind: Any, error: Any, trace: Any) -> None:
        self._finish_pass()
        for undo in reversed(self._undo):
            undo()
        self._undo = []
        self._write(
            "end", {"notes": self.notes, "counts": self.counts, "error": "" if kind is None else kind.__name__}, {}
        )
        self._flush()

    def save(self, path: str) -> str:
        """Write the recording to `path`; returns it. Can be called while recording: what was seen so far is in it."""
        self._flush()
        if os.path.abspath(path) != os.path.abspath(self.path):
            partial = path + ".partial"
            with open(self.path, "rb") as source, open(partial, "wb") as target:
                while True:
                    block = source.read(1 << 20)
                    if not block:
                        break
                    target.write(block)
            os.replace(partial, path)
        return path

    @property
    def summary(self) -> str:
        """One sentence on what was recorded and recognised."""
        total = sum(self.counts.values())
        shares = [f"{100 * count / total:.3g} % {kind}" for kind, count in sorted(self.counts.items()) if count]
        slots = f"of {total:,} slots after {self.passes} passes: {', '.join(shares)}" if total else "no slot was seen"
        return f"{self.title or 'recording'}: {self.tokens:,} tokens; {slots}."

    def __repr__(self) -> str:
        return f"<{self.summary}>"

    # ---- hooks

    def _after_model(self, module: nn.Module, args: Any, output: Any) -> None:
        logits = getattr(output, "logits", None)
        if self.logits and torch.is_tensor(logits) and logits.dim() == 3 and self._pending is not None:
            self._pending["logits"] = logits[:, -1].detach().float().cpu()

    def _before_pass(self, module: nn.Module, args: Any, kwargs: Any) -> None:
        if self._pending is not None and not self._pending["done"]:
            return  # a decoder inside a decoder
        self._finish_pass()
        ids = kwargs.get("input_ids")
        if ids is None and args and torch.is_tensor(args[0]) and not args[0].is_floating_point():
            ids = args[0]
        if ids is None:
            _once(self.notes, "Passes got embeddings instead of token ids, so their tokens have no id.")
        embeds = kwargs.get("inputs_embeds")
        shape = ids.shape if ids is not None else embeds.shape[:2] if embeds is not None else None
        mask = kwargs.get("attention_mask")
        padded = None
        if torch.is_tensor(mask) and mask.dim() == 2 and shape is not None and mask.shape[1] >= shape[1]:
            padded = (mask[:, -shape[1] :] == 0).cpu() if bool((mask == 0).any()) else None
        self._pending = {
            "ids": None if ids is None else ids.detach().cpu(),
            "shape": shape,
            "padded": padded,
            "cache": _cache_argument(kwargs),
            "rotations": [],
            "done": False,
        }
        cache = self.cache if self.cache is not None else self._pending["cache"]
        held = held_slots(cache, 0)
        values = [] if held is None else held[1]
        parts = values if isinstance(values, list) else [values]
        if not any(part.shape[-2] for part in parts) and self.passes:
            self.sequence += 1
            for history in self.layers.values():
                history.forget()
        for history in self.layers.values():
            history.caught.clear()
            history.caught_keys.clear()
            history.handed = []

    def _after_rotary(self, module: nn.Module, args: Any, kwargs: Any, output: Any) -> None:
        """Keep the positions at which this pass's tokens are rotated, and the cosines and sines, (rows, tokens, rotated
        coordinates), with which keys are."""
        if self._pending is None:
            return
        places = kwargs.get("position_ids", args[1] if len(args) > 1 else None)
        if torch.is_tensor(places) and places.dim() == 2:
            self._pending["places"] = places.detach().cpu()
        if isinstance(output, tuple) and len(output) == 2 and output[0].dim() == 3:
            known = self._pending["rotations"]
            if not any(one[0].shape == output[0].shape and torch.equal(one[0], output[0]) for one in known):
                known.append(output)

    def _after_pass(self, module: nn.Module, args: Any, kwargs: Any, output: Any) -> None:
        if self._pending is None:
            return
        returned = _cache_argument(vars(output) if hasattr(output, "__dict__") else {}) or _cache_argument(
            dict(output) if isinstance(output, dict) else {}
        )
        for candidate in (self.cache, self._pending["cache"], returned, self._updated):
            if candidate is not None and (hasattr(candidate, "update") or isinstance(candidate, (tuple, list))):
                self._pending["cache"] = candidate
                break
        self._pending["done"] = True

    # ---- what a pass left

    @torch.inference_mode()  # the caller's mode may differ from pass to pass, and what is kept is written to in all
    def _finish_pass(self) -> None:
        """Compare what the cache holds now with all that was seen, and write it. Called before the next pass, so that
        slots that a caller drops between passes belong to the pass before."""
        state, self._pending = self._pending, None
        if state is None or not state["done"]:
            return
        tensors: dict[str, Tensor] = {}
        layers = []
        allocated = 0
        for layer, history in sorted(self.layers.items()):
            history.end(self.notes, state["rotations"])
            held = held_slots(state["cache"], layer)
            if held is None or not history.count:
                continue
            keys, values, quantised = held
            # (rows, heads, slots) that a head-wise mask leaves out without freeing them, as kvpress keeps it
            masked = getattr(history.attention, "masked_key_indices", None)
            result = history.recognise(keys, values, quantised, masked)
            size = allocated_bytes(state["cache"], layer)
            allocated += size
            for kind, count in result["counts"].items():
                self.counts[kind] = self.counts.get(kind, 0) + count
            tensors[f"positions.{layer}"] = result["positions"]
            if result["merges"] is not None:
                tensors[f"merges.{layer}"] = result["merges"]
            layers.append({"layer": layer, "bytes": size, "counts": result["counts"], "error": history.error})
        if state["ids"] is not None:
            tensors["ids"] = state["ids"].to(torch.int32)
        if state.get("places") is not None:
            tensors["places"] = state["places"].to(torch.int32)
        if state["padded"] is not None:
            tensors["padded"] = state["padded"].to(torch.uint8)
        if state.get("logits") is not None:
            logits = state["logits"]
            tensors["logits"] = (logits - logits.logsumexp(-1, keepdim=True)).half()
        new = 0 if state["shape"] is None else int(state["shape"][1])
        self._write(
            "pass",
            {"pass": self.passes, "sequence": self.sequence, "tokens": new, "layers": layers, "bytes": allocated},
            tensors,
        )
        self.passes += 1
        self.tokens += new
        for history in self.layers.values():
            if history.unknown_share > 0.02:
                _once(self.notes, "Some slots are of unknown origin; the counts of each pass say how many.")
                break

    def _write(self, kind: str, fields: dict[str, Any], tensors: dict[str, Tensor]) -> None:
        head = dict(fields, kind=kind, tensors={})
        body = b""
        for name, tensor in tensors.items():
            data = tensor.contiguous().cpu().numpy()
            head["tensors"][name] = [str(data.dtype), list(data.shape), len(body)]
            body += data.tobytes()
        text = json.dumps(head).encode()
        packed = zlib.compress(struct.pack("<I", len(text)) + text + body, 1)
        self._frames.append(struct.pack("<QI", len(packed), zlib.crc32(packed)) + packed)
        if kind != "pass" or time.monotonic() - self._written > FLUSH_SECONDS:
            self._flush()

    def _flush(self) -> None:
        if self._frames:
            with open(self.path, "ab") as file:
                file.write(b"".join(self._frames))
                file.flush()
                os.fsync(file.fileno())
            self._frames = []
        self._written = time.monotonic()


class LayerHistory:
    """Keys and values of every token that a layer has seen, and what its slots are made of.

    Tensors are (rows, heads, tokens, head_dim); a token's index is its place among all that were read.
    """

    def __init__(self, config: Any, attention: nn.Module, projection: str) -> None:
        self.attention = attention
        self.projection = projection
        self.query_heads = int(
            getattr(config, "num_attention_heads", 0) or getattr(config, "n_head", 0) or config.n_heads
        )
        self.heads = int(getattr(config, "num_key_value_heads", None) or self.query_heads)
        self.head_dim = getattr(attention, "head_dim", None) or getattr(config, "head_dim", None)
        # Filled by hooks, which hold these lists: they are cleared, never replaced.
        self.caught: list[Tensor] = []  # outputs of the value (or fused) projection in this pass
        self.caught_keys: list[Tensor] = []  # keys before they are rotated
        self.forget()

    def forget(self) -> None:
        """Begin a new sequence."""
        self.count = 0  # tokens
        self.keys_known = True
        self.unknown_share = 0.0
        self.error: float | None = None
        self.buffers: dict[str, Tensor] = {}
        self.last: tuple[Tensor, Tensor, Tensor] | None = None  # of the slots: fingerprints, positions, kinds
        self.handed: list[tuple[Tensor, Tensor]] = []
        self._merged: dict[tuple[int, int], dict[int, dict[str, Any]]] = {}

    def end(self, notes: list[str], rotations: list[tuple[Tensor, Tensor]]) -> None:
        """Add the tokens of a pass to the history."""
        values = self._new_values()
        if values is None:
            if not self.handed:
                return
            values = torch.cat([value for _, value in self.handed], dim=2)
            _once(notes, "Values were seen only as they were handed to the cache, not where they are made.")
        keys = torch.cat([keys for keys, _ in self.handed], dim=2) if self.handed else None
        if keys is not None and keys.shape[2] == values.shape[2]:
            if keys.shape[1] != values.shape[1]:  # repeated for the query heads before it was handed over
                keys = keys[:, :: keys.shape[1] // values.shape[1]]
        else:
            rotated = None if keys is None else self._rotated_keys(keys, values, rotations)
            if rotated is None:
                self.keys_known = False
                _once(
                    notes,
                    "The cache was handed only part of the tokens, so slots are recognised by values alone; where "
                    "several tokens have one value, as in a first layer, a slot with it is of unknown origin.",
                )
            keys = torch.zeros_like(values) if rotated is None else rotated
        prints = fingerprints(values)
        both = prints * 1_000_003 + fingerprints(keys)
        verified = torch.zeros_like(prints, dtype=torch.bool)
        new = {"keys": keys, "values": values, "prints": prints, "both": both, "verified": verified}
        needed = self.count + values.shape[2]
        for name, part in new.items():
            buffer = self.buffers.get(name)
            if buffer is None or buffer.shape[2] < needed:
                grown = part.new_zeros((*part.shape[:2], needed + max(64, needed // 4), *part.shape[3:]))
                if buffer is not None:
                    grown[:, :, : self.count] = buffer[:, :, : self.count]
                self.buffers[name] = buffer = grown
            buffer[:, :, self.count : needed] = part
        self.count = needed

    def _rotated_keys(self, handed: Tensor, values: Tensor, rotations: list[tuple[Tensor, Tensor]]) -> Tensor | None:
        """Keys of the pass's tokens, made of the projection's output and the model's rotation; None where those that
        were handed to the cache are not among them, bit for bit."""
        if not self.caught_keys:
            return None
        rows, heads, tokens, size = values.shape
        output = torch.cat(self.caught_keys, dim=1)
        if output.numel() != values.numel():
            return None
        keys = output.reshape(rows, tokens, heads, size).transpose(1, 2)
        given = fingerprints(handed[:, :: max(1, handed.shape[1] // heads)])
        for cosine, sine in rotations:
            width = cosine.shape[-1]
            if width > size or cosine.shape[1] != tokens:
                continue
            turned = keys[..., :width]
            first, second = turned.chunk(2, dim=-1)
            turned = turned * cosine[:, None] + torch.cat([-second, first], dim=-1) * sine[:, None]
            turned = torch.cat([turned, keys[..., width:]], dim=-1)
            if float((lookup(given, fingerprints(turned)) >= 0).float().mean()) > 0.1:  # others may be merged
                return turned
        return None

    def _new_values(self) -> Tensor | None:
        """Values of the pass's tokens from the projection, where its parts can be told apart."""
        if not self.caught:
            return None
        output = torch.cat(self.caught, dim=1)
        if output.dim() != 3:
            return None
        rows, tokens, width = output.shape
        handed = self.handed[-1][1] if self.handed else None
        size = int(handed.shape[-1]) if handed is not None else int(self.head_dim or 0)
        if not size:
            return None
        if self.projection == "v_proj":
            if width % size:
                return None
            values = output.view(rows, tokens, width // size, size).transpose(1, 2)
            if handed is not None and handed.shape[2] == tokens and handed.shape[1] == values.shape[1]:
                return handed  # a norm or another step may stand between the projection and the cache
            return values
        # What may be the values in a fused projection's output, (rows, heads, tokens, size) each.
        heads = self.heads
        parts = []
        if width >= heads * size:  # queries, keys, values, one after the other
            parts.append(output[..., width - heads * size :].reshape(rows, tokens, heads, size).transpose(1, 2))
        if width == 3 * heads * size:  # the three of a head beside each other
            parts.append(output.reshape(rows, tokens, heads, 3 * size)[..., 2 * size :].transpose(1, 2))
            parts.append(output.reshape(rows, tokens, heads, 3, size)[..., 2, :].transpose(1, 2))
        group = self.query_heads // max(heads, 1)
        if width == heads * (group + 2) * size:  # the queries of a group, then its key and value (Falcon)
            parts.append(output.reshape(rows, tokens, heads, group + 2, size)[..., -1, :].transpose(1, 2))
        for part in parts:
            # The right part of a fused projection is the one whose last token is the last that was handed over.
            if handed is None or handed.shape[1] != part.shape[1]:
                continue
            if torch.equal(part[:, :, -1], handed[:, :, -1]):
                return part
        return None

    def recognise(
        self, keys: Any, values: Any, quantised: bool, masked: tuple[Tensor, Tensor, Tensor] | None
    ) -> dict[str, Any]:
        """What each slot is: positions (rows, heads, slots) int32 with `UNKNOWN`, `MERGED`, `MASKED` or `ABSENT` in it,
        and the merged ones as rows of (row, head, slot, parent, key weight, value weight, residual), float32."""
        merges: list[list[float]] = []
        if isinstance(values, list):  # heads of unlike length
            width = max(part.shape[-2] for part in values)
            positions = torch.full((values[0].shape[0], len(values), width), ABSENT, dtype=torch.int32)
            kinds = torch.full(positions.shape, KINDS.index("absent"), dtype=torch.uint8)
            for head, (key, value) in enumerate(zip(keys, values)):
                found, kind = self._recognise(key[:, None], value[:, None], head, merges)
                positions[:, head, : value.shape[-2]] = found[:, 0]
                kinds[:, head, : value.shape[-2]] = kind[:, 0]
        elif quantised:
            positions, kinds = self._recognise_quantised(keys, values)
        else:
            positions, kinds = self._recognise(keys, values, None, merges)
        if masked is not None:
            rows, heads, slots = (index.to("cpu", torch.long) for index in masked)
            inside = (heads < positions.shape[1]) & (slots < positions.shape[2])
            positions = positions.clone()
            positions[rows[inside], heads[inside], slots[inside]] = MASKED
            kinds = kinds.clone()
            kinds[rows[inside], heads[inside], slots[inside]] = KINDS.index("masked")
        counted = kinds.flatten().long().bincount(minlength=len(KINDS)).tolist()
        counts = {name: count for name, count in zip(KINDS, counted) if name != "absent"}
        self.unknown_share = counts["unknown"] / max(sum(counts.values()), 1)
        table = torch.tensor(merges, dtype=torch.float32) if merges else None
        return {"positions": positions, "merges": table, "counts": counts}

    def _heads_of(self, name: str, head: int | None, heads: int) -> Tensor:
        """All tokens of a buffer (keys, values, `prints` of values, `both` prints, `verified`) in the heads of the
        cache: one of them, or repeated where the cache holds every query head's."""
        rows = self.buffers[name][:, :, : self.count]
        if head is not None:
            return rows[:, head : head + 1]
        return rows if heads == rows.shape[1] else rows.repeat_interleave(heads // rows.shape[1], dim=1)

    def _recognise(
        self, keys: Tensor, values: Tensor, head: int | None, merges: list[list[float]]
    ) -> tuple[Tensor, Tensor]:
        """Positions and kinds of the slots of all heads, or of one."""
        heads = values.shape[1]
        seen_prints = self._heads_of("prints", head, heads)
        prints = fingerprints(values)
        name = "both" if self.keys_known else "prints"
        slots_now = prints * 1_000_003 + fingerprints(keys) if self.keys_known else prints
        known = 0
        if head is None and self.last is not None and self.last[0].shape[:2] == slots_now.shape[:2]:
            shared = min(self.last[0].shape[2], slots_now.shape[2])
            if torch.equal(self.last[0][:, :, :shared], slots_now[:, :, :shared]):
                known = shared  # the usual decode step: all slots stand where they stood, and one is new
        places = lookup(slots_now[:, :, known:], self._heads_of(name, head, heads))
        places = self._verified(places, keys[:, :, known:], values[:, :, known:], head, heads)
        kinds = torch.where(places >= 0, KINDS.index("kept"), KINDS.index("unknown"))
        loose = places == UNKNOWN
        if bool(loose.any()) and self.keys_known:
            # The value of a token with another key: its key was rotated to another place. Where several tokens have
            # this value, as in a first layer, the order of slots decides.
            by_value = torch.where(loose, lookup(prints[:, :, known:], seen_prints), torch.full_like(places, UNKNOWN))
            by_value = in_order(by_value, prints[:, :, known:], seen_prints, places)
            same = loose & _equal_rows(values[:, :, known:], self._heads_of("values", head, heads), by_value)
            places = torch.where(same, by_value, places)
            kinds = torch.where(same, KINDS.index("moved"), kinds)
        doubtful = torch.zeros_like(prints, dtype=torch.bool)
        if not self.keys_known:
            doubtful = of_several(prints, seen_prints)  # which of them it is cannot be said
            places = places.masked_fill(doubtful[:, :, known:], UNKNOWN)
            kinds = kinds.masked_fill(doubtful[:, :, known:], KINDS.index("unknown"))
        result = places.to("cpu", torch.int32)
        kinds = kinds.to("cpu", torch.uint8)
        if known and self.last is not None:
            result = torch.cat([self.last[1][:, :, :known], result], dim=2)
            kinds = torch.cat([self.last[2][:, :, :known], kinds], dim=2)
        open_ = (result < 0) & ~doubtful.cpu()
        if bool(open_.any()):
            self._take_apart(keys, values, result, open_, head, merges)
            kinds[result == MERGED] = KINDS.index("merged")
            left = open_ & (result == UNKNOWN)
            if self.keys_known and bool(left.any()):
                seen_keys = self._heads_of("keys", head, heads)
                by_key, seen_by_key = fingerprints(keys), fingerprints(seen_keys)
                places = lookup(by_key, seen_by_key).masked_fill(of_several(by_key, seen_by_key), UNKNOWN)
                same = left & _equal_rows(keys, seen_keys, places).cpu()
                result[same] = places.to("cpu", torch.int32)[same]
                kinds[same] = KINDS.index("changed")
        if head is None:
            self.last = (slots_now, result, kinds)
        return result, kinds

    def _verified(self, places: Tensor, keys: Tensor, values: Tensor, head: int | None, heads: int) -> Tensor:
        """The places at which whole rows are equal; each token is compared once, later its fingerprint suffices."""
        if not self.keys_known:
            equal = _equal_rows(values, self._heads_of("values", head, heads), places)
            return torch.where(equal, places, torch.full_like(places, UNKNOWN))
        verified = self._heads_of("verified", head, heads)
        doubtful = (places >= 0) & ~verified.gather(2, places.clamp_min(0))
        if bool(doubtful.any()):
            row, part, slot = doubtful.nonzero(as_tuple=True)
            place = places[row, part, slot]
            equal = (self._heads_of("values", head, heads)[row, part, place] == values[row, part, slot]).all(-1)
            equal &= (self._heads_of("keys", head, heads)[row, part, place] == keys[row, part, slot]).all(-1)
            places = places.clone()
            places[row[~equal], part[~equal], slot[~equal]] = UNKNOWN
            true_head = (
                torch.full_like(part, head) if head is not None else part // (heads // self.buffers["keys"].shape[1])
            )
            self.buffers["verified"][row[equal], true_head[equal], place[equal]] = True
        return places

    def _recognise_quantised(self, keys: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
        """Slots of a quantised cache stand in the order of the tokens; each is held against the token of its place, and
        where the error is large against all of them: with 2 bits it may be half of the value."""
        token_values = self._heads_of("values", None, values.shape[1])
        slots = min(values.shape[2], token_values.shape[2])
        true = token_values[:, :, :slots].float()
        error = ((values[:, :, :slots].float() - true).norm(dim=-1) / true.norm(dim=-1).clamp_min(1e-12)).cpu()
        near = error < QUANTISED
        for row, head in (~near & (error < 1)).any(-1).nonzero().tolist():
            far = (~near & (error < 1))[row, head].nonzero()[:, 0].to(values.device)
            width = values.shape[-1]
            tokens = [self._heads_of(name, None, values.shape[1])[row, head] for name in ("keys", "values")]
            goals = unit_halves(_atoms(keys[row, head, far], values[row, head, far], self.keys_known), width)
            units = unit_halves(_atoms(tokens[0], tokens[1], self.keys_known), width)
            alike = torch.stack([goal @ unit.T for goal, unit in zip(goals, units)]).sum(0)
            near[row, head, far[alike.argmax(-1) == far].cpu()] = True
        positions = torch.full(values.shape[:3], UNKNOWN, dtype=torch.int32)
        place = torch.arange(slots, dtype=torch.int32).expand(near.shape)
        positions[:, :, :slots] = torch.where(near, place, torch.full_like(place, UNKNOWN))
        kinds = torch.full(positions.shape, KINDS.index("unknown"), dtype=torch.uint8)
        kinds[:, :, :slots][near] = KINDS.index("quantised")
        kinds[:, :, :slots][error == 0] = KINDS.index("kept")
        self.error = float(error[near].max()) if bool(near.any()) else None
        return positions, kinds

    def _take_apart(
        self,
        keys: Tensor,
        values: Tensor,
        result: Tensor,
        open_: Tensor,
        only_head: int | None,
        merges: list[list[float]],
    ) -> None:
        """Mark in `result` those of the `open_` slots that are weighted sums of tokens, and add rows to `merges`."""
        limit = NEAR.get(values.dtype, 1e-3)
        heads = values.shape[1]
        seen_keys = self._heads_of("keys", only_head, heads)
        seen_values = self._heads_of("values", only_head, heads)
        for row in range(values.shape[0]):
            for head in range(heads):
                slots = open_[row, head].nonzero()[:, 0].to(values.device)
                if not len(slots):
                    continue
                kept = result[row, head][result[row, head] >= 0].long()
                free = torch.ones(self.count, dtype=torch.bool)
                free[kept] = False
                tokens = free.nonzero()[:, 0].to(values.device)
                names = tokens.tolist()
                true_head = head if only_head is None else only_head
                before = self._merged.get((row, true_head), {})
                targets = _atoms(keys[row, head, slots], values[row, head, slots], self.keys_known)
                found: dict[int, dict[str, Any]] = {}
                left = []
                same = {item["print"]: item for item in before.values()}
                for slot, print_, target in zip(slots.tolist(), fingerprints(targets).tolist(), targets):
                    item = same.get(print_)
                    if item is not None and torch.equal(item["atom"], target):
                        found[slot] = item
                    else:
                        left.append((slot, print_, target))
                if left:
                    # Atoms: tokens without a slot of their own, and the merged slots of the pass before.
                    old = [item for item in before.values() if item["parents"]]
                    atoms = _atoms(seen_keys[row, head, tokens], seen_values[row, head, tokens], self.keys_known)
                    if old:
                        atoms = torch.cat([atoms, torch.stack([item["atom"] for item in old])])
                    goals = torch.stack([target for _, _, target in left])
                    chosen, residuals = sums_of_atoms(goals, atoms, limit, values.shape[-1])
                    weights = weights_of(chosen, goals, atoms, values.shape[-1])
                    for (slot, print_, target), places, parts, residual in zip(
                        left, chosen, weights, residuals.tolist()
                    ):
                        found[slot] = {
                            "atom": target.clone(),
                            "print": print_,
                            "parents": _parents(places, parts, names, old),
                            "residual": residual,
                        }
                for slot, item in found.items():
                    result[row, head, slot] = MERGED if item["parents"] else UNKNOWN
                    for parent, (key_weight, value_weight) in item["parents"].items():
                        merges.append([row, true_head, slot, parent, key_weight, value_weight, item["residual"]])
                self._merged[(row, true_head)] = found


# ---- finding things


def _cache_argument(fields: dict[str, Any]) -> Any:
    """The cache among arguments or outputs: `past_key_values`, and `cache` since transformers 5.24."""
    for name in ("past_key_values", "cache", "past_key_value", "layer_past"):
        found = fields.get(name)
        if found is not None:
            return found
    return None


def held_slots(cache: Any, layer: int) -> tuple[Any, Any, bool] | None:
    """Keys and values that a cache holds in a layer (rows, heads, slots, head_dim), and whether they were quantised.

    A list of tensors (rows, slots, head_dim) where heads have unlike numbers of slots.
    """
    if cache is None:
        return None
    if isinstance(cache, (tuple, list)):
        if layer >= len(cache) or cache[layer] is None:
            return None
        return cache[layer][0], cache[layer][1], False
    layers = getattr(cache, "layers", None)
    part = layers[layer] if layers is not None and len(layers) > layer else cache
    if part is cache:  # transformers before 4.54: one list a kind
        lists = ("key_cache", "value_cache", "_quantized_key_cache", "_quantized_value_cache")
        found = [getattr(cache, name, None) for name in lists]
        tensors = [one[layer] if one is not None and len(one) > layer else None for one in found]
    else:
        names = ("keys", "values", "_quantized_keys", "_quantized_values")
        tensors = [getattr(part, name, None) for name in names]
    keys: Any = tensors[0]
    values: Any = tensors[1]
    packed_keys, packed_values = tensors[2:]
    if packed_keys is not None and hasattr(part, "_dequantize"):
        whole_keys = part._dequantize(packed_keys)
        whole_values = part._dequantize(packed_values)
        if torch.is_tensor(keys) and keys.dim() == 4:  # the newest tokens are not quantised yet
            whole_keys = torch.cat([whole_keys, keys], dim=2)
            whole_values = torch.cat([whole_values, values], dim=2)
        return whole_keys, whole_values, True
    if isinstance(values, list):
        return keys, values, False
    if not torch.is_tensor(values) or values.numel() == 0:
        return None
    length = int(values.shape[-2])
    if "Static" in type(part).__name__:  # longer than what was written
        written = (values.abs().sum(dim=(0, 1, 3)) > 0).nonzero()
        length = int(written[-1]) + 1 if len(written) else 0
    return keys[..., :length, :], values[..., :length, :], False


def allocated_bytes(cache: Any, layer: int) -> int:
    """Bytes of the storages that hold a layer's slots."""
    if isinstance(cache, (tuple, list)):
        tensors = list(cache[layer])
    elif getattr(cache, "layers", None):
        tensors = list(vars(cache.layers[layer]).values())
    else:
        tensors = []
        for name in ("key_cache", "value_cache", "_quantized_key_cache", "_quantized_value_cache"):
            part = getattr(cache, name, None)
            if part is not None and len(part) > layer:
                tensors.append(part[layer])
    storages = {}
    waiting = list(tensors)
    while waiting:
        tensor = waiting.pop()
        if isinstance(tensor, (tuple, list)):
            waiting.extend(tensor)
        elif torch.is_tensor(tensor):
            try:
                storage = tensor.untyped_storage()
                storages[storage.data_ptr()] = storage.nbytes()
            except (RuntimeError, NotImplementedError):  # a quantised subclass has its tensors inside
                waiting.extend(value for value in vars(tensor).values() if torch.is_tensor(value))
    return sum(storages.values())


# ---- comparing


def fingerprints(rows: Tensor) -> Tensor:
    """64 bits of each row (..., width): the exact bits of a few of its coordinates, (...) int64."""
    kind = {2: torch.int16, 4: torch.int32, 8: torch.int64, 1: torch.int8}[rows.element_size()]
    # The first and the last among them: where only a part of a key is rotated, it is at an end.
    places = torch.linspace(0, rows.shape[-1] - 1, min(4, rows.shape[-1]), device=rows.device).round().long()
    bits = (rows[..., places] + 0.0).contiguous().view(kind).to(torch.int64)  # + 0.0: there are two zeros
    result = torch.zeros(bits.shape[:-1], dtype=torch.int64, device=rows.device)
    for place in range(bits.shape[-1]):
        result = result * 6364136223846793005 + bits[..., place] * 1442695040888963407 + place
    return result


def lookup(prints: Tensor, token_prints: Tensor) -> Tensor:
    """Place of each of `prints` (rows, heads, slots) in `token_prints` (rows, heads, tokens), -1 where it is none's."""
    order = token_prints.sort(dim=-1, stable=True)
    at = torch.searchsorted(order.values.contiguous(), prints.contiguous()).clamp_max(token_prints.shape[-1] - 1)
    equal = order.values.gather(-1, at) == prints
    return torch.where(equal, order.indices.gather(-1, at), torch.full_like(at, UNKNOWN))


def of_several(prints: Tensor, token_prints: Tensor) -> Tensor:
    """Whether each of `prints` (rows, heads, slots) is that of several of `token_prints` (rows, heads, tokens)."""
    last = token_prints.shape[2] - 1 - lookup(prints, token_prints.flip(2))
    return (last != lookup(prints, token_prints)) & (last < token_prints.shape[2])


def in_order(places: Tensor, prints: Tensor, token_prints: Tensor, exact: Tensor) -> Tensor:
    """Where several tokens have the same value, slots with it take them in the order of the tokens."""
    result = places.clone()
    for row in range(places.shape[0]):
        for head in range(places.shape[1]):
            slots = (places[row, head] >= 0).nonzero()[:, 0].tolist()
            values, number = token_prints[row, head].unique(return_counts=True)
            repeated = set(values[number > 1].tolist())
            slots = [slot for slot in slots if int(prints[row, head, slot]) in repeated]
            if not slots:
                continue
            taken = set(exact[row, head][exact[row, head] >= 0].tolist())
            choices: dict[int, list[int]] = {}
            for position, value in enumerate(token_prints[row, head].tolist()):
                if value in repeated and position not in taken:
                    choices.setdefault(value, []).append(position)
            before = -1
            for slot in slots:
                left = choices.get(int(prints[row, head, slot]), [])
                later = [position for position in left if position > before] or left
                if later:
                    result[row, head, slot] = before = later[0]
                    left.remove(later[0])
    return result


def _equal_rows(rows: Tensor, token_rows: Tensor, places: Tensor) -> Tensor:
    """Whether each row (..., slots, width) equals the row of `token_rows` at its place, whole."""
    index = places.clamp_min(0)[..., None].expand(*places.shape, token_rows.shape[-1])
    return (token_rows.gather(2, index).to(rows.device) == rows).all(-1) & (places >= 0)


def _atoms(keys: Tensor, values: Tensor, use_keys: bool) -> Tensor:
    """Keys and values beside each other in float32, each scaled to a mean norm of 1."""
    parts = [keys, values] if use_keys else [values]
    return torch.cat([part.float() for part in parts], dim=-1)


def sums_of_atoms(targets: Tensor, atoms: Tensor, limit: float, width: int) -> tuple[list[list[int]], Tensor]:
    """For each target (targets, coordinates) the atoms (atoms, coordinates) that it is a weighted sum of, none where
    there is no such sum within `limit` of its norm; and the relative residual, of keys or values, the larger.

    Keys and values (the last `width` coordinates) have weights of their own. Two atoms are tried first, greedily and
    then every pair, and only then more.
    """
    chosen: list[list[int]] = [[] for _ in targets]
    residuals = torch.ones(len(targets), dtype=torch.float64, device=targets.device)
    goals = unit_halves(targets, width)
    units = unit_halves(atoms, width)
    attempts = (
        lambda some: sums_of_few(some, units, limit, 2),
        lambda some: sums_of_two(some, units, limit),
        lambda some: sums_of_few(some, units, limit, TAKEN_APART),
    )
    open_ = torch.arange(len(targets), device=targets.device)
    for attempt in attempts:
        if not len(atoms) or not len(open_):
            break
        sums, residuals[open_] = attempt([goal[open_] for goal in goals])
        for place, one in zip(open_.tolist(), sums):
            chosen[place] = one
        open_ = torch.tensor([place for place in open_.tolist() if not chosen[place]], device=targets.device).long()
    return chosen, residuals


def sums_of_two(goals: list[Tensor], units: list[Tensor], limit: float) -> tuple[list[list[int]], Tensor]:
    """As `sums_of_atoms` with the pair that comes nearest. The first of a pair is one of the `BEAM` that are most
    alike, the second any; the sums are in closed form."""
    atoms = len(units[0])
    first_count = min(BEAM, atoms)
    pairs: list[list[int]] = []
    residuals = []
    for block in zip(*(goal.split(max(1, 2_000_000 // (first_count * atoms))) for goal in goals)):
        along = [goal @ unit.T for goal, unit in zip(block, units)]
        first = torch.stack(along).square().sum(0).topk(first_count, dim=-1).indices
        left = along[0].new_zeros(len(first), first_count, atoms)
        for one, unit in zip(along, units):
            # The part along the first, and what the second adds at a right angle to it.
            cosine = unit[first] @ unit.T
            onto_first = one.gather(1, first)[..., None]
            added = torch.addcmul(one[:, None], onto_first, cosine, value=-1).square_()
            sine = cosine.square_().neg_().add_(1)
            added.div_(sine.clamp_min(1e-24)).masked_fill_(sine < 1e-9, 0)
            left = torch.maximum(left, added.neg_().add_(1 - onto_first.square()))
        best = left.flatten(1).argmin(1)
        chosen = torch.stack([first.gather(1, best[:, None] // atoms)[:, 0], best % atoms], dim=1)
        halves = []
        for goal, unit in zip(block, units):
            rest = goal
            basis = goal.new_zeros(len(goal), 0, goal.shape[1])
            for atom in chosen.T:
                rest, basis = _taken_out(rest, basis, unit[atom])
            halves.append(rest.norm(dim=-1))
        residual = torch.stack(halves).amax(0)
        residuals.append(residual)
        pairs += [pair if near else [] for pair, near in zip(chosen.tolist(), (residual <= limit).tolist())]
    return pairs, torch.cat(residuals)


def sums_of_few(goals: list[Tensor], units: list[Tensor], limit: float, most: int) -> tuple[list[list[int]], Tensor]:
    """As `sums_of_atoms` with the fewest atoms, at most `most`: a beam of first ones, each gone on with greedily, all
    at once. What the chosen span is kept as an orthonormal basis of each half."""
    atoms = len(units[0])
    starts = min(BEAM, atoms)
    rough = [unit.float() for unit in units]  # what comes next is chosen in single precision
    sums: list[list[int]] = []
    residuals = []
    for block in zip(*(goal.split(max(1, 2_000_000 // (starts * atoms))) for goal in goals)):
        rests = [goal[:, None] for goal in block]
        newest = _gain(rests, rough)[:, 0].topk(starts, dim=-1).indices
        rests = [rest.expand(-1, starts, -1) for rest in rests]
        bases = [rest.new_zeros(*rest.shape[:2], 0, rest.shape[2]) for rest in rests]
        chosen = newest[..., None]
        found: list[list[int]] = [[] for _ in newest]
        residual = torch.ones(len(newest), dtype=torch.float64, device=newest.device)
        open_ = torch.arange(len(newest), device=newest.device)
        for _ in range(min(most, atoms)):
            for half, unit in enumerate(units):
                rests[half], bases[half] = _taken_out(rests[half], bases[half], unit[newest])
            each = torch.stack([rest.norm(dim=-1) for rest in rests]).amax(0)
            near = each <= limit
            done = near.any(1)
            start = near.int().argmax(1)  # the first of the beam that comes near enough
            for target in done.nonzero()[:, 0].tolist():
                place = int(open_[target])
                found[place] = chosen[target, start[target]].tolist()
                residual[place] = each[target, start[target]]
            if bool(done.all()) or chosen.shape[-1] >= min(most, atoms):
                break
            open_ = open_[~done]
            chosen = chosen[~done]
            rests = [rest[~done] for rest in rests]
            bases = [basis[~done] for basis in bases]
            newest = _gain(rests, rough).scatter(2, chosen, -1.0).argmax(-1)
            chosen = torch.cat([chosen, newest[..., None]], dim=-1)
        sums += found
        residuals.append(residual)
    return sums, torch.cat(residuals)


def _gain(rests: list[Tensor], units: list[Tensor]) -> Tensor:
    """How much of what is left (targets, starts, width) each atom would take, keys and values together."""
    gains = [(rest.float() @ unit.T).square_() for rest, unit in zip(rests, units)]
    return gains[0] if len(gains) == 1 else gains[0].add_(gains[1])


def unit_halves(rows: Tensor, width: int) -> list[Tensor]:
    """The key and the value of each row in float64 with a norm of 1; without keys the value alone."""
    halves = [rows[:, part].double() for part in _parts(rows, width)]
    return [half / half.norm(dim=-1, keepdim=True).clamp_min(1e-12) for half in halves]


def _parts(atoms: Tensor, width: int) -> list[slice]:
    """Where keys and values stand in the coordinates of atoms; without keys, values alone."""
    size = atoms.shape[1]
    return [slice(0, size - width), slice(size - width, size)] if size > width else [slice(0, size)]


def _taken_out(rest: Tensor, basis: Tensor, rows: Tensor) -> tuple[Tensor, Tensor]:
    """What is left of `rest` (..., width) without its part along `rows`, and the basis (..., vectors, width) with them.

    A row that the basis spans already adds a vector of zeros.
    """
    vector = rows
    for _ in range(2):  # a second time for what rounding leaves
        vector = vector - ((basis @ vector[..., None]).transpose(-1, -2) @ basis)[..., 0, :]
    size = vector.norm(dim=-1, keepdim=True)
    vector = torch.where(size > 1e-9 * rows.norm(dim=-1, keepdim=True), vector / size.clamp_min(1e-30), 0.0)
    rest = rest - (rest * vector).sum(-1, keepdim=True) * vector
    return rest, torch.cat([basis, vector[..., None, :]], dim=-2)


def weights_of(chosen: list[list[int]], targets: Tensor, atoms: Tensor, width: int) -> list[list[list[float]]]:
    """The least-squares weights of each target's chosen atoms, for key and value; without keys twice the same."""
    result: list[list[list[float]]] = [[] for _ in chosen]
    for count in {len(one) for one in chosen if one}:
        those = [index for index, one in enumerate(chosen) if len(one) == count]
        places = torch.tensor([chosen[index] for index in those], device=atoms.device)
        matrix = atoms[places].transpose(1, 2).double().cpu()
        goal = targets[torch.tensor(those, device=atoms.device)].double().cpu()[..., None]
        for part in _parts(atoms, width):
            solved = torch.linalg.lstsq(matrix[:, part], goal[:, part]).solution[..., 0].tolist()
            for index, weights in zip(those, solved):
                result[index].append(weights)
    return [weights if len(weights) == 2 else weights * 2 for weights in result]


def _parents(
    chosen: list[int], weights: list[list[float]], tokens: list[int], old: list[dict[str, Any]]
) -> dict[int, tuple[float, float]]:
    """Tokens with their weights in key and value; a merged slot's own parts are multiplied out."""
    parents: dict[int, tuple[float, float]] = {}
    for place, key_weight, value_weight in zip(chosen, *weights):
        parts = {tokens[place]: (1.0, 1.0)} if place < len(tokens) else old[place - len(tokens)]["parents"]
        for token, (key_part, value_part) in parts.items():
            before = parents.get(token, (0.0, 0.0))
            parents[token] = (before[0] + key_weight * key_part, before[1] + value_weight * value_part)
    return parents


# ---- the file


def header(model: nn.Module, config: Any, title: str, layers: int) -> dict[str, Any]:
    """Names, sizes and versions, and a checksum by which a model is known again."""
    from importlib.metadata import PackageNotFoundError, version

    import transformers

    versions = {"torch": torch.__version__, "transformers": transformers.__version__, "python": sys.version.split()[0]}
    for name in ("kvpress",):
        if name in sys.modules:
            try:
                versions[name] = version(name)
            except PackageNotFoundError:  # imported from a folder
                versions[name] = "?"
    fields = config.to_dict() if hasattr(config, "to_dict") else dict(vars(config))
    plain = {name: value for name, value in fields.items() if isinstance(value, (int, float, str, bool, type(None)))}
    return {
        "format": FORMAT,
        "title": title,
        "created": time.strftime("%Y-%m-%dT%H:%M:%S+00:00", time.gmtime()),
        "model": str(getattr(config, "_name_or_path", "") or ""),
        "family": str(getattr(config, "model_type", "")),
        "config": plain,
        "layers": layers,
        "dtype": str(next(model.parameters()).dtype),
        "weights": weights_checksum(model),
        "versions": versions,
    }


def weights_checksum(model: Any) -> str:
    """SHA-256 over a sample of the input embeddings, rounded, so that another dtype of the same weights is the same."""
    weight = model.get_input_embeddings().weight.detach()
    rows = torch.linspace(0, weight.shape[0] - 1, min(64, weight.shape[0])).long().to(weight.device)
    sample = weight[rows, :16].float().cpu()
    return hashlib.sha256((sample * 256).round().to(torch.int32).numpy().tobytes()).hexdigest()


def _catch(outputs: list[Tensor], module: nn.Module, args: Any, output: Any) -> None:
    """A hook that keeps the output of a module."""
    if torch.is_tensor(output):
        outputs.append(output.detach().clone())  # methods write to values in place


def _wrapped(recorder: Recorder, original: Any) -> Any:
    def update(self: Any, key_states: Any, value_states: Any, layer_idx: Any = None, *args: Any, **kwargs: Any) -> Any:
        if recorder._depth == 0 and layer_idx is not None:
            recorder._updated = self
            history = recorder.layers.get(int(layer_idx))
            if history is not None and torch.is_tensor(key_states) and key_states.dim() == 4:
                # A copy: the cache may store this very tensor, and a method may write to it.
                history.handed.append((key_states.detach().clone(), value_states.detach().clone()))
        recorder._depth += 1
        try:
            return original(self, key_states, value_states, layer_idx, *args, **kwargs)
        finally:
            recorder._depth -= 1

    return update


def _once(notes: list[str], sentence: str) -> None:
    if sentence not in notes:
        notes.append(sentence)
