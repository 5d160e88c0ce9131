"""Properties that kvlab guarantees for every method, and a checker for plug-ins: `kvlab plugin check`."""

from kvlab.checking.check import Result, check, from_file
from kvlab.checking.properties import PROPERTIES, Property

__all__ = ["PROPERTIES", "Property", "Result", "check", "from_file"]
