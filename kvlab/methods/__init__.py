"""Compression methods: each decides, and nothing here touches a model or a file.

Importing a method's module registers it; the order here is the order in which methods are shown.
"""

from kvlab.methods import full, window, streaming_llm, h2o, snapkv, pyramidkv, adakv, pyramidinfer, gvote  # isort: skip # noqa: F401
from kvlab.methods import zsmerge, kvmerger, pyramid_pool, cam, d2o, less, keepkv, exactmerge  # isort: skip # noqa: F401
from kvlab.methods import compose  # isort: skip # noqa: F401
from kvlab.methods.base import Method, make_method, registered

__all__ = ["Method", "make_method", "registered"]
