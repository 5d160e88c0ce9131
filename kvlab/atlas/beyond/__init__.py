"""Claims of methods beyond the five papers, as far as a small model and its tasks can check them."""

from __future__ import annotations

from kvlab.atlas.beyond import contests, recordings
from kvlab.atlas.exhibit import load_exhibits

EXHIBITS = (*contests.TABLES, *load_exhibits("beyond", recordings.DRAWINGS))
