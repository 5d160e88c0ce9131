"""The job queue of one runs folder and the worker that owns the device; the client side imports no model code."""

from kvlab.jobs.client import (
    JobState,
    JobStatus,
    aside_root,
    cancel,
    ensure_worker,
    list_jobs,
    release_workers,
    request_of,
    resume,
    status,
    submit,
)

__all__ = [
    "JobState",
    "JobStatus",
    "aside_root",
    "cancel",
    "ensure_worker",
    "list_jobs",
    "release_workers",
    "request_of",
    "resume",
    "status",
    "submit",
]
