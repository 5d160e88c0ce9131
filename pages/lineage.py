"""Cache: the tokens merged into one slot, and how their influence decays with further merges."""

from __future__ import annotations

from app.cache import lineage
from app.run_views import page

page.heading(
    "Lineage",
    "A merged slot is a weighted sum of tokens. The **river** shows which tokens were merged into it, the curves "
    "how much of each is left after further merges: its **half-life**.",
)
lineage.draw()
