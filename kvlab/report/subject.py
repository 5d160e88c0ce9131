"""Subject of a picture: its methods, model, prompt and place as one line, and its origin for speaker notes."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from kvlab.common.formatting import ONE_PROMPT, join_words, model_title
from kvlab.trace.reader import Run
from kvlab.views.frames.compare import unique_labels
from kvlab.views.frames.lineage import token_texts

MOST_CHARACTERS = 70
MOST_RUNS = 6
MOST_WORDS = 60
MOST_NAMED = 3  # runs in a title
THIS_HEAD = ", this head"
CHOSEN = "the chosen tokens"
THE_FACT = "the fact"
ABOUT_HEADS = re.compile(r"\b(?:heads?|layers?)\b", re.IGNORECASE)
SPAN = re.compile(r"(\d{1,9})(?:-(\d{1,9}))?")


def subject_of(runs: Sequence[Run], address: Mapping[str, str], without: Sequence[str] = ()) -> str:
    """Subject: methods with budgets, model, prompt, layer, head and searched words, as in the URL parameters `address`.

    `without` names parameters that a figure shows all of, such as `head` for a head map.
    """
    if not runs:
        return ""
    record = runs[0].record
    labels = _named(runs)
    more = f" and {len(labels) - MOST_RUNS} more" if len(labels) > MOST_RUNS else ""
    prompt = f"{ONE_PROMPT} of {record.prompt_tokens:,} tokens"
    named = ", ".join(labels[:MOST_RUNS]) + more
    parts = (named, model_title(record.model.name), prompt, place_of(runs, address, without))
    return " · ".join(filter(None, parts))


def slide_title(title: str, runs: Sequence[Run], address: Mapping[str, str], without: Sequence[str] = ()) -> str:
    """A title that stands alone: `keepkv 20 %: attention on the fact, layer 3 head 3`.

    The run is named first, of several their labels or number, unless the title names it; then the figure's title, with
    the chosen tokens by name; then layer and head, unless the figure shows all of them (`without`) or the title says
    which. Without runs the title is unchanged.
    """
    if not runs:
        return title
    labels = _named(runs)
    who = f"{len(labels)} runs" if len(labels) > MOST_NAMED else join_words(labels)
    text = title.replace(THIS_HEAD, "").replace(CHOSEN, _words(runs[0], address).removeprefix("words ") or THE_FACT)
    numbers = [address.get(name, "") for name in ("layer", "head")]
    is_named = ABOUT_HEADS.search(text) is not None or without or not all(numbers)
    place = "" if is_named else f", layer {numbers[0]} head {numbers[1]}"
    if any(label in title for label in labels):
        return f"{text}{place}"
    rest = text.partition(" ")[0][1:]
    is_name = rest and not rest.islower()  # such as KL, H2O and KeepKV
    return f"{who}: {text if is_name else text[:1].lower() + text[1:]}{place}"


def _named(runs: Sequence[Run]) -> list[str]:
    """Each run as `keepkv 30 %`, longer where names would collide."""
    labels = [run.record.label for run in runs]
    return labels if len(set(labels)) == len(runs) else unique_labels(runs)


def place_of(runs: Sequence[Run], address: Mapping[str, str], without: Sequence[str] = ()) -> str:
    """The prompt, layer, head and searched words of `subject_of`."""
    if not runs:
        return ""
    place = [f"{name} {address[name]}" for name in ("layer", "head") if address.get(name) and name not in without]
    return " · ".join(filter(None, (prompt_excerpt(runs[0]), ", ".join(place), _words(runs[0], address))))


def prompt_excerpt(run: Run) -> str:
    """A prompt's title, else its end, where questions usually are."""
    if run.record.title:
        return f"“{_cut(run.record.title)}”"
    return f"“{last_words(run.record.prompt[-4 * MOST_CHARACTERS :], MOST_CHARACTERS)}”"


def last_words(text: str, most: int) -> str:
    """The end of a text on one line, at most so many characters, after "…" if there is more."""
    words = " ".join(text.split())
    return words if len(words) <= most else f"… {words[-most:].partition(' ')[2]}"


def provenance(runs: Sequence[Run]) -> str:
    """One line per run with id and settings, then device, seed and versions."""
    if not runs:
        return ""
    lines = []
    for run, label in zip(runs, _named(runs), strict=True):
        settings = ", ".join(f"{name} {value}" for name, value in run.record.hyper_parameters.items())
        lines.append(f"{label}: run {run.record.run_id}" + (f"; {settings}" if settings else ""))
    record = runs[0].record
    versions = ", ".join(f"{name} {version}" for name, version in record.versions.items())
    created = record.created[:16].replace("T", " ")
    made = f"{model_title(record.model.name)} on {record.device}, seed {record.seed}, {created}"
    return "\n".join((*lines, f"{made}; {versions}"))


def _words(run: Run, address: Mapping[str, str]) -> str:
    """The words that were searched or selected by position."""
    if typed := address.get("words", "").strip():
        return f"words “{_cut(' '.join(typed.split()))}”"
    asked = SPAN.fullmatch(address.get("span", "") or address.get("token", ""))
    if asked is None:
        return ""
    first = int(asked[1])
    last = int(asked[2] or asked[1])
    texts = token_texts(run.tokens, last + 1)[first:] if first <= last < len(run.tokens) else []
    place = f"token {first}" if first == last else f"tokens {first} to {last}"
    return f"{place} “{_cut(' '.join(''.join(texts).split()))}”" if texts else ""


def _cut(text: str) -> str:
    return text if len(text) <= MOST_WORDS else f"{text[: MOST_WORDS - 1]}…"
