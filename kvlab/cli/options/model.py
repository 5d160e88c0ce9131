"""Options of every command that loads a model: where its weights go, and how it is spoken to."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Annotated, Any

import typer

from kvlab.common.errors import UserError

Model = Annotated[str, typer.Option(help="mini, a local folder, or a hub name")]
Device = Annotated[str, typer.Option(help="auto, cpu, mps, cuda, or one of several such as cuda:1")]
Dtype = Annotated[str, typer.Option(help="auto, float32, bfloat16 or float16")]
Placement = Annotated[str, typer.Option(help="single: one device; auto: weights spread over all (needs accelerate)")]
LoadIn = Annotated[str | None, typer.Option(help="4bit or 8bit weights (needs bitsandbytes or torchao)")]
Revision = Annotated[str | None, typer.Option(help="a branch, tag or commit of a hub name")]
CacheDir = Annotated[str | None, typer.Option(help="the folder that hub files are kept in")]
ChatWay = Annotated[str, typer.Option(help="auto: in the model's chat template where it has one; no: plain text")]
System = Annotated[str, typer.Option(help="a system prompt for the chat template")]
Thinking = Annotated[str | None, typer.Option(help="yes or no, where the chat template has a switch for it")]


def thinking_of(text: str | None) -> bool | None:
    """What --thinking says. Raises UserError for anything but yes and no."""
    if text not in (None, "yes", "no"):
        raise UserError(f"--thinking is yes or no, not {text!r}.")
    return None if text is None else text == "yes"


@dataclass(frozen=True)
class LoadingOptions:
    """Which model, and where its weights come from and go to."""

    model: Model = "mini"
    device: Device = "auto"
    dtype: Dtype = "auto"
    placement: Placement = "single"
    load_in: LoadIn = None
    revision: Revision = None
    cache_dir: CacheDir = None


@dataclass(frozen=True)
class ModelOptions(LoadingOptions):
    """And how it is spoken to."""

    chat: ChatWay = "auto"
    system: System = ""
    thinking: Thinking = None

    @property
    def as_asked(self) -> dict[str, Any]:
        """As requests take them. Raises UserError for a `thinking` that is neither yes nor no."""
        return asdict(self) | {"thinking": thinking_of(self.thinking)}
