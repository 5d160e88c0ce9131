"""Where a model's files come from (shipped, a folder, the hub), and error messages if they are unavailable."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from huggingface_hub import constants, get_hf_file_metadata, hf_hub_url, try_to_load_from_cache
from huggingface_hub.errors import (
    EntryNotFoundError,
    GatedRepoError,
    HfHubHTTPError,
    HFValidationError,
    OfflineModeIsEnabled,
    RepositoryNotFoundError,
    RevisionNotFoundError,
)
from transformers.utils import cached_file

from kvlab.core import UserError, asset_path
from kvlab.models.info.model_faults import description_folder, fault, gguf_file
from kvlab.models.info.offered_models import place_of
from kvlab.models.info.packaged_models import not_here

NOT_FOUND = (
    "There is no model {name!r}: use 'mini', a local folder, or a hub name that can be downloaded from here (only "
    "safetensors and GGUF files are loaded)."
)
EMBEDDED = ("mini",)
REACH_SECONDS = 5


@dataclass(frozen=True)
class Source:
    """A model's requested name, and where its files are."""

    name: str
    revision: str | None = None
    cache_dir: str | None = None

    def __post_init__(self) -> None:
        place_of(self.name, self.revision, self.cache_dir)  # raises UserError for models a server does not offer

    @property
    def gguf(self) -> Path | None:
        """The GGUF file with the weights, if they are in one."""
        return gguf_file(place_of(self.name))

    @property
    def where(self) -> str:
        """Folder or hub name for transformers; for a GGUF file, the folder with its config and tokenizer."""
        place = place_of(self.name)
        if (file := self.gguf) is not None:
            return str(description_folder(file, self.name))
        return str(asset_path(place)) if place in EMBEDDED else place

    @property
    def folder(self) -> Path | None:
        """The folder of a model on this disk; None for a hub name."""
        try:
            folder = Path(self.where)
            return folder if folder.is_dir() else None
        except (OSError, ValueError):  # longer than any path, or with a zero byte
            return None

    @property
    def options(self) -> dict[str, Any]:
        """Options of every `from_pretrained`: a repository's code never runs, without a question to the user."""
        return {"trust_remote_code": False, "revision": self.revision, "cache_dir": self.cache_dir}

    def config_file(self) -> Path:
        """The model's `config.json` on this disk, downloaded if needed. Raises UserError if it is unavailable."""
        if message := not_here(self.name):
            raise UserError(message)
        if self.gguf is not None:
            return Path(self.where) / "config.json"
        if (folder := self.folder) is not None:
            if message := fault(folder, self.name):
                raise UserError(message)
            return folder / "config.json"
        if message := fault(Path(self.where), self.name):
            raise UserError(message)
        # The hub's client would retry for half a minute. This request takes the same way as the download, through
        # HTTPS_PROXY and to HF_ENDPOINT if set.
        try:
            known = try_to_load_from_cache(self.name, "config.json", self.cache_dir, self.revision)
            if not isinstance(known, str):
                url = hf_hub_url(self.name, "config.json", revision=self.revision)
                get_hf_file_metadata(url, timeout=REACH_SECONDS)
        except Exception as error:  # the hub changed its HTTP library more than once
            raise UserError(self._download_error(error)) from None
        try:
            found = cached_file(self.where, "config.json", revision=self.revision, cache_dir=self.cache_dir)
        except Exception:
            found = None
        if found is None:
            raise UserError(NOT_FOUND.format(name=self.name[:80]))
        return Path(found)

    def _download_error(self, error: Exception) -> str:
        if isinstance(error, GatedRepoError):
            return (
                f"The model {self.name!r} is gated: accept its terms on {constants.ENDPOINT}/{self.name}, then log in "
                "here with `hf auth login`, or set HF_TOKEN."
            )
        if isinstance(error, RevisionNotFoundError):
            return (
                f"The model {self.name!r} has no revision {self.revision!r}: use one of its branches, tags or commits."
            )
        if isinstance(error, RepositoryNotFoundError | HFValidationError):
            return NOT_FOUND.format(name=self.name[:80])
        if isinstance(error, EntryNotFoundError):
            return (
                f"The repository {self.name!r} has no config.json, so it is not a transformers model: download "
                "a GGUF file and give its path, and merge LoRA adapters with peft."
            )
        if isinstance(error, OfflineModeIsEnabled):
            return f"There is no model {self.name!r} on this disk, and HF_HUB_OFFLINE forbids downloading it."
        if isinstance(error, HfHubHTTPError):
            return f"The hub does not provide {self.name!r} now ({str(error).splitlines()[0][:120]}): try again later."
        return (
            f"There is no model {self.name!r} on this disk, and the hub at {constants.ENDPOINT} does not answer: use "
            "'mini', a local folder, or a hub name that can be downloaded from here."
        )
