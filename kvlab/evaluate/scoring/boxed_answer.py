"""Boxed answers of MATH and AIME, compared as mathematics by math-verify."""

from __future__ import annotations

import threading
from collections.abc import Sequence

BOX = "\\boxed"
SECONDS = 5


def boxed(prediction: str, answers: Sequence[str], classes: Sequence[str] = ()) -> float:
    """1 if the content of the prediction's last box is one of the answers; 0 without a box."""
    held = last_box(prediction)
    return float(held is not None and any(_equal(answer, held) for answer in answers))


def last_box(text: str) -> str | None:
    """Content of the last outermost \\boxed{...}, with matched braces, nested boxes opened; None without one."""
    place = 0
    found = None
    while (start := text.find(f"{BOX}{{", place)) >= 0:
        begun = start + len(BOX) + 1
        end = _closing(text, begun)
        if end is None:
            break
        found = text[begun:end]
        place = end
    if found is None:
        return None
    return last_box(found) if found.strip().startswith(f"{BOX}{{") else found


def _closing(text: str, begun: int) -> int | None:
    """Index of the brace that closes the one open at `begun`."""
    depth = 1
    place = begun
    while place < len(text):
        if text[place] == "\\":
            place += 2
            continue
        depth += {"{": 1, "}": -1}.get(text[place], 0)
        if depth == 0:
            return place
        place += 1
    return None


def _equal(answer: str, held: str) -> bool:
    """Whether two LaTeX texts are equal. Outside the main thread math-verify cannot set its alarm: no timeout."""
    from math_verify import parse, verify

    if _bare(answer) == _bare(held):
        return True
    seconds = SECONDS if threading.current_thread() is threading.main_thread() else None
    gold, target = (parse(f"{BOX}{{{text}}}", parsing_timeout=seconds) for text in (answer, held))
    return bool(gold and target and verify(gold, target, timeout_seconds=seconds))


def _bare(text: str) -> str:
    return "".join(text.split()).strip("$")
