"""Options that compose a method of parts, or say how the slots of all methods are held."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

import typer

from kvlab.common.errors import UserError


@dataclass(frozen=True)
class PartsOptions:
    """The parts of a composed method, and a store."""

    score: Annotated[str | None, typer.Option(help="compose a method: whose score, such as snapkv")] = None
    allocate: Annotated[str | None, typer.Option(help="compose a method: whose split of the budget, such as adakv")] = (
        None
    )
    select: Annotated[str | None, typer.Option(help="compose a method: which slots may go, such as topk")] = None
    settle: Annotated[str | None, typer.Option(help="compose a method: what becomes of them, such as zsmerge")] = None
    store: Annotated[str | None, typer.Option(help="how slots are held, in all methods but full, such as kivi4")] = None

    def added_to(self, methods: str) -> str:
        """The methods asked for, and one composed of the parts that were given; the store holds the slots of all.

        Raises UserError where there is neither a method nor a part.
        """
        from kvlab.requests.method_spec import split_list

        parts = {"score": self.score, "allocate": self.allocate, "select": self.select, "settle": self.settle}
        given = [f":{part}={choice}" for part, choice in parts.items() if choice is not None]
        if not given and not methods:
            raise UserError(
                "Name a method, such as keepkv, or compose one with --score, --allocate, --select, --settle."
            )
        named = [*split_list(methods), *(["compose" + "".join(given)] if given else [])]
        held = "" if self.store is None else f":store={self.store}"
        return ",".join(name if name == "full" or ":store=" in name else name + held for name in named)
