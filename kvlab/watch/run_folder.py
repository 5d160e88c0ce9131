"""Make a run folder of a recording, beside the full cache's run of the same prompt, so that every view opens it."""

from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from kvlab.core import FULL, UserError
from kvlab.core.attention.queries import num_key_value_heads
from kvlab.engine import compare
from kvlab.models.load import LoadedModel, load_model
from kvlab.requests.compare import RECORDINGS, CompareRequest, ImportRequest, Progress
from kvlab.trace import open_run
from kvlab.trace.writer import RunWriter
from kvlab.watch.recorder import weights_checksum
from kvlab.watch.recording import UNKNOWN, Pass, Recording, Step, read_recording, steps_of_head

METHOD = "recorded"
ADDED = 8  # most tokens, such as a start token, that two ways of encoding may put before a text


def import_recording(
    path: Path,
    root: Path | str = "runs",
    model: str | LoadedModel | None = None,
    row: int = 0,
    answer: str | None = None,
    owner: str = "",
    **job: Any,
) -> list[Path]:
    """Two run folders: the full cache's run of the recorded prompt, and the recording.

    The first group of passes up to the first that reads a single token is the prompt; what follows is read token by
    token. KL and log-probabilities are those of the full cache on the tokens that the recorded run read.

    Args:
        model: name or folder of the model, or the loaded model; None: the one that the recording names.
        row: of a batch.
        answer: expected answer, with which the text is judged.
        owner: whose runs these are on a shared server.
        job: `comparison_id`, `progress` and `cancelled` of `kvlab.engine.compare`.

    Raises UserError if the model is another than the recorded one, tokens are missing, or no view could be drawn.
    """
    recording = read_recording(path)
    loaded = load_recorded_model(recording, model)
    passes = longest_sequence(recording)
    ids, padding = token_ids(recording, passes, row)
    groups = steps_of(passes)
    prompt_tokens = sum(one.tokens for one in groups[0]) - padding
    steps = len(groups) - 1
    tokenizer: Any = loaded.tokenizer
    prompt = tokenizer.decode(ids[:prompt_tokens])
    start = _same_tokens(tokenizer, prompt, ids[:prompt_tokens])
    prompt = tokenizer.decode(ids[start:prompt_tokens]) if start else prompt
    request = CompareRequest(
        model=loaded.name,
        title=recording.title,
        prompt=prompt,
        answer=answer,
        choices=(FULL,),
        max_new_tokens=max(steps, 1),
        owner=owner,
    )
    (full_path,) = compare(request, root, loaded=loaded, **job)
    template = open_run(full_path).record
    if template.status != "complete":
        raise UserError("The full cache's run of the recorded prompt was stopped, so nothing was imported.")
    if template.prompt_tokens != prompt_tokens:
        raise UserError(
            f"The recorded prompt has {prompt_tokens} tokens, and kvlab makes {template.prompt_tokens} of its text: "
            "record a prompt that its tokenizer encodes the same way twice."
        )
    layers = sorted(passes[-1].layers)
    copies = copies_of_heads(loaded, passes[-1])
    slots = [int(_live(groups[0][-1].layers[layer].positions[row], padding)) for layer in layers]
    record = template.model_copy(
        update={
            "run_id": f"{template.comparison_id}-01-{METHOD}",
            "status": "running",
            "method": f"{recording.title} (outside)",
            "label": f"{recording.title} ({recording.origin})",
            "budget": max(1, round(float(np.mean(slots)))),
            "hyper_parameters": {},
            "preset": "default",
            "departures": None,
            "notes": _notes(recording, passes, copies),
            "versions": recording.header["versions"],
            "level": "full",
            "left_out": {
                "keys": "Keys and values were not kept: the recording names the tokens of slots only.",
                "attention": "Attention was not observed where this was recorded.",
            },
            "seconds_prefill": None,
            "seconds_compress": None,
            "seconds_second_pass": None,
            "decode_tokens_per_second": None,
            "speed_readings": (),
            "joules": None,
            "sliding_layers": tuple(sorted(set(range(template.model.num_hidden_layers)) - set(layers))),
            "checksums": None,
            "worker_pid": None,
        }
    )
    with RunWriter(Path(root), record) as writer:
        text = _write_tokens(writer, loaded, ids, prompt_tokens, passes, row)
        for layer in layers:
            heads = passes[-1].layers[layer].positions.shape[1]
            for head in range(min(heads, record.model.num_key_value_heads)):
                # All tokens of a step, and the slots that its last pass left.
                joined = [replace(group[-1], tokens=sum(one.tokens for one in group)) for group in groups]
                merged = steps_of_head(joined, layer, row, copies * head, padding)
                _write_head(writer, layer, head, merged, prompt_tokens)
        _write_memory(writer, groups, layers, prompt_tokens, row, padding)
        writer.finish("complete", free_text=text, forced_text=text)
    return [full_path, writer.path]


def run_import(
    request: ImportRequest,
    root: Path,
    *,
    comparison_id: str,
    progress: Callable[[Progress], None],
    cancelled: Callable[[], bool],
) -> list[Path]:
    """Import an uploaded recording, and delete the upload; raises as `import_recording`."""
    file = root / RECORDINGS / request.file
    job: Any = {"comparison_id": comparison_id, "progress": progress, "cancelled": cancelled}
    try:
        recording = read_recording(file)  # before a model is loaded for it
        loaded = load_model(request.model, **request.loading | {"dtype": recording.dtype})
        return import_recording(file, root, loaded, owner=request.owner, **job)
    finally:
        file.unlink(missing_ok=True)
        with suppress(OSError):
            file.parent.rmdir()


def longest_sequence(recording: Recording) -> list[Pass]:
    """The passes of the sequence with most tokens, without those of which the cache kept nothing in any layer.

    A sequence begins with an empty cache. A method that reads the text a second time to score it (KVzip) takes that
    reading out again; positions then count without it.
    """
    tokens: dict[int, int] = {}
    for one in recording.passes:
        tokens[one.sequence] = tokens.get(one.sequence, 0) + one.tokens
    best = max(tokens, key=lambda sequence: tokens[sequence])
    kept: list[Pass] = []
    place_of = np.zeros(0, np.int32)  # of each token that was read: its place among those that count, or -1
    for one in (one for one in recording.passes if one.sequence == best):
        first = len(place_of)
        held = any(
            (layer.positions >= first).any() or (layer.merges[:, 3] >= first).any() for layer in one.layers.values()
        )
        start = sum(part.tokens for part in kept)
        places = np.arange(start, start + one.tokens) if held else np.full(one.tokens, UNKNOWN)
        place_of = np.concatenate([place_of, places.astype(np.int32)])
        # Every token at its place among those that count.
        layers = {}
        for index, layer in one.layers.items():
            positions = layer.positions.copy()
            tokens_held = positions >= 0
            positions[tokens_held] = place_of[positions[tokens_held]]
            merges = layer.merges.copy()
            merges[:, 3] = place_of[merges[:, 3].astype(int)]
            layers[index] = replace(layer, positions=positions, merges=merges)
        if held:
            kept.append(replace(one, layers=layers))
        elif kept:
            kept[-1] = replace(kept[-1], layers=layers, bytes=one.bytes)
    return kept


def token_ids(recording: Recording, passes: list[Pass], row: int) -> tuple[list[int], int]:
    """Ids of the tokens that a row read, without padding, and the number of padded places before them."""
    if any(one.ids is None for one in passes):
        raise UserError(
            f"The recording {recording.path.name} is without the tokens: its model was given embeddings. Record a run "
            "that gets token ids."
        )
    rows = min(len(one.ids) for one in passes if one.ids is not None)
    if not 0 <= row < rows:
        raise UserError(f"The recording has {rows} rows, so --row is 0 to {rows - 1}, not {row}.")
    ids = np.concatenate([one.ids[row] for one in passes if one.ids is not None])
    padded = [np.zeros(one.tokens) if one.padded is None else one.padded[row] for one in passes]
    padding = int(np.concatenate(padded).sum())
    return ids[padding:].tolist(), padding


def steps_of(passes: list[Pass]) -> list[list[Pass]]:
    """The passes of each step: those of the prompt, up to the first that reads a single token, then one each."""
    single = [index for index, one in enumerate(passes) if one.tokens == 1 and index]
    first = single[0] if single else len(passes)
    return [passes[:first], *([one] for one in passes[first:])]


def copies_of_heads(loaded: LoadedModel, one: Pass) -> int:
    """How many heads a recorded cache holds for each KV head of the model: more than 1 where it is one a query head."""
    heads = max(layer.positions.shape[1] for layer in one.layers.values())
    return max(1, heads // num_key_value_heads(loaded.model.config.get_text_config()))


def load_recorded_model(recording: Recording, model: str | LoadedModel | None) -> LoadedModel:
    """The model that was recorded; raises UserError if it is not named, or if `model` is another one."""
    name = model or recording.header["model"]
    if not name:
        raise UserError(
            "The recording names no model: add --model with the name or folder of the one that was recorded."
        )
    loaded = name if isinstance(name, LoadedModel) else load_model(name, dtype=recording.dtype)
    if weights_checksum(loaded.model) != recording.header["weights"]:
        raise UserError(
            f"The recording {recording.path.name} is of another model than {loaded.name}: its embeddings differ. Give "
            f"the model that was recorded ({recording.header['model'] or recording.header['family']})."
        )
    return loaded


def _same_tokens(tokenizer: Any, prompt: str, ids: list[int]) -> int:
    """Number of tokens, such as a start token, that encoding puts before the text by itself.

    Raises UserError if the text has other tokens than were recorded.
    """
    for start in range(ADDED):
        if start and ids[start - 1] not in tokenizer.all_special_ids:
            break
        if tokenizer(tokenizer.decode(ids[start:])).input_ids == ids:
            return start
    again = tokenizer(prompt).input_ids
    first = next(
        (place for place, (one, other) in enumerate(zip(ids, again, strict=False)) if one != other), len(again)
    )
    raise UserError(
        f"The recorded tokens are not those that the tokenizer makes of their text (first at token {first}), so kvlab "
        "cannot run the full cache on the same prompt: record a prompt that was encoded from text."
    )


def _live(positions: np.ndarray, padding: int) -> float:
    """Slots a head in the mean, without padding and what a mask leaves out."""
    held = (positions >= padding) | (positions == -1) | (positions == -2)
    return float(held.sum(-1).mean())


def _notes(recording: Recording, passes: list[Pass], copies: int) -> tuple[str, ...]:
    counts = recording.counts()
    total = max(sum(counts.values()), 1)
    notes = [f"This run was {recording.origin}; kvlab names the token of each slot it held.", *recording.notes]
    if counts.get("unknown"):
        unknown = {
            layer: held.counts["unknown"] / max(sum(held.counts.values()), 1)
            for layer, held in passes[-1].layers.items()
        }
        worst = max(unknown, key=lambda layer: unknown[layer])
        notes.append(
            f"{100 * counts['unknown'] / total:.2g} % of all slots are of unknown origin and not drawn "
            f"(layer {worst} at the end: {100 * unknown[worst]:.2g} %)."
        )
    if counts.get("changed"):
        notes.append(
            f"{100 * counts['changed'] / total:.2g} % of all slots have a token's key and another value; they are "
            "drawn as that token."
        )
    if counts.get("masked"):
        notes.append(
            f"{100 * counts['masked'] / total:.2g} % of all slots are masked, not freed: they are drawn as evicted, "
            "and their bytes count."
        )
    if copies > 1:
        notes.append(
            f"The cache holds keys and values of every query head, {copies} for each KV head; the first is drawn."
        )
    if recording.cut_off:
        notes.append("The recording was cut off; what was written before is here.")
    notes.append("KL is of the full cache on the text that the recorded run read.")
    return tuple(notes)


def _write_tokens(
    writer: RunWriter,
    loaded: LoadedModel,
    ids: list[int],
    prompt_tokens: int,
    passes: list[Pass],
    row: int,
) -> str:
    """Write the rows of `tokens`; returns the text after the prompt."""
    tokenizer: Any = loaded.tokenizer
    count = len(ids) - prompt_tokens
    with torch.inference_mode():  # log probabilities (decoded tokens, vocabulary) after the prompt, nothing dropped
        read_ids = torch.tensor([ids[:-1]], device=loaded.device)
        logits = loaded.model(read_ids, use_cache=False, logits_to_keep=count).logits[0, -count:]
        scores = logits.float().log_softmax(-1).cpu()
    special = set(tokenizer.all_special_ids)
    texts = [tokenizer.decode([token]) for token in ids]
    writer.append(
        "tokens",
        {
            "phase": ["prompt"] * prompt_tokens,
            "position": range(prompt_tokens),
            "id": ids[:prompt_tokens],
            "text": texts[:prompt_tokens],
            "special": [token in special for token in ids[:prompt_tokens]],
        },
    )
    # Logits of each pass's last token predict the token after it.
    recorded: dict[int, np.ndarray] = {}
    read = 0
    for one in passes:
        read += one.tokens
        if one.logits is not None:
            recorded[read] = one.logits[row]
    padding = read - len(ids)
    logprobs: list[float | None] = []
    kl: list[float | None] = []
    agrees: list[bool | None] = []
    for position in range(prompt_tokens, len(ids)):
        pass_logits = recorded.get(position + padding)
        if pass_logits is None:
            logprobs.append(None)
            kl.append(None)
            agrees.append(None)
            continue
        full = scores[position - prompt_tokens].double()
        other = torch.from_numpy(pass_logits.astype(np.float64))
        logprobs.append(float(other[ids[position]]))
        # Half precision holds log probabilities down to -65,504; what underflows has no weight in the sum.
        kl.append(max(float((full.exp() * (full - other.clamp_min(-100.0))).sum()), 0.0))
        agrees.append(bool(full.argmax() == other.argmax()))
    decoded = slice(prompt_tokens, len(ids))
    rows: dict[str, Any] = {
        "position": range(prompt_tokens, len(ids)),
        "id": ids[decoded],
        "text": texts[decoded],
        "special": [token in special for token in ids[decoded]],
        "logprob": logprobs,
    }
    logprob_full = scores.gather(1, torch.tensor(ids[decoded])[:, None])[:, 0].tolist()
    full_columns = {"logprob_full": logprob_full, "kl": kl, "top1_agree": agrees}
    writer.append("tokens", {"phase": ["forced"] * count} | rows | full_columns)
    writer.append("tokens", {"phase": ["free"] * count} | rows)
    return tokenizer.decode(ids[decoded], skip_special_tokens=True)


def _write_head(writer: RunWriter, layer: int, head: int, steps: list[Step], prompt_tokens: int) -> None:
    count = len(steps)
    writer.append(
        "steps",
        {
            "step": range(count),
            "layer": [layer] * count,
            "head": [head] * count,
            "live_slots": [one.slots for one in steps],
            "tokens_seen": [prompt_tokens + index for index in range(count)],
            "budget_slots": [one.slots for one in steps],
            "evicted": [sum(event[0] == "evict" for event in one.events) for one in steps],
            "merged": [sum(event[0] == "merge" for event in one.events) for one in steps],
            "max_votes": [one.votes for one in steps],
            "guard_activations": [0] * count,
            "non_finite": [0] * count,
        },
    )
    events = [(index, *event) for index, one in enumerate(steps) for event in one.events]
    if not events:
        return
    step, kind, source, target, key_weight, value_weight, votes = zip(*events, strict=True)
    writer.append(
        "events",
        {
            "step": step,
            "layer": [layer] * len(events),
            "head": [head] * len(events),
            "kind": kind,
            "source": source,
            "target": target,
            "key_weight": key_weight,
            "value_weight": value_weight,
            "votes_source": [1.0] * len(events),
            "votes_after": [None if np.isnan(one) else one for one in votes],
        },
    )


def _write_memory(
    writer: RunWriter, groups: list[list[Pass]], layers: list[int], prompt_tokens: int, row: int, padding: int
) -> None:
    for step, group in enumerate(groups):
        last = group[-1]
        held = [last.layers[layer] for layer in layers]
        rows = len(held[0].positions)
        live = [_live(one.positions[row], padding) for one in held]
        size = [one.positions.shape[-1] for one in held]
        allocated = [one.bytes // rows for one in held]
        writer.append(
            "memory",
            {
                "step": [step] * len(layers),
                "layer": layers,
                "logical_tokens": [prompt_tokens + step] * len(layers),
                "physical_slots": size,
                "live_slots": live,
                "live_bytes": [
                    int(bytes_ * kept / max(slots, 1))
                    for bytes_, kept, slots in zip(allocated, live, size, strict=True)
                ],
                "allocated_bytes": allocated,
            },
        )
