"""Shared tokens by their hashes, and the signed cookie that says who gave one. Standard library only.

A token is hashed with scrypt (RFC 7914); compared in constant time. The cookie holds name, role and time in the clear
under an HMAC-SHA256, whose key changes with the tokens: a new token ends every sign-in of before.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
import os
import re
import secrets
import time
from collections.abc import Mapping
from pathlib import Path

from kvlab.common.errors import UserError
from kvlab.server.users import Person, Role

SCRYPT = {"n": 2**14, "r": 8, "p": 1, "dklen": 32}  # 16 MiB and some 50 ms a try
LONGEST_TOKEN, SHORTEST_TOKEN = 512, 12
SECONDS_SIGNED_IN = 14 * 24 * 3600
NAME = re.compile(r"[\w.@+-](?:[\w.@+ -]{0,58}[\w.@+-])?")
# Where a container has no lab file with hashes: the token itself, or a file that holds it; each for one role.
VARIABLES = {"KVLAB_TOKEN": Role.RUN, "KVLAB_LOOK_TOKEN": Role.LOOK, "KVLAB_ADMIN_TOKEN": Role.ADMINISTER}


def new_token() -> str:
    """A token nobody guesses: 192 random bits in 32 signs."""
    return secrets.token_urlsafe(24)


def hash_token(token: str, salt: bytes | None = None) -> str:
    """What stands for the token in a lab file; a salt of 16 bytes where none is given."""
    salt = salt or secrets.token_bytes(16)
    return f"scrypt:{salt.hex()}:{_scrypt(token, salt).hex()}"


def role_of(token: str, hashes: Mapping[str, str]) -> Role | None:
    """The highest role that the token opens; None for a wrong one. Takes as long for either."""
    opened = []
    for role, known in hashes.items():
        _, salt, digest = known.split(":")
        if hmac.compare_digest(_scrypt(token[:LONGEST_TOKEN], bytes.fromhex(salt)), bytes.fromhex(digest)):
            opened.append(Role(role))
    return max(opened, default=None)


def hashes_from_environment() -> dict[str, str]:
    """Hashes of the tokens that KVLAB_TOKEN and its like give, or the files that KVLAB_TOKEN_FILE and its like name.

    Raises:
        UserError: a file cannot be read, or a token is too short.
    """
    found = {}
    for variable, role in VARIABLES.items():
        token, file = os.environ.get(variable, ""), os.environ.get(f"{variable}_FILE")
        if not token and file:
            try:
                token = Path(file).read_text(encoding="utf-8").strip()
            except (OSError, ValueError) as error:
                raise UserError(f"{variable}_FILE names a file that cannot be read: {error}.") from error
        if token:
            if len(token) < SHORTEST_TOKEN:
                raise UserError(f"{variable} is shorter than {SHORTEST_TOKEN} signs: `kvlab token` makes a good one.")
            # Kept in memory alone, where the same salt makes the same key of cookies at every start.
            found[role.value] = hash_token(token, hashlib.sha256(variable.encode()).digest()[:16])
    return found


def forget_environment() -> None:
    """Take the tokens out of this process's environment: what it starts need not know them."""
    for variable in VARIABLES:
        os.environ.pop(variable, None)


def check_name(text: str) -> str:
    """The name somebody gives with a token.

    Raises:
        UserError: it is none.
    """
    name = " ".join(text.split())
    if not NAME.fullmatch(name):
        raise UserError("Give your name in at most 60 letters, digits, dots, dashes and spaces.")
    return name


def signing_key(file: Path, hashes: Mapping[str, str]) -> bytes:
    """The key of cookies: of a secret file, made where there is none, and of the tokens."""
    file.parent.mkdir(parents=True, exist_ok=True)
    try:
        with open(os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as new:
            new.write(secrets.token_bytes(32))
    except FileExistsError:
        pass
    return hmac.digest(file.read_bytes(), json.dumps(sorted(hashes.items())).encode(), "sha256")


def seal(person: Person, key: bytes, now: float | None = None) -> str:
    """The cookie of a person who gave a token."""
    said = {"name": person.name, "role": person.role.value, "at": int(time.time() if now is None else now)}
    body = base64.urlsafe_b64encode(json.dumps(said).encode()).decode()
    return f"{body}.{hmac.digest(key, body.encode(), 'sha256').hex()}"


def unseal(cookie: str, key: bytes, now: float | None = None) -> Person | None:
    """Who the cookie says it is; None for one that was changed, is too old or was made with another key."""
    body, _, seal_found = cookie.partition(".")
    right = hmac.digest(key, body.encode("utf-8", "replace"), "sha256").hex()
    if not hmac.compare_digest(right.encode(), seal_found.encode("utf-8", "replace")):
        return None
    said = json.loads(base64.urlsafe_b64decode(body))
    age = (time.time() if now is None else now) - said["at"]
    return Person(said["name"], Role(said["role"])) if age < SECONDS_SIGNED_IN else None


def _scrypt(token: str, salt: bytes) -> bytes:
    return hashlib.scrypt(token.encode("utf-8", "replace"), salt=salt, **SCRYPT)
