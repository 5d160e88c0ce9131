"""Methods and tasks that can be chosen, as data read from a second process once; pages import no method's code."""

from __future__ import annotations

import json
import subprocess
import sys
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, TypeAdapter, ValidationError

from kvlab.core import Frozen, Sizes, UserError
from kvlab.models.info.names import EMBEDDED, HUB_NAME, PREFIX, model_file
from kvlab.models.info.offered_models import offered_models, server_models
from kvlab.models.info.packaged_models import PACKAGED
from kvlab.trace.catalogue import list_runs

# Tokens up to which whole numbers take 16 bits: `kvlab.core.contract.slot_columns`, kept equal by a test.
SHORT_TEXT = 2**15 - 1


class PackedSlots(Frozen):
    """Size of a store's slots, in bytes of keys and values together; `width` is that of a key."""

    native: int  # slots that stay native at most
    lot: int  # slots packed together as a group
    lots: int  # groups that may be partly filled per head
    slot_bytes: float  # of each slot, whatever its width
    number_bytes: float  # and for each of the key's numbers
    lot_bytes: float  # of a group, for each of the key's numbers
    head_bytes: float = 0.0  # of a head, for each of the key's numbers
    lighter: int = 0  # bytes saved in a slot's metadata against a native table

    def sizes(self, token: int, slot: int, width: int, heads: int) -> Sizes:
        """Sizes of one KV head, given a native slot's `slot` bytes of which `token` are key and value."""
        slot -= self.lighter
        shared = self.lot_bytes * width
        packed = slot - token + self.slot_bytes + self.number_bytes * width + shared / self.lot
        return Sizes(token, slot, packed, self.native, round(self.lots * shared + self.head_bytes * width), heads)


class Footprint(Frozen):
    """A method's settings as far as its cache's size depends on them; the defaults are those of plain eviction."""

    compresses: bool = True
    needs_budget: bool = True
    decode: bool = True  # also decides while decoding
    seeks: bool = False  # merges: slots may store the length of their key
    buffer: int = 0  # generated tokens held on top of the budget between decisions
    recalled: int = 0  # queries kept per query head for the next decision
    slot_bytes: int = 6  # per slot of a KV head besides key and value, in a short text: position and score
    whole_numbers: int = 1  # of these, which take two more bytes in a long text
    query_head_bytes: int = 0  # and for each query head of the group
    head_bytes: int = 0  # per KV head besides its slots
    head_value_bytes: int = 0  # and for each number of a value
    head_keys: int = 0  # and this many keys
    packed: PackedSlots | None = None  # slots in a store; None: native


FULL = Footprint(compresses=False, needs_budget=False, decode=False, slot_bytes=2)


def model_field_help() -> str:
    """Help of a form's model field: names it accepts; on a server with a list of models, those of the list."""
    on_offer = offered_models()
    return (
        "mini, smollm2, a folder saved by transformers, a GGUF file, a hub name"
        if on_offer is None
        else ", ".join(on_offer)
    )


def local_models(root: Path) -> list[str]:
    """Models that need no download: those of the runs under `root` (newest first), `mini`, those in the server's model
    folders, those downloaded from a package index, and those in the hub's cache.
    """
    if (on_offer := offered_models()) is not None:
        return list(on_offer)
    from huggingface_hub import constants

    ran = [entry.model for entry in list_runs(root)]
    packaged = [name for name, model in PACKAGED.items() if model.file() is not None]
    folders = Path(constants.HF_HUB_CACHE).glob(f"{PREFIX}*")
    cached = (folder.name.removeprefix(PREFIX).replace("--", "/") for folder in folders)
    of_hub = sorted(name for name in cached if HUB_NAME.fullmatch(name))
    names = dict.fromkeys([*ran, EMBEDDED, *packaged, *server_models(), *of_hub])
    return [name for name in names if model_file(name, "config.json")]


COMMAND = (sys.executable, "-P", "-m", "kvlab")
SECONDS_ALLOWED = 120


class PresetValue(BaseModel):
    """A published value of one hyper-parameter, and its source."""

    model_config = ConfigDict(frozen=True)

    value: Any
    source: str


class MethodFootprint(BaseModel):
    """A configured method's memory footprint, and its slots' size in each store; None: native."""

    model_config = ConfigDict(frozen=True)

    holds: Footprint = Footprint()
    stores: dict[str, PackedSlots | None] = {}
    window: int = 0  # newest tokens of the prompt that always stay


class PresetEntry(MethodFootprint):
    """A published configuration of a method."""

    about: str
    beyond: str = ""
    needs_budget: bool = True
    values: dict[str, PresetValue] = {}


class MethodEntry(MethodFootprint):
    """One registered method: everything a form needs to offer and explain it."""

    name: str
    family: str
    title: str
    paper: str = ""
    summary: str = ""
    merges: bool = False
    needs_budget: bool = True
    compresses_while_decoding: bool = True
    choices: dict[str, str] = {}
    parameters: dict[str, Any] = {}
    presets: dict[str, PresetEntry] = {}
    reasons: dict[str, str] = {}
    origin: str = ""  # the plug-in it comes from; empty: kvlab's own

    @property
    def hyper_parameters(self) -> dict[str, dict[str, Any]]:
        """JSON schema of each hyper-parameter by name, with its default and description."""
        return self.parameters.get("properties", {})


def prefetch() -> None:
    """Start reading the registry in the background, so that the first form need not wait for it."""
    _reading("methods")


def methods() -> list[MethodEntry]:
    """Every registered method; waits for the first read, which is cached for the life of this process.

    Raises UserError if the command that lists the methods failed.
    """
    found: list[MethodEntry] = _listed("methods")
    return found


def _listed(what: Literal["methods", "tasks"]) -> Any:
    """The result of a cached background read; after a failure the next call reads again."""
    try:
        return _reading(what).result(timeout=SECONDS_ALLOWED + 5)
    except (UserError, TimeoutError):
        _readings.pop(what, None)
        raise


_readings: dict[str, Future[Any]] = {}


def _reading(what: Literal["methods", "tasks"]) -> Future[Any]:
    """Start `_read` in a thread of its own, once for each list."""
    if what not in _readings:
        executor = ThreadPoolExecutor(1, thread_name_prefix="kvlab-catalogue")
        _readings[what] = executor.submit(_read, what)
        executor.shutdown(wait=False)
    return _readings[what]


def _read(what: Literal["methods", "tasks"]) -> Any:
    listed = ask(what)
    try:
        return TypeAdapter(list[MethodEntry] if what == "methods" else TaskList).validate_python(listed)
    except ValidationError as error:
        raise not_a_list(what) from error


def ask(what: str, *more: str, stdin: str | None = None) -> Any:
    """The JSON that `kvlab <what> --json` prints in a second process, with `more` options and stdin `given`.

    Raises UserError if the command failed, took too long, or printed no JSON.
    """
    advice = "run it in a terminal to see why."
    done = run_command(what, "--json", *more, given=stdin)
    if done.returncode != 0:
        reason = (done.stderr.strip().splitlines() or ["no message"])[-1]
        raise UserError(f"The list of {what} could not be read, as `kvlab {what} --json` failed ({reason}): {advice}")
    try:
        return json.loads(done.stdout)
    except json.JSONDecodeError as error:
        raise not_a_list(what) from error


def run_command(*words: str, given: str | None = None) -> subprocess.CompletedProcess[str]:
    """Run `kvlab WORDS` in a second process; raises UserError on timeout."""
    how: dict[str, Any] = {"capture_output": True, "text": True, "timeout": SECONDS_ALLOWED, "check": False}
    try:
        return subprocess.run((*COMMAND, *words), input=given, **how)
    except subprocess.TimeoutExpired as error:
        command = " ".join(words)
        raise UserError(
            f"`kvlab {command}` gave no answer in {SECONDS_ALLOWED} seconds: run it in a terminal to see why."
        ) from error


def not_a_list(what: str) -> UserError:
    """The error for an unexpected answer to `ask`."""
    return UserError(f"`kvlab {what} --json` printed no list of {what}: run it in a terminal to see why.")


class TaskEntry(BaseModel):
    """One task that generates its prompts."""

    model_config = ConfigDict(frozen=True)

    name: str
    summary: str = ""
    parameters: dict[str, int | str] = {}
    choices: dict[str, tuple[str, ...]] = {}  # the words of parameters that are words
    lengths: tuple[int, ...] = ()
    uses_depth: bool = False


class TaskList(BaseModel):
    """All tasks, and the supported formats of prompt files."""

    model_config = ConfigDict(frozen=True)

    tasks: tuple[TaskEntry, ...]
    formats: tuple[str, ...]


def task_list() -> TaskList:
    """The tasks; waits for the first read, which is cached for the life of this process.

    Raises UserError if the command that lists them failed.
    """
    found: TaskList = _listed("tasks")
    return found
