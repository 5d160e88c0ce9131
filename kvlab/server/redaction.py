"""What is said to people on a server: no sentence names a folder of the machine."""

from __future__ import annotations

import re

# A whole path of at least two parts, that is no part of an address or of a longer word.
PATH = re.compile(r"(?<![\w:/.])~?(?:/[\w.@+~=-]*[\w@+~=-]){2,}/?")


def hide_paths(text: str) -> str:
    """The text with every whole path cut down to its last part."""
    return PATH.sub(lambda found: "…/" + found[0].rstrip("/").rsplit("/", 1)[-1], text)
