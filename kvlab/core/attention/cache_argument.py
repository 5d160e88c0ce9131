"""The cache among the arguments of a call of a model or of one of its modules."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from transformers import Cache


def find_cache(positional: Sequence[Any], named: Mapping[str, Any]) -> Cache | None:
    """The first transformers `Cache` among a call's arguments, whatever its name; None if there is none.

    The name depends on the version and the caller: transformers 5.24 calls the argument `cache`, 5.23
    `past_key_values`, and 5.24 still takes the old name, which a hook then receives as it was passed.
    """
    return next((one for one in (*positional, *named.values()) if isinstance(one, Cache)), None)
