"""Compare runs over one prompt: closeness to the full cache, bytes and speed."""

from collections.abc import Mapping, Sequence

import numpy as np
import pandas as pd

from kvlab.core.budget import BYTE_SHARE, BYTES, Budget
from kvlab.trace.reader import Run
from kvlab.views.frames.labels import distinct_names, parse_label
from kvlab.views.frames.memory import full_bytes_per_token, over_steps
from kvlab.views.frames.speed import speed_limit, speed_of


def unique_labels(runs: Sequence[Run]) -> list[str]:
    """A unique name per run, made of what differs between runs (`kvlab.views.frames.labels`)."""
    return distinct_names([run.record for run in runs])


def rename_runs(table: pd.DataFrame, names: Mapping[str, str]) -> pd.DataFrame:
    """The rows of some runs, given as the label of each run id."""
    rows = table[table["run_id"].isin(list(names))]
    return rows.assign(label=rows["run_id"].map(names)).reset_index(drop=True)


def headline(runs: Sequence[Run]) -> pd.DataFrame:
    """One row per run: bytes after the last step and their share of the full cache's, speed, and closeness to it.

    Nothing is rounded. `reading` is empty for runs that read everything; `unread_mass` is the attention, with nothing
    dropped, on slots that a step left out, mean over steps, layers and KV heads, where it was recorded. `over_budget`
    is the share by which live bytes exceed the budget's; `speed_ratio_doubt` says why the speed ratio is unreliable, if
    it is. Bytes and speed of the full cache come from the run of method `full`; without one, bytes are computed from
    the model's shape and the speed ratio is empty. `speed_limit` is the most that ratio can be by bytes,
    `limit_reached` the share. KL in nats per token of the forced continuation, a mean over `mean_tokens` tokens;
    `prompts` is 1.
    """
    full = next((run for run in runs if run.record.method == "full"), None)
    speeds = [speed_of(run.record) for run in runs]
    reference = next((speed for run, speed in zip(runs, speeds, strict=True) if run is full), None)
    whole = None if full is None or full.memory.empty else over_steps(full.memory, full.record)
    rows = []
    for run, label, speed in zip(runs, unique_labels(runs), speeds, strict=True):
        record = run.record
        forced = run.tokens[run.tokens["phase"] == "forced"]
        ratio, doubt = speed.ratio_to(reference)
        limit = _limit(run, whole)
        reached = None
        if ratio is not None and limit is not None and not doubt and record.method != "full":
            reached = ratio / limit
        reads = "read" in record.hyper_parameters and record.level == "full"
        rows.append(
            {
                "label": label,
                "method": record.method,
                "budget": Budget(record.budget).description,
                "reading": str(record.hyper_parameters.get("read", "")),
                **_bytes(run, whole),
                "unread_mass": _mean(run.steps["unread_mass"]) if reads else None,
                "over_budget": over_budget(run),
                "tokens_per_second": speed.rate,
                **speed.columns(),
                "speed_ratio": ratio,
                "speed_ratio_doubt": doubt,
                "speed_limit": limit,
                "limit_reached": reached,
                "prompt_seconds": record.seconds_prefill,
                "second_pass_seconds": record.seconds_second_pass,
                "mean_kl": _mean(forced["kl"]),
                "top1_agreement": _mean(forced["top1_agree"]),
                "extra_nll": _mean(forced["logprob_full"] - forced["logprob"]),
                "first_divergence": first_divergence(run.tokens),
                "prompts": 1,
                "mean_tokens": int(forced["kl"].notna().sum()),
                "device": f"{record.device}, {record.model.dtype}",
                "status": record.status,
                "run_id": record.run_id,
            }
        )
    return pd.DataFrame(rows)


def _bytes(run: Run, there: pd.DataFrame | None) -> Mapping[str, float | None]:
    """Bytes after the last step and their shares of the full cache's bytes (`there`, per step, or computed).

    `bytes_read` is the mean over the decode steps.
    """
    names = ("live_bytes", "allocated_bytes")
    if run.memory.empty:
        return dict.fromkeys((*names, "bytes_read", "live_ratio", "allocated_ratio"))
    steps = over_steps(run.memory, run.record)
    last = steps.iloc[-1]
    decoded = steps[steps["step"] > 0]
    read = float(decoded["bytes_read"].mean()) if len(decoded) else float(last["bytes_read"])
    whole = {name: float(last["full_bytes"]) for name in names}
    if there is not None:
        at_step = there[there["step"] <= last["step"]]
        whole = {name: float(at_step[name].iloc[-1]) for name in names} if len(at_step) else whole
    sizes = {name: float(last[name]) for name in names}
    return (
        sizes
        | {"bytes_read": read}
        | {name.replace("bytes", "ratio"): sizes[name] / whole[name] if whole[name] else None for name in names}
    )


def _limit(run: Run, there: pd.DataFrame | None) -> float | None:
    """How many times as fast as the full cache a step right behind the prompt can be by its bytes.

    None for a run that recorded no memory, or without the size of the weights.
    """
    weights = run.record.model.step_weight_bytes
    if run.memory.empty or weights is None:
        return None
    first = over_steps(run.memory, run.record).head(2).iloc[-1]  # of step 1, as a prompt reads nothing of the cache
    full = float(first["full_bytes"])
    if there is not None and len(same_step := there[there["step"] == first["step"]]):
        full = float(same_step["bytes_read"].iloc[0])
    return speed_limit(weights, full, float(first["bytes_read"]))


def over_budget(run: Run) -> float | None:
    """Share by which live bytes after the last step exceed the budget's; 0.14 is 14 % above.

    The budget covers keys and values of that many tokens, without metadata, in every compressed layer. None for a
    method without a budget or a run without recorded bytes.
    """
    record = run.record
    memory = run.memory
    if memory.empty or not parse_label(record).budget:
        return None
    last = memory[(memory["step"] == memory["step"].max()) & ~memory["layer"].isin(record.sliding_layers)]
    budget = Budget(record.budget)
    token = len(last) * full_bytes_per_token(record)
    if budget.unit == BYTES:
        promised = budget.number
    elif budget.unit == BYTE_SHARE:
        promised = budget.number * token * record.prompt_tokens
    else:
        promised = float(budget.slots(record.prompt_tokens) * token)
    return float(last["live_bytes"].sum()) / promised - 1 if promised else None


def beyond_budget(runs: Sequence[Run]) -> pd.DataFrame:
    """One row per run that ends with more slots than allotted: label, slots and budget, means over heads.

    Methods that compress only the prompt exceed the budget by the generated tokens.
    """
    rows = []
    for run, label in zip(runs, unique_labels(runs), strict=True):
        last = run.steps[run.steps["step"] == run.steps["step"].max()]
        slots = last["live_slots"].mean()
        budget = last["budget_slots"].mean()
        if len(last) and slots > budget + run.record.compress_every - 1:  # tokens awaiting a decision do not count
            rows.append({"label": label, "slots": float(slots), "budget": float(budget)})
    return pd.DataFrame(rows, columns=["label", "slots", "budget"])


def _mean(values: pd.Series) -> float | None:
    known = values.dropna()
    return float(known.astype(float).mean()) if len(known) else None


def first_divergence(tokens: pd.DataFrame) -> int | None:
    """First token (from 1) of the run's own continuation that differs from the full cache's; None if none does.

    A continuation that stops earlier differs at its end.
    """
    free, full = (tokens.loc[tokens["phase"] == phase, "id"].to_numpy() for phase in ("free", "forced"))
    if not len(free) or not len(full):
        return None
    common = min(len(free), len(full))
    different = np.flatnonzero(free[:common] != full[:common])
    if len(different):
        return int(different[0]) + 1
    return None if len(free) == len(full) else common + 1


def has_kl(along: pd.DataFrame) -> bool:
    """Whether rows of `along_text` hold any KL from the full cache."""
    return not along.empty and bool(along.loc[along["method"] != "full", "kl"].notna().any())


def along_text(runs: Sequence[Run], window: int = 16) -> pd.DataFrame:
    """One row per run and token of the forced continuation: KL and NLL in nats, agreement, also as rolling mean."""
    tables = []
    for run, label in zip(runs, unique_labels(runs), strict=True):
        forced = run.tokens[run.tokens["phase"] == "forced"].sort_values("position")
        agree = forced["top1_agree"].astype("float64")
        part = pd.DataFrame(
            {
                "label": label,
                "method": run.record.method,
                "token": np.arange(1, len(forced) + 1),
                "position": forced["position"].to_numpy(),
                "text": forced["text"].to_numpy(),
                "kl": forced["kl"].to_numpy(),
                "agree": agree.to_numpy(),
                "agreement": agree.rolling(window, min_periods=1).mean().to_numpy(),
                "nll": -forced["logprob"].to_numpy(),
                "nll_full": -forced["logprob_full"].to_numpy(),
            }
        )
        tables.append(part.assign(extra_nll=lambda table: (table["nll"] - table["nll_full"]).cumsum()))
    return pd.concat(tables, ignore_index=True) if tables else pd.DataFrame()


def memory_over_steps(runs: Sequence[Run]) -> pd.DataFrame:
    """Live, allocated, peak and full bytes of every run per step, with columns label and method."""
    tables = [
        over_steps(run.memory, run.record).assign(label=label, method=run.record.method)
        for run, label in zip(runs, unique_labels(runs), strict=True)
        if not run.memory.empty
    ]
    return pd.concat(tables, ignore_index=True) if tables else pd.DataFrame()


def slots_by_layer(runs: Sequence[Run]) -> pd.DataFrame:
    """Live slots of every layer at the last step, mean over KV heads: columns label, method, layer, live_slots."""
    tables = []
    for run, label in zip(runs, unique_labels(runs), strict=True):
        last = run.memory[run.memory["step"] == run.memory["step"].max()]
        part = last[["layer", "live_slots", "logical_tokens"]].assign(label=label, method=run.record.method)
        tables.append(part.assign(share=part["live_slots"] / part["logical_tokens"]))
    return pd.concat(tables, ignore_index=True) if tables else pd.DataFrame()


def rivals_at_same_bytes(table: pd.DataFrame) -> list[pd.DataFrame]:
    """Groups of at least two compressed runs with about the same live bytes, closest to the full cache first.

    Methods are only comparable at the same bytes.
    """
    known = table[(table["method"] != "full") & table["mean_kl"].notna()]
    return [part for part in at_same_bytes(known) if len(part) > 1]


def at_same_bytes(table: pd.DataFrame, tolerance: float = 0.12) -> list[pd.DataFrame]:
    """Runs with known bytes grouped by ascending bytes, each group with the closest to the full cache first.

    A group spans up to `tolerance` above its smallest run.
    """
    known = table[table["live_bytes"].notna()]
    known = known.astype({"live_bytes": float, "mean_kl": float}).sort_values("live_bytes")
    group = 0
    floor = 0.0
    groups = []
    for size in known["live_bytes"]:
        if size > floor * (1 + tolerance):
            group = group + 1
            floor = size
        groups.append(group)
    return [part.sort_values("mean_kl").reset_index(drop=True) for _, part in known.groupby(groups)]
