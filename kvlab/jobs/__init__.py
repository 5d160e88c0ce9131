"""A queue for one machine and the worker that owns its device; the client side imports no model code."""

from kvlab.jobs.client import (
    JobState,
    JobStatus,
    aside_root,
    cancel,
    ensure_worker,
    go_on,
    list_jobs,
    release_workers,
    request_of,
    status,
    submit,
)

__all__ = [
    "JobState",
    "JobStatus",
    "aside_root",
    "cancel",
    "ensure_worker",
    "go_on",
    "list_jobs",
    "release_workers",
    "request_of",
    "status",
    "submit",
]
