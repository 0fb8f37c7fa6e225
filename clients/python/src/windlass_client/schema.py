"""Made by clients/generate.py from the server's OpenAPI document. Do not edit."""

# Annotations of classes are kept as text, so they may name what is defined further down; aliases come last.
from __future__ import annotations

from typing import Any, Dict, List, Literal, TypedDict, Union


class _AuditRequired(TypedDict):
    # Newest first.
    entries: List[AuditLine]


class Audit(_AuditRequired, total=False):
    """The audit log."""

    # For `before`, where there may be more.
    next: Union[str, None]


class _AuditLineRequired(TypedDict):
    action: str
    actor: str
    at: str
    target: str


class AuditLine(_AuditLineRequired, total=False):
    """One line of the audit log."""

    detail: Union[str, None]
    tenant: Union[str, None]


class Batch(TypedDict):
    """The jobs of one bulk submit, in the order of the inputs."""

    # What they have in common.
    batch: str
    # One answer for each input.
    jobs: List[BatchItem]


class Because(TypedDict, total=False):
    """Why something is done."""

    # For the history and the audit log.
    reason: str


class _BulkRequired(TypedDict):
    action: str
    by: str
    # Jobs it was done to.
    done: int
    # Jobs it could not be done to, because of an error.
    failed: int
    # Of those put back to work, how many have failed again.
    failed_again: int
    filter: str
    id: str
    # Jobs that had moved on.
    skipped: int
    started_at: str
    # `running`, `finished`, `stopped` or `failed`.
    state: str
    # How many passed when it began.
    total: int


class Bulk(_BulkRequired, total=False):
    """A bulk action and how far it has come."""

    ended_at: Union[str, None]
    # Why it ended, if not because it was done.
    error: Union[str, None]
    # Whose jobs; absent for every tenant's.
    tenant: Union[str, None]


class Bulks(TypedDict):
    """Bulk actions of this server."""

    # Newest first.
    bulks: List[Bulk]


class Cancel(TypedDict):
    """What a cancel did."""

    # `canceled`: it waited and is canceled now; `requested`: it runs, and its node has been asked;
    # `already_finished`: it was canceled before.
    outcome: str


class Changes(TypedDict, total=False):
    """What is to change about a waiting job; what is left out stays."""

    # Another start, this long from now.
    delay_ms: Union[int, None]
    # Another input.
    input: Any
    priority: Union[Priority, None]
    # Another start, at this time.
    run_at: Union[str, None]


class Checkout(TypedDict, total=False):
    """What a worker takes."""

    # How long the worker may stay silent; 5 minutes by default.
    hold_ms: Union[int, None]
    # At most so many; 1 by default, 100 at most.
    max: Union[int, None]
    # From these queues; `default` unless given.
    queues: List[str]


class CheckoutBody(TypedDict):
    """A job for a worker."""

    attempt: int
    handler: str
    headers: Dict[str, str]
    hold_until: str
    id: str
    input: Any
    tenant: str
    # What the worker reports with.
    token: str


class Checkouts(TypedDict):
    """Jobs for a worker."""

    jobs: List[CheckoutBody]


class Counts(TypedDict):
    """How many jobs are in each status. Ended ones are counted as they end."""

    blocked: int
    canceled: int
    dead_lettered: int
    pending: int
    retrying: int
    running: int
    scheduled: int
    succeeded: int
    suspended: int


class CreatedHook(TypedDict):
    """A webhook that was made."""

    # What signs each message. It cannot be shown again.
    secret: str
    webhook: Webhook


class CreatedKey(TypedDict):
    """A key that was made."""

    key: Key
    # What its calls carry. It cannot be shown again.
    secret: str


class _FailureRequired(TypedDict):
    # For people.
    message: str


class Failure(_FailureRequired, total=False):
    """What went wrong."""

    # A stable name for programs.
    code: Union[str, None]
    # Anything more, for programs.
    details: Any
    # Not before so long.
    retry_after_ms: Union[int, None]
    # Whether another attempt may cure it; yes unless said otherwise.
    retryable: Union[bool, None]


class FailureBody(TypedDict):
    """Jobs that fail in the same way."""

    code: str
    dead: int
    first_at: str
    handler: str
    jobs: int
    last_at: str
    latest: str
    # The message without what differs.
    message: str
    retrying: int
    # The message of the latest.
    sample: str
    # What they have in common, 16 hexadecimal digits.
    signature: str


class Failures(TypedDict):
    """Failing jobs by what is wrong with them."""

    # The largest first.
    groups: List[FailureBody]


class _FieldErrorRequired(TypedDict):
    # Its name.
    field: str
    # What is wrong with it.
    message: str


class FieldError(_FieldErrorRequired, total=False):
    """A field that is wrong."""

    # The place of the item in a batch, from 0.
    index: Union[int, None]


class Handler(TypedDict):
    """A handler that some node has."""

    handler: str
    # Nodes that have it.
    nodes: int
    # Whether it is paused.
    paused: bool


class Handlers(TypedDict):
    """The handlers that nodes have."""

    handlers: List[Handler]


class History(TypedDict):
    """Everything that happened to a job."""

    # Oldest first.
    history: List[HistoryLine]


class _HistoryLineRequired(TypedDict):
    at: str
    attempt: int
    status: Status


class HistoryLine(_HistoryLineRequired, total=False):
    """One line of a job's history."""

    error: Union[JobError, None]
    node: Union[int, None]
    note: Union[str, None]
    started_at: Union[str, None]


class Hold(TypedDict):
    """Until when a worker may stay silent."""

    hold_until: str


class Id(TypedDict):
    """A job."""

    # Its id.
    id: str


class Input(TypedDict):
    """A job's input and what travels with it."""

    # What travels with the job.
    headers: Dict[str, str]
    # The input.
    input: Any


class _JobRequired(TypedDict):
    # Attempts begun or failed so far.
    attempt: int
    # Whether a cancel has been asked for and not yet been carried out.
    cancel_requested: bool
    # When it was submitted.
    created_at: str
    # Failed attempts.
    failed: int
    # What runs it.
    handler: str
    # Its id, a decimal number.
    id: str
    # How urgent it is: higher first.
    priority: int
    # Where it waits.
    queue: str
    # Nodes lost while they held it.
    recoveries: int
    # How its attempts are run.
    spec: Spec
    # Where it is in its life.
    status: Status
    # Its labels.
    tags: List[str]
    # Whose it is.
    tenant: str


class Job(_JobRequired, total=False):
    """A job as it is shown: never with its input or its output."""

    # Its batch.
    batch: Union[str, None]
    # What ties it to the request it came from.
    correlation_id: Union[str, None]
    error: Union[JobError, None]
    # When it ended.
    finished_at: Union[str, None]
    # The node that holds it or ran it last.
    node: Union[int, None]
    # Its ordering key.
    ordering_key: Union[str, None]
    progress: Union[Progress, None]
    # Why it ended or what it waits for.
    reason: Union[str, None]
    replayed: Union[Replayed, None]
    # When it is due, if that lies ahead or lay ahead at the submit.
    run_at: Union[str, None]
    # When its last attempt started.
    started_at: Union[str, None]


class _JobErrorRequired(TypedDict):
    # A stable name for programs.
    code: str
    # What follows: `retryable`, `terminal`, `snooze`, `discard`, `retry_after`.
    kind: Any
    # For people.
    message: str
    # Whether another attempt may cure it.
    retryable: bool


class JobError(_JobErrorRequired, total=False):
    """Why an attempt failed."""

    # Anything more, for programs.
    details: Any


class _JobEventRequired(TypedDict):
    at: str
    attempt: int
    handler: str
    job: str
    status: Status
    tenant: str


class JobEvent(_JobEventRequired, total=False):
    """A change of a job's status."""

    error: Union[JobError, None]


class _JobPageRequired(TypedDict):
    # The jobs; may be fewer than asked for although there are more.
    jobs: List[Job]


class JobPage(_JobPageRequired, total=False):
    """A page of jobs, newest first."""

    # Pass it as `before` for the page after this one; absent on the last page.
    next: Union[str, None]


class _KeyRequired(TypedDict):
    # Whether it is for the whole installation.
    all_tenants: bool
    created_at: str
    created_by: str
    # Its public part, which stands in the secret too.
    id: str
    # What people call it.
    name: str
    rights: List[str]
    tenant: str
    # Who its calls act as.
    user: str


class Key(_KeyRequired, total=False):
    """An API key, without its secret."""

    expires_at: Union[str, None]
    # About when it was last used.
    last_used_at: Union[str, None]
    revoked_at: Union[str, None]


class Keys(TypedDict):
    """API keys."""

    # Newest first.
    keys: List[Key]


class LogLine(TypedDict):
    """One line that a job has logged."""

    at: str
    attempt: int
    # `trace`, `debug`, `info`, `warn` or `error`.
    level: str
    message: str
    # Counts the lines of the job; missing numbers were dropped.
    sequence: int


class Logs(TypedDict):
    """What a job has logged."""

    # Oldest first.
    lines: List[LogLine]


class Me(TypedDict):
    """Who asks."""

    # Whether it operates the whole installation.
    all_tenants: bool
    # How it has shown who it is.
    method: str
    # Whether the server refuses changes.
    read_only: bool
    # What it may do.
    rights: List[str]
    # Its tenant.
    tenant: str
    # Its name.
    user: str


class _NewBatchRequired(TypedDict):
    # What runs them.
    handler: str
    # One input for each.
    inputs: List[Any]


class NewBatch(_NewBatchRequired, total=False):
    """Many jobs of one handler to submit."""

    # How, for all of them.
    options: Options
    # Store what is good although others are bad.
    partial: bool


class _NewBulkRequired(TypedDict):
    # `cancel`, `replay`, `purge`, `run_now`, `retry` or `reprioritise`.
    action: str
    # How many the preview said. More than that are not touched.
    confirm: int
    # Which jobs, such as `handler:mail.send status:dead`.
    filter: str


class NewBulk(_NewBulkRequired, total=False):
    """What to do to which jobs, how fast, and when to stop."""

    # At most so many; as many as confirmed unless given.
    cap: Union[int, None]
    # Judged only once so many have ended; 5 by default.
    judge_after: Union[int, None]
    # So many per second; as fast as it goes unless given.
    per_second: Union[float, None]
    priority: Union[Priority, None]
    # Why, for a cancel.
    reason: str
    # For actions that make jobs run: stop when more than this part fails again, 0 to 1.
    stop_when_failing: Union[float, None]


class NewClone(TypedDict, total=False):
    """How a job is cloned."""

    # Another input; that of the job unless given.
    input: Any


class NewCost(TypedDict, total=False):
    """What a job has cost; negative for a refund."""

    # Money, in hundredths.
    cents: int
    # Anything else that is counted.
    units: int


class _NewHookRequired(TypedDict):
    # Where it is told.
    url: str


class NewHook(_NewHookRequired, total=False):
    """A webhook to make."""

    # Told of jobs that come to one of these; of every end unless given.
    events: Union[List[str], None]
    # Only jobs of this handler.
    handler: Union[str, None]


class _NewJobRequired(TypedDict):
    # What runs it.
    handler: str
    # What it works on: any JSON, kept to the digit.
    input: Any


class NewJob(_NewJobRequired, total=False):
    """One job to submit."""

    # How.
    options: Options


class _NewKeyRequired(TypedDict):
    # What people call it.
    name: str
    # `read`, `submit`, `operate`, `admin`, `payload`; never more than the caller has.
    rights: List[str]


class NewKey(_NewKeyRequired, total=False):
    """A key to make."""

    # For the whole installation.
    all_tenants: bool
    # When it ends by itself.
    expires_at: Union[str, None]
    # Of which tenant; the caller's own unless it operates the whole installation.
    tenant: Union[str, None]
    # Who its calls act as; the caller unless given.
    user: Union[str, None]


class _NewPauseRequired(TypedDict):
    # `all`, `handler:ID` or `tenant:UUID`.
    target: str


class NewPause(_NewPauseRequired, total=False):
    """What to pause."""

    # Why, for people.
    reason: str


class NewPriority(TypedDict):
    """How urgent a job is from now on."""

    priority: Priority


class NewStart(TypedDict, total=False):
    """When a job starts: one of the two."""

    # This long from now.
    delay_ms: Union[int, None]
    # At this time.
    run_at: Union[str, None]


class Node(TypedDict):
    """A registered process."""

    # How long ago that was.
    age_ms: int
    # How many jobs it runs at once.
    capacity: int
    # What it can run.
    handlers: List[str]
    heartbeat_at: str
    host: str
    # Its identity, never used again.
    node: int
    pid: int
    # How many it ran at its last heartbeat.
    running: int
    # Its part of job ids.
    slot: int
    started_at: str
    version: str


class Nodes(TypedDict):
    """The registered processes."""

    nodes: List[Node]


class Options(TypedDict, total=False):
    """How a job is submitted. Everything may be left out."""

    # What ties it to other things.
    correlation_id: Union[str, None]
    # Ends the job if it has not succeeded by then.
    deadline_at: Union[str, None]
    # Starts this long after the submit.
    delay_ms: Union[int, None]
    # Cancels the job if it has not started by then.
    expires_at: Union[str, None]
    # What travels with it.
    headers: Dict[str, str]
    # A second submit with this key returns the first job's id.
    idempotency_key: Union[str, None]
    # Jobs of one tenant with the same key run one at a time, in order of submission.
    ordering_key: Union[str, None]
    priority: Union[Priority, None]
    # The queue it waits in.
    queue: Union[str, None]
    # Keeps the ended job this long.
    retention_ms: Union[int, None]
    retry: Union[Retry, None]
    # Starts at this time.
    run_at: Union[str, None]
    # Labels to find it by.
    tags: List[str]
    # Limits each attempt.
    timeout_ms: Union[int, None]
    unique: Union[Unique, None]


class Pause(TypedDict):
    """A pause in force."""

    at: str
    by: str
    reason: str
    # `all`, `handler:ID` or `tenant:UUID`.
    target: str


class Pauses(TypedDict):
    """The pauses in force."""

    pauses: List[Pause]


class Phase(TypedDict):
    """A later phase of a retry policy."""

    after: int
    first_delay: int
    max_delay: int
    multiplier: float


class Preview(TypedDict):
    """What a bulk action would act on."""

    # How many jobs pass, up to the cap: the `confirm` of the action.
    jobs: int
    # Whether there are more than the cap.
    more: bool
    # The newest of them.
    sample: List[Job]


class PreviewOf(TypedDict, total=False):
    """Which jobs to count."""

    # What would be done, to count only jobs to which it can be done.
    action: Union[str, None]
    # Count no further than this; 1,000 by default, 100,000 at most.
    cap: Union[int, None]
    # Which jobs, such as `handler:mail.send status:dead`.
    filter: str


class _ProblemRequired(TypedDict):
    # A stable name for programs.
    code: str
    # What happened to this request.
    detail: str
    # The HTTP status.
    status: int
    # The code in words.
    title: str
    # `urn:windlass:problem:` and the code.
    type: str


class Problem(_ProblemRequired, total=False):
    """An error, as callers see it (RFC 9457)."""

    # Every field that is wrong.
    errors: List[FieldError]
    # The path of the request.
    instance: Union[str, None]
    # The job in question.
    job: Union[str, None]
    # Where that job is, if that stands in the way.
    job_status: Union[str, None]
    quota: Union[QuotaProblem, None]
    # What to name when asking an operator.
    request_id: Union[str, None]
    # When the same call may succeed.
    retry_after_ms: Union[int, None]


class Progress(TypedDict):
    """How far a job has come."""

    # What it is doing.
    message: str
    # 0 to 100.
    percent: float
    # Counts the reports of a job; a stream goes on after it.
    sequence: int


class Quota(TypedDict, total=False):
    """What a tenant may use. What is left out is not limited."""

    # Bytes of the inputs of unfinished jobs at most.
    bytes: Union[int, None]
    # Unfinished jobs at most.
    queued: Union[int, None]
    # Jobs running at once at most.
    running: Union[int, None]
    submit_rate: Union[Rate, None]
    # Turns it gets where others get one.
    weight: Union[int, None]


class QuotaProblem(TypedDict):
    """A quota that was exceeded."""

    # `queued`, `submit_rate` or `bytes`.
    kind: str
    # How much is allowed.
    limit: int
    # How much would still have been accepted.
    room: int


class Rate(TypedDict):
    """A bucket of tokens: each submitted job takes one."""

    burst: int
    per_second: float


class Replay(TypedDict, total=False):
    """How a dead letter is replayed."""

    # As a new job that is linked to the dead letter, which stays as it is.
    as_new: bool
    # Another input; implies `as_new`.
    input: Any


class _ReplayManyRequired(TypedDict):
    # How many the preview said. More than that are not touched.
    confirm: int


class ReplayMany(_ReplayManyRequired, total=False):
    """Which dead letters to replay, how fast, and when to stop."""

    # Which of them; all unless given.
    filter: str
    # Judged only once so many have ended; 5 by default.
    judge_after: Union[int, None]
    # So many first.
    limit: Union[int, None]
    # So many per second.
    per_second: Union[float, None]
    # Stop when more than this part fails again, 0 to 1.
    stop_when_failing: Union[float, None]


class Replayed(TypedDict):
    """A mark on a dead letter that has been replayed."""

    as_job: str
    at: str
    by: str


class _ResultRequired(TypedDict):
    # Where it is.
    status: Status


class Result(_ResultRequired, total=False):
    """How a job ended."""

    error: Union[JobError, None]
    # What it returned, once it has succeeded.
    output: Any


class Retry(TypedDict, total=False):
    """When a failed job runs again; durations are milliseconds."""

    # Wait after the first failure.
    first_delay: Union[int, None]
    # The part of each wait that is random, 0 to 1.
    jitter: Union[float, None]
    # Attempts in all, the first included.
    max_attempts: Union[int, None]
    # No wait is longer.
    max_delay: Union[int, None]
    # No retry starts later than this after the submit.
    max_elapsed: Union[int, None]
    # Each wait is this many times the one before.
    multiplier: Union[float, None]
    # An attempt that ran this long before it failed starts the count anew.
    reset_after: Union[int, None]
    then: Union[Phase, None]


class _RetryGroupRequired(TypedDict):
    # How many jobs the group has. More than that are not touched.
    confirm: int


class RetryGroup(_RetryGroupRequired, total=False):
    """How a group is put back to work."""

    # At most so many.
    cap: Union[int, None]
    # So many per second.
    per_second: Union[float, None]


class Spec(TypedDict, total=False):
    """How a job's attempts are run; durations are milliseconds."""

    callback: Union[str, None]
    deadline_at: Union[str, None]
    expires_at: Union[str, None]
    idempotency_key: Union[str, None]
    parent: Union[str, None]
    retention: Union[int, None]
    retry: Union[Dict[str, Any], None]
    sealed: bool
    timeout: Union[int, None]
    user: Union[str, None]


class _StatusEventRequired(TypedDict):
    status: Status


class StatusEvent(_StatusEventRequired, total=False):
    """A change of a job's status."""

    error: Union[JobError, None]
    progress: Union[Progress, None]


class Submitted(TypedDict):
    """What became of a submitted job."""

    # Whether another job holds its key, so that nothing was stored.
    duplicate: bool
    # Its id, or that of the job that holds its key.
    id: str


class Success(TypedDict, total=False):
    """What a worker made."""

    # What the job returns.
    output: Any


class _TenantRequired(TypedDict):
    # Whether the policy is its own, not the default.
    own: bool
    # Unfinished jobs.
    queued: int
    # Jobs running now.
    running: int


class Tenant(_TenantRequired, total=False):
    """What a tenant uses, beside what it may."""

    # Bytes of inputs of unfinished jobs, where they are limited.
    bytes: Union[int, None]
    quota: Union[Quota, None]
    # Who; absent for the default policy.
    tenant: Union[str, None]


class Tenants(TypedDict):
    """Tenants."""

    tenants: List[Tenant]


class Tick(TypedDict, total=False):
    """How many jobs to run."""

    # At most so many; 10 by default, 100 at most.
    max: Union[int, None]


class TickBody(TypedDict):
    """How many jobs ran."""

    ran: int


class Unique(TypedDict, total=False):
    """Uniqueness by content or by a key."""

    # The key; content decides without one.
    key: Union[str, None]
    # How long it holds; until the job has ended without one.
    window_ms: Union[int, None]


class Usage(TypedDict):
    """What jobs have cost."""

    usage: List[UsageRow]


class UsageEvent(TypedDict):
    """One cost that was recorded."""

    at: str
    cents: int
    handler: str
    job: str
    # Rises from one to the next: pass the last one as `after`.
    sequence: int
    tenant: str
    units: int


class UsageEvents(TypedDict):
    """Costs one by one."""

    events: List[UsageEvent]


class UsageRow(TypedDict):
    """What jobs of one tenant and handler have cost on one day, in UTC."""

    cents: int
    day: str
    handler: str
    jobs: int
    tenant: str
    units: int


class _WebhookRequired(TypedDict):
    created_at: str
    created_by: str
    # Told of jobs that come to one of these.
    events: List[str]
    id: str
    paused: bool
    tenant: str
    url: str


class Webhook(_WebhookRequired, total=False):
    """An address that is told of status events."""

    # Only jobs of this handler.
    handler: Union[str, None]


class Webhooks(TypedDict):
    """Webhooks."""

    webhooks: List[Webhook]


class _WorkerProgressRequired(TypedDict):
    # 0 to 100.
    percent: float


class WorkerProgress(_WorkerProgressRequired, total=False):
    """How far a worker has come."""

    # What it is doing.
    message: str


# What became of one input of a batch.
BatchItem = Union[Submitted, Dict[str, Any]]

# A priority: a name or a number, higher first.
Priority = Union[str, int]

# Where a job is in its life.
Status = Literal["pending", "scheduled", "retrying", "blocked", "suspended", "running", "succeeded", "canceled", "dead_lettered"]
