"""What kvlab promises of every method, as properties that any method can be held against: `kvlab plugin check`."""

from kvlab.checking.check import Result, check, from_file
from kvlab.checking.properties import PROPERTIES, Property

__all__ = ["PROPERTIES", "Property", "Result", "check", "from_file"]
