"""Small texts: prompt text that Markdown must not read, times as people say them."""

from __future__ import annotations

import re
import textwrap
from datetime import UTC, datetime


def plain(text: str) -> str:
    """Text that Markdown shows as it stands, on one line; a per cent sign and an n stay with their number."""
    kept_together = re.sub(r"(?<=\d) %", "\u00a0%", " ".join(text.split()))
    kept_together = re.sub(r"\bn = (?=\d)", "n\u00a0=\u00a0", kept_together)
    return re.sub(r"([\\`*_{}\[\]<>()#+\-!|~$:.&])", r"\\\1", kept_together)


def shorten(text: str, length: int = 90) -> str:
    """The beginning of a text, on one line, cut at a word."""
    return textwrap.shorten(text, length, placeholder=" …") if len(text) > length else text


def code(text: object, length: int = 60) -> str:
    """What an address or a form says, as Markdown's code: on one line, and cut where it is long."""
    words = " ".join(str(text).replace("`", "'").split())
    return f"`{words if len(words) <= length else words[:length] + ' …'}`"


def ago(moment: str | float) -> str:
    """How long ago an ISO 8601 time or a POSIX time was: `just now`, `5 min ago`, `3 h ago`, or the date."""
    then = datetime.fromtimestamp(moment, UTC) if isinstance(moment, float) else datetime.fromisoformat(moment)
    seconds = (datetime.now(UTC) - then).total_seconds()
    if seconds < 60:
        return "just now"
    if seconds < 3600:
        return f"{seconds // 60:.0f} min ago"
    return f"{seconds // 3600:.0f} h ago" if seconds < 86_400 else f"{then:%d %b %Y}"


def day_or_time(moment: str) -> str:
    """When something was made (ISO 8601), as short as can be: `06:25` today, else `21 Nov 06:25`."""
    then = datetime.fromisoformat(moment).astimezone(UTC)
    return f"{then:%H:%M}" if then.date() == datetime.now(UTC).date() else f"{then:%d %b %H:%M}"
