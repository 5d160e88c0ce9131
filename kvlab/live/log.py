"""The events of a session as lines of JSON next to the queue: the worker writes them, pages read them in order."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from kvlab.common.atomic_write import full_disk_sentence

FOLDER = Path(".jobs") / "live"
LEFT_OUT = ("opened", "lane_changed", "heads_read", "read_again", "recorded")  # by a fork
Events = list[dict[str, Any]]


def log_path(root: Path, session: str) -> Path:
    """The file of a session."""
    return Path(root) / FOLDER / f"{session}.jsonl"


def heads_path(root: Path, session: str, lane: int) -> Path:
    """The file of what a lane's heads hold (`kvlab.views.frames.token_heads`)."""
    return log_path(root, session).with_suffix(f".lane-{lane}.npz")


def append_event(root: Path, session: str, event: Mapping[str, Any]) -> None:
    """Append one event. Raises UserError if the disk is full."""
    path = log_path(root, session)
    line = json.dumps(event, ensure_ascii=False) + "\n"
    with full_disk_sentence(path.parent):
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("a", encoding="utf-8") as file:
            file.write(line)


def fork_log(root: Path, session: str, other: str, turn: int, opened: Mapping[str, Any]) -> None:
    """Begin the log of session `other` with `opened` and what was said in `session` before question `turn`."""
    events, _ = read_events(root, session)
    asked = [place for place, event in enumerate(events) if event.get("kind") == "question" and event["turn"] == turn]
    before = events[: asked[-1]] if asked else events
    kept = [event for event in before if event.get("kind") not in LEFT_OUT]
    for event in (opened, {"kind": "forked", "source": session}, *kept, {"kind": "went_back", "turn": turn}):
        append_event(root, other, event)


def read_events(root: Path, session: str, start: int = 0) -> tuple[Events, int]:
    """The events from byte `start` on, and where the next ones will begin; a line that is not complete is left."""
    try:
        with log_path(root, session).open("rb") as file:
            file.seek(start)
            content = file.read()
    except OSError:
        return [], start
    end = content.rfind(b"\n") + 1
    events: Events = []
    for line in content[:end].splitlines():
        try:
            event = json.loads(line)
        except ValueError:  # cut off by a killed worker
            continue
        if isinstance(event, dict):
            events.append(event)
    return events, start + end
