"""GVote: its figures and tables, drawn from what was recorded."""

from app.atlas.paper import paper_page

paper_page("gvote")
