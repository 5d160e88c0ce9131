"""Which GPUs each worker has, and what a job's GPU is called there."""

from __future__ import annotations

import os
from pathlib import Path
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvlab.core.choice import MethodChoice
from kvlab.core.errors import UserError
from kvlab.evaluation.request import EvalJob, EvalRequest
from kvlab.jobs import client, device_shares
from kvlab.requests.compare import CompareRequest


@given(st.integers(1, 12), st.integers(1, 12))
def test_every_gpu_belongs_to_one_worker(workers: int, gpus: int):
    ids = [f"GPU-{number}" for number in range(gpus)]
    if workers > gpus:
        with pytest.raises(UserError, match=f"{gpus} can be seen"):
            device_shares.shares(workers, ids)
        return
    dealt = device_shares.shares(workers, ids)
    if workers == 1:
        assert dealt == [device_shares.Share(1)]  # and one worker has them all, unnamed
        return
    assert [one for share in dealt for one in share.ids] == ids
    for share in dealt:
        assert len(share.devices.split(",")) == len(share.ids)
        named = sorted([*share.devices.split(","), *share.others.split(",")])
        assert named == sorted(f"cuda:{number}" for number in range(gpus)), "every GPU is its own or another's"
    sizes = [len(share.ids) for share in dealt]
    assert max(sizes) - min(sizes) <= 1 and [share.place for share in dealt] == list(range(1, workers + 1))


def test_workers_without_gpus_share_the_cpu():
    assert device_shares.shares(2, []) == [device_shares.Share(1), device_shares.Share(2)]


def test_a_gpu_is_named_as_its_worker_sees_it():
    choice = (MethodChoice(method="h2o"),)
    plain = CompareRequest(prompt="x", choices=choice, device="cuda:3")
    nested = EvalJob(name="e", request=EvalRequest(choices=choice, device="cuda:2"))
    assert device_shares.with_local_device(plain, "cuda:2,cuda:3").device == "cuda:1"
    assert device_shares.with_local_device(nested, "cuda:2,cuda:3").request.device == "cuda:0"
    assert device_shares.with_local_device(plain, "") == plain, "one worker sees them all"
    anywhere = plain.model_copy(update={"device": "auto"})
    assert device_shares.with_local_device(anywhere, "cuda:2") == anywhere
    with pytest.raises(UserError, match="There is no cuda:3 on this server"):
        device_shares.with_local_device(plain, "cuda:0")


def test_the_share_reaches_the_workers_process(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv(device_shares.WORKERS, "2")
    monkeypatch.setenv(device_shares.VISIBLE, "4,6")
    started: list[tuple[list[str], str]] = []

    def start(command: list[str], env: dict[str, str], **_: object) -> SimpleNamespace:
        started.append((command[command.index("--place") :], env[device_shares.VISIBLE]))
        return SimpleNamespace(pid=os.getpid())

    monkeypatch.setattr(client.subprocess, "Popen", start)
    client.ensure_worker(tmp_path)
    assert started == [
        (["--place", "1", "--devices", "cuda:0", "--others", "cuda:1"], "4"),
        (["--place", "2", "--devices", "cuda:1", "--others", "cuda:0"], "6"),
    ]
    monkeypatch.setenv(device_shares.WORKERS, "many")
    with pytest.raises(UserError, match="give a number of workers"):
        device_shares.server_shares()
