"""What a method declares and what it is given: `from kvlab.core.contract import Method, Plan, View`."""

# ruff: noqa: F403
from kvlab.core.contract.in_place import *
from kvlab.core.contract.method import *
from kvlab.core.contract.numerics import *
from kvlab.core.contract.parts import *
from kvlab.core.contract.pipeline import *
from kvlab.core.contract.plan import *
from kvlab.core.contract.preset import *
from kvlab.core.contract.rotary import *
from kvlab.core.contract.second_pass import *
from kvlab.core.contract.slot_columns import *
from kvlab.core.contract.sparse_attention import *
from kvlab.core.contract.view import *
