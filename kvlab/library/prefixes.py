"""Kept prefixes: caches that have read a text and compressed it, one safetensors file each, next to the runs.

A file is read here as far as lists and pages need it: header, texts and checksums. `kvlab.engine.prefix` makes caches
of it. The header has a checksum of its own and the exact size of the file, both verified whenever it is read; tensors
have one SHA-256 each, verified by `check_tensors`.
"""

import hashlib
import json
import re
import shutil
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain, count
from pathlib import Path
from typing import Any

from pydantic import JsonValue, ValidationError

from kvlab.common.atomic_write import full_disk_sentence, replace_file
from kvlab.common.formatting import model_title
from kvlab.common.lab import is_owner
from kvlab.core import FULL, Frozen, MethodChoice, UserError, check_text, in_one_sentence, quote_value, read_json
from kvlab.requests.compare import ModelRequest
from kvlab.requests.live_session import GAP, MOST_BRANCHES, LiveRequest

FOLDER = ".prefixes"
SUFFIX = ".safetensors"
FORMAT = 2  # rises when older versions of kvlab could no longer read a file, or read something else
# metadata of the file
MARK = "kvlab_prefix"
HEADER = "header"
STATE = "state"
SUMS = "sha256"
SEAL = "seal"
# tensors beside the state: JSON in UTF-8, and bytes that align the next tensor
TEXTS = "texts"
PADDING = "padding."
# bytes of the header's length in a safetensors file, and of the header
LENGTH = 8
MOST_HEADER = 100_000_000
BLOCK = 2**22  # bytes hashed at a time
NAME = re.compile(r"\w[\w.-]{0,39}")


class PrefixModel(Frozen):
    """The model that read the text. `digest` is of its weights, `tokenizer` of tokenizer and chat template.

    `shape` has what must be equal besides the weights, such as the rope settings; `loading` are arguments of
    `kvlab.load_model`.
    """

    name: str
    digest: str
    dtype: str
    device: str
    shape: dict[str, JsonValue]
    tokenizer: str
    loading: dict[str, JsonValue]


class LayerTable(Frozen):
    """Memory of one compressed layer, as `kvlab.core.cache.LayerMemory`."""

    layer: int
    live_slots: float
    live_bytes: int
    allocated_bytes: int
    codes_bytes: int | None = None
    scales_bytes: int | None = None


class PrefixHeader(Frozen):
    """What a prefix is, without its slots.

    `choice` is the method as it was asked for, `settings` all its hyper-parameters, `origin` the plug-in it is from,
    `versions` those of kvlab, plug-ins and the packages it computes with.
    `owner` made it on a shared server, where others do not see it; empty for one of the command line or a lab of one.
    `tokens` have been read, `context_tokens` of them in the first text, whose hash is `text_sha256`. `other_bytes` are
    those of layers with a window or a recurrent state, `full_bytes` those of a full cache.
    """

    title: str
    created: str
    versions: dict[str, str]
    model: PrefixModel
    chat: str
    system: str = ""
    thinking: bool | None = None
    choice: MethodChoice
    settings: dict[str, JsonValue]
    origin: str = ""
    store: str
    compress_every: int = 1
    seed: int = 0
    text_sha256: str
    context_tokens: int
    tokens: int
    questions: int = 0
    seconds: float
    layers: tuple[LayerTable, ...]
    other_bytes: int = 0
    full_bytes: int = 0
    owner: str = ""

    def as_json(self) -> str:
        """The header as it is written; without an owner as versions of kvlab that knew none wrote it."""
        return self.model_dump_json(exclude=None if self.owner else {"owner"})

    @property
    def live_bytes(self) -> int:
        """Bytes of valid slots, and of layers with a window or a recurrent state."""
        return sum(layer.live_bytes for layer in self.layers) + self.other_bytes

    @property
    def allocated_bytes(self) -> int:
        """Bytes of all tables, and of layers with a window or a recurrent state."""
        return sum(layer.allocated_bytes for layer in self.layers) + self.other_bytes


class PrefixText(Frozen):
    """A text that was read, in order: the context, what extended it, questions and kept answers."""

    kind: str
    text: str


@dataclass(frozen=True)
class PrefixFile:
    """A file whose header is whole: its header, the state of its cache as JSON, and where its tensors are.

    `tensors` are (dtype, shape, first byte, byte after the last) by name, `sums` their SHA-256.
    """

    path: Path
    header: PrefixHeader
    state: str
    tensors: Mapping[str, tuple[str, tuple[int, ...], int, int]]
    sums: Mapping[str, str]
    bytes: int

    @property
    def name(self) -> str:
        """The name in lists and commands."""
        return self.path.stem


def prefix_path(root: Path, name: str) -> Path:
    """The file of the prefix of this name. Raises UserError for a name that no file can have."""
    if not NAME.fullmatch(check_text(name, "The name")):
        raise UserError(
            f"A prefix cannot be called {quote_value(name)}: use up to 40 letters, digits, dots, dashes and "
            "underscores."
        )
    return Path(root) / FOLDER / f"{name}{SUFFIX}"


def find_prefix(root: Path, name: str) -> PrefixFile:
    """The prefix of this name. Raises UserError if there is none that the acting user may see, or it cannot be read."""
    path = prefix_path(root, name)
    file = read_prefix(path) if path.is_file() else None
    if file is None or not is_owner(file.header.owner):
        raise UserError(f"There is no prefix {quote_value(name)} in {root}: `kvlab prefix ls` lists all.")
    return file


def list_prefixes(root: Path) -> tuple[list[PrefixFile], list[str]]:
    """The acting user's readable prefixes, newest first, and a sentence about each file whose header is damaged.

    On a shared server each person sees their own, and nobody the damaged ones.
    """
    found = []
    problems = []
    for path in sorted((Path(root) / FOLDER).glob(f"*{SUFFIX}")):
        try:
            file = read_prefix(path)
        except UserError as error:
            problems += [str(error)] if is_owner("") else []
        else:
            found += [file] if is_owner(file.header.owner) else []
    return sorted(found, key=lambda one: one.header.created, reverse=True), problems


def fork_prefix(root: Path, name: str, to: str) -> PrefixFile:
    """Copy a prefix under a new name; both go on apart. Raises UserError if it is damaged or the name is taken."""
    file = find_prefix(root, name)
    path = free_path(root, to)
    check_tensors(file)
    replace_file(path, lambda temporary: shutil.copyfile(file.path, temporary))
    return read_prefix(path)


def free_path(root: Path, name: str) -> Path:
    """The path for a new prefix. Raises UserError if the name is taken."""
    path = prefix_path(root, name)
    if path.exists():
        raise UserError(f"There is already a prefix {quote_value(name)}: choose another name, or remove it first.")
    return path


def remove_prefixes(root: Path, names: Sequence[str]) -> None:
    """Remove prefixes for good. Raises UserError if one does not exist, before any is removed."""
    paths = [prefix_path(root, name) for name in names]
    for name, path in zip(names, paths, strict=True):
        if not path.is_file():
            raise UserError(f"There is no prefix {quote_value(name)} in {root}: `kvlab prefix ls` lists all.")
    with full_disk_sentence(Path(root)):
        for path in paths:
            path.unlink(missing_ok=True)


def read_prefix(path: Path) -> PrefixFile:
    """Read a file's header; its size and the header's own checksum are verified, its tensors are not.

    Raises UserError for a file that is missing, foreign, damaged, cut off, or of a newer format.
    """
    foreign = UserError(f"{path} is not a kvlab prefix: make one with `kvlab prefix make`.")
    try:
        size = path.stat().st_size
        with path.open("rb") as file:
            length = int.from_bytes(file.read(LENGTH), "little")
            if not 0 < length <= min(MOST_HEADER, size - LENGTH):
                raise foreign
            layout = read_json(file.read(length))
    except OSError as error:
        raise UserError(f"The prefix {path} cannot be read: {(error.strerror or str(error)).lower()}.") from error
    except ValueError as error:
        raise foreign from error
    about = layout.pop("__metadata__", None) if isinstance(layout, dict) else None
    if not isinstance(about, dict) or MARK not in about:
        raise foreign
    if about[MARK] != str(FORMAT):
        raise UserError(
            f"{path} has format {about[MARK]}, and this version of kvlab reads format {FORMAT}: use the version that "
            "wrote it, or make the prefix again."
        )
    if about.pop(SEAL, "") != seal(layout, about):
        raise damage_error(path, "its header")
    # The file with this sealed header, whose data begins at byte `start`.
    start = LENGTH + length
    try:
        tensors = {
            name: (one["dtype"], tuple(one["shape"]), start + one["data_offsets"][0], start + one["data_offsets"][1])
            for name, one in layout.items()
        }
        header = PrefixHeader.model_validate_json(about[HEADER])
        sums = json.loads(about[SUMS])
    except (KeyError, TypeError, ValueError, ValidationError) as error:  # it is sealed, so it was written like this
        raise UserError(
            f"{path} has a header that this version of kvlab does not know: use the version that wrote it, or make the "
            "prefix again."
        ) from error
    whole = max((end for *_, end in tensors.values()), default=start)
    if size != whole:
        raise UserError(
            f"{path} is cut off or was added to: it has {size:,} bytes instead of {whole:,}. Copy it again, or make "
            "the prefix again."
        )
    return PrefixFile(path, header, about[STATE], tensors, sums, size)


def read_texts(file: PrefixFile) -> list[PrefixText]:
    """The texts that were read, verified. Raises UserError if they are damaged."""
    _, _, start, end = file.tensors[TEXTS]
    with file.path.open("rb") as opened:
        opened.seek(start)
        content = opened.read(end - start)
    if hashlib.sha256(content).hexdigest() != file.sums[TEXTS]:
        raise damage_error(file.path, "its text")
    return [PrefixText(**one) for one in json.loads(content)]


def check_tensors(file: PrefixFile) -> None:
    """Verify every tensor's SHA-256, which reads the whole file. Raises UserError for the first that is damaged."""
    try:
        with file.path.open("rb") as opened:
            for name, expected in file.sums.items():
                _, _, start, end = file.tensors[name]
                opened.seek(start)
                found = hashlib.sha256()
                left = end - start
                while left and (block := opened.read(min(left, BLOCK))):
                    found.update(block)
                    left -= len(block)
                if left or found.hexdigest() != expected:
                    raise damage_error(file.path, name)
    except OSError as error:
        raise UserError(f"The prefix {file.path} cannot be read: {(error.strerror or str(error)).lower()}.") from error


def damage_error(path: Path, what: str) -> UserError:
    """The error for a part of a file that is not what was written."""
    return UserError(f"{path} is damaged ({what}): copy it again, or make the prefix again.")


def seal(tensors: Mapping[str, Any], about: Mapping[str, str]) -> str:
    """SHA-256 of a header without its seal."""
    return hashlib.sha256(json.dumps([tensors, about], sort_keys=True).encode()).hexdigest()


PLACES = ("device", "dtype")  # arguments of `kvlab.load_model` that a header records as what they came to
# characters; words of the text
LONGEST_NAME = 40
FIRST_WORDS = 4
NO_NAME = "text"


@dataclass(frozen=True)
class KeptText:
    """A text that one model has read, and the prefixes of it: the full cache first, then the newest."""

    header: PrefixHeader
    files: tuple[PrefixFile, ...]


def kept_texts(files: Iterable[PrefixFile], model: str) -> list[KeptText]:
    """The texts that `model` has read, in the order of `files`; prefixes that hold a conversation are left out."""
    groups: dict[Any, list[PrefixFile]] = {}
    for file in files:
        head = file.header
        if not head.questions and model_title(head.model.name) == model_title(model):
            read = head.text_sha256, head.tokens, head.chat, head.system, head.thinking
            groups.setdefault((head.model.model_dump_json(), *read), []).append(file)
    return [KeptText(group[0].header, in_order(group)) for group in groups.values()]


def in_order(files: Iterable[PrefixFile]) -> tuple[PrefixFile, ...]:
    """The full cache first, which the others are compared with; else as they were."""
    return tuple(sorted(files, key=lambda file: file.header.choice.method != FULL.method))


def live_request(
    root: Path, names: Sequence[str], model: str = "", device: str = "auto", cache_dir: str | None = None, seed: int = 0
) -> LiveRequest:
    """A session over prefixes, each a branch, compared with the first; `model` is where it is now, if elsewhere.

    Only headers and the first one's texts are read. Raises UserError for a prefix that there is not or that cannot be
    read, for prefixes of several models, or too many.
    """
    files = [find_prefix(root, name) for name in names]
    if len({(file.header.model.name, file.header.model.dtype) for file in files}) > 1:
        raise UserError("These prefixes were read by different models: open them one by one.")
    if len(files) > 1 + MOST_BRANCHES:
        raise UserError(f"These are {len(files)} prefixes: open at most {1 + MOST_BRANCHES} together.")
    head = files[0].header
    texts = read_texts(files[0])
    reference, *choices = (file.header.choice for file in files)
    try:
        placed = loaded_as(head, model, device, cache_dir) | head.model_dump(include={"chat", "system", "thinking"})
        context = GAP.join(one.text for one in texts)
        branches = tuple(choices)
        return LiveRequest(
            context=context, prefixes=tuple(names), reference=reference, choices=branches, seed=seed, **placed
        )
    except ValidationError as error:
        raise UserError(in_one_sentence(error)) from error


def loaded_as(
    header: PrefixHeader, model: str = "", device: str = "auto", cache_dir: str | None = None
) -> dict[str, Any]:
    """Fields of a request that load the model as it was when it read the prefix; `model` is where it is now."""
    kept = header.model
    known = {} if model else kept.loading
    place = "cpu" if device == "auto" and kept.device == "cpu" else device
    given = {"model": model or kept.name, "device": place, "dtype": kept.dtype}
    return {**known, **given, **({"cache_dir": cache_dir} if cache_dir else {})}


def recorded_loading(request: ModelRequest) -> dict[str, JsonValue]:
    """What a header records of how a request loads its model."""
    return {name: value for name, value in request.loading.items() if name not in PLACES}


def proposed_name(root: Path, text: str, choice: MethodChoice) -> str:
    """A free name from the text's first words and the method, such as `the-old-house-stood-snapkv-20`."""
    budget = "" if choice.budget == FULL.budget else "-" + re.sub(r"\W+", "", choice.label.removeprefix(choice.method))
    words = "-".join(re.findall(r"\w+", text[:400].lower())[:FIRST_WORDS]) or NO_NAME
    tail = f"-{choice.method}{budget}"[-LONGEST_NAME // 2 :]
    for end in chain([tail], (f"{tail}-{number}" for number in count(2))):
        name = words[: LONGEST_NAME - len(end)].rstrip("-") + end
        if not prefix_path(root, name).exists():
            return name
    raise AssertionError  # numbers do not end
