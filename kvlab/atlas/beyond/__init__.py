"""Claims of methods beyond the five papers, as far as a small model and its tasks can check them."""

from __future__ import annotations

from kvlab.atlas.beyond import contests, recorded
from kvlab.atlas.exhibit_texts import exhibits_of

EXHIBITS = (*contests.TABLES, *exhibits_of("beyond", recorded.DRAWINGS))
