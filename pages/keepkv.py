"""KeepKV: its figures and tables, drawn from what was recorded."""

from app.parts.paper import paper_page

paper_page("keepkv")
