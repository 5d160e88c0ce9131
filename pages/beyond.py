"""Beyond the five papers: claims of newer methods that a small model can check."""

from app.atlas.paper import paper_page

paper_page("beyond")
