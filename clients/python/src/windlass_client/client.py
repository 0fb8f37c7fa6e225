"""The client: one method for each thing a program does with jobs. Everything else the API offers goes through `request`."""

from __future__ import annotations

import http.client
import json
import ssl
import time
import urllib.parse
from contextlib import contextmanager
from typing import Any, Dict, Iterator, List, NamedTuple, Optional, Sequence, Tuple, Union, cast

from . import schema, sse
from .errors import JobFailed, Problem, Unreachable, WaitTimeout

TIMEOUT = 30.0
RETRIES = 2
# The longest pause before a request or a stream is tried again, whatever the server asks for: the caller waits.
LONGEST_PAUSE = 10.0
FIRST_PAUSE = 0.2
# How often in a row a stream may break without a single event before the caller gets the error.
SILENT_BREAKS = 10
# A stream that is silent for this long is broken: the server sends a comment every 15 s.
SILENCE = 60.0

ENDED = ("succeeded", "canceled", "dead_lettered")
# Statuses after which the same request may succeed a moment later.
PASSING = (429, 502, 503, 504)


class ProgressEvent(NamedTuple):
    """A report of a running job."""

    sequence: int
    percent: float
    message: str


class StatusEvent(NamedTuple):
    """A change of a job's status. The last event of every job that ends is one."""

    status: str
    error: Optional[Dict[str, Any]]


WatchEvent = Union[ProgressEvent, StatusEvent]


class FeedEvent(NamedTuple):
    """A change of a job's status, from the feed of all jobs."""

    sequence: int
    job: str
    tenant: str
    handler: str
    status: str
    at: str
    error: Optional[Dict[str, Any]]


class Client:
    """A Windlass server.

    `url` is the server's address, with its base path if it has one; `key` is an API key or a JWT; `tenant` selects one
    tenant for a key of all tenants. `timeout` is the limit of one request in seconds; `retries` is how often the client
    repeats a repeatable request when the server is busy or unreachable. Every call opens its own connection, so threads
    may share a client.
    """

    def __init__(
        self,
        url: str,
        key: Optional[str] = None,
        *,
        tenant: Optional[str] = None,
        timeout: float = TIMEOUT,
        retries: int = RETRIES,
        tls: Optional[ssl.SSLContext] = None,
    ) -> None:
        parts = urllib.parse.urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise ValueError(f"url must be the http or https address of a server, got {url!r}")
        self._host, self._port = parts.hostname, parts.port
        self._base = parts.path.rstrip("/") + "/api/v1"
        self._tls = (tls or ssl.create_default_context()) if parts.scheme == "https" else None
        self._headers = {"Accept": "application/json"}
        if key is not None:
            self._headers["Authorization"] = f"Bearer {key}"
        if tenant is not None:
            self._headers["Windlass-Tenant"] = tenant
        self._timeout = timeout
        self._retries = retries

    def submit(self, handler: str, input: Any, options: Optional[schema.Options] = None) -> schema.Submitted:
        """Stores a job; it runs as soon as a worker is free. With an `idempotency_key` in its options a repeated call
        returns the same job."""
        body = {"handler": handler, "input": input, **({"options": options} if options else {})}
        repeatable = bool(options and options.get("idempotency_key"))
        return cast(schema.Submitted, self.request("POST", "/jobs", body=body, repeatable=repeatable))

    def submit_many(
        self, handler: str, inputs: Sequence[Any], options: Optional[schema.Options] = None, *, partial: bool = False
    ) -> schema.Batch:
        """Stores many jobs at once, all or none; with `partial`, the valid ones. Returns the results in the order of the
        inputs."""
        body: Dict[str, Any] = {"handler": handler, "inputs": [*inputs], **({"options": options} if options else {})}
        if partial:
            body["partial"] = True
        return cast(schema.Batch, self.request("POST", "/jobs/batch", body=body))

    def get(self, id: str) -> schema.Job:
        """Returns a job without its input and output."""
        return cast(schema.Job, self.request("GET", _job(id)))

    def result(self, id: str) -> schema.Result:
        """Returns how a job ended, or its status if it has not ended yet."""
        return cast(schema.Result, self.request("GET", _job(id, "/result")))

    def history(self, id: str) -> List[Dict[str, Any]]:
        """Returns every status change and every attempt."""
        return cast(List[Dict[str, Any]], self.request("GET", _job(id, "/history"))["history"])

    def why(self, id: str) -> Dict[str, Any]:
        """Returns why a job is not running now, and when it will: `reason` for programs, `text` for people, and the facts."""
        return cast(Dict[str, Any], self.request("GET", _job(id, "/why")))

    def logs(self, id: str, after: Optional[int] = None) -> List[Dict[str, Any]]:
        """Returns what the handler has logged."""
        return cast(List[Dict[str, Any]], self.request("GET", _job(id, "/logs"), query={"after": after})["lines"])

    def counts(self) -> schema.Counts:
        """Returns the number of jobs in each status."""
        return cast(schema.Counts, self.request("GET", "/counts"))

    def page(self, filter: Optional[str] = None, **query: Any) -> schema.JobPage:
        """Returns one page of jobs, newest first. `filter` is the same text as in dashboard and command line, such as
        `handler:mail.send status:dead`; `query` may hold `handler_id`, `status`, `created_after`, `created_before`, `limit`
        (50 by default, at most 200) and `before` (the `next` of the previous page)."""
        return cast(schema.JobPage, self.request("GET", "/jobs", query={"filter": filter, **query}))

    def list(self, filter: Optional[str] = None, **query: Any) -> Iterator[schema.Job]:
        """Yields all matching jobs, newest first; fetches the pages as needed."""
        while True:
            page = self.page(filter, **query)
            yield from page["jobs"]
            if not page.get("next"):
                return
            query["before"] = page.get("next")

    def cancel(self, id: str, reason: Optional[str] = None) -> str:
        """Asks a job to stop; returns `canceled`, `requested` or `already_finished`. After the first two the job will not
        succeed."""
        body = {} if reason is None else {"reason": reason}
        return str(self.request("POST", _job(id, "/cancel"), body=body, repeatable=True)["outcome"])

    def replay(self, id: str, **how: Any) -> str:
        """Runs a dead letter again: in place, or as a new job with `as_new=True` or with another `input`. Returns the id of
        the job that will run."""
        return str(self.request("POST", _job(id, "/replay"), body=how)["id"])

    def retry(self, id: str) -> str:
        """Runs a retrying job now, or replays a dead letter."""
        return str(self.request("POST", _job(id, "/retry"))["id"])

    def schedules(self, after: Optional[str] = None, limit: Optional[int] = None) -> Iterator[schema.Schedule]:
        """Yields all schedules by name; fetches the pages as needed."""
        while True:
            query = {"after": after, "limit": limit}
            page = cast(schema.Schedules, self.request("GET", "/schedules", query=query))
            yield from page["schedules"]
            after = page.get("next")
            if not after:
                return

    def schedule(self, name: str) -> schema.Schedule:
        """Returns a schedule without the input of its jobs."""
        return cast(schema.Schedule, self.request("GET", _schedule(name)))

    def put_schedule(self, name: str, content: schema.NewSchedule) -> schema.Schedule:
        """Creates a schedule, or changes the one with this name; with `version`, only if it still has that version."""
        return cast(schema.Schedule, self.request("PUT", _schedule(name), body=content))

    def remove_schedule(self, name: str) -> None:
        """Removes a schedule. Jobs that it has started stay."""
        self.request("DELETE", _schedule(name))

    def pause_schedule(self, name: str) -> schema.Schedule:
        """Pauses a schedule: once this has returned, it fires nothing."""
        return cast(schema.Schedule, self.request("POST", _schedule(name, "/pause"), repeatable=True))

    def resume_schedule(self, name: str) -> schema.Schedule:
        """Lets a paused schedule fire again, from its next time on."""
        return cast(schema.Schedule, self.request("POST", _schedule(name, "/resume"), repeatable=True))

    def trigger_schedule(self, name: str) -> schema.Submitted:
        """Starts a job of a schedule now, whether it is paused or not."""
        return cast(schema.Submitted, self.request("POST", _schedule(name, "/trigger")))

    def next_runs(self, name: str, count: Optional[int] = None, zone: Optional[str] = None) -> schema.NextRuns:
        """Returns the next times of a schedule: in UTC, in its zone and in the viewer's `zone`."""
        query = {"count": count, "zone": zone}
        return cast(schema.NextRuns, self.request("GET", _schedule(name, "/next"), query=query))

    def schedule_runs(self, name: str, limit: Optional[int] = None, before: Optional[str] = None) -> schema.JobPage:
        """Returns one page of the jobs that a schedule has started, newest first."""
        query = {"limit": limit, "before": before}
        return cast(schema.JobPage, self.request("GET", _schedule(name, "/runs"), query=query))

    def wait(self, id: str, timeout: Optional[float] = None) -> Any:
        """Waits for a job and returns its output. Raises `JobFailed` if it ends without success, and `WaitTimeout` after
        `timeout` seconds; the job itself continues."""
        deadline = None if timeout is None else time.monotonic() + timeout
        tried = 0
        while True:
            result = self.result(id)
            if result["status"] == "succeeded":
                return result.get("output")
            if result["status"] in ENDED:
                raise JobFailed(id, result["status"], cast(Optional[Dict[str, Any]], result.get("error")))
            try:
                self._until_ended(id, tried, deadline)
            except _DeadlinePassed:
                raise WaitTimeout(id, timeout or 0.0) from None
            tried += 1

    def _until_ended(self, id: str, tried: int, deadline: Optional[float]) -> None:
        """Returns when a job has ended, or after a while if this key may not watch more jobs at once."""
        try:
            for event in self._watch(id, None, deadline):
                if isinstance(event, StatusEvent) and event.status in ENDED:
                    return
        except Problem as error:
            if error.status != 429:
                raise
            time.sleep(_left(deadline, _pause_after(tried, error)))

    def watch(self, id: str, after: Optional[int] = None) -> Iterator[WatchEvent]:
        """Yields the events of a job, live, until it has ended: its current status, then every change and every progress
        report after the sequence `after`. After a broken connection it continues where it stopped."""
        return self._watch(id, after, None)

    def feed(self, after: Optional[int] = None, **query: Any) -> Iterator[FeedEvent]:
        """Yields every status change of every job, from now on or after a sequence, at least once. `query` may contain
        `handler_id` and `status`."""
        for event in self._stream("/events", query, after, None):
            if event.event == "job":
                fields = json.loads(event.data)
                told = {name: fields[name] for name in ("job", "tenant", "handler", "status", "at")}
                yield FeedEvent(sequence=int(event.id or 0), error=fields.get("error"), **told)

    def request(
        self,
        method: str,
        path: str,
        *,
        query: Optional[Dict[str, Any]] = None,
        body: Any = None,
        repeatable: Optional[bool] = None,
    ) -> Any:
        """Calls any route of the API under `/api/v1`. Raises a `Problem` for every response that is not a success. Repeats
        a `repeatable` request (reads by default) when the server is busy or unreachable."""
        may_repeat = method == "GET" if repeatable is None else repeatable
        repeats = self._retries if may_repeat else 0
        tried = 0
        while True:
            try:
                with self._open(method, path, query, body, {}, self._timeout) as (_, answer):
                    text = answer.read()
                    return json.loads(text) if text else None
            except (Problem, Unreachable) as error:
                if tried >= repeats or not _is_passing(error):
                    raise
                time.sleep(_pause_after(tried, error))
                tried += 1

    def _watch(self, id: str, after: Optional[int], deadline: Optional[float]) -> Iterator[WatchEvent]:
        for event in self._stream(_job(id, "/events"), {}, after, deadline):
            fields = json.loads(event.data) if event.data else {}
            progress = fields if event.event == "progress" else fields.get("progress")
            if progress:
                yield ProgressEvent(progress["sequence"], progress["percent"], progress.get("message") or "")
            # After the progress, so that the last event of a job that has ended is its status.
            if event.event == "status":
                yield StatusEvent(fields["status"], fields.get("error"))
            elif event.event == "end":
                return

    def _stream(
        self, path: str, query: Dict[str, Any], after: Optional[int], deadline: Optional[float]
    ) -> Iterator[sse.ServerEvent]:
        """Yields the events of a stream; reopens it after its last event whenever it breaks."""
        last = None if after is None else str(after)
        silent = 0
        opened = False
        while silent < SILENT_BREAKS:
            headers = {"Accept": "text/event-stream"}
            if last is not None:
                headers["Last-Event-ID"] = last
            reason: Optional[Exception] = None
            try:
                with self._open("GET", path, query, None, headers, _left(deadline, SILENCE)) as (connection, answer):
                    opened = True
                    for event in sse.parse(_lines(connection, answer, deadline)):
                        silent = 0
                        last = event.id or last
                        yield event
            except (Problem, Unreachable) as error:
                _left(deadline, SILENCE)
                # A rejected new stream would be rejected again a moment later; only a broken stream waits for its
                # place.
                is_crowded = not opened and isinstance(error, Problem) and error.status == 429
                if is_crowded or not _is_passing(error):
                    raise
                reason = error
            time.sleep(_left(deadline, _pause_after(silent, reason)))
            silent += 1
        raise Unreachable(f"the stream {path} broke {SILENT_BREAKS} times without an event")

    @contextmanager
    def _open(
        self,
        method: str,
        path: str,
        query: Optional[Dict[str, Any]],
        body: Any,
        headers: Dict[str, str],
        timeout: float,
    ) -> Iterator[Tuple[http.client.HTTPConnection, http.client.HTTPResponse]]:
        """A connection with the head of a successful response; closed when the caller is done with it."""
        if self._tls is not None:
            connection: http.client.HTTPConnection = http.client.HTTPSConnection(
                self._host, self._port, timeout=timeout, context=self._tls
            )
        else:
            connection = http.client.HTTPConnection(self._host, self._port, timeout=timeout)
        headers = {**self._headers, **headers}
        data = None
        if body is not None:
            data = json.dumps(body, allow_nan=False).encode()
            headers["Content-Type"] = "application/json"
        try:
            connection.request(method, self._base + path + _search(query), data, headers)
            answer = connection.getresponse()
            if answer.status >= 300:
                raise _problem(answer)
            yield connection, answer
        except (OSError, http.client.HTTPException) as error:
            raise Unreachable(f"{method} {path}: {error or type(error).__name__}") from error
        finally:
            connection.close()


class _DeadlinePassed(Exception):
    """The caller's own timeout has passed."""


def _left(deadline: Optional[float], most: float) -> float:
    """The seconds until the deadline, up to a maximum."""
    if deadline is None:
        return most
    left = deadline - time.monotonic()
    if left <= 0:
        raise _DeadlinePassed
    return min(left, most)


def _lines(
    connection: http.client.HTTPConnection, answer: http.client.HTTPResponse, deadline: Optional[float]
) -> Iterator[bytes]:
    """The lines of a response as they arrive."""
    while True:
        if connection.sock is not None:
            connection.sock.settimeout(_left(deadline, SILENCE))
        line = answer.readline(sse.LONGEST_LINE + 1)
        if not line:
            return
        yield line


def _job(id: str, rest: str = "") -> str:
    return f"/jobs/{urllib.parse.quote(str(id), safe='')}{rest}"


def _schedule(name: str, rest: str = "") -> str:
    return f"/schedules/{urllib.parse.quote(str(name), safe='')}{rest}"


def _search(query: Optional[Dict[str, Any]]) -> str:
    """The query of a URL; omits None, joins lists with commas."""
    given = {}
    for name, value in (query or {}).items():
        if value is not None:
            given[name] = ",".join(map(str, value)) if isinstance(value, (list, tuple)) else value
    return "?" + urllib.parse.urlencode(given) if given else ""


def _problem(answer: http.client.HTTPResponse) -> Problem:
    try:
        body = json.loads(answer.read())
    except ValueError:
        body = {}
    try:
        retry_after: Optional[float] = float(answer.headers.get("Retry-After", ""))
    except ValueError:
        retry_after = None
    return Problem(answer.status, body if isinstance(body, dict) else {}, retry_after)


def _is_passing(error: Exception) -> bool:
    """Whether the same request may succeed a moment later: there was no response, or the server was busy."""
    return isinstance(error, Unreachable) or (isinstance(error, Problem) and error.status in PASSING)


def _pause_after(tried: int, error: Optional[Exception]) -> float:
    """Doubles from one attempt to the next, or is what the server asks for; bounded."""
    asked = error.retry_after if isinstance(error, Problem) else None
    return min(FIRST_PAUSE * 2 ** min(tried, 10) if asked is None else asked, LONGEST_PAUSE)
