"""One safetensors file of what was fitted: its tensors, the signature of its model, and what is said of the fitting."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor, nn

from kvlab.common.assets import asset_path
from kvlab.common.errors import UserError
from kvlab.fitted.signature import same_weights, signature
from kvlab.server.offered_models import FIT, FITS
from kvlab.server.settings import lab

SIGNATURE = "signature"
Fitted = TypeVar("Fitted")


@dataclass(frozen=True)
class Kind:
    """What such a file is called in sentences, the command that makes one, and those that ship, by name."""

    name: str
    command: str
    shipped: Mapping[str, str]

    def path(self, named: str) -> Path:
        """The file of a shipped name or of a fit that the queue made (`fit:NAME`), else the file of that path.

        Raises UserError on a server with a lab file for a path, be there a file or not.
        """
        if named in self.shipped:
            return asset_path(self.shipped[named])
        if FIT.fullmatch(named) and FITS in os.environ:
            return Path(os.environ[FITS]) / named.removeprefix("fit:") / "fitted.safetensors"
        if lab() is not None:
            raise UserError(
                f"On this server a {self.name} is {' or '.join(self.shipped)}, or fit:NAME of a fit made here."
            )
        return Path(named)

    def read(
        self, path: Path, made_of: Callable[[dict[str, Tensor], dict[str, str]], Fitted]
    ) -> tuple[Fitted, Tensor, dict[str, str]]:
        """(what `made_of` makes of tensors and metadata, signature of the model it was fitted to, the metadata).

        Raises UserError for a file that is not there or of which `made_of` can make nothing.
        """
        if not path.is_file():
            raise UserError(f"There is no {self.name} {path}: make one with `{self.command} --out {path}`.")
        try:
            with safe_open(path, "pt") as file:
                about = file.metadata() or {}
                tensors = {name: file.get_tensor(name).float() for name in file.keys()}  # noqa: SIM118
            fitted_to = tensors.pop(SIGNATURE)
            return made_of(tensors, about), fitted_to, about
        except (SafetensorError, KeyError, TypeError, IndexError, RuntimeError, ValueError) as error:
            raise UserError(f"{path} is not a {self.name}: make one with `{self.command}`.") from error

    def check_weights(self, fitted_to: Tensor, model: nn.Module, name: str, given: str, setting: str) -> None:
        """Raises UserError where what is `given` was fitted to other weights than those of the model called `name`."""
        if not same_weights(fitted_to, model):
            name = name_of(model, name)
            raise UserError(
                f"{given} were not fitted to these weights of {name}: run `{self.command} --model {name} --out FILE` "
                f"and give {setting}=FILE (for timing, {setting}=untrained)."
            )


def write_fitted(path: Path, tensors: dict[str, Tensor], model: nn.Module, about: dict[str, str]) -> None:
    """Write tensors with the signature of the model they were fitted to, and what `about` says of the fitting."""
    save_file(tensors | {SIGNATURE: signature(model)}, path, about)


def name_of(model: nn.Module, name: str) -> str:
    """What the model was asked for by, for a sentence."""
    return name or getattr(getattr(model, "config", None), "_name_or_path", "") or "MODEL"
