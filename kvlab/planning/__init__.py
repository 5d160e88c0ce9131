"""What a comparison will take of this machine, worked out from shapes before anything is loaded. Free of torch."""

from kvlab.model_info.size import Model, find_model
from kvlab.planning.machine import Machine, this_machine
from kvlab.planning.plan import Plan, make_plan

__all__ = ["Machine", "Model", "Plan", "find_model", "make_plan", "this_machine"]
