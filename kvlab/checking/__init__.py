"""Properties that kvlab guarantees for every method, and a checker for plug-ins: `kvlab plugin check`."""

from kvlab.checking.properties import PROPERTIES, Property, Result, check, from_file

__all__ = ["PROPERTIES", "Property", "Result", "check", "from_file"]
