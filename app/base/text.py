"""Text for pages: escaped for Markdown, shortened, and times in words."""

from __future__ import annotations

import re
import textwrap
from datetime import UTC, datetime


def plain(text: str) -> str:
    """The text escaped for Markdown, on one line; `5 %` and `n = 5` do not wrap."""
    unbroken = re.sub(r"(?<=\d) %", "\u00a0%", " ".join(text.split()))
    unbroken = re.sub(r"\bn = (?=\d)", "n\u00a0=\u00a0", unbroken)
    return re.sub(r"([\\`*_{}\[\]<>()#+\-!|~$:.&])", r"\\\1", unbroken)


def unseen(words: str) -> str:
    """Words of a button's label that screen readers read and that are not drawn (access.css)."""
    return f":small[{plain(words)}]"


def shorten(text: str, length: int = 90) -> str:
    """The beginning of a text on one line, cut between words."""
    return textwrap.shorten(text, length, placeholder=" …") if len(text) > length else text


def code(text: object, length: int = 60) -> str:
    """The text as Markdown code, on one line and at most `length` characters long."""
    words = " ".join(str(text).replace("`", "'").split())
    return f"`{words if len(words) <= length else words[:length] + ' …'}`"


def ago(moment: str | float) -> str:
    """How long ago an ISO 8601 or POSIX time was: `just now`, `5 min ago`, `3 h ago`, or the date."""
    then = datetime.fromtimestamp(moment, UTC) if isinstance(moment, float) else datetime.fromisoformat(moment)
    seconds = (datetime.now(UTC) - then).total_seconds()
    if seconds < 60:
        return "just now"
    if seconds < 3600:
        return f"{seconds // 60:.0f} min ago"
    return f"{seconds // 3600:.0f} h ago" if seconds < 86_400 else f"{then:%d %b %Y}"


def day_or_time(moment: str) -> str:
    """An ISO 8601 time as `06:25` if it is today, else as `21 Nov 06:25`."""
    then = datetime.fromisoformat(moment).astimezone(UTC)
    return f"{then:%H:%M}" if then.date() == datetime.now(UTC).date() else f"{then:%d %b %H:%M}"
