"""Fit networks that predict scores of a second pass, layer by layer: KVzap's, or Fast KVzip's gates."""

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path

import torch
from pydantic import PrivateAttr
from safetensors import safe_open
from safetensors.torch import save_file
from torch import Tensor, nn
from torch.nn.functional import binary_cross_entropy

from kvlab.common.atomic_write import replace_file
from kvlab.core.attention.queries import num_key_value_heads
from kvlab.core.attention.slot_attention import probabilities
from kvlab.core.cache import make_cache
from kvlab.core.contract import AttentionPass, Pipeline, Slots
from kvlab.core.errors import UserError
from kvlab.core.fitted.kinds import write_score_heads
from kvlab.core.methods.eviction.kvzip import KVzip
from kvlab.core.methods.scorers.kvzap import ScoreHead, ScoreNetwork, SinkGate, new_gate
from kvlab.core.methods.scorers.kvzip import SecondPassAttention
from kvlab.core.methods.scorers.value_norm import output_norms
from kvlab.models.fitting.request import FitRequest
from kvlab.models.fitting.text import Stopped
from kvlab.models.load import LoadedModel

# As in the authors' optim.py and utils.py; the rate rises for a hundredth of the steps, and is halved after a half and
# again after three quarters.
RATE = 0.2
MOMENTUM = 0.9
GATE_BATCH = 1000


def fit_gate(states: Tensor, scores: Tensor, request: FitRequest, layer: int, group: int) -> SinkGate:
    """Fit the gate of one layer to states (n, D) and log scores (n, H) of a second pass, both float32.

    Minimises the binary cross-entropy of gates and scores, mean over tokens, sum over KV heads, each with `group` query
    heads (Fast KVzip, section 3; stochastic gradient descent as in the authors' optim.py).
    """
    source = torch.Generator().manual_seed(request.seed + layer)
    gate = new_gate(states.shape[1], scores.shape[1], group, request.rank, request.sink_keys, source)
    parts = [tensor.requires_grad_() for tensor in gate.tensors().values()]
    optimizer = torch.optim.SGD(parts, RATE, MOMENTUM)
    wanted = scores.exp().clamp(0, 1)
    order = torch.empty(0, dtype=torch.int64)
    place = 0
    for step in range(request.steps):
        if place + GATE_BATCH > len(order):
            order = torch.randperm(len(states), generator=source)
            place = 0
        rows = order[place : place + GATE_BATCH]
        place = place + GATE_BATCH
        # The learning rate rises, and is halved twice.
        rate = 1.0 if step < 0.5 * request.steps else 0.5 if step < 0.75 * request.steps else 0.25
        if step < 0.01 * request.steps:
            rate = step / (0.01 * request.steps)
        optimizer.param_groups[0]["lr"] = RATE * rate
        given = gate.predict(states[None, rows])[0].T.exp()
        loss = binary_cross_entropy(given, wanted[rows], reduction="none").mean(0).sum()
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        optimizer.step()
    return SinkGate(**{name: tensor.detach() for name, tensor in gate.tensors().items()})


# As in kvpress's train.py: AdamW from .005 with cosine decay, batches of 512, gradients clipped at 1.
LEARNING_RATE = 0.005
BATCH = 512
CLIP = 1.0
NARROWER = 8  # hidden units as a fraction of the model's width: 512 of 4,096 in the original
RIDGE = 1.0  # of the linear form; scikit-learn's Ridge() in the original
HELD_BACK = 8  # every n-th window is used for evaluation only
LEAST = 1e-12  # lower bound before taking the logarithm
# Settings of a fit that its file names; `rank` is the mean rank correlation there.
ABOUT = {"kvzap": ("form", "target"), "fast-kvzip": ("sink_keys", "steps")}

Examples = Mapping[int, tuple[Tensor, Tensor]]  # by model layer: states (n, D), log scores (n, H)


@dataclass(frozen=True)
class Quality:
    """Quality of one layer on held-out windows: explained variance of log scores, and rank correlation."""

    explained: float
    rank: float


def fit_kvzap(
    request: FitRequest,
    loaded: LoadedModel,
    out: Path,
    windows: Iterable[Tensor],
    *,
    kept: Path,
    cancelled: Callable[[], bool],
    report: Callable[[str], None] = print,
) -> dict[int, Quality]:
    """Write the networks to `out` atomically and return each layer's quality on held-out windows (1, T).

    Results per window are kept in the folder `kept`, so that a stopped fit can resume. Raises `Stopped` between layers
    if `cancelled`, and UserError as `make_cache`.
    """
    for number, ids in enumerate(windows):
        place = kept / f"{number:05}.safetensors"
        if not place.exists():
            tensors: dict[str, Tensor] = {}
            for layer, (states, scores) in watch(loaded, ids, request, number).items():
                tensors |= {f"states.{layer}": states, f"scores.{layer}": scores}
            replace_file(place, partial(save_file, tensors))
            del tensors, states, scores  # of the last window, before the heads are fitted
    files = [kept / f"{number:05}.safetensors" for number in range(request.windows)]
    heads: dict[int, ScoreNetwork] = {}
    found = {}
    config = loaded.model.config.get_text_config(decoder=True)
    group = config.num_attention_heads // num_key_value_heads(config)
    with safe_open(files[0], "pt") as there:
        names = there.keys()
    for layer in sorted(int(name.removeprefix("states.")) for name in names if name.startswith("states.")):
        if cancelled():
            raise Stopped
        held = _examples(files[::HELD_BACK], layer)
        taught = _examples([file for place, file in enumerate(files) if place % HELD_BACK], layer)
        if request.method == "fast-kvzip":
            heads[layer] = fit_gate(*taught, request, layer, group)
        else:
            heads[layer] = fit_head(*taught, request, layer)
        found[layer] = judge(heads[layer], *held)
        good = found[layer]
        report(f"layer {layer}: explains {good.explained:.2f} of held-out log scores, rank correlation {good.rank:.2f}")
    about = {
        name: str(getattr(request, name)) for name in ("method", *ABOUT[request.method], "windows", "length", "seed")
    }
    about |= {"model": loaded.name, "rank": f"{sum(q.rank for q in found.values()) / len(found):.3f}"}
    replace_file(out, lambda path: write_score_heads(path, heads, loaded.model, about))
    return found


def fit_head(states: Tensor, scores: Tensor, request: FitRequest, layer: int) -> ScoreHead:
    """Fit the network of one layer to states (n, D) and log scores (n, H), both float32."""
    if request.form == "linear":
        # Ridge regression without penalty on the bias, in float64.
        given = states.double()
        wanted = scores.double()
        centre = given.mean(0)
        level = wanted.mean(0)
        apart = given - centre
        square = apart.T @ apart + RIDGE * torch.eye(given.shape[1], dtype=torch.float64)
        weight = torch.linalg.solve(square, apart.T @ (wanted - level)).T
        return ScoreHead(weight.float(), (level - weight @ centre).float())
    torch.manual_seed(request.seed + layer)
    size = max(states.shape[1] // NARROWER, scores.shape[1])
    inner = nn.Linear(states.shape[1], size)
    outer = nn.Linear(size, scores.shape[1])
    network = nn.Sequential(inner, nn.GELU(), outer)
    nn.init.zeros_(outer.bias)
    centre = scores.mean(0)
    optimizer = torch.optim.AdamW(network.parameters(), LEARNING_RATE)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, request.epochs)
    for _ in range(request.epochs):
        for rows in torch.randperm(len(states)).split(BATCH):
            (network(states[rows]) + centre - scores[rows]).square().mean().backward()
            nn.utils.clip_grad_norm_(network.parameters(), CLIP)
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
        schedule.step()
    parts = (outer.weight, outer.bias + centre, inner.weight, inner.bias)
    return ScoreHead(*(part.detach().clone() for part in parts))


def judge(head: ScoreNetwork, states: Tensor, scores: Tensor) -> Quality:
    """Quality of a network's predictions; means over KV heads."""
    given = head.predict(states[None])[0].T
    off = (given - scores).square().mean(0)
    spread = (scores - scores.mean(0)).square().mean(0)
    ranks = [part.argsort(0).argsort(0).float() for part in (given, scores)]
    apart = [part - part.mean(0) for part in ranks]
    rank = (apart[0] * apart[1]).sum(0) / (apart[0].norm(dim=0) * apart[1].norm(dim=0))
    return Quality(float((1 - off / spread).mean()), float(rank.mean()))


@torch.inference_mode()
def watch(loaded: LoadedModel, ids: Tensor, request: FitRequest, number: int) -> Examples:
    """Examples from one window (1, T): states of some of its tokens, and the log of their scores in a second pass."""
    teacher = Teacher()
    plus = request.method == "kvzap" and request.target == "kvzip+"
    teacher._watching = Watching(plus=plus, second_pass=KVzip().pipeline().second_pass)  # type: ignore[arg-type]  # kvzip has a second pass
    cache = make_cache(loaded, teacher, 0.5)
    loaded.model(ids, past_key_values=cache, use_cache=True, logits_to_keep=1)
    source = torch.Generator().manual_seed(request.seed * 1_000_003 + number)
    rows = torch.randperm(ids.shape[1], generator=source)[: request.tokens]
    found = {}
    for layer in cache.compressed_layers():
        score = cache.settings.statistics[layer.compressed_index][0].float().cpu()
        states = teacher._watching.states[layer.layer_idx][0].float().cpu()
        found[layer.layer_idx] = (states[rows].half(), score[:, rows].clamp_min(LEAST).log().T.contiguous())
    return found


@dataclass(frozen=True, kw_only=True)
class Watching(SecondPassAttention):
    """Attention of the second pass that also records each layer's hidden states.

    `plus`: KVzip+, where attention A_ij counts as A_ij |W_o v_j| / |h_i|, with h_i the query's hidden state, before the
    maximum over rows and group (kvpress, kvzap/train.py).
    """

    plus: bool = False
    needs_hidden_states: bool = True
    states: dict[int, Tensor] = field(default_factory=dict)

    def update(self, slots: Slots, layer_pass: AttentionPass, first: bool) -> dict[str, Tensor]:
        """Nothing to score yet."""
        if first and layer_pass.hidden_states is not None:
            self.states[getattr(layer_pass.module, "layer_idx", 0)] = layer_pass.hidden_states
        return {}

    def score_second_pass(self, slots: Slots, layer_pass: AttentionPass) -> dict[str, Tensor]:
        """`score` (B, H, S) float32 after another piece of the second pass."""
        if not self.plus:
            return super().score_second_pass(slots, layer_pass)
        count = slots.score.shape[-1]
        assert layer_pass.hidden_states is not None
        length = layer_pass.hidden_states.float().norm(dim=-1)[:, None, None, :, None]
        mass = probabilities(layer_pass.last_logits(layer_pass.num_new), None, layer_pass.sinks)[..., :count]
        weighed = (mass / length).amax(3) * output_norms(slots.values, layer_pass.output_weight(), 2)
        return {"score": torch.maximum(slots.score, weighed.amax(2))}


class Teacher(KVzip):
    """KVzip with a recording scorer; not registered."""

    _watching: Watching = PrivateAttr()

    def pipeline(self) -> Pipeline:
        return replace(super().pipeline(), score=self._watching)


def _examples(files: list[Path], layer: int) -> tuple[Tensor, Tensor]:
    """States (n, D) and log scores (n, H) of one layer, float32, of all these windows."""
    parts: list[list[Tensor]] = [[], []]
    for path in files:
        with safe_open(path, "pt") as file:
            for part, name in zip(parts, ("states", "scores"), strict=True):
                part.append(file.get_tensor(f"{name}.{layer}").float())
    states, scores = (torch.cat(part) for part in parts)
    if not math.isfinite(float(scores.sum())):
        raise UserError("The second pass gave scores that are NaN or infinite: load the model with --dtype float32.")
    return states, scores
