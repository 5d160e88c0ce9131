"""Sign-in with shared tokens, stored as hashes, and a signed cookie. Standard library only.

Tokens are hashed with scrypt (RFC 7914) and compared in constant time. The cookie holds name, role and time in plain
text under an HMAC-SHA256 whose key depends on the tokens: a new token ends all earlier sign-ins.
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

from kvlab.core.errors import UserError
from kvlab.server.users import Role, User

SCRYPT = {"n": 2**14, "r": 8, "p": 1, "dklen": 32}  # 16 MiB and some 50 ms per try
LONGEST_TOKEN, SHORTEST_TOKEN = 512, 12
SECONDS_SIGNED_IN = 14 * 24 * 3600
NAME = re.compile(r"[\w.@+-](?:[\w.@+ -]{0,58}[\w.@+-])?")
# For containers without a lab file: the token itself, or a file that holds it; one per role.
VARIABLES = {"KVLAB_TOKEN": Role.RUN, "KVLAB_LOOK_TOKEN": Role.LOOK, "KVLAB_ADMIN_TOKEN": Role.ADMINISTER}


def new_token() -> str:
    """A random token: 192 bits in 32 characters."""
    return secrets.token_urlsafe(24)


def hash_token(token: str, salt: bytes | None = None) -> str:
    """The token's hash for a lab file; a random salt of 16 bytes by default."""
    salt = salt or secrets.token_bytes(16)
    return f"scrypt:{salt.hex()}:{_scrypt(token, salt).hex()}"


def role_of(token: str, hashes: Mapping[str, str]) -> Role | None:
    """The highest role that the token opens; None for a wrong one. Takes equally long for either."""
    opened = []
    for role, stored in hashes.items():
        _, salt, digest = stored.split(":")
        if hmac.compare_digest(_scrypt(token[:LONGEST_TOKEN], bytes.fromhex(salt)), bytes.fromhex(digest)):
            opened.append(Role(role))
    return max(opened, default=None)


def hashes_from_environment() -> dict[str, str]:
    """Hashes of the tokens in KVLAB_TOKEN and similar variables, or in files named by KVLAB_TOKEN_FILE and similar.

    Raises UserError if a file cannot be read, or a token is too short.
    """
    hashes = {}
    for variable, role in VARIABLES.items():
        token, file = os.environ.get(variable, ""), os.environ.get(f"{variable}_FILE")
        if not token and file:
            try:
                token = Path(file).read_text(encoding="utf-8").strip()
            except (OSError, ValueError) as error:
                raise UserError(f"{variable}_FILE names a file that cannot be read: {error}.") from error
        if token:
            if len(token) < SHORTEST_TOKEN:
                raise UserError(
                    f"{variable} is shorter than {SHORTEST_TOKEN} characters: `kvlab token` makes a good one."
                )
            # Kept in memory only; a fixed salt keeps the cookies' key the same over restarts.
            hashes[role.value] = hash_token(token, hashlib.sha256(variable.encode()).digest()[:16])
    return hashes


def forget_environment() -> None:
    """Remove the tokens from this process's environment, so that child processes do not get them."""
    for variable in VARIABLES:
        os.environ.pop(variable, None)


def check_name(text: str) -> str:
    """The name given with a token. Raises UserError if it is no valid name."""
    name = " ".join(text.split())
    if not NAME.fullmatch(name):
        raise UserError("Give your name in at most 60 letters, digits, dots, dashes and spaces.")
    return name


def signing_key(file: Path, hashes: Mapping[str, str]) -> bytes:
    """The cookies' key, derived from a secret file (created if missing) and the tokens."""
    file.parent.mkdir(parents=True, exist_ok=True)
    try:
        with open(os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as new:
            new.write(secrets.token_bytes(32))
    except FileExistsError:
        pass
    return hmac.digest(file.read_bytes(), json.dumps(sorted(hashes.items())).encode(), "sha256")


def seal(user: User, key: bytes, now: float | None = None) -> str:
    """The cookie of a user who signed in with a token."""
    fields = {"name": user.name, "role": user.role.value, "at": int(time.time() if now is None else now)}
    body = base64.urlsafe_b64encode(json.dumps(fields).encode()).decode()
    return f"{body}.{hmac.digest(key, body.encode(), 'sha256').hex()}"


def unseal(cookie: str, key: bytes, now: float | None = None) -> User | None:
    """Who the cookie says it is; None for one that was changed, is too old or was made with another key."""
    body, _, seal_found = cookie.partition(".")
    right = hmac.digest(key, body.encode("utf-8", "replace"), "sha256").hex()
    if not hmac.compare_digest(right.encode(), seal_found.encode("utf-8", "replace")):
        return None
    fields = json.loads(base64.urlsafe_b64decode(body))
    age = (time.time() if now is None else now) - fields["at"]
    return User(fields["name"], Role(fields["role"])) if age < SECONDS_SIGNED_IN else None


def _scrypt(token: str, salt: bytes) -> bytes:
    return hashlib.scrypt(token.encode("utf-8", "replace"), salt=salt, **SCRYPT)
