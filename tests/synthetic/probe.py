"""The probe's arrays of a synthetic run: attention history, Gaussian hidden states, noisy samples of the next query."""

from __future__ import annotations

import numpy as np

HIDDEN, SHOWN, SAMPLES, SINKS, PROMPT_ROWS = 24, 16, 8, 4, 64
BINS, QUANTILES, P_NUC = 48, 33, 0.95


def probe_arrays(random: np.random.Generator, true_mass: np.ndarray, prompt_tokens: int) -> dict[str, dict]:
    """The arrays `history`, `hidden` and `sampled` that agree with `true_mass` (steps + 1, heads, tokens)."""
    return {
        "history": _history(random, true_mass, prompt_tokens),
        "hidden": _hidden(random.standard_normal((max(prompt_tokens - SINKS, 2), HIDDEN))),
        "sampled": _sampled(random, true_mass[1:, :, :prompt_tokens]),
    }


def _history(random: np.random.Generator, true_mass: np.ndarray, prompt_tokens: int) -> dict[str, np.ndarray]:
    """Prompt rows vary around the last one, each seeing its own past; the later rows are the recorded ones."""
    before = np.arange(max(prompt_tokens - PROMPT_ROWS, 0), prompt_tokens - 1)
    noise = random.normal(0, 0.7, (len(before), *true_mass.shape[1:]))
    with np.errstate(divide="ignore"):
        logits = np.log(true_mass[:1]) + noise
        logits = np.where(np.arange(true_mass.shape[2]) <= before[:, None, None], logits, -np.inf)
        mass = np.concatenate([_softmax(logits), true_mass])
        normalizer = random.normal(3, 0.5, (len(mass), true_mass.shape[1], 1))
        return {"mass": mass, "log_score": np.log(mass) + normalizer}


def _hidden(states: np.ndarray) -> dict[str, np.ndarray]:
    standard = (states - states.mean(0)) / states.std(0, ddof=1)
    edges, probabilities = np.linspace(-6, 6, BINS + 1), (np.arange(QUANTILES) + 0.5) / QUANTILES
    shown = [standard.ravel(), *standard[:, np.linspace(0, HIDDEN - 1, SHOWN).round().astype(int)].T]
    kurtosis = (standard**4).mean(0) - 3
    return {
        "mean": states.mean(0), "deviation": states.std(0, ddof=1), "skew": (standard**3).mean(0),
        "kurtosis": kurtosis, "kurtosis_with_sinks": kurtosis, "distance": np.full(HIDDEN, 0.5) / np.sqrt(len(states)),
        "histogram": np.stack([np.histogram(values, edges, density=True)[0] for values in shown]),
        "quantiles": np.stack([np.quantile(values, probabilities) for values in shown]),
    }  # fmt: skip


def _sampled(random: np.random.Generator, future: np.ndarray) -> dict[str, np.ndarray]:
    """`future` (steps, heads, prompt tokens); a sample is the next query's attention with noise on its logs."""
    future = future / future.sum(-1, keepdims=True)
    true, tokens = future[0], future.shape[-1]
    noise = random.normal(0, 1, (true.shape[0], SAMPLES, tokens))
    samples = _softmax(np.log(true)[:, None] + noise)
    inner_true, inner = _inner(true), _inner(samples)
    sets, budget = _nucleus(inner), _nucleus(inner_true).sum(-1)
    protected = np.zeros((len(true), tokens), bool)
    protected[:, :SINKS] = True
    top = np.argsort(np.argsort(-inner, -1), -1) < budget[:, None, None]
    kept = np.concatenate([protected[:, None], protected[:, None] | (np.cumsum(top, 1) > 0)], 1)
    return {
        "true": true, "synthetic": samples.mean(1), "ballots": top.sum(1), "step_budget": budget / tokens,
        "overlap": (true[:, None] * _nucleus(samples)).sum(-1), "usage": _nucleus(samples).mean(-1),
        "true_usage": _nucleus(true).mean(-1), "inner_overlap": (inner_true[:, None] * sets).sum(-1),
        "inner_usage": sets.mean(-1), "inner_true_usage": _nucleus(inner_true).mean(-1), "union": kept.mean(-1),
        "covered": (true[:, None] * kept).sum(-1),
        "future": np.einsum("mht,ht->hm", future, kept[:, -1].astype(float)),
    }  # fmt: skip


def _inner(mass: np.ndarray) -> np.ndarray:
    inside = np.where(np.arange(mass.shape[-1]) >= SINKS, mass, 0)
    return inside / inside.sum(-1, keepdims=True)


def _nucleus(mass: np.ndarray) -> np.ndarray:
    """The smallest set (..., tokens) of largest masses that holds `P_NUC`."""
    order = np.argsort(-mass, -1)
    ranked = np.take_along_axis(mass, order, -1)
    inside = np.cumsum(ranked, -1) - ranked < P_NUC
    sets = np.zeros(mass.shape, bool)
    np.put_along_axis(sets, order, inside, -1)
    return sets


def _softmax(logits: np.ndarray) -> np.ndarray:
    weights = np.exp(logits - logits.max(-1, keepdims=True))
    return weights / weights.sum(-1, keepdims=True)
