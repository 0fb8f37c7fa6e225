"""Everything the client raises on purpose."""

from __future__ import annotations

from typing import Any, Dict, List, Optional


class Problem(Exception):
    """The server's answer when it does not do what it was asked (RFC 9457). `code` says which case it is, such as
    `job_not_found`, `invalid_input`, `forbidden` or `backpressure`; docs/http.md lists them."""

    def __init__(self, status: int, body: Dict[str, Any], retry_after: Optional[float] = None) -> None:
        self.status = status
        self.code: str = body.get("code") or "http_error"
        self.title: str = body.get("title") or f"HTTP {status}"
        self.detail: Optional[str] = body.get("detail")
        self.request_id: Optional[str] = body.get("request_id")
        #: Every field that is wrong, where the request was: `field`, `message` and in batches `index`.
        self.errors: List[Dict[str, Any]] = body.get("errors") or []
        #: Seconds to wait before asking again, where the server says so.
        self.retry_after = retry_after
        self.body = body
        super().__init__(f"{self.title}: {self.detail}" if self.detail else self.title)


class Unreachable(Exception):
    """No answer came: the server is away, or the connection broke. Whether it did what was asked is not known."""


class JobFailed(Exception):
    """A job that was waited for has ended, but not with success."""

    def __init__(self, id: str, status: str, error: Optional[Dict[str, Any]]) -> None:
        self.id = id
        self.status = status
        self.error = error
        reason = f": {error.get('code')}: {error.get('message')}" if error else ""
        super().__init__(f"job {id} is {status}{reason}")


class WaitTimeout(TimeoutError):
    """A job that was waited for has not ended in time. It goes on."""

    def __init__(self, id: str, timeout: float) -> None:
        self.id = id
        super().__init__(f"job {id} has not ended after {timeout} s")
