"""What views are drawn with: `from kvlab.views.base import Theme, finish, number`."""

# ruff: noqa: F403
from kvlab.views.base.animation import *
from kvlab.views.base.lines import *
from kvlab.views.base.palette import *
from kvlab.views.base.provenance import *
from kvlab.views.base.template import *
from kvlab.views.base.words import *
