"""Diff of two continuations by words."""

import re
from difflib import SequenceMatcher
from typing import Literal, NamedTuple

from kvlab.common.formatting import shared_prefix

# A word includes the white space before it, so that blanks between different words do not match.
PIECES = re.compile(r"\s*\w+|\s*[^\w\s]|\s+")
Kind = Literal["same", "own", "missing"]


class Segment(NamedTuple):
    """A piece of text: in both, only in the run's own text, or only in the full cache's."""

    kind: Kind
    text: str


def diff(text: str, full: str) -> list[Segment]:
    """Two texts as segments, by words: joining all but `missing` gives `text`, all but `own` gives `full`."""
    ours = PIECES.findall(text)
    theirs = PIECES.findall(full)
    # Match the common prefix first; SequenceMatcher might align it with a later part.
    alike = shared_prefix(ours, theirs)
    segments = [Segment("same", "".join(ours[:alike]))] if alike else []
    ours = ours[alike:]
    theirs = theirs[alike:]
    for tag, a, b, c, d in SequenceMatcher(None, theirs, ours, autojunk=False).get_opcodes():
        if tag == "equal":
            segments.append(Segment("same", "".join(ours[c:d])))
            continue
        segments += [Segment("missing", "".join(theirs[a:b]))] * (b > a)
        segments += [Segment("own", "".join(ours[c:d]))] * (d > c)
    return segments
