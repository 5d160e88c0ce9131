"""Request of `kvlab fit`, also as a queued job. Torch-free: the web pages create requests."""

from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field, model_validator

from kvlab.core.validation import Strict, Text
from kvlab.requests.compare import ModelRequest

Fittable = Literal["kvzap", "less", "duoattention", "triattention", "qfilter", "fast-kvzip", "lukv"]
# Hyper-parameter that takes the file; triattention and qfilter read the same one.
SETTING = {
    "kvzap": "heads", "less": "weights", "duoattention": "profile", "triattention": "queries", "qfilter": "queries",
    "fast-kvzip": "gates", "lukv": "curves",
}  # fmt: skip
# Where a method's default is another than the field's.
DEFAULTS: dict[str, dict[str, Any]] = {"less": {"rank": 8, "form": "exponential"}, "duoattention": {"windows": 8}}
FORMS = {"kvzap": ("mlp", "linear"), "less": ("exponential", "gelu")}


class FitRequest(ModelRequest):
    """Request for a fit: the method, the model and the text. Each method uses some of the fields."""

    method: Fittable = "kvzap"
    corpus: Path | None = Field(None, description="folder with plain-text books; none: the shipped excerpts")
    windows: int = Field(64, ge=2, le=4096, description="windows of text to read (all but less)")
    length: int = Field(1024, ge=256, le=2**20, description="tokens per window")
    tokens: int = Field(256, ge=1, description="kvzap and fast-kvzip: training tokens per window")
    form: Literal["mlp", "linear", "exponential", "gelu"] = Field(
        "mlp",
        description="kvzap: mlp (two layers with a GELU between) or linear; less: exponential, or gelu as the paper",
    )
    target: Literal["kvzip+", "kvzip"] = Field(
        "kvzip+", description="kvzap: attention times |W_o v| over the norm of the query's state, or plain attention"
    )
    epochs: int = Field(15, ge=1, le=1000, description="kvzap, form mlp: passes over all tokens")
    rank: int = Field(
        16, ge=1, le=256, description="fast-kvzip: width of a gate's queries and keys; less: rows of a head's state (8)"
    )
    hidden: int = Field(64, ge=1, le=4096, description="less: hidden units of each map")
    sink_keys: int = Field(16, ge=1, le=256, description="fast-kvzip: learned keys beside the token's own")
    steps: int = Field(5000, ge=1, le=1_000_000, description="fast-kvzip: training steps of 1,000 tokens")
    score: str = Field("lukv", description="lukv: the method whose scores are cut")
    minutes: float = Field(3.0, gt=0, description="less: processor minutes")
    seed: int = Field(0, ge=0, lt=2**31)

    @model_validator(mode="before")
    @classmethod
    def _use_defaults_of_method(cls, values: Any) -> Any:
        return DEFAULTS.get(str(values.get("method")), {}) | values if isinstance(values, dict) else values

    @model_validator(mode="after")
    def _check_form(self) -> "FitRequest":
        forms = FORMS.get(self.method, (self.form,))
        if self.form not in forms:
            raise ValueError(f"the form of {self.method} is {' or '.join(forms)}")
        return self


class FitJob(Strict):
    """A queued fit: its file is in `<runs>/fit/<name>`, and windows already read are not read again."""

    kind: Literal["fit"] = "fit"
    name: Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,99}$")]
    request: FitRequest
    title: Text = ""
    private: bool = Field(False, description="on a shared server, visible only to its owner")


def fitted_file(root: Path, name: str) -> Path:
    """Path of a job's file once it is complete."""
    return Path(root) / "fit" / name / "fitted.safetensors"
