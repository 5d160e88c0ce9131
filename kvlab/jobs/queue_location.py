"""Locate the queue's SQLite file: with the runs, or on a local disk if the runs are on a shared one.

SQLite's write-ahead log needs shared memory, so several machines would damage a file on a shared disk.
"""

from __future__ import annotations

import hashlib
import os
import tempfile
from pathlib import Path

from kvlab.common.errors import UserError

MOUNTS = Path("/proc/mounts")  # Linux only; elsewhere every disk counts as local
SHARED = {
    "9p", "afs", "beegfs", "ceph", "cifs", "fuse.ceph", "fuse.gcsfuse", "fuse.glusterfs", "fuse.juicefs", "fuse.s3fs",
    "fuse.sshfs", "glusterfs", "gpfs", "lustre", "nfs", "nfs4", "orangefs", "panfs", "pvfs2", "smb3", "smbfs", "wekafs",
}  # fmt: skip
ELSEWHERE = "KVLAB_QUEUE"


def queue_folder(root: Path, folder_name: str) -> Path:
    """The folder of the queue's file: `<root>/<beside>`, or a local one. It may not exist yet.

    Raises UserError if the local folder is on a shared disk too, or belongs to another user.
    """
    folder = Path(root) / folder_name
    if shared_disk(folder) is None:
        return folder
    local = _own(root)
    if (kind := shared_disk(local)) is not None:
        raise UserError(
            f"The queue cannot be on a shared disk, and {local} is on one too ({kind}): name a folder on this "
            f"machine's own disk in {ELSEWHERE}."
        )
    for created in (local.parent, local):
        created.mkdir(mode=0o700, parents=True, exist_ok=True)
        if created.stat().st_uid != os.getuid():
            raise UserError(f"{created} belongs to another user: name a folder of yours in {ELSEWHERE}.")
    return local


def queue_note(root: Path, folder_name: str) -> str:
    """A sentence if the queue is not with the runs; else empty."""
    kind = shared_disk(Path(root) / folder_name)
    if kind is None:
        return ""
    return (
        f"{root} is on a shared disk ({kind}), where the queue's SQLite file cannot be: it is in "
        f"{queue_folder(root, folder_name)}, for this machine alone. For many machines there is `kvlab sweep`."
    )


def shared_disk(path: Path, mounts: Path = MOUNTS) -> str | None:
    """The file system of a shared disk that the path is on, such as `nfs4`; None for a local disk."""
    try:
        lines = mounts.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return None
    real, best = Path(os.path.realpath(path)), (-1, "")
    for line in lines:
        _, point, kind, *_ = [*line.split(), "", "", ""]
        where = Path(point.replace("\\040", " "))
        if real.is_relative_to(where):
            best = max(best, (len(where.parts), kind), key=lambda mount: mount[0])
    return best[1] if best[1] in SHARED else None


def _own(root: Path) -> Path:
    named = os.environ.get(ELSEWHERE)
    base = Path(named) if named else Path(tempfile.gettempdir()) / f"kvlab-queue-{os.getuid()}"
    return base / hashlib.sha256(os.path.realpath(root).encode()).hexdigest()[:16]
