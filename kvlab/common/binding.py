"""Check the address a dashboard is served at against its sign-in, and build the server's command line."""

import ipaddress
import json
import os
import socket
import sys
from pathlib import Path

from kvlab.common.lab import Lab
from kvlab.core import UserError, project_root

# Environment of the server: no sign-in; only this machine is answered.
OPEN = "KVLAB_OPEN_TO_EVERYONE"
LOCAL = "KVLAB_LOCAL"
LARGEST_UPLOAD_MB = 200
# A session that was left takes half a megabyte, and Streamlit would keep 128 for two minutes.
GONE_SECONDS = 10
KEPT_RUNS = 20  # more than the requests that can wait for a page
OPEN_TO_EVERYONE = (
    "This dashboard has no sign-in: everybody who reaches it can read all prompts, start runs and delete them."
)


def is_loopback(host: str) -> bool:
    """Whether only this machine can reach a server at this address."""
    try:
        addresses = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)
    except OSError:
        return False
    return all(ipaddress.ip_address(str(address[0]).partition("%")[0]).is_loopback for *_, address in addresses)


def check_serving(host: str, settings: Lab | None, open_to_everyone: bool) -> str:
    """The warning for the terminal, or "".

    Raises UserError if other machines can reach the address and nobody has to sign in, or the sign-in lacks something.
    """
    local = is_loopback(host)
    if settings is None:
        if not local and not open_to_everyone:
            raise UserError(
                f"At {host} everybody who reaches this machine could read all prompts and delete runs: give --lab "
                "lab.toml (docs/shared-lab.md), or add --open-to-everyone to allow it."
            )
        return "" if local else f"Warning: {OPEN_TO_EVERYONE}"
    if settings.people.way == "oidc":
        from importlib.util import find_spec

        if find_spec("authlib") is None:
            raise UserError("people.way = \"oidc\" needs Authlib: pip install 'kvlab[oidc]'.")
        if settings.people.secrets is None or not settings.people.secrets.is_file():
            raise UserError(
                f"people.secrets names {settings.people.secrets}, which is no file: write the table [auth] there."
            )
    return ""


def server_command(root: Path, host: str, port: int, settings: Lab | None = None) -> tuple[list[str], dict[str, str]]:
    """The command that starts the dashboard's server for a folder of runs, and its environment.

    The server ends when its standard input closes.
    """
    # -P keeps the user's own files from being imported in place of libraries.
    line = [sys.executable, "-P", str(project_root() / "app" / "server" / "serve.py")]
    flags = [f"--{name}={value}" for name, value in server_options(host, port, settings).items()]
    local = is_loopback(host)
    variables = {"KVLAB_RUNS": str(root), LOCAL: "yes" if local and settings is None else ""}
    variables |= {"ARROW_DEFAULT_MEMORY_POOL": "system"}  # Arrow's own pool keeps memory that threads freed
    return [*line, *flags], os.environ | variables | {OPEN: "" if local or settings else "yes"}


def server_options(host: str, port: int, settings: Lab | None) -> dict[str, object]:
    """Streamlit's options, given in full so that no configuration file in a home folder loosens them."""
    options: dict[str, object] = {
        "server.port": port,
        "server.address": host,
        "server.headless": "true",
        "server.fileWatcherType": "none",
        "server.enableCORS": "true",
        "server.enableXsrfProtection": "true",
        "server.enableStaticServing": "false",
        "server.maxUploadSize": LARGEST_UPLOAD_MB,
        "browser.gatherUsageStats": "false",
        # A disconnected session is kept this long; the browser itself keeps the address and what was typed.
        "server.disconnectedSessionTTL": GONE_SECONDS,
        # Messages the browser has cached are sent by name only. With 2 runs they expired when keys were pressed faster
        # than pages were drawn, and the page lost its server.
        "global.maxCachedMessageAge": KEPT_RUNS,
        "runner.postScriptGC": "false",  # after every run of a page; the server collects now and then instead
    }
    if not is_loopback(host) or settings is not None:
        options["client.showErrorDetails"] = "none"  # a traceback names folders of the server
    if settings is not None and settings.people.way != "oidc":
        options["server.trustedUserHeaders"] = json.dumps({"X-Kvlab-Name": "kvlab_name"})
    if settings is not None and settings.people.secrets is not None:
        options["secrets.files"] = str(settings.people.secrets)
    return options
