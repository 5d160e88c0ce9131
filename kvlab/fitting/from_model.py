"""Which model something is fitted to, on windows of which length."""

from __future__ import annotations

from dataclasses import dataclass

from kvlab.models.load import LoadedModel, load_model
from kvlab.requests.compare import LOADING


@dataclass(frozen=True, kw_only=True)
class FromModel:
    """What fits with a command of their own have in common; the last six fields are `load_model`'s."""

    model: str = "mini"
    length: int = 1024
    seed: int = 0
    device: str = "auto"
    dtype: str = "auto"
    placement: str = "single"
    load_in: str | None = None
    revision: str | None = None
    cache_dir: str | None = None

    def load(self) -> LoadedModel:
        """The model. Raises UserError as `load_model`."""
        return load_model(self.model, **{name: getattr(self, name) for name in LOADING})
