"""A real Slurm of one node, from Debian's packages unpacked into a folder: nothing is installed."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

PACKAGES = (
    "slurmctld", "slurmd", "slurm-client", "slurm-wlm-basic-plugins", "munge", "libmunge2", "libhwloc15", "libnuma1",
    "liblz4-1",
)  # fmt: skip
READY_SECONDS = 60
CONFIG = """
ClusterName=test
SlurmctldHost=localhost(127.0.0.1)
SlurmctldPort={port}
SlurmdPort={node_port}
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
AuthInfo=socket={run}/munge.socket
PluginDir={lib}/slurm-wlm
StateSaveLocation={run}/state
SlurmdSpoolDir={run}/spool
SlurmctldPidFile={run}/slurmctld.pid
SlurmdPidFile={run}/slurmd.pid
SlurmctldLogFile={run}/slurmctld.log
SlurmdLogFile={run}/slurmd.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
AccountingStorageType=accounting_storage/none
JobAcctGatherType=jobacct_gather/none
MpiDefault=none
ReturnToService=2
SchedulerParameters=sched_interval=5
KillWait=10
NodeName={node} NodeHostname={node} NodeAddr=127.0.0.1 CPUs={cpus} RealMemory=8000 State=UNKNOWN
PartitionName=main Nodes={node} Default=YES MaxTime=INFINITE State=UP
"""


class Node:
    """The node's daemon, which can die with all that runs on it."""

    def __init__(self, run: Path, *command: str) -> None:
        self.run, self.command = run, command
        self.daemon = _start(run, *command)

    def die(self) -> list[int]:
        """Kill the daemon, the steps and all their processes outright, and have the controller know; the pids killed.

        The controller would find out by itself after SlurmdTimeout, five minutes.
        """
        killed = [self.daemon.pid]
        os.kill(self.daemon.pid, signal.SIGKILL)
        self.daemon.wait()
        for pid in self._of_jobs():
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
                killed.append(pid)
        _scontrol("state=down", "reason=dead")
        return killed

    def come_back(self) -> None:
        """Start the daemon again; with ReturnToService=2 the controller uses the node once it says that it is there.

        The script of the job still lies there, and Slurm holds the job back for it.
        """
        self.daemon = _start(self.run, *self.command)
        _wait_until_idle(self.run)

    def _of_jobs(self) -> list[int]:
        """Processes of this Slurm's jobs: the steps' daemons, and what has a job's number in its environment."""
        found, mine = [], f"SLURM_CONF={self.run / 'slurm.conf'}".encode()
        for process in Path("/proc").glob("[0-9]*"):
            with suppress(OSError):
                given = (process / "environ").read_bytes().split(b"\0")
                step = (process / "comm").read_text().startswith("slurmstepd")
                if mine in given and (step or any(one.startswith(b"SLURM_JOB_ID=") for one in given)):
                    found.append(int(process.name))
        return found


def _scontrol(*changes: str) -> None:
    subprocess.run(["scontrol", "update", f"nodename={_node()}", *changes], check=True, timeout=60)


def _node() -> str:
    return os.uname().nodename.split(".")[0]


@contextmanager
def one_node_slurm(folder: Path, ports: tuple[int, int] = (26817, 26818)) -> Iterator[Node]:
    """Slurm's commands on the PATH of this process and its children, for two jobs at a time, until the block ends."""
    system, run = folder / "system", folder / "run"
    _unpack(folder / "packages", system)
    for made in ("state", "spool"):
        (run / made).mkdir(parents=True, exist_ok=True)
    (run / "munge.key").write_bytes(os.urandom(128))
    (run / "munge.key").chmod(0o600)
    lib = system / "usr/lib/x86_64-linux-gnu"
    text = CONFIG.format(run=run, lib=lib, node=_node(), port=ports[0], node_port=ports[1], cpus=2)
    (run / "slurm.conf").write_text(text)
    changed = {
        "LD_LIBRARY_PATH": f"{lib}:{lib}/slurm-wlm",
        "PATH": f"{system}/usr/bin:{system}/usr/sbin:{os.environ['PATH']}",
        "SLURM_CONF": str(run / "slurm.conf"),
    }
    before = {name: os.environ.get(name) for name in changed}
    os.environ |= changed
    daemons: list[subprocess.Popen[bytes]] = []
    node: Node | None = None
    try:
        munge = [
            f"--{name}={run}/munge.{name.split('-')[0]}" for name in ("socket", "pid-file", "log-file", "seed-file")
        ]
        daemons.append(_start(run, "munged", "-F", "--force", f"--key-file={run}/munge.key", *munge))
        time.sleep(1)
        daemons.append(_start(run, "slurmctld-wlm", "-D", "-c"))
        node = Node(run, "slurmd-wlm", "-D", "-N", _node(), "-d", f"{system}/usr/sbin/slurmstepd-wlm")
        _wait_until_idle(run)
        yield node
    finally:
        subprocess.run(["scancel", "--quiet", "--user=root"], capture_output=True, timeout=60)
        daemons += [node.daemon] if node else []
        for daemon in reversed(daemons):
            daemon.terminate()
        for daemon in reversed(daemons):
            try:
                daemon.wait(15)
            except subprocess.TimeoutExpired:
                daemon.kill()
        for name, value in before.items():
            os.environ.pop(name) if value is None else os.environ.update({name: value})


def _unpack(packages: Path, system: Path) -> None:
    if (system / "usr/bin/srun").exists():
        return
    packages.mkdir(parents=True, exist_ok=True)
    subprocess.run(["apt-get", "download", *PACKAGES], cwd=packages, check=True, capture_output=True, timeout=300)
    for file in packages.glob("*.deb"):
        subprocess.run(["dpkg", "-x", file, system], check=True, timeout=60)


def _start(run: Path, *command: str) -> subprocess.Popen[bytes]:
    with (run / f"{command[0]}.out").open("wb") as out:
        return subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=out, stderr=out)


def _wait_until_idle(run: Path) -> None:
    deadline = time.monotonic() + READY_SECONDS
    while time.monotonic() < deadline:
        told = subprocess.run(["sinfo", "-h", "-o", "%T"], capture_output=True, text=True)
        if told.stdout.strip() in ("idle", "mixed"):
            return
        time.sleep(0.5)
    logs = "\n".join(path.read_text(errors="replace")[-2000:] for path in sorted(run.glob("*.[ol][uo][tg]")))
    raise RuntimeError(f"Slurm did not come up: {logs}")
