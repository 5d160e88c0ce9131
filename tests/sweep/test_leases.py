"""A shard is one worker's at a time, and is not lost with it."""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import pytest

from kvlab.core.errors import UserError
from kvlab.sweep import leases as module
from kvlab.sweep.leases import Holder, Leases

ELSEWHERE = "another machine"


def elsewhere(name: str) -> Holder:
    return Holder(name, ELSEWHERE, 1, datetime.now(UTC).isoformat())


def test_one_has_it_until_it_is_given_back(tmp_path: Path) -> None:
    first, second = (Leases(tmp_path, Holder.this_process()) for _ in range(2))
    lease = first.claim("shard")
    assert lease is not None and second.claim("shard") is None and second.claim("another") is not None
    lease.release()
    assert second.claim("shard") is not None
    lease.release()  # no longer its own
    assert first.claim("shard") is None


def test_a_lease_is_taken_over_once_nobody_renews_it(tmp_path: Path) -> None:
    lost, other = Leases(tmp_path, elsewhere("lost"), 0.4), Leases(tmp_path, elsewhere("other"), 0.4)
    lease = lost.claim("shard")
    assert lease is not None
    for _ in range(4):
        time.sleep(0.15)
        lease.renew()
        assert other.claim("shard") is None
    time.sleep(0.5)
    taken = other.claim("shard")
    assert taken is not None and taken.tries == 2
    lease.release()  # it comes back from the dead and must not free what is another's now
    assert lost.claim("shard") is None


def test_the_age_is_the_disks_and_not_this_machines(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lease = Leases(tmp_path, elsewhere("a"), 5).claim("shard")
    assert lease is not None
    monkeypatch.setattr(module.time, "time", lambda: 4e9)
    assert Leases(tmp_path, elsewhere("b"), 5).claim("shard") is None


def test_the_lease_of_a_process_that_died_here_is_taken_at_once(tmp_path: Path) -> None:
    process = subprocess.Popen(["sleep", "60"])
    dead = replace(Holder.this_process(), pid=process.pid, since=datetime.now(UTC).isoformat())
    assert Leases(tmp_path, dead).claim("shard") is not None
    living = Leases(tmp_path, Holder.this_process())
    assert living.claim("shard") is None
    process.kill()
    process.wait()
    taken = living.claim("shard")
    assert taken is not None and taken.tries == 2


def test_of_many_that_want_a_stale_lease_one_gets_it(tmp_path: Path) -> None:
    for turn in range(20):
        stale = Leases(tmp_path, elsewhere("lost"), 5).claim(f"shard{turn}")
        assert stale is not None
        os.utime(stale.path, (1, 1))
        crowd = [Leases(tmp_path, elsewhere(f"w{number}"), 5) for number in range(6)]
        with ThreadPoolExecutor(6) as pool:
            found = list(pool.map(lambda leases, name=f"shard{turn}": leases.claim(name), crowd))
        assert sum(lease is not None for lease in found) == 1
    assert not [path for path in tmp_path.iterdir() if path.name.startswith(".")], "nothing is left lying about"


def test_a_lease_is_never_out_of_its_place_while_it_is_taken_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Or a third worker would find none, and make one of its own."""
    stale = Leases(tmp_path, elsewhere("lost"), 5).claim("shard")
    assert stale is not None
    os.utime(stale.path, (1, 1))
    third, met = Leases(tmp_path, elsewhere("third"), 5), []
    for name in ("rename", "replace"):
        done = getattr(os, name)

        def watched(*places: object, done: Callable[..., None] = done) -> None:
            done(*places)
            monkeypatch.undo()
            met.append(third.claim("shard"))

        monkeypatch.setattr(module.os, name, watched)
    taken = Leases(tmp_path, elsewhere("first"), 5).claim("shard")
    assert taken is not None and met == [None]


def test_a_worker_killed_while_it_takes_over_holds_nobody_up_for_long(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stale, other = Leases(tmp_path, elsewhere("lost"), 5).claim("shard"), Leases(tmp_path, elsewhere("other"), 5)
    assert stale is not None
    os.utime(stale.path, (1, 1))
    monkeypatch.setattr(Path, "unlink", lambda *_, **__: None)
    monkeypatch.setattr(module.os, "replace", lambda *_: None)  # killed before it is in its place
    Leases(tmp_path, elsewhere("killed"), 5).claim("shard")
    monkeypatch.undo()
    (mark,) = tmp_path.glob(".shard.*.taken")
    assert other.claim("shard") is None
    os.utime(mark, (1, 1))
    assert other.claim("shard") is None and not mark.exists()
    taken = other.claim("shard")
    assert taken is not None and taken.tries == 2


def test_a_lease_cut_short_by_a_crash_ends_by_its_age(tmp_path: Path) -> None:
    (tmp_path / "shard").write_text('{"work')
    leases = Leases(tmp_path, elsewhere("a"), 5)
    assert leases.claim("shard") is None
    os.utime(tmp_path / "shard", (1, 1))
    assert leases.claim("shard") is not None


def test_a_disk_without_hard_links_is_a_sentence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(*_: object) -> None:
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr(module.os, "link", refused)
    with pytest.raises(UserError, match=r"without hard links .* choose a folder on another disk"):
        Leases(tmp_path, elsewhere("a")).claim("shard")
