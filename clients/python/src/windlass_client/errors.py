"""Everything the client raises on purpose."""

from __future__ import annotations

from typing import Any, Dict, List, Optional


class Problem(Exception):
    """An error response of the server (RFC 9457). `code` identifies the error, such as `job_not_found`,
    `invalid_input`, `forbidden` or `backpressure`; docs/http.md lists them."""

    def __init__(self, status: int, body: Dict[str, Any], retry_after: Optional[float] = None) -> None:
        self.status = status
        self.code: str = body.get("code") or "http_error"
        self.title: str = body.get("title") or f"HTTP {status}"
        self.detail: Optional[str] = body.get("detail")
        self.request_id: Optional[str] = body.get("request_id")
        #: Every invalid field of the request: `field`, `message` and in batches `index`.
        self.errors: List[Dict[str, Any]] = body.get("errors") or []
        #: Seconds to wait before the next request, if the server says so.
        self.retry_after = retry_after
        self.body = body
        super().__init__(f"{self.title}: {self.detail}" if self.detail else self.title)


class Unreachable(Exception):
    """No response: the server is unreachable, or the connection broke. The outcome of the request is unknown."""


class JobFailed(Exception):
    """The awaited job has ended without success."""

    def __init__(self, id: str, status: str, error: Optional[Dict[str, Any]]) -> None:
        self.id = id
        self.status = status
        self.error = error
        reason = f": {error.get('code')}: {error.get('message')}" if error else ""
        super().__init__(f"job {id} is {status}{reason}")


class WaitTimeout(TimeoutError):
    """The awaited job has not ended in time. It continues."""

    def __init__(self, id: str, timeout: float) -> None:
        self.id = id
        super().__init__(f"job {id} has not ended after {timeout} s")
