"""KVMerger: the paper's figures and tables, drawn from recorded runs."""

from app.atlas.paper import paper_page

paper_page("kvmerger")
