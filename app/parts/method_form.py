"""The form of one method, built from its JSON schema: a new method appears here by being registered."""

from __future__ import annotations

import json
from typing import Any

import streamlit as st

from app.parts.text import plain
from kvlab.jobs.parameters import Parameter, parameters
from kvlab.jobs.registry import MethodEntry

LEFT_TO_METHOD = "left to the method"


def method_form(entry: MethodEntry) -> dict[str, Any]:
    """The values of one method's hyper-parameters, as typed; `kvlab.jobs.parameters.changed` checks them."""
    with st.expander(plain(entry.title) or entry.name, key=f"form.{entry.name}", bind="query-params"):
        source = f" [Paper]({entry.paper})" if entry.paper else ""
        st.caption(plain(entry.summary) + source)
        found = parameters(entry)
        if not found:
            st.caption("Nothing to set.")
        columns = st.columns(2)
        values = {}
        for number, parameter in enumerate(found):
            with columns[number % 2]:
                values[parameter.name] = _widget(entry.name, parameter)
        return values


def _widget(method: str, parameter: Parameter) -> Any:
    key = f"{method}.{parameter.name}"
    label = parameter.name.replace("_", " ")
    text = ". ".join(part for part in (_help(parameter), f"Default {parameter.default}") if part)
    if parameter.optional and st.checkbox(
        f"{label}: {LEFT_TO_METHOD}", parameter.default is None, key=f"{key}.none", bind="query-params"
    ):
        return None
    if parameter.kind == "choice":
        return st.selectbox(label, parameter.options, _index(parameter), help=text, key=key, bind="query-params")
    if parameter.kind == "switch":
        return st.toggle(label, bool(parameter.default), help=text, key=key, bind="query-params")
    if parameter.kind in ("integer", "number"):
        return _number(parameter, label, text, key)
    default = parameter.default if parameter.kind == "text" else json.dumps(parameter.default)
    return st.text_input(label, default or "", help=text, key=key, bind="query-params")


def _number(parameter: Parameter, label: str, text: str, key: str) -> int | float:
    cast = int if parameter.kind == "integer" else float
    low = None if parameter.minimum is None else cast(parameter.minimum)
    high = None if parameter.maximum is None else cast(parameter.maximum)
    default = parameter.default if parameter.default is not None else (low or 0)
    step, shape = (1, "%d") if cast is int else (0.05, "%g")
    return st.number_input(  # type: ignore
        label, low, high, cast(default), step, format=shape, help=text, key=key, bind="query-params"
    )


def _index(parameter: Parameter) -> int:
    return parameter.options.index(parameter.default) if parameter.default in parameter.options else 0


def _help(parameter: Parameter) -> str:
    described = plain(parameter.description)
    described = described[:1].upper() + described[1:]
    return f"{described} ({parameter.limits})" if parameter.limits else described
