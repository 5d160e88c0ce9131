"""A checkpoint's generation_config: settings that change greedy decoding, and whether a run applies them."""

from collections.abc import Mapping
from typing import Any, Literal

GenerationSettings = Literal["ignore", "honour"]

# Settings that `generate` applies as logits processors even when greedy, with their neutral values.
PROCESSORS: dict[str, object] = {
    "repetition_penalty": 1.0,
    "no_repeat_ngram_size": 0,
    "bad_words_ids": None,
    "sequence_bias": None,
    "suppress_tokens": None,
    "begin_suppress_tokens": None,
    "min_length": 0,
    "min_new_tokens": 0,
    "forced_eos_token_id": None,
    "exponential_decay_length_penalty": None,
    "guidance_scale": 1.0,
    "watermarking_config": None,
    "remove_invalid_values": False,
}
STOP_STRINGS = "stop_strings"  # texts that end what `generate` writes
# Settings that count only with `do_sample`.
SAMPLING = ("temperature", "top_k", "top_p", "min_p", "top_h", "typical_p", "epsilon_cutoff", "eta_cutoff")
LONGEST_VALUE = 40


def processors_set(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Settings that change which token is the most likely one."""
    values = {name: settings.get(name) for name in PROCESSORS}
    return {name: value for name, value in values.items() if value is not None and value != PROCESSORS[name]}


def stop_strings(settings: Mapping[str, Any]) -> list[str]:
    """Texts that end what `generate` writes."""
    texts = settings.get(STOP_STRINGS) or []
    return [texts] if isinstance(texts, str) else [str(text) for text in texts]


def generation_notes(
    settings: Mapping[str, Any], treated: GenerationSettings = "ignore", can_honour: bool = True
) -> list[str]:
    """A sentence on settings that change the most likely token or end the text, and one on sampling, if there are any.

    `can_honour`: whether the user can choose to apply them, which the first sentence then mentions.
    """
    notes = []
    changing = processors_set(settings)
    stops = stop_strings(settings)
    if changing or stops:
        sets = f"The checkpoint's generation_config sets {_listed(changing | ({STOP_STRINGS: stops} if stops else {}))}"
        if treated == "honour":
            chosen = ["its own text is chosen under them, while KL and log-probabilities are the model's"] * bool(
                changing
            )
            chosen += ["texts end with the first stop string"] * bool(stops)
            notes.append(f"{sets}: {'; '.join(chosen)}.")
        else:
            remedy = "; to apply it, set generation config to honour (--generation-config honour)"
            notes.append(
                f"{sets}, which transformers' generate applies and kvlab ignores{remedy if can_honour else ''}."
            )
    # What makes `generate` sample or use beam search.
    beams = settings.get("num_beams") or 1
    drawing = {"num_beams": beams} if beams != 1 else {}
    if settings.get("do_sample"):
        sampled = {name: settings[name] for name in SAMPLING if settings.get(name) is not None}
        drawing = sampled | {"do_sample": True} | drawing
    if drawing:
        notes.append(
            f"The checkpoint's generation_config asks for {_listed(drawing)}: generate then draws or searches, "
            "while texts here are greedy, which always gives the same text."
        )
    return notes


def _listed(settings: Mapping[str, Any]) -> str:
    texts = {name: str(value) for name, value in settings.items()}
    return ", ".join(
        f"{name} {text if len(text) <= LONGEST_VALUE else f'{text[: LONGEST_VALUE - 4]} ...'}"
        for name, text in texts.items()
    )
