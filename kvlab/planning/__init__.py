"""Plan what a request holds in memory, from shapes, before anything is loaded. Torch-free."""

from kvlab.model_info.size import Model, find_model
from kvlab.planning.machine import Machine, this_machine
from kvlab.planning.plan import Plan, make_plan

__all__ = ["Machine", "Model", "Plan", "find_model", "make_plan", "this_machine"]
