"""Hold a recording against kvlab's run of a named method: which positions differ, where first, what would explain it.

Both read the same token ids in the same passes; nothing is encoded again. Compared are the tokens that each KV head
holds after the prompt and after every later pass.
"""

import itertools
import math
import typing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch
from torch import Tensor

from kvlab.core import UserError, parse_spec
from kvlab.core.cache import make_cache
from kvlab.core.cache.settings import Observer
from kvlab.core.contract.view import Slots, View
from kvlab.core.methods import Method, make_method
from kvlab.models.load import LoadedModel
from kvlab.watch.recording import Pass, read_recording
from kvlab.watch.run_folder import copies_of_heads, load_recorded_model, longest_sequence, steps_of, token_ids

TIE = 1e-5  # scores nearer than this share of the largest are equal but for rounding
COLUMNS = ("step", "layer", "head", "recorded_slots", "kvlab_slots", "common", "agreement", "agreement_but_for_ties")
MOST_VARIANTS = 60
MOST_CHANGES = 3  # settings that are changed one after the other, each as the best of its round
# Settings that say nothing about which tokens stay after the prompt.
NOT_VARIED = ("store", "page", "page_rule", "page_heads", "read", "read_share", "decode", "buffer")


@dataclass
class Departure:
    """The first difference: a step, layer and KV head, with the tokens that only one of the two holds."""

    step: int
    layer: int
    head: int
    only_recorded: list[int]
    only_kvlab: list[int]
    scores: dict[int, float]  # kvlab's scores of these tokens when it decided
    is_tie: bool


@dataclass
class Check:
    """Result of holding a recording against a method.

    Attributes:
        table: a row a step, layer and head: slots of both, tokens in both, agreement (share of the larger set), and the
            same with slots counted whose tokens differ by a tie.
        explanations: other settings with the agreement after the prompt that they give, best first.
        query_heads: heads that are stored for each KV head and hold unlike tokens; 1 where none do.
    """

    spec: str
    budget: int | float
    table: pd.DataFrame
    first: Departure | None
    explanations: list[tuple[str, float]] = field(default_factory=list)
    query_heads: int = 1

    @property
    def agrees_but_for_ties(self) -> bool:
        """Whether every head holds the method's tokens after the prompt, ties apart."""
        return bool((self.table.loc[self.table["step"] == 0, "agreement_but_for_ties"] == 1).all())

    @property
    def sentences(self) -> list[str]:
        """What was found, in full sentences."""
        name = f"{self.spec} at {self.budget:g} {'of the prompt' if isinstance(self.budget, float) else 'slots a head'}"
        steps = self.table["step"].nunique()
        heads = len(self.table) // max(steps, 1)
        if (self.table["agreement"] == 1).all():
            return [
                f"All {heads} heads hold the tokens that {name} holds, after the prompt and {steps - 1} later passes."
            ]
        after_prompt = self.table.loc[self.table["step"] == 0, "agreement"]
        mean = 100 * float(after_prompt.mean())
        unlike = int((after_prompt < 1).sum())
        if not unlike and self.first is not None:
            return [
                f"After the prompt all {heads} heads hold the tokens that {name} holds; they part at step "
                f"{self.first.step} of {steps - 1}, where one of the two goes on evicting while text is written.",
                _sentence(self.first),
            ]
        if self.agrees_but_for_ties and self.first is not None:
            return [
                f"After the prompt {unlike} of {heads} heads hold other tokens than {name}, all by ties: their scores "
                f"are equal but for rounding ({mean:.3g} % of slots agree on average).",
                _sentence(self.first),
            ]
        lines = [
            f"After the prompt {unlike} of {heads} heads hold other tokens than {name}; "
            f"{mean:.3g} % of slots agree on average."
        ]
        if self.first is not None:
            lines.append(_sentence(self.first))
        whole = [spec for spec, share in self.explanations if share == 1]
        if whole:
            lines.append(f"With {whole[0]} every head would agree, ties apart: that explains all of it.")
        elif self.explanations and self.explanations[0][1] > float(self.table["agreement_but_for_ties"].mean()):
            spec, share = self.explanations[0]
            lines.append(f"Other settings do not explain all of it; the nearest is {spec} with {100 * share:.3g} %.")
        else:
            lines.append("No other value of a setting comes nearer.")
        if self.query_heads > 1:
            lines.append(
                f"In the recording the {self.query_heads} query heads of a KV head hold tokens of their own, in kvlab "
                "the same ones: no setting gives that. Record with one choice for each KV head, or check on the same "
                "weights with a KV head for each query head."
            )
        return lines


def check(
    path: Path | str,
    spec: str,
    budget: int | float | None = None,
    model: str | LoadedModel | None = None,
    row: int = 0,
    search: bool = True,
) -> Check:
    """Compare a recording with kvlab's run of `spec`, such as `snapkv:preset=code`.

    Args:
        budget: a share of the prompt (float) or slots per KV head (int); None: the slots that were recorded.
        search: whether other values of the method's settings are tried where the two differ.

    Raises UserError if the recording or the method cannot be run, as `import_recording` does.
    """
    recording = read_recording(Path(path))
    loaded = load_recorded_model(recording, model)
    name, values = parse_spec(spec)
    method = make_method(name, **values)
    passes = longest_sequence(recording)
    ids, padding = token_ids(recording, passes, row)
    groups = steps_of(passes)
    recorded = [recorded_sets(group[-1], row, padding) for group in groups]
    if budget is None:
        counts = [len(tokens) for tokens in recorded[0].values()]
        budget = max(1, round(sum(counts) / len(counts)))
    prompt_tokens = sum(one.tokens for one in groups[0]) - padding
    copies = copies_of_heads(loaded, groups[-1][-1])
    decisions = Decisions(copies)
    ours = _run(loaded, method, budget, ids, prompt_tokens, len(groups), decisions)
    rows = []
    first: Departure | None = None
    for step, (theirs, mine) in enumerate(zip(recorded, ours, strict=True)):
        for layer, head in sorted(theirs):
            held = theirs[layer, head]
            wanted = mine.get((layer, head), frozenset())
            common = len(held & wanted)
            larger = max(len(held), len(wanted), 1)
            tied = ties(held, wanted, decisions.scores.get(layer), head) if step == 0 else 0
            rows.append((step, layer, head, len(held), len(wanted), common, common / larger, (common + tied) / larger))
            if held != wanted and first is None:
                only_recorded = sorted(held - wanted)
                only_kvlab = sorted(wanted - held)
                scores: dict[int, float] = {}
                if step == 0 and layer in decisions.scores:
                    known = decisions.scores[layer][head]
                    scores = {one: float(known[one]) for one in only_recorded + only_kvlab if one < len(known)}
                is_tie = tied == len(only_recorded) == len(only_kvlab)
                first = Departure(step, layer, head, only_recorded, only_kvlab, scores, is_tie)
    result = Check(spec, budget, pd.DataFrame(rows, columns=COLUMNS), first)
    first_copy = {(layer, head): recorded[0][layer, head - head % copies] for layer, head in recorded[0]}
    result.query_heads = copies if first_copy != recorded[0] else 1
    if search and not result.agrees_but_for_ties:
        result.explanations = _explanations(loaded, method, name, budget, ids, prompt_tokens, recorded[0], copies)
    return result


@dataclass
class Decisions(Observer):
    """Observer of a cache: kvlab's score of every token at the first decision of each layer, NaN where it had left.

    Heads are repeated `copies` times, for a recorded cache that holds the keys and values of each query head.
    """

    copies: int
    scores: dict[int, Tensor] = field(default_factory=dict)
    attended = Observer.attended  # scores are read when they decide

    def compressed(self, layer_idx: int, view: View, plan: Any, before: Slots, after: Slots) -> None:
        if layer_idx in self.scores:
            return
        valid = before.valid[0]
        size = int(before.position[0][valid].max()) + 1
        scores = torch.full((valid.shape[0], size + 1), torch.nan, device=valid.device)
        place = torch.where(valid, before.position[0].long(), size)
        self.scores[layer_idx] = (
            scores.scatter(1, place, before.score[0].float())[:, :size].repeat_interleave(self.copies, 0).cpu()
        )


@torch.inference_mode()
def _run(
    loaded: LoadedModel,
    method: Method,
    budget: int | float,
    ids: list[int],
    prompt_tokens: int,
    steps: int,
    decisions: Decisions,
) -> list[dict[tuple[int, int], frozenset[int]]]:
    """Tokens that kvlab's run of a method holds by layer and head, after the prompt and after each later token."""
    cache = make_cache(loaded, method, budget, observer=decisions)
    tokens = torch.tensor([ids], device=loaded.device)
    held = []
    ends = [0, *range(prompt_tokens, prompt_tokens + steps)]
    for start, end in itertools.pairwise(ends):
        loaded.model(tokens[:, start:end], past_key_values=cache)
        found: dict[tuple[int, int], frozenset[int]] = {}
        for layer in cache.compressed_layers():
            slots = layer.slots
            assert slots is not None
            for head, (positions, valid) in enumerate(zip(slots.position[0], slots.valid[0], strict=True)):
                kept = frozenset(positions[valid].tolist())
                found |= {(layer.layer_idx, decisions.copies * head + copy): kept for copy in range(decisions.copies)}
        held.append(found)
    return held


def recorded_sets(last: Pass, row: int, padding: int) -> dict[tuple[int, int], frozenset[int]]:
    """Tokens that were recorded by layer and head; a merged slot counts as its heaviest parent."""
    found = {}
    for layer, held in last.layers.items():
        for head, positions in enumerate(held.positions[row]):
            tokens = set((positions[positions >= padding] - padding).tolist())
            merges = held.merges[(held.merges[:, 0] == row) & (held.merges[:, 1] == head)]
            for slot in np.unique(merges[:, 2]):
                parents = merges[merges[:, 2] == slot]
                tokens.add(int(parents[np.abs(parents[:, 5]).argmax(), 3]) - padding)
            found[layer, head] = frozenset(tokens)
    return found


def ties(held: frozenset[int], wanted: frozenset[int], scores: Tensor | None, head: int) -> int:
    """Tokens that were recorded in place of others whose score is equal but for rounding (`TIE`)."""
    only_recorded = sorted(held - wanted)
    only_kvlab = sorted(wanted - held)
    if scores is None or not only_recorded or not only_kvlab or max(only_recorded) >= scores.shape[1]:
        return 0
    row = scores[head].nan_to_num(-math.inf)
    step = TIE * float(row[row.isfinite()].abs().max())
    theirs = row[torch.tensor(only_recorded)]
    ours = row[torch.tensor(only_kvlab)]
    equal = (theirs[:, None] - ours).abs() <= step
    return min(int(equal.any(1).sum()), int(equal.any(0).sum()))


def _sentence(first: Departure) -> str:
    when = "after the prompt" if first.step == 0 else f"after step {first.step}"
    place = f"The first difference is {when} in layer {first.layer}, head {first.head}"
    parts = []
    for who, tokens in (("the recording", first.only_recorded), ("kvlab", first.only_kvlab)):
        words = [
            f"{token} (score {first.scores[token]:.4g})" if token in first.scores else str(token) for token in tokens
        ]
        more = f" and {len(tokens) - 4} more" if len(tokens) > 4 else ""
        if tokens:
            parts.append(f"only {who} holds {', '.join(words[:4])}{more}")
    tie = " Their scores are equal but for rounding: a tie." if first.is_tie else ""
    return f"{place}: {'; '.join(parts)}.{tie}"


def _explanations(
    loaded: LoadedModel,
    method: Method,
    name: str,
    budget: int | float,
    ids: list[int],
    prompt_tokens: int,
    recorded: dict[tuple[int, int], frozenset[int]],
    copies: int,
) -> list[tuple[str, float]]:
    """Agreement after the prompt with other settings or another budget, best first.

    One setting is changed, then another of what agreed best, as long as each gains and not all agrees. Numbers that are
    tried are neighbours, halves and doubles, and how many first and newest tokens all heads of the recording hold.
    """
    common = frozenset.intersection(*recorded.values())
    first = next(token for token in range(prompt_tokens + 1) if token not in common)
    last = next(count for count in range(prompt_tokens + 1) if prompt_tokens - 1 - count not in common)
    found: list[tuple[str, float]] = []
    changes: list[str] = []
    best = 0.0
    for _ in range(MOST_CHANGES):
        tried = []
        for label, variant, amount in _variants(method, name, budget, prompt_tokens, (first, last))[:MOST_VARIANTS]:
            try:
                decisions = Decisions(copies)
                (held,) = _run(loaded, variant, amount, ids, prompt_tokens, 1, decisions)
            except UserError:
                continue  # the method does not take this value at this length
            shares = []
            for (layer, head), tokens in recorded.items():
                ours = held.get((layer, head), frozenset())
                tied = ties(tokens, ours, decisions.scores.get(layer), head)
                shares.append((len(tokens & ours) + tied) / max(len(tokens), len(ours), 1))
            tried.append((sum(shares) / len(shares), label, variant, amount))
        if not tried:
            break
        share, label, method, budget = max(tried, key=lambda one: one[0])
        if share <= best:
            break
        best = share
        found += [(", ".join([*changes, label]), share) for share, label, _, _ in tried]
        changes.append(label)
        if best == 1:
            break
    return sorted(found, key=lambda pair: -pair[1])


def _variants(
    method: Method, name: str, budget: int | float, prompt_tokens: int, ends: tuple[int, int]
) -> list[tuple[str, Method, int | float]]:
    """The method with one setting at another value, and at budgets that count its protected tokens otherwise."""
    found: list[tuple[str, Method, int | float]] = []
    values = {setting: getattr(method, setting) for setting in type(method).model_fields if setting not in NOT_VARIED}
    slots = budget if isinstance(budget, int) else math.floor(budget * prompt_tokens)
    for setting, field_info in type(method).model_fields.items():
        if setting in NOT_VARIED:
            continue
        value = values[setting]
        choices: list[Any] = [other for other in _choices(field_info.annotation) if other != value]
        if isinstance(value, bool):
            choices = [not value]
        elif isinstance(value, int):
            choices += [value - 1, value + 1, value - 2, value + 2, value // 2, 2 * value, 0, *ends]
            if 0 < value < slots:  # a protected part that is counted in the budget, or beside it
                for amount in (slots + value, slots - value):
                    found.append((f"a budget of {amount} slots ({setting} counted otherwise)", method, amount))
        elif isinstance(value, float):
            # A quarter of a slot more than a share of the budget, so that rounding it either way gives the count.
            choices += [value / 2, 2 * value, 0.0, 1.0, *(round((end + 0.25) / slots, 6) for end in ends)]
        for choice in dict.fromkeys(choices):
            if choice == value and type(choice) is type(value):
                continue
            try:
                variant = make_method(name, **(values | {setting: choice}))
            except UserError:
                continue
            found.append((f"{setting}={choice}", variant, budget))
    for amount in (slots - 1, slots + 1):
        found.append((f"a budget of {amount} slots", method, amount))
    return found


def _choices(annotation: Any) -> tuple[Any, ...]:
    if typing.get_origin(annotation) is typing.Literal:
        return typing.get_args(annotation)
    return tuple(choice for part in typing.get_args(annotation) for choice in _choices(part))


def agreement_figure(result: Check) -> Any:
    """A map of layers and heads: the share of slots in common after the prompt."""
    import plotly.graph_objects as go

    frame = result.table[result.table["step"] == 0].pivot(index="layer", columns="head", values="agreement")
    heat = go.Heatmap(
        z=frame.to_numpy(),
        x=frame.columns.to_numpy(),
        y=frame.index.to_numpy(),
        zmin=0,
        zmax=1,
        colorscale="Viridis",
        colorbar={"title": "agreement", "tickformat": ".0%"},
        hovertemplate="layer %{y}, head %{x}<br>%{z:.1%} of slots in common<extra></extra>",
    )
    title = f"Slots in common with {result.spec} after the prompt"
    return go.Figure(heat).update_layout(title=title, xaxis_title="KV head", yaxis_title="layer")
