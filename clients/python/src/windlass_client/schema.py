"""Made by clients/generate.py from the server's OpenAPI document. Do not edit."""

# Annotations of classes are kept as text, so they may name what is defined further down; aliases come last.
from __future__ import annotations

from typing import Any, Dict, List, Literal, TypedDict, Union


class _AuditRequired(TypedDict):
    # Newest first.
    entries: List[AuditLine]


class Audit(_AuditRequired, total=False):
    """The audit log."""

    # Pass it as `before` to get more, if there may be more.
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

    # The id of the batch.
    batch: str
    # One result per input.
    jobs: List[BatchItem]


class Because(TypedDict, total=False):
    """The reason of an action."""

    # For the history and the audit log.
    reason: str


class _BulkRequired(TypedDict):
    action: str
    by: str
    # Number of jobs it was applied to.
    done: int
    # Number of jobs with an error.
    failed: int
    # Number of jobs that ran again and failed again.
    failed_again: int
    filter: str
    id: str
    # Number of jobs skipped because their state had changed.
    skipped: int
    started_at: str
    # `running`, `finished`, `stopped` or `failed`.
    state: str
    # Number of matching jobs at its start.
    total: int


class Bulk(_BulkRequired, total=False):
    """A bulk action and its progress."""

    ended_at: Union[str, None]
    # Why it ended early.
    error: Union[str, None]
    # The node that runs it, as in the list of nodes.
    node: Union[int, None]
    # The tenant of the jobs; absent for all tenants.
    tenant: Union[str, None]


class Bulks(TypedDict):
    """Bulk actions."""

    # Newest first.
    bulks: List[Bulk]


class Cancel(TypedDict):
    """What a cancel did."""

    # `canceled`: it was waiting and is canceled now; `requested`: it is running, and its node was asked to
    # stop it; `already_finished`: it was already canceled.
    outcome: str


class Changes(TypedDict, total=False):
    """The changes of a waiting job; omitted fields stay the same."""

    # The new start, as a delay from now.
    delay_ms: Union[int, None]
    # The new input.
    input: Any
    priority: Union[Priority, None]
    # The new start, as a time.
    run_at: Union[str, None]


class Checkout(TypedDict, total=False):
    """What a worker asks for."""

    # How long the worker may stay silent; 5 minutes by default.
    hold_ms: Union[int, None]
    # Maximum number of jobs: 1 by default, at most 100.
    max: Union[int, None]
    # Only from these queues [default: `default`].
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
    # The token for the worker's reports.
    token: str


class Checkouts(TypedDict):
    """Jobs for a worker."""

    jobs: List[CheckoutBody]


class CostSum(TypedDict):
    """The cost of a job: all its attempts, plus what operators recorded."""

    # Money, in cents.
    cents: int
    # Any other unit.
    units: int


class Counts(TypedDict):
    """The number of jobs in each status, the same number as a list shows."""

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
    """A new webhook."""

    # The secret that signs each message. It is not shown again.
    secret: str
    webhook: Webhook


class CreatedKey(TypedDict):
    """A new key."""

    key: Key
    # The secret that its calls send. It is not shown again.
    secret: str


class _FailureRequired(TypedDict):
    # For people.
    message: str


class Failure(_FailureRequired, total=False):
    """The error of a job."""

    # A stable name for programs.
    code: Union[str, None]
    # More data, for programs.
    details: Any
    # The minimum delay before the next attempt.
    retry_after_ms: Union[int, None]
    # Whether another attempt may succeed [default: true].
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
    # The message without the parts that vary.
    message: str
    retrying: int
    # The message of the latest failure.
    sample: str
    # The signature of the group, 16 hexadecimal digits.
    signature: str


class Failures(TypedDict):
    """Failing jobs, grouped by cause."""

    # The largest first.
    groups: List[FailureBody]


class _FieldErrorRequired(TypedDict):
    # Its name.
    field: str
    # What is wrong with it.
    message: str


class FieldError(_FieldErrorRequired, total=False):
    """An invalid field."""

    # The index of the item in a batch, from 0.
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
    """The history of a job."""

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
    """A job's input and headers."""

    # The headers that are stored with the job.
    headers: Dict[str, str]
    # The input.
    input: Any


class _JobRequired(TypedDict):
    # Number of attempts so far, including the running one.
    attempt: int
    # Whether a cancel was requested but is not complete yet.
    cancel_requested: bool
    # When it was submitted.
    created_at: str
    # Failed attempts.
    failed: int
    # The handler that runs it.
    handler: str
    # Its id, a decimal number.
    id: str
    # Its priority: higher first.
    priority: int
    # The queue it waits in.
    queue: str
    # Nodes lost while they held it.
    recoveries: int
    # How its attempts are run.
    spec: Spec
    # Its status.
    status: Status
    # Its labels.
    tags: List[str]
    # The tenant that owns it.
    tenant: str


class Job(_JobRequired, total=False):
    """A job, without its input and output."""

    # Its batch.
    batch: Union[str, None]
    # Groups it with other jobs of the same request.
    correlation_id: Union[str, None]
    cost: Union[CostSum, None]
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
    # When it is due, if that is in the future or was in the future at its submit.
    run_at: Union[str, None]
    # When its last attempt started.
    started_at: Union[str, None]


class _JobErrorRequired(TypedDict):
    # A stable name for programs.
    code: str
    # The consequence: `retryable`, `terminal`, `snooze`, `discard`, `retry_after`.
    kind: Any
    # For people.
    message: str
    # Whether another attempt may succeed.
    retryable: bool


class JobError(_JobErrorRequired, total=False):
    """Why an attempt failed."""

    # More data, for programs.
    details: Any


class _JobEventRequired(TypedDict):
    at: str
    attempt: int
    handler: str
    job: str
    status: Status
    tenant: str


class JobEvent(_JobEventRequired, total=False):
    """A status change of a job."""

    error: Union[JobError, None]


class _JobPageRequired(TypedDict):
    # The jobs; may be fewer than requested although there are more.
    jobs: List[Job]


class JobPage(_JobPageRequired, total=False):
    """A page of jobs, newest first."""

    # Pass it as `before` to get the next page; absent on the last page.
    next: Union[str, None]


class _KeyRequired(TypedDict):
    # Whether it is for the whole installation.
    all_tenants: bool
    created_at: str
    created_by: str
    # Its public part, which is also part of the secret.
    id: str
    # Its name, for people.
    name: str
    rights: List[str]
    tenant: str
    # The user name of its calls.
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
    # Counts the lines of the job; lines with missing numbers were dropped.
    sequence: int


class Logs(TypedDict):
    """The log of a job."""

    # Oldest first.
    lines: List[LogLine]


class Me(TypedDict):
    """The caller."""

    # Whether it operates the whole installation.
    all_tenants: bool
    # How it authenticated.
    method: str
    # Whether the server rejects changes.
    read_only: bool
    # Its rights.
    rights: List[str]
    # Its tenant.
    tenant: str
    # Its name.
    user: str


class _NewBatchRequired(TypedDict):
    # The handler that runs them.
    handler: str
    # One input per job.
    inputs: List[Any]


class NewBatch(_NewBatchRequired, total=False):
    """Many jobs of one handler to submit."""

    # The submit options of all jobs.
    options: Options
    # Store the valid jobs even if others are invalid.
    partial: bool


class _NewBulkRequired(TypedDict):
    # `cancel`, `replay`, `purge`, `run_now`, `retry` or `reprioritise`.
    action: str
    # The count from the preview. No more jobs than this are changed.
    confirm: int
    # Which jobs, such as `handler:mail.send status:dead`.
    filter: str


class NewBulk(_NewBulkRequired, total=False):
    """A bulk action: what to do, to which jobs, how fast, and when to stop."""

    # Maximum number of jobs [default: `confirm`].
    cap: Union[int, None]
    # Check the fraction only after this number of jobs has ended; 5 by default.
    judge_after: Union[int, None]
    # Maximum rate in jobs per second [default: no limit].
    per_second: Union[float, None]
    priority: Union[Priority, None]
    # The reason of a cancel.
    reason: str
    # For actions that run jobs: stop when more than this fraction fails again, 0 to 1.
    stop_when_failing: Union[float, None]


class NewClone(TypedDict, total=False):
    """How a job is cloned."""

    # Another input [default: the job's input].
    input: Any


class NewCost(TypedDict, total=False):
    """The cost of a job; negative for a refund."""

    # Money, in cents.
    cents: int
    # Any other unit.
    units: int


class _NewHookRequired(TypedDict):
    # The URL that receives the events.
    url: str


class NewHook(_NewHookRequired, total=False):
    """A webhook to create."""

    # Receives an event when a job reaches one of these statuses [default: every end].
    events: Union[List[str], None]
    # Only jobs of this handler.
    handler: Union[str, None]


class _NewJobRequired(TypedDict):
    # The handler that runs it.
    handler: str
    # Its input: any JSON, stored digit by digit.
    input: Any


class NewJob(_NewJobRequired, total=False):
    """One job to submit."""

    # The submit options.
    options: Options


class _NewKeyRequired(TypedDict):
    # Its name, for people.
    name: str
    # `read`, `submit`, `operate`, `admin`, `payload`; never more than the caller's own rights.
    rights: List[str]


class NewKey(_NewKeyRequired, total=False):
    """A key to create."""

    # For the whole installation.
    all_tenants: bool
    # When it expires.
    expires_at: Union[str, None]
    # Its tenant. Only operators of the whole installation may choose another tenant than their own.
    tenant: Union[str, None]
    # The user name of its calls [default: the key's name].
    user: Union[str, None]


class _NewPauseRequired(TypedDict):
    # `all`, `handler:ID` or `tenant:UUID`.
    target: str


class NewPause(_NewPauseRequired, total=False):
    """What to pause."""

    # Also pause a handler that no node has or had and no job uses; otherwise this is 404 `handler_not_found`.
    force: bool
    # The reason, for people.
    reason: str


class NewPriority(TypedDict):
    """The new priority of a job."""

    priority: Priority


class _NewScheduleRequired(TypedDict):
    # Five or six fields, or a nickname such as `@daily`.
    cron: str
    # The handler that runs its jobs.
    handler: str


class NewSchedule(_NewScheduleRequired, total=False):
    """What a schedule does. Omitted fields get their defaults; only an omitted `input` or `headers` stays as it was."""

    # Headers that are stored with its jobs. Omitted: as they were.
    headers: Union[Dict[str, str], None]
    # The input of its jobs: any JSON. Omitted: as it was, or `null` for a new schedule.
    input: Any
    # Each job starts up to this long after its nominal time, at most an hour.
    jitter_ms: Union[int, None]
    missed: Union[Missed, None]
    overlap: Union[Overlap, None]
    priority: Union[Priority, None]
    # The queue of its jobs [default: the handler's own].
    queue: Union[str, None]
    # How long ended jobs are stored.
    retention_ms: Union[int, None]
    retry: Union[Retry, None]
    # The labels of its jobs, besides `schedule:NAME`.
    tags: List[str]
    # The time limit of each attempt; 0 means no limit.
    timeout_ms: Union[int, None]
    # The version that the schedule must have, or 0 if it must not exist. Omitted: whatever it has.
    version: Union[int, None]
    # The IANA name of its time zone [default: UTC].
    zone: Union[str, None]


class NewStart(TypedDict, total=False):
    """When a job starts: give one of the two."""

    # After this delay.
    delay_ms: Union[int, None]
    # At this time.
    run_at: Union[str, None]


class _NextRunRequired(TypedDict):
    at: str
    # The same time by the clocks of the schedule's zone.
    local: str


class NextRun(_NextRunRequired, total=False):
    """One time at which a schedule fires."""

    # The same time by the clocks of the viewer's zone.
    viewer: Union[str, None]


class _NextRunsRequired(TypedDict):
    # The soonest first, also while the schedule is paused.
    runs: List[NextRun]
    # The schedule's zone.
    zone: str


class NextRuns(_NextRunsRequired, total=False):
    """The next runs of a schedule."""

    # The viewer's zone, if one was given.
    viewer_zone: Union[str, None]


class Node(TypedDict):
    """A registered process."""

    # The age of that heartbeat.
    age_ms: int
    # The maximum number of jobs it runs at once.
    capacity: int
    # The handlers it has.
    handlers: List[str]
    heartbeat_at: str
    host: str
    # Its identity, which is never reused.
    node: int
    pid: int
    # The number of jobs it ran at its last heartbeat.
    running: int
    # Its part of job ids.
    slot: int
    started_at: str
    version: str


class Nodes(TypedDict):
    """The registered processes."""

    nodes: List[Node]


class Options(TypedDict, total=False):
    """How a job is submitted. Every field is optional."""

    # Groups it with other jobs.
    correlation_id: Union[str, None]
    # Ends the job if it has not succeeded by this time.
    deadline_at: Union[str, None]
    # Starts this long after the submit.
    delay_ms: Union[int, None]
    # Cancels the job if it has not started by this time.
    expires_at: Union[str, None]
    # Headers that are stored with it.
    headers: Dict[str, str]
    # A second submit with this key returns the first job's id.
    idempotency_key: Union[str, None]
    # The time the job is for, such as the time of a schedule; it does not affect when the job starts.
    nominal_at: Union[str, None]
    # Jobs of one tenant with the same key run one at a time, in order of submission.
    ordering_key: Union[str, None]
    priority: Union[Priority, None]
    # The queue it waits in.
    queue: Union[str, None]
    # How long the ended job is stored.
    retention_ms: Union[int, None]
    retry: Union[Retry, None]
    # Starts at this time.
    run_at: Union[str, None]
    # Labels to find it by.
    tags: List[str]
    # The time limit of each attempt; 0 means no limit.
    timeout_ms: Union[int, None]
    unique: Union[Unique, None]


class Pause(TypedDict):
    """An active pause."""

    at: str
    by: str
    reason: str
    # `all`, `handler:ID` or `tenant:UUID`.
    target: str


class Pauses(TypedDict):
    """The active pauses."""

    pauses: List[Pause]


class Phase(TypedDict):
    """A later phase of a retry policy."""

    after: int
    first_delay: int
    max_delay: int
    multiplier: float


class Preview(TypedDict):
    """What a bulk action would act on."""

    # The number of matching jobs, up to the cap: the `confirm` of the action.
    jobs: int
    # Whether there are more than the cap.
    more: bool
    # The newest of them.
    sample: List[Job]


class PreviewOf(TypedDict, total=False):
    """Which jobs to count."""

    # The action; counts only jobs that it can be applied to.
    action: Union[str, None]
    # Stop counting at this number: 1,000 by default, at most 100,000.
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

    # Every invalid field.
    errors: List[FieldError]
    # The path of the request.
    instance: Union[str, None]
    # The job concerned.
    job: Union[str, None]
    # The status of that job, if the status is the reason.
    job_status: Union[str, None]
    quota: Union[QuotaProblem, None]
    # The id to give to an operator.
    request_id: Union[str, None]
    # When the same call may succeed.
    retry_after_ms: Union[int, None]


class Progress(TypedDict):
    """The progress of a job."""

    # What it is doing, for people.
    message: str
    # 0 to 100.
    percent: float
    # Counts the reports of a job; a stream can continue after it.
    sequence: int
    # When it was reported.
    updated_at: str


class Quota(TypedDict, total=False):
    """The limits of a tenant. Omitted fields are not limited."""

    # Maximum bytes of the inputs of unfinished jobs.
    bytes: Union[int, None]
    # Maximum number of unfinished jobs.
    queued: Union[int, None]
    # Maximum number of running jobs.
    running: Union[int, None]
    submit_rate: Union[Rate, None]
    # Its scheduling weight relative to other tenants.
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
    """A token bucket: each submitted job takes one token."""

    burst: int
    per_second: float


class Replay(TypedDict, total=False):
    """How a dead letter is replayed."""

    # Replays it as a new job that refers to the dead letter, which stays unchanged.
    as_new: bool
    # Another input; implies `as_new`.
    input: Any


class _ReplayManyRequired(TypedDict):
    # The count from the preview. No more jobs than this are changed.
    confirm: int


class ReplayMany(_ReplayManyRequired, total=False):
    """Which dead letters to replay, how fast, and when to stop."""

    # A filter for dead letters [default: all].
    filter: str
    # Check the fraction only after this number of jobs has ended; 5 by default.
    judge_after: Union[int, None]
    # Maximum number of dead letters.
    limit: Union[int, None]
    # Maximum rate in jobs per second.
    per_second: Union[float, None]
    # Stop when more than this fraction fails again, 0 to 1.
    stop_when_failing: Union[float, None]


class Replayed(TypedDict):
    """Marks a replayed dead letter."""

    as_job: str
    at: str
    by: str


class _ResultRequired(TypedDict):
    # The status of the job.
    status: Status


class Result(_ResultRequired, total=False):
    """How a job ended."""

    error: Union[JobError, None]
    # Its output, once it has succeeded.
    output: Any


class Retry(TypedDict, total=False):
    """When a failed job runs again; durations are milliseconds."""

    # The delay after the first failure.
    first_delay: Union[int, None]
    # The random fraction of each delay, 0 to 1.
    jitter: Union[float, None]
    # Maximum number of attempts, including the first; 1 or 0 means no retries.
    max_attempts: Union[int, None]
    # The maximum delay.
    max_delay: Union[int, None]
    # No retry starts later than this after the submit.
    max_elapsed: Union[int, None]
    # Each delay is the previous one times this factor.
    multiplier: Union[float, None]
    # An attempt that ran this long before it failed resets the count.
    reset_after: Union[int, None]
    then: Union[Phase, None]


class _RetryGroupRequired(TypedDict):
    # The number of jobs in the group. No more jobs than this are changed.
    confirm: int


class RetryGroup(_RetryGroupRequired, total=False):
    """How a group is retried."""

    # Maximum number of jobs.
    cap: Union[int, None]
    # Maximum rate in jobs per second.
    per_second: Union[float, None]


class _ScheduleRequired(TypedDict):
    changed_at: str
    created_at: str
    # Five or six fields, or a nickname such as `@daily`.
    cron: str
    # The handler that runs its jobs.
    handler: str
    # Each job starts up to this long after its nominal time.
    jitter_ms: int
    missed: Missed
    name: str
    # While an earlier job has not ended: `allow` another beside it, `skip` this time, or `queue` behind it.
    overlap: Overlap
    # Whether it fires nothing until it is resumed.
    paused: bool
    # The labels of its jobs, besides `schedule:NAME`.
    tags: List[str]
    tenant: str
    # Grows with every change; send it with the next change to be refused if somebody else was faster.
    version: int
    # The IANA name of its time zone.
    zone: str


class Schedule(_ScheduleRequired, total=False):
    """A schedule, without the input of its jobs."""

    # The service whose code defines it; its next start undoes changes made here.
    defined_by: Union[str, None]
    # The last nominal time that it fired.
    last_at: Union[str, None]
    # Its next nominal time; absent while it is paused.
    next_at: Union[str, None]
    priority: Union[int, None]
    # The queue of its jobs; the handler's own if absent.
    queue: Union[str, None]
    retention_ms: Union[int, None]
    retry: Union[Dict[str, Any], None]
    timeout_ms: Union[int, None]


class _SchedulesRequired(TypedDict):
    schedules: List[Schedule]


class Schedules(_SchedulesRequired, total=False):
    """A page of schedules, by name."""

    # Pass it as `after` to get the next page; absent on the last page.
    next: Union[str, None]


class Spec(TypedDict, total=False):
    """How a job's attempts are run; durations are milliseconds."""

    callback: Union[str, None]
    deadline_at: Union[str, None]
    expires_at: Union[str, None]
    idempotency_key: Union[str, None]
    nominal_at: Union[str, None]
    parent: Union[str, None]
    retention: Union[int, None]
    retry: Union[Dict[str, Any], None]
    sealed: bool
    service: Union[str, None]
    timeout: Union[int, None]
    user: Union[str, None]


class _StatusEventRequired(TypedDict):
    status: Status


class StatusEvent(_StatusEventRequired, total=False):
    """A status change of a job."""

    error: Union[JobError, None]
    progress: Union[Progress, None]


class Submitted(TypedDict):
    """The result of a submit."""

    # Whether another job already has its key, so that nothing was stored.
    duplicate: bool
    # Its id, or the id of the job that already has its key.
    id: str


class Success(TypedDict, total=False):
    """The result of a worker."""

    # The output of the job.
    output: Any


class _TenantRequired(TypedDict):
    # Whether the policy is its own, not the default.
    own: bool
    # Unfinished jobs.
    queued: int
    # Jobs running now.
    running: int


class Tenant(_TenantRequired, total=False):
    """A tenant's usage and limits."""

    # Bytes of inputs of unfinished jobs, if they are limited.
    bytes: Union[int, None]
    quota: Union[Quota, None]
    # The tenant; absent for the default policy.
    tenant: Union[str, None]


class Tenants(TypedDict):
    """Tenants."""

    tenants: List[Tenant]


class Tick(TypedDict, total=False):
    """How many jobs to run."""

    # Maximum number of jobs: 10 by default, at most 100.
    max: Union[int, None]


class TickBody(TypedDict):
    """How many jobs ran."""

    ran: int


class Unique(TypedDict, total=False):
    """Uniqueness by content or by a key."""

    # The key; without a key, the content decides.
    key: Union[str, None]
    # How long it holds; without a window, until the job has ended.
    window_ms: Union[int, None]


class Usage(TypedDict):
    """The cost of jobs."""

    usage: List[UsageRow]


class UsageEvent(TypedDict):
    """One recorded cost."""

    at: str
    cents: int
    handler: str
    job: str
    # Increases with each entry: pass the last one as `after`.
    sequence: int
    tenant: str
    units: int


class UsageEvents(TypedDict):
    """Costs one by one."""

    events: List[UsageEvent]


class UsageRow(TypedDict):
    """The cost of the jobs of one tenant and handler on one day, in UTC."""

    cents: int
    day: str
    handler: str
    jobs: int
    tenant: str
    units: int


class _WebhookRequired(TypedDict):
    # Receives events since this time: when it was created, or last resumed.
    active_since: str
    created_at: str
    created_by: str
    # Receives an event when a job reaches one of these statuses.
    events: List[str]
    id: str
    # Receives nothing until it is resumed: a person paused it, or the server switched it off because
    # deliveries failed.
    paused: bool
    tenant: str
    url: str


class Webhook(_WebhookRequired, total=False):
    """A URL that receives status events."""

    # Only jobs of this handler.
    handler: Union[str, None]


class Webhooks(TypedDict):
    """Webhooks."""

    webhooks: List[Webhook]


class _WorkerProgressRequired(TypedDict):
    # 0 to 100.
    percent: float


class WorkerProgress(_WorkerProgressRequired, total=False):
    """The progress of a worker."""

    # What it is doing, for people.
    message: str


# The result for one input of a batch.
BatchItem = Union[Submitted, Dict[str, Any]]

# What becomes of times at which no node was there to fire.
Missed = Union[str, Dict[str, Any]]

# What happens while an earlier job has not ended.
Overlap = Literal["allow", "skip", "queue"]

# A priority: a name or a number, higher first.
Priority = Union[str, int]

# The status of a job.
Status = Literal["pending", "scheduled", "retrying", "blocked", "suspended", "running", "succeeded", "canceled", "dead_lettered"]
