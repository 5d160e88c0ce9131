"""What `make torture` does for minutes with random fingers, in seconds: and that it sees what breaks."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

from tests.torture.fingers import listen, play, press, rests, seen_on, slide


def test_keys_and_sliders_in_any_order_break_nothing_and_what_breaks_is_seen(visit: Callable[..., Any]):
    """A box, a script that fails and a lost server."""
    page = visit("sag?run=sample-keepkv-25pc-0")
    broken = listen(page)
    assert len(play(page, random.Random(7), 8, {press: 3, slide: 1})) == 8
    assert rests(page)
    assert broken + seen_on(page) == []
    page.evaluate("setTimeout(() => { throw new Error('fallen') })")
    page.evaluate("document.body.insertAdjacentHTML('beforeend', '<p data-testid=stException>a trace</p>')")
    assert rests(page)
    assert broken == ["script: fallen"]
    assert seen_on(page) == ["box: a trace"]
    page.evaluate("document.querySelector('[data-testid=stApp]').dataset.testConnectionState = 'DISCONNECTED'")
    assert seen_on(page)[1:] == ["the page has lost its server: DISCONNECTED"]
