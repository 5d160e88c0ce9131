"""The dashboard as an ASGI application: Streamlit on `main.py`, behind the gate. `app/server/serve.py` runs it."""

import os
import sys
from pathlib import Path

import streamlit as st
from starlette.middleware import Middleware

ROOT = Path(__file__).resolve().parents[1]
if str(ROOT) not in sys.path:
    sys.path.insert(0, str(ROOT))

from app.server.gate import Files, Gate, without_delay
from kvlab.common.binding import LOCAL, OPEN
from kvlab.common.formatting import hide_paths
from kvlab.common.lab import lab
from kvlab.core.errors import rewrite_messages

RUNS = "KVLAB_RUNS"


settings = lab()
if settings is not None or os.environ.get(OPEN):
    rewrite_messages(hide_paths)
gate = Middleware(Gate, people=settings.people if settings else None, local=os.environ.get(LOCAL) == "yes")
app = st.App(Path(__file__).with_name("main.py"), middleware=[gate, Middleware(Files)], lifespan=without_delay)
