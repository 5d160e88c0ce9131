"""Repeats of a comparison in one batch: a needle planted again and again in one text, or several prompts."""

from typing import Annotated

from pydantic import Field, model_validator

from kvlab.core import Strict, UserError

MOST_REPEATS = 200
VARIED = ("depth", "wording")  # name and number differ in every repeat
GOLDEN = (5**0.5 - 1) / 2

BatchName = Annotated[str, Field(pattern=r"^[^./\\\x00-\x1f][^/\\\x00-\x1f]{0,149}$")]


class Planting(Strict):
    """Where and how a needle is planted in a text (`kvlab.tasks.haystack`)."""

    wording: int = Field(0, ge=0, description="number of the wording, from 0")
    depth: float = Field(0.3, ge=0, le=1, description="0: the text's start, 1: its end")
    draw: int = Field(0, ge=0, description="draws the name and the number")

    @property
    def description(self) -> str:
        """As shown in lists."""
        return f"depth {100 * self.depth:g} %, wording {self.wording + 1}, draw {self.draw}"


class Repeat(Strict):
    """A comparison's place in its batch, with its planted needle or its own prompt."""

    batch: BatchName
    number: int = Field(ge=1)
    of: int = Field(ge=1, le=MOST_REPEATS)
    planting: Planting | None = Field(None, description="of the needle; none: each repeat has its own prompt")
    name: str = Field("", max_length=200, description="of the prompt")

    @property
    def description(self) -> str:
        """What distinguishes it from the other repeats."""
        return self.planting.description if self.planting else self.name

    @model_validator(mode="after")
    def _is_among(self) -> "Repeat":
        if self.number > self.of:
            raise ValueError(f"repeat {self.number} is none of {self.of}")
        return self


def plantings(count: int, first: Planting, wordings: int, vary: tuple[str, ...] = VARIED) -> tuple[Planting, ...]:
    """`count` plantings; what `vary` does not name stays as in `first`, and the draw counts up.

    Depths follow the golden ratio, so that any number of repeats is spread evenly; wordings take turns. Raises
    UserError if the count is out of range, or `vary` has an unknown name.
    """
    if not 1 <= count <= MOST_REPEATS:
        raise UserError(f"There cannot be {count:,} repeats: ask for 1 to {MOST_REPEATS}.")
    if unknown := set(vary) - set(VARIED):
        raise UserError(f"Repeats cannot vary {sorted(unknown)[0]!r}: name {' or '.join(VARIED)}, or both.")
    return tuple(
        Planting(
            wording=(first.wording + index) % wordings if "wording" in vary else first.wording,
            depth=round((0.5 + index * GOLDEN) % 1, 2) if "depth" in vary else first.depth,
            draw=first.draw + index,
        )
        for index in range(count)
    )
