"""Properties that kvlab guarantees for every method, and a checker for plug-ins: `kvlab plugin check`.

And what a serving engine would have to hold for a method: `kvlab serve-check`.
"""

from kvlab.checking.properties import PROPERTIES, Property, Result, check, from_file
from kvlab.checking.servability import check_servability

__all__ = ["PROPERTIES", "Property", "Result", "check", "check_servability", "from_file"]
