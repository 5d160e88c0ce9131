"""Options of commands that load a model: device, dtype, placement, and chat template."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Annotated, Any

import typer

from kvlab.core.errors import UserError

Model = Annotated[str, typer.Option(help="mini, a local folder, or a hub name")]
Device = Annotated[str, typer.Option(help="auto, cpu, mps, cuda, or a GPU such as cuda:1")]
Dtype = Annotated[str, typer.Option(help="auto, float32, bfloat16 or float16")]
Placement = Annotated[
    str, typer.Option(help="single: one device; auto: distribute weights over all (needs accelerate)")
]
LoadIn = Annotated[str | None, typer.Option(help="4bit or 8bit weights (needs bitsandbytes or torchao)")]
Revision = Annotated[str | None, typer.Option(help="branch, tag or commit of a hub model")]
CacheDir = Annotated[str | None, typer.Option(help="folder for files from the hub")]
ChatWay = Annotated[str, typer.Option(help="auto: use the model's chat template if it has one; no: plain text")]
System = Annotated[str, typer.Option(help="a system prompt for the chat template")]
Thinking = Annotated[str | None, typer.Option(help="yes or no, if the chat template supports it")]


def thinking_of(text: str | None) -> bool | None:
    """Parse --thinking. Raises UserError for anything but yes and no."""
    if text not in (None, "yes", "no"):
        raise UserError(f"--thinking takes yes or no, not {text!r}.")
    return None if text is None else text == "yes"


@dataclass(frozen=True)
class LoadingOptions:
    """The model, and how its weights are loaded."""

    model: Model = "mini"
    device: Device = "auto"
    dtype: Dtype = "auto"
    placement: Placement = "single"
    load_in: LoadIn = None
    revision: Revision = None
    cache_dir: CacheDir = None


@dataclass(frozen=True)
class ModelOptions(LoadingOptions):
    """Loading options, and those of the chat template."""

    chat: ChatWay = "auto"
    system: System = ""
    thinking: Thinking = None

    @property
    def fields(self) -> dict[str, Any]:
        """The request's fields. Raises UserError for an invalid `thinking`."""
        return asdict(self) | {"thinking": thinking_of(self.thinking)}
