"""Store the model and placement of the last submitted comparison form as defaults for the next one."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Mapping
from pathlib import Path

from kvlab.common.atomic_write import replace_text
from kvlab.common.errors import UserError
from kvlab.forms.compare_form import PLACEMENTS
from kvlab.model_info.names import check_model

FILE = "last_form.json"


def remember(root: Path, model: str, options: Mapping[str, object]) -> None:
    """Store the form's model and placement; if the disk is full or read-only, the previous ones stay."""
    fields = {"model": model.strip()} | {name: str(options[name]) for name in PLACEMENTS if name in options}
    with contextlib.suppress(UserError, OSError):
        replace_text(root / ".jobs" / FILE, json.dumps(fields))


def remembered(root: Path) -> dict[str, str]:
    """The last form's fields by name, without those that are no longer valid."""
    try:
        stored = json.loads((root / ".jobs" / FILE).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    fields = {name: str(value) for name, value in stored.items()} if isinstance(stored, dict) else {}
    valid = {name: fields[name] for name, (_, kinds) in PLACEMENTS.items() if fields.get(name) in kinds}
    with contextlib.suppress(UserError):
        valid["model"] = check_model(fields.get("model", ""))
    return valid
