"""The lab's TOML file, `kvlab app --lab lab.toml`: sign-in and models; and the acting user with what belongs to them.

Server and worker find the file through the environment variable KVLAB_LAB; without it the dashboard serves one user.
"""

import ipaddress
import os
import re
import tomllib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Annotated, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError, model_validator

from kvlab.core import UserError, decode_text, in_one_sentence, read_file

VARIABLE = "KVLAB_LAB"
LARGEST = 1 << 20
# What older versions read in the file and in its table [people].
RETIRED = ("limits", "disk", "roles")
RETIRED_OF_PEOPLE = ("administer", "run", "look", "default", "role", "roles", "role_header")
Way = Literal["proxy", "oidc"]


def _address(text: str) -> str:
    try:
        ipaddress.ip_network(text, strict=False)
    except ValueError:
        raise UserError(f"{text!r} is no address of a proxy: write one such as 127.0.0.1 or 10.0.0.0/24.") from None
    return text


def _header(text: str) -> str:
    if not re.fullmatch(r"[A-Za-z0-9-]+", text):
        raise UserError(f"{text!r} is no header name: write one such as X-Forwarded-User.")
    return text


class _Table(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class People(_Table):
    """How users sign in."""

    way: Way
    proxy: tuple[Annotated[str, AfterValidator(_address)], ...] = ("127.0.0.1", "::1")
    header: Annotated[str, AfterValidator(_header)] = "X-Forwarded-User"
    secrets: Path | None = Field(None, description="Streamlit's secrets.toml with the table [auth]")
    claim: str = Field("email", description="the identity claim with the user's name")

    @model_validator(mode="after")
    def _sign_in_is_complete(self) -> "People":
        if self.way == "oidc" and self.secrets is None:
            raise UserError("people.way is oidc: name the file with the table [auth] as people.secrets.")
        return self


class Models(_Table):
    """All models that can be requested on this server, besides mini."""

    folders: tuple[Path, ...] = Field((), description="folders of models, as `kvlab app --models` takes them")
    hub: tuple[str, ...] = Field((), description="hub names")


class Lab(_Table):
    """The file."""

    people: People
    models: Models = Models()


def lab() -> Lab | None:
    """The settings in the file KVLAB_LAB, read again after changes; None for a single-user lab.

    Raises UserError if the file cannot be read or is invalid.
    """
    named = os.environ.get(VARIABLE)
    if not named:
        return None
    path = Path(named)
    try:
        status = path.stat()
    except OSError as error:
        raise UserError(f"The lab file {path} cannot be read: {(error.strerror or str(error)).lower()}.") from None
    return _read(path, (status.st_mtime_ns, status.st_ino))


@lru_cache(maxsize=8)
def _read(path: Path, stamp: tuple[int, int]) -> Lab:
    # The stamp is part of the key only: a changed file is read again.
    try:
        values = tomllib.loads(decode_text(read_file(path, "The lab file", LARGEST), f"The lab file {path}"))
        people = values.get("people")
        found = [name for name in RETIRED if name in values]
        found += [f"people.{name}" for name in RETIRED_OF_PEOPLE if isinstance(people, dict) and name in people]
        if found:
            raise UserError(
                f"In the lab file {path}, {', '.join(found)}: no longer read, because everybody who signs in may look "
                "and run without quotas. Remove this, and let the proxy or the identity provider decide who signs in."
            )
        settings = Lab.model_validate(values)
    except tomllib.TOMLDecodeError as error:
        raise UserError(f"The lab file {path} is no TOML: {error}.") from error
    except ValidationError as error:
        raise UserError(f"In the lab file {path}: {in_one_sentence(error)}") from error
    # Paths in the file are relative to it.
    parent = path.absolute().parent
    secrets = None if settings.people.secrets is None else parent / settings.people.secrets
    people = settings.people.model_copy(update={"secrets": secrets})
    models = settings.models.model_copy(
        update={"folders": tuple(parent / folder for folder in settings.models.folders)}
    )
    return settings.model_copy(update={"people": people, "models": models})


@dataclass(frozen=True)
class User:
    """A user of the dashboard or a terminal; `owns_all` where there is no sign-in, and in jobs, checked when queued."""

    name: str
    owns_all: bool = False


ALONE = User("", owns_all=True)  # of the command line, and of a dashboard without a lab file
_find_user: Callable[[], User] | None = None  # of the dashboard's server; None: nobody signs in
_here: ContextVar[User | None] = ContextVar("acting", default=None)


def set_current_user(who: Callable[[], User]) -> None:
    """Set the function that returns the acting user, or raises UserError; only the dashboard's server calls it."""
    global _find_user
    _find_user = who


@contextmanager
def acting_for(user: User) -> Iterator[None]:
    """Let this process act for a user inside the block."""
    global _find_user
    before = _find_user
    set_current_user(lambda: user)
    try:
        yield
    finally:
        _find_user = before


@contextmanager
def acting_as(user: User) -> Iterator[None]:
    """Let this thread act for a user inside the block, whatever other threads do."""
    token = _here.set(user)
    try:
        yield
    finally:
        _here.reset(token)


def acting() -> User:
    """The user for whom this process acts now. Raises UserError if nobody has signed in where people must."""
    return _here.get() or (ALONE if _find_user is None else _find_user())


def viewer() -> str:
    """Cache key of the acting user: equal for users who may see the same runs."""
    user = acting()
    return "" if user.owns_all else f"user {user.name}"


def may_see(owner: str, private: bool) -> bool:
    """Whether the acting user may see what this owner has, private or not."""
    return is_owner(owner) or not private


def is_owner(owner: str) -> bool:
    """Whether the acting user owns it; on a shared server nobody owns what has no owner."""
    user = acting()
    return user.owns_all or (owner != "" and owner == user.name)


def require_owner(owner: str, what: str) -> None:
    """Check that the acting user may do `what` ("delete this") to what this owner has.

    Raises UserError if it belongs to another user.
    """
    if not is_owner(owner):
        if not owner:
            raise UserError(f"It belongs to nobody here: only in a terminal of this server can one {what}.")
        raise UserError(f"It belongs to {owner}: only its owner may {what}.")
