"""Why a measured time or rate is unreliable."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd

from kvlab.views.frames.speed import SCATTERED


def doubt_of(line: Any, unit: str) -> str:
    """Why a time or rate is unreliable, or ""; bytes are exact."""
    if unit == "bytes" or pd.isna(line.value):
        return ""
    if line.repeats < 2:
        return "one reading"
    return "busy machine" if pd.notna(line.spread) and line.spread > SCATTERED * line.value else ""


def drop_doubtful(frame: pd.DataFrame, unit: str) -> pd.DataFrame:
    """The rows without a doubt."""
    sure = [not doubt_of(line, unit) for line in frame.itertuples(index=False)]
    return frame[np.array(sure, bool)]
