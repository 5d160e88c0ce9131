"""What `kvlab fit` is asked for, and the same as a job of the queue. Torch-free: the web side writes requests."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field

from kvlab.common.validation import Text
from kvlab.requests.compare import ModelRequest

Fittable = Literal["kvzap", "less", "duoattention"]
SETTING = {"kvzap": "heads", "less": "weights", "duoattention": "profile"}  # which hyper-parameter takes the file


class FitRequest(ModelRequest):
    """What a method is to learn of a model, from which text. `kvzap` takes all fields, the others those they know."""

    method: Fittable = "kvzap"
    corpus: Path | None = Field(None, description="folder with plain-text books; none: the shipped excerpts")
    windows: int = Field(64, ge=2, le=4096, description="windows of text that are read (kvzap, duoattention)")
    length: int = Field(1024, ge=256, le=2**20, description="tokens of each window")
    tokens: int = Field(256, ge=1, description="kvzap: tokens of each window that are learned from")
    form: Literal["mlp", "linear"] = Field("mlp", description="kvzap: two layers with a GELU between, or one")
    target: Literal["kvzip+", "kvzip"] = Field(
        "kvzip+", description="kvzap: attention weighed by the length of W_o v over the query's state, or as it is"
    )
    epochs: int = Field(15, ge=1, le=1000, description="kvzap, form mlp: times all tokens are learned from")
    minutes: float = Field(3.0, gt=0, description="less: processor minutes")
    seed: int = Field(0, ge=0, lt=2**31)


class FitJob(BaseModel):
    """A fit for the queue: its file lies in `<runs>/fit/<name>`, and a window that was read is not read again."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    kind: Literal["fit"] = "fit"
    name: Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,99}$")]
    request: FitRequest
    title: Text = ""
    private: bool = Field(False, description="on a shared server its owner and administrators alone see it")


def fitted_file(root: Path, name: str) -> Path:
    """Where the file of a job lies once it is whole."""
    return Path(root) / "fit" / name / "fitted.safetensors"
