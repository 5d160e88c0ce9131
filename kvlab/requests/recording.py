"""Which layers, KV heads and steps of a run have arrays, and how much of the request fits. Torch-free."""

import re
from collections.abc import Sequence
from typing import Annotated

from pydantic import Field, model_validator

from kvlab.common.formatting import format_bytes
from kvlab.core import Strict, UserError, quote_value

# Five runs of 32 layers x 8 KV heads x 128 numbers x 32,768 tokens x 256 steps stay under 24 GB of disk: keys and
# values take 4.36 GB a run and are whole; attention rows, which would take 8.7 GB, get some of what is left.
MOST_STATE_BYTES = 21_900_000_000  # keys and values of a comparison, all runs together
MOST_ATTENTION_BYTES = 2**28  # of one run, all layers together, in host memory and on disk
MOST_HISTORY_BYTES = 2**29  # of a comparison's probe, likewise
MOST_DECISION_BYTES = 2**28  # of one run: 32 layers x 8 KV heads x 131,072 tokens take 168 MB
DECISION_BYTES_A_TOKEN = 5  # a score in single precision, and whether the token stayed
LEAST_LAYERS = 4  # kept before steps are left out as well
HALF = 2  # bytes of a number in half precision
BYTES_A_TOKEN = 4  # true mass and slot mass, or mass and log score, in half precision
FORM = "write layers=0-3,8,heads=0,every=4, or some of the three"

Numbers = tuple[Annotated[int, Field(ge=0)], ...]


class Recording(Strict):
    """Layers, heads and steps for which keys, values, attention rows and the probe are recorded; none: all."""

    layers: Numbers | None = None
    heads: Numbers | None = Field(None, description="KV heads")
    every: int = Field(1, ge=1, description="attention rows of every N-th step, from step 0")

    @model_validator(mode="after")
    def _in_order(self) -> "Recording":
        for name in ("layers", "heads"):
            numbers = getattr(self, name)
            if numbers is not None and list(numbers) != sorted(set(numbers)):
                raise ValueError(f"{name} should be named once each, in order")
        return self

    @classmethod
    def parse(cls, text: str) -> "Recording":
        """Parse text such as `layers=0-3,8,heads=0,every=4`; an empty text means everything.

        Raises UserError if a part cannot be parsed.
        """
        parsed: dict[str, list[int]] = {}
        name = ""
        for word in filter(None, (part.strip() for part in text.split(","))):
            match = re.fullmatch(r"(?:(layers|heads|every)=)?(\d{1,6})(?:-(\d{1,6}))?", word)
            name = name if match is None else match[1] or name
            if match is None or not name or (match[1] and match[1] in parsed):
                raise UserError(f"What to record cannot be {quote_value(word)}: {FORM}.")
            first = int(match[2])
            last = int(match[3] or match[2])
            if last < first or (name == "every" and (match[3] or name in parsed or first < 1)):
                raise UserError(f"What to record cannot be {word!r}: {FORM}.")
            parsed.setdefault(name, []).extend(range(first, last + 1))
        lists = {name: tuple(sorted(set(numbers))) for name, numbers in parsed.items() if name != "every"}
        return cls(**lists, every=parsed.get("every", [1])[0])

    @property
    def text(self) -> str:
        """The text that `parse` reads; empty for everything."""
        lists = ((name, getattr(self, name)) for name in ("layers", "heads"))
        words = [f"{name}={','.join(map(str, numbers))}" for name, numbers in lists if numbers is not None]
        return ",".join([*words, *([f"every={self.every}"] if self.every > 1 else [])])

    def of_layers(self, layers: Sequence[int]) -> list[int]:
        """The recorded ones of `layers`."""
        return [layer for layer in layers if self.layers is None or layer in self.layers]

    def of_heads(self, count: int) -> list[int]:
        """The recorded ones of `count` KV heads, in the order of the arrays."""
        return [head for head in range(count) if self.heads is None or head in self.heads]

    def check(self, layers: int, heads: int) -> None:
        """Raises UserError for layers or KV heads that the model does not have."""
        for name, recorded, count in (("layer", self.layers, layers), ("KV head", self.heads, heads)):
            if recorded and recorded[-1] >= count:
                raise UserError(
                    f"{name[0].upper()}{name[1:]} {recorded[-1]} cannot be recorded: "
                    f"the model's {name}s are numbered 0 to {count - 1}."
                )


def states_that_fit(
    recording: Recording,
    layers: Sequence[int],
    heads: int,
    head_dim: int,
    tokens: int,
    runs: int,
    most: int = MOST_STATE_BYTES,
) -> tuple[Recording, str]:
    """(what keys and values are recorded of in each of a comparison's `runs`, a sentence on what was left out or "").

    `layers` are the compressed ones, `heads` the model's KV heads, `tokens` those of prompt and forced text.
    """
    wanted = recording.of_layers(layers)
    # Bytes on disk of a layer's keys and values with their lengths.
    layer = runs * 2 * len(recording.of_heads(heads)) * tokens * (head_dim + 1) * HALF
    if len(wanted) * layer <= most:
        return recording, ""
    layers_kept = spread(wanted, most // layer)
    taken = f"{format_bytes(len(wanted) * layer)} in {runs} runs"
    would = f"all of them would take {taken}, and a comparison keeps {format_bytes(most)}"
    what = f"recorded of {_named(layers_kept)} only" if layers_kept else "left out"
    return recording.model_copy(update={"layers": tuple(layers_kept)}), f"Keys and values were {what}: {would}."


def attention_that_fits(
    recording: Recording, layers: Sequence[int], heads: int, tokens: int, steps: int, most: int = MOST_ATTENTION_BYTES
) -> tuple[Recording, str]:
    """(what attention rows are recorded of, a sentence on what was left out or "").

    `layers` are the compressed ones, `heads` the model's KV heads, `tokens` and `steps` those of prompt and forced
    text. Layers are dropped first, evenly, since most pages show one layer step by step; then steps.
    """
    wanted = recording.of_layers(layers)
    kept_heads = recording.of_heads(heads)
    row = max(len(kept_heads) * tokens * BYTES_A_TOKEN, 1)
    rows = -(-steps // recording.every)
    if len(wanted) * rows * row <= most:
        return recording, ""
    count = max(most // (rows * row), min(LEAST_LAYERS, len(wanted)))
    count = min(count, most // row)
    every = recording.every if count == 0 or count * rows * row <= most else -(-steps // (most // (count * row)))
    kept = tuple(spread(wanted, count))
    would = (
        f"all of them would take {format_bytes(len(wanted) * rows * row)}, and a run keeps at most {format_bytes(most)}"
    )
    if not count:
        return recording.model_copy(update={"layers": ()}), f"Attention rows were left out: {would}."
    which = _named(kept)
    when = "" if every == recording.every else f", at every {_ordinal(every)} step"
    sentence = f"Attention rows were recorded of {which} only{when}: {would}."
    if count == len(wanted):
        sentence = f"Attention rows were recorded at every {_ordinal(every)} step only: {would}."
    return recording.model_copy(update={"layers": kept, "every": every}), sentence


def history_that_fits(
    layers: Sequence[int], heads: int, tokens: int, prompt_rows: int, later_rows: int, most: int = MOST_HISTORY_BYTES
) -> tuple[list[int], int, str]:
    """(layers, prompt rows) of the probe's `history` that fit, and a sentence on what was left out or ""."""
    row = heads * tokens * BYTES_A_TOKEN
    whole = (prompt_rows + later_rows) * row
    if len(layers) * whole <= most:
        return list(layers), prompt_rows, ""
    would = (
        f"all of it would take {format_bytes(len(layers) * whole)}, and a comparison keeps at most {format_bytes(most)}"
    )
    count = most // whole
    if count:
        kept = spread(layers, count)
        return kept, prompt_rows, f"The probe's rows were recorded of {_named(kept)} only: {would}."
    rows = most // row - later_rows
    if rows < 1:
        return [], 0, f"The probe's rows were left out: {would}."
    kept = spread(layers, 1)
    sentence = f"The probe's rows were recorded of {_named(kept)} only, with {rows} queries of the prompt: {would}."
    return kept, rows, sentence


def decision_that_fits(
    layers: Sequence[int], heads: int, tokens: int, most: int = MOST_DECISION_BYTES
) -> tuple[list[int], str]:
    """(layers whose decision about a prompt of `tokens` is kept, a sentence on what was left out or "")."""
    layer_bytes = max(heads * tokens * DECISION_BYTES_A_TOKEN, 1)
    if len(layers) * layer_bytes <= most:
        return list(layers), ""
    kept = spread(layers, most // layer_bytes) if most >= layer_bytes else []
    would = (
        f"all of it would take {format_bytes(len(layers) * layer_bytes)}, and a run keeps at most {format_bytes(most)}"
    )
    which = f"was recorded of {_named(kept)} only" if kept else "was left out"
    return kept, f"The prompt's decision {which}: {would}."


def spread(values: Sequence[int], count: int) -> list[int]:
    """`count` of `values`, evenly spread, first and last among them (the middle one for a count of 1)."""
    if count >= len(values):
        return list(values)
    if count == 1:
        return [values[len(values) // 2]]
    return [values[round(place * (len(values) - 1) / (count - 1))] for place in range(count)]


def _named(layers: Sequence[int]) -> str:
    return f"layer{'s' if len(layers) > 1 else ''} {', '.join(map(str, layers))}"


def _ordinal(number: int) -> str:
    teens = 10 < number % 100 < 14
    return f"{number}{'th' if teens else {1: 'st', 2: 'nd', 3: 'rd'}.get(number % 10, 'th')}"
