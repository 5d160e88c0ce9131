"""Who is signed in through an identity provider, from the signed cookie that Streamlit keeps it in."""

from __future__ import annotations

import json
from collections.abc import Mapping

from streamlit.auth_util import get_cookie_with_chunks
from streamlit.web.server.server_util import get_cookie_secret
from streamlit.web.server.starlette.starlette_app_utils import decode_signed_value
from streamlit.web.server.starlette.starlette_server_config import USER_COOKIE_NAME


def claimed(cookies: Mapping[str, str], claim: str) -> str:
    """What the identity says of the person under this claim; "" where nobody is signed in, or it was changed."""

    def one(name: str) -> bytes | None:
        return decode_signed_value(get_cookie_secret(), name, cookies.get(name, ""))

    found = get_cookie_with_chunks(one, USER_COOKIE_NAME)
    told = json.loads(found) if found else {}
    return str(told.get(claim) or "") if told.get("is_logged_in") else ""
