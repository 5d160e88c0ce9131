"""Kept prefixes as lanes of a live session: which belong together, the request for a session over them, and names."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import chain, count
from pathlib import Path
from typing import Any

from pydantic import JsonValue, ValidationError

from kvlab.common.formatting import model_title
from kvlab.core.choice import FULL, MethodChoice
from kvlab.core.errors import UserError
from kvlab.core.validation import in_one_sentence
from kvlab.library.prefixes import PrefixFile, PrefixHeader, find_prefix, prefix_path, read_texts
from kvlab.requests.compare import ModelRequest
from kvlab.requests.live_session import GAP, MOST_LANES, LiveRequest

PLACES = ("device", "dtype")  # arguments of `kvlab.load_model` that a header records as what they came to
# characters; words of the text
LONGEST_NAME = 40
FIRST_WORDS = 4
NO_NAME = "text"


@dataclass(frozen=True)
class KeptText:
    """A text that one model has read, and the prefixes of it: the full cache first, then the newest."""

    header: PrefixHeader
    files: tuple[PrefixFile, ...]


def kept_texts(files: Iterable[PrefixFile], model: str) -> list[KeptText]:
    """The texts that `model` has read, in the order of `files`; prefixes that hold a conversation are left out."""
    groups: dict[Any, list[PrefixFile]] = {}
    for file in files:
        head = file.header
        if not head.questions and model_title(head.model.name) == model_title(model):
            read = head.text_sha256, head.tokens, head.chat, head.system, head.thinking
            groups.setdefault((head.model.model_dump_json(), *read), []).append(file)
    return [KeptText(group[0].header, in_order(group)) for group in groups.values()]


def in_order(files: Iterable[PrefixFile]) -> tuple[PrefixFile, ...]:
    """The full cache first, which the others are compared with; else as they were."""
    return tuple(sorted(files, key=lambda file: file.header.choice.method != FULL.method))


def live_request(
    root: Path, names: Sequence[str], model: str = "", device: str = "auto", cache_dir: str | None = None, seed: int = 0
) -> LiveRequest:
    """A session over prefixes, each a lane, compared with the first; `model` is where it is now, if elsewhere.

    Only headers and the first one's texts are read. Raises UserError for a prefix that there is not or that cannot be
    read, for prefixes of several models, or too many.
    """
    files = [find_prefix(root, name) for name in names]
    if len({(file.header.model.name, file.header.model.dtype) for file in files}) > 1:
        raise UserError("These prefixes were read by different models: open them one by one.")
    if len(files) > 1 + MOST_LANES:
        raise UserError(f"These are {len(files)} prefixes: open at most {1 + MOST_LANES} together.")
    head = files[0].header
    texts = read_texts(files[0])
    reference, *choices = (file.header.choice for file in files)
    try:
        placed = loaded_as(head, model, device, cache_dir) | head.model_dump(include={"chat", "system", "thinking"})
        context = GAP.join(one.text for one in texts)
        lanes = tuple(choices)
        return LiveRequest(
            context=context, prefixes=tuple(names), reference=reference, choices=lanes, seed=seed, **placed
        )
    except ValidationError as error:
        raise UserError(in_one_sentence(error)) from error


def loaded_as(
    header: PrefixHeader, model: str = "", device: str = "auto", cache_dir: str | None = None
) -> dict[str, Any]:
    """Fields of a request that load the model as it was when it read the prefix; `model` is where it is now."""
    kept = header.model
    known = {} if model else kept.loading
    place = "cpu" if device == "auto" and kept.device == "cpu" else device
    given = {"model": model or kept.name, "device": place, "dtype": kept.dtype}
    return {**known, **given, **({"cache_dir": cache_dir} if cache_dir else {})}


def recorded_loading(request: ModelRequest) -> dict[str, JsonValue]:
    """What a header records of how a request loads its model."""
    return {name: value for name, value in request.loading.items() if name not in PLACES}


def proposed_name(root: Path, text: str, choice: MethodChoice) -> str:
    """A free name from the text's first words and the method, such as `the-old-house-stood-snapkv-20`."""
    budget = "" if choice.budget == FULL.budget else "-" + re.sub(r"\W+", "", choice.label.removeprefix(choice.method))
    words = "-".join(re.findall(r"\w+", text[:400].lower())[:FIRST_WORDS]) or NO_NAME
    tail = f"-{choice.method}{budget}"[-LONGEST_NAME // 2 :]
    for end in chain([tail], (f"{tail}-{number}" for number in count(2))):
        name = words[: LONGEST_NAME - len(end)].rstrip("-") + end
        if not prefix_path(root, name).exists():
            return name
    raise AssertionError  # numbers do not end
