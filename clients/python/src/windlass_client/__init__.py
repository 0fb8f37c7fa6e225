"""The Windlass client: submit jobs, wait for them, watch them live. See `Client` and `AsyncClient`."""

from .aio import AsyncClient
from .client import Client, FeedEvent, ProgressEvent, StatusEvent, WatchEvent
from .errors import JobFailed, Problem, Unreachable, WaitTimeout

__all__ = [
    "AsyncClient",
    "Client",
    "FeedEvent",
    "JobFailed",
    "Problem",
    "ProgressEvent",
    "StatusEvent",
    "Unreachable",
    "WaitTimeout",
    "WatchEvent",
]
