"""One safetensors file per fit: its tensors, the signature of its model's weights, and metadata."""

import hashlib
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Generic, TypeVar

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor, nn

from kvlab.core.assets import asset_path
from kvlab.core.errors import UserError

FIT = re.compile(r"fit:[A-Za-z0-9][A-Za-z0-9._-]{0,99}")  # a fit's name in a method's settings
SAMPLED = 4  # numbers per parameter
HASHED = 256  # values read per tensor for a digest: distinguishes checkpoints at little cost
MOST_DIFFERENCE = 0.01  # relative; rounding to bfloat16 causes 0.002, any training far more
MODELS = ("mini", "mini-60", "mini-half", "smollm2")


def shipped_files(folder: str) -> dict[str, str]:
    """Fitted files that come with kvlab, in a folder of its assets, by the model's name."""
    return {name: f"{folder}/{name}.safetensors" for name in MODELS}


def signature(model: nn.Module) -> Tensor:
    """The first numbers of every parameter by name, (parameters, 4) float32, which any training changes."""
    named = sorted(named_weights(model), key=lambda pair: pair[0])
    rows = torch.zeros(len(named), SAMPLED)
    for row, (_, parameter) in zip(rows, named, strict=True):
        first = parameter.flatten()[:SAMPLED].float().cpu()
        row[: len(first)] = first
    return rows


def same_weights(fitted_to: Tensor, model: nn.Module) -> bool:
    """Whether `model` has the weights of that signature, up to rounding."""
    now = signature(model)
    return fitted_to.shape == now.shape and bool((fitted_to - now).norm() <= MOST_DIFFERENCE * fitted_to.norm())


def model_digest(model: nn.Module) -> str:
    """Hash the shapes, types and a sample of the values of every parameter to 12 hex digits."""
    digest = hashlib.sha256()
    for name, parameter in named_weights(model):
        flat = parameter.reshape(-1)
        sample = flat[:: max(1, flat.numel() // HASHED)][:HASHED].to("cpu", torch.float32)
        digest.update(f"{name}{tuple(parameter.shape)}{parameter.dtype}".encode())
        digest.update(sample.numpy().tobytes())
    return digest.hexdigest()[:12]


def named_weights(model: nn.Module) -> Iterator[tuple[str, torch.Tensor]]:
    """(name, values) of every parameter, including those offloaded to disk or host."""
    for name, parameter in model.named_parameters():
        values = parameter.detach()
        if parameter.is_meta:
            # accelerate's stored copy of an offloaded parameter
            owner, _, inner_name = name.rpartition(".")
            hook: Any = getattr(model.get_submodule(owner), "_hf_hook", None)
            parts = getattr(hook, "hooks", (hook,))
            stored = next(part.weights_map for part in parts if getattr(part, "weights_map", None) is not None)
            values = stored[inner_name]
        yield name, values.to_dense() if values.is_mkldnn else values


SIGNATURE = "signature"
Fitted = TypeVar("Fitted")


@dataclass
class _Fits:
    folder: Path | None = None
    only: bool = False


_fits = _Fits()


def read_fits_in(folder: Path | None, only: bool = False) -> None:
    """Set the folder of this process's fits by name; `only`: no file is read by its path."""
    _fits.folder = folder
    _fits.only = only


@dataclass(frozen=True)
class Kind(Generic[Fitted]):
    """A kind of fitted file: its name in messages, the command that creates it, and the shipped files by name.

    `made_of` builds what it holds from tensors and metadata; it raises an error of Python or torch if they do not fit.
    """

    name: str
    command: str
    shipped: Mapping[str, str]
    made_of: Callable[[dict[str, Tensor], dict[str, str]], Fitted]

    def path(self, named: str) -> Path:
        """Path of a shipped file, of a queued fit (`fit:NAME`), or the given path.

        Raises UserError for any path where only fits by name are read.
        """
        if named in self.shipped:
            return asset_path(self.shipped[named])
        if FIT.fullmatch(named) and _fits.folder is not None:
            return _fits.folder / named.removeprefix("fit:") / "fitted.safetensors"
        if _fits.only:
            raise UserError(
                f"On this server a {self.name} is {' or '.join(self.shipped)}, or fit:NAME of a fit created here."
            )
        return Path(named)

    def read(self, path: Path) -> tuple[Fitted, Tensor, dict[str, str]]:
        """(result of `made_of`, signature of the model that the file was fitted to, metadata).

        Raises UserError for a missing file or one that `made_of` rejects.
        """
        if not path.is_file():
            raise UserError(f"There is no {self.name} {path}: create one with `{self.command} --out {path}`.")
        try:
            with safe_open(path, "pt") as file:
                about = file.metadata() or {}
                tensors = {name: file.get_tensor(name).float() for name in file.keys()}  # noqa: SIM118
            fitted_to = tensors.pop(SIGNATURE)
            return self.made_of(tensors, about), fitted_to, about
        except (SafetensorError, KeyError, TypeError, IndexError, RuntimeError, ValueError) as error:
            raise UserError(f"{path} is not a {self.name}: create one with `{self.command}`.") from error

    def check_weights(
        self, fitted_to: Tensor, model: nn.Module, name: str, given: str, setting: str, plain: str = "untrained"
    ) -> None:
        """Raise UserError if `given` was fitted to other weights than those of the model called `name`."""
        if same_weights(fitted_to, model):
            return
        name = name_of(model, name)
        known = self.shipped_for(model)
        remedy = f"run `{self.command} --model {name} --out FILE` and set {setting}=FILE"
        raise UserError(
            f"{given} were not fitted to these weights of {name}: "
            f"{f'set {setting}={known}, which were' if known else remedy} (for timing, {setting}={plain})."
        )

    def shipped_for(self, model: nn.Module) -> str | None:
        """Name of the shipped file fitted to the model's weights, if there is one."""
        for name in self.shipped:
            with safe_open(self.path(name), "pt") as file:
                fitted_to = file.get_tensor(SIGNATURE).float()
            if same_weights(fitted_to, model):
                return name
        return None


def write_fitted(path: Path, tensors: dict[str, Tensor], model: nn.Module, about: dict[str, str]) -> None:
    """Write tensors with the model's signature and metadata `about`."""
    save_file(tensors | {SIGNATURE: signature(model)}, path, about)


def load_inside(score: Any, load: Callable[[Any], Any]) -> Any:
    """A scorer after `load`, also where a wrapper has it."""
    for inner in ("scorer", "main"):  # of a wrapper, of one scorer beside another
        if hasattr(score, inner):
            return replace(score, **{inner: load_inside(getattr(score, inner), load)})
    return load(score)


def name_of(model: nn.Module, name: str) -> str:
    """Name of the model for messages."""
    return name or getattr(getattr(model, "config", None), "_name_or_path", "") or "MODEL"
