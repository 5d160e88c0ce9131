"""Published settings: a TOML file next to each method, and `shared.toml` for settings several methods share.

    paper = "https://arxiv.org/abs/..."

    [presets.paper]
    about = "the paper's tables"              # the source
    like = "code"                             # inherits a preset above, or one of shared.toml
    beyond = "{shared_heads}"                 # what no hyper-parameter can express

    [presets.paper.values]
    window = [32, "section 5.3"]              # a value and its source

    [reasons]
    window = "the paper's; the code has 64"   # why a default has its value

A {word} stands for a text in the file's table `[texts]` or in that of `shared.toml`. TOML has no None: a preset that
sets one is written in Python.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Annotated, Any, NamedTuple

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, JsonValue, ValidationError

from kvlab.core.errors import UserError
from kvlab.core.validation import decode_text, in_one_sentence, read_file

SHARED = Path(__file__).with_name("shared.toml")
LARGEST = 2**20
WORD = re.compile(r"\{([^{}]*)\}")


class Published(NamedTuple):
    """Class attributes of a method, read from its TOML file."""

    paper: str
    presets: Mapping[str, Preset]
    reasons: Mapping[str, str]


def published(module: str, name: str = "") -> Published:
    """Read the TOML file next to `module`, a path, named like the module or `name`.

    Raises UserError with file and key if it cannot be read or is invalid.
    """
    path = Path(module)
    path = path.with_name(f"{name or path.stem}.toml")
    file, shared = _read(path), _shared()
    texts = _Texts(path, shared.texts | file.texts)
    values = _values(path, shared.presets | file.presets)
    presets = {
        key: Preset(
            texts.expand(preset.about, f"presets.{key}.about"),
            {
                field: (value, texts.expand(source, f"presets.{key}.values.{field}"))
                for field, (value, source) in values[key].items()
            },
            texts.expand(preset.beyond, f"presets.{key}.beyond"),
        )
        for key, preset in file.presets.items()
    }
    reasons = {field: texts.expand(text, f"reasons.{field}") for field, text in file.reasons.items()}
    return Published(file.paper, presets, reasons)


def _with_source(given: object) -> tuple[Any, str]:
    match given:
        case [value, str(source)] if source.strip():
            return tuple(value) if isinstance(value, list) else value, source
    raise ValueError('a value comes with its source, as in [32, "section 5.3"]')


Text = Annotated[str, Field(min_length=1)]
Values = dict[str, Annotated[tuple[Any, str], BeforeValidator(_with_source)]]


class _Preset(BaseModel):
    model_config = ConfigDict(extra="forbid")

    about: Text
    like: Text | None = None
    beyond: str = ""
    values: Values = {}


class _File(BaseModel):
    model_config = ConfigDict(extra="forbid")

    paper: str = ""
    texts: dict[str, Text] = {}
    presets: dict[str, _Preset] = {}
    reasons: dict[str, Text] = {}


@dataclass(frozen=True)
class _Texts:
    path: Path
    texts: Mapping[str, str]

    def expand(self, text: str, key: str) -> str:
        """The text with its {words} replaced."""
        unknown = set(WORD.findall(text)) - self.texts.keys()
        if unknown:
            raise UserError(
                f"In {self.path}: {key} has the word {{{min(unknown)}}}, which is defined neither in its table texts "
                f"nor in {SHARED.name}."
            )
        return WORD.sub(lambda word: self.texts[word[1]], text)


def _values(path: Path, presets: Mapping[str, _Preset]) -> dict[str, Values]:
    """Each preset's values, including inherited ones."""
    found: dict[str, Values] = {}
    for name, preset in presets.items():
        if preset.like is not None and preset.like not in found:
            raise UserError(f"In {path}: presets.{name} is like {preset.like!r}, but there is no such preset above it.")
        found[name] = (found[preset.like] if preset.like else {}) | preset.values
    return found


@cache
def _shared() -> _File:
    return _read(SHARED)


def _read(path: Path) -> _File:
    try:
        text = decode_text(read_file(path, "The settings file", LARGEST), f"The settings file {path}")
        return _File.model_validate(tomllib.loads(text))
    except tomllib.TOMLDecodeError as error:
        raise UserError(f"The settings file {path} is not valid TOML: {error}.") from error
    except ValidationError as error:
        raise UserError(f"In {path}: {in_one_sentence(error)}") from error


DEFAULT = "default"
PAPER = "paper"


@dataclass(frozen=True)
class Preset:
    """A published configuration of a method.

    `values`: (value, source: section, table, equation or file) by hyper-parameter. `about` names the publication;
    `beyond` says what no hyper-parameter can express.
    """

    about: str
    values: Mapping[str, tuple[Any, str]]
    beyond: str = ""

    def settings(self) -> dict[str, Any]:
        """Hyper-parameters by name."""
        return {name: value for name, (value, _) in self.values.items()}

    def as_data(self) -> dict[str, JsonValue]:
        """The preset for forms and tables."""
        values: dict[str, JsonValue] = {
            name: {"value": list(value) if isinstance(value, tuple) else value, "source": source}
            for name, (value, source) in self.values.items()
        }
        return {"about": self.about, "beyond": self.beyond, "values": values}
