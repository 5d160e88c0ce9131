"""Options of commands that load a model: device, dtype, placement, and chat template."""

from dataclasses import dataclass
from typing import Annotated

import typer

from kvlab.cli.options.signature import Setting

Model = Annotated[str, typer.Option(help="mini, a local folder, or a hub name")]
Device = Annotated[str, typer.Option(help="auto, cpu, mps, cuda, or a GPU such as cuda:1")]
Dtype = Annotated[str, typer.Option(help="auto, float32, bfloat16 or float16")]
Placement = Annotated[str, Setting("single, or auto to distribute weights over all devices (needs accelerate)")]
Weights = Annotated[str | None, typer.Option(help="bf16, with keys and values as without; 8bit, 4bit: torchao")]
Revision = Annotated[str | None, Setting("git branch, tag or commit of a hub model")]
CacheDir = Annotated[str | None, Setting("folder for files from the hub")]
ChatWay = Annotated[str, Setting("auto for the model's chat template if it has one, no for plain text")]
System = Annotated[str, Setting("a system prompt for the chat template")]
Thinking = Annotated[bool | None, Setting("yes or no, if the chat template supports it")]


@dataclass(frozen=True)
class LoadingOptions:
    """The model, and how its weights are loaded."""

    model: Model = "mini"
    device: Device = "auto"
    dtype: Dtype = "auto"
    placement: Placement = "single"
    weights: Weights = None
    revision: Revision = None
    cache_dir: CacheDir = None


@dataclass(frozen=True)
class ModelOptions(LoadingOptions):
    """Loading options, and those of the chat template."""

    chat: ChatWay = "auto"
    system: System = ""
    thinking: Thinking = None
