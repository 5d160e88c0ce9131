"""A lab file says what it means, or what is wrong with it in one sentence."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from kvlab.common.binding import check_serving, is_loopback, server_command, server_options
from kvlab.common.lab import lab
from kvlab.core.errors import UserError


def test_without_a_file_there_is_no_lab(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("KVLAB_LAB", raising=False)
    assert lab() is None


def test_a_changed_file_is_read_again(write_lab: Callable[..., Path]) -> None:
    file = write_lab()
    assert lab().models.hub == ()
    file.with_suffix(".new").write_text(file.read_text() + '[models]\nhub = ["Qwen/Qwen3-0.6B"]\n')
    file.with_suffix(".new").replace(file)
    assert lab().models.hub == ("Qwen/Qwen3-0.6B",)


def test_files_are_named_beside_the_lab_file(write_lab: Callable[..., Path], tmp_path: Path) -> None:
    write_lab('people = {way = "oidc", secrets = "secrets.toml"}\nmodels = {folders = ["models", "/data"]}')
    found = lab()
    assert found.people.secrets == tmp_path / "secrets.toml"
    assert found.models.folders == (tmp_path / "models", Path("/data"))


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("people = ", "is no TOML"),
        ("", "people cannot be"),
        ('people = {way = "token"}', "people.way cannot be 'token'"),
        ('people = {way = "magic"}', "people.way cannot be 'magic'"),
        ('people = {way = "proxy", proxy = ["everywhere"]}', "is no address of a proxy"),
        ('people = {way = "proxy", header = "a: b"}', "is no header name"),
        ('people = {way = "oidc"}', "name the file with the table [auth]"),
        ('people = {way = "proxy", default = "look"}', "people.default: no longer read"),
        ('people = {way = "proxy", administer = ["a"], run = []}', "people.administer, people.run: no longer read"),
        ('people = {way = "proxy", look = ["a"]}', "people.look: no longer read"),
        ('people = {way = "proxy", role_header = "X-Role"}', "people.role_header: no longer read"),
        ('people = {way = "proxy"}\n[roles]\nanna = "administer"', "roles: no longer read"),
        ('people = {way = "proxy"}\npoeple = {}', "poeple"),
        ('people = {way = "proxy"}\n[limits]\nruns = 3\n[disk]', "limits, disk: no longer read"),
    ],
)
def test_a_mistake_is_one_sentence(text: str, said: str, write_lab: Callable[..., Path]) -> None:
    write_lab(text)
    with pytest.raises(UserError) as error:
        lab()
    assert said in str(error.value) and "\n" not in str(error.value)


def test_a_file_that_is_gone_lets_nobody_in(write_lab: Callable[..., Path]) -> None:
    write_lab().unlink()
    with pytest.raises(UserError, match="cannot be read"):
        lab()


@pytest.mark.parametrize(
    ("host", "local"), [("localhost", True), ("127.0.0.1", True), ("::1", True), ("0.0.0.0", False)]
)
def test_another_address_than_this_machines_has_to_be_told_twice(host: str, local: bool) -> None:
    assert is_loopback(host) is local
    if local:
        assert check_serving(host, None, False) == ""
        return
    with pytest.raises(UserError, match="--open-to-everyone"):
        check_serving(host, None, False)
    assert "has no sign-in" in check_serving(host, None, True)
    assert server_options(host, 1, None)["runner.postScriptGC"] == "false"  # seven tenths of a busy server's time
    assert server_options(host, 1, None)["server.disconnectedSessionTTL"] == 10  # half a megabyte each
    assert server_options(host, 1, None)["global.maxCachedMessageAge"] == 20  # with 2, fast keys lost a page its server
    assert server_options(host, 1, None)["client.showErrorDetails"] == "none"
    # Its own pool kept what each of many threads had freed: 448 MB where the system's has 349.
    assert server_command(Path("runs"), host, 1)[1]["ARROW_DEFAULT_MEMORY_POOL"] == "system"
