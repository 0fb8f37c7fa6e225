// Made by clients/generate.py from the server's OpenAPI document. Do not edit.

/** The audit log. */
export interface Audit {
  /** Newest first. */
  entries: AuditLine[];
  /** Pass it as `before` to get more, if there may be more. */
  next?: string | null;
}

/** One line of the audit log. */
export interface AuditLine {
  action: string;
  actor: string;
  at: string;
  detail?: string | null;
  target: string;
  tenant?: string | null;
}

/** The jobs of one bulk submit, in the order of the inputs. */
export interface Batch {
  /** The id of the batch. */
  batch: string;
  /** One result per input. */
  jobs: BatchItem[];
}

/** The result for one input of a batch. */
export type BatchItem = Submitted | {
  /** The reason. */
  error: FieldError;
};

/** The reason of an action. */
export interface Because {
  /** For the history and the audit log. */
  reason?: string;
}

/** A bulk action and its progress. */
export interface Bulk {
  action: string;
  by: string;
  /** Number of jobs it was applied to. */
  done: number;
  ended_at?: string | null;
  /** Why it ended early. */
  error?: string | null;
  /** Number of jobs with an error. */
  failed: number;
  /** Number of jobs that ran again and failed again. */
  failed_again: number;
  filter: string;
  id: string;
  /** The node that runs it, as in the list of nodes. */
  node?: number | null;
  /** Number of jobs skipped because their state had changed. */
  skipped: number;
  started_at: string;
  /** `running`, `finished`, `stopped` or `failed`. */
  state: string;
  /** The tenant of the jobs; absent for all tenants. */
  tenant?: string | null;
  /** Number of matching jobs at its start. */
  total: number;
}

/** Bulk actions. */
export interface Bulks {
  /** Newest first. */
  bulks: Bulk[];
}

/** What a cancel did. */
export interface Cancel {
  /**
   * `canceled`: it was waiting and is canceled now; `requested`: it is running, and its node was asked to
   * stop it; `already_finished`: it was already canceled.
   */
  outcome: string;
}

/** The changes of a waiting job; omitted fields stay the same. */
export interface Changes {
  /** The new start, as a delay from now. */
  delay_ms?: number | null;
  /** The new input. */
  input?: unknown;
  priority?: Priority | null;
  /** The new start, as a time. */
  run_at?: string | null;
}

/** What a worker asks for. */
export interface Checkout {
  /** How long the worker may stay silent; 5 minutes by default. */
  hold_ms?: number | null;
  /** Maximum number of jobs: 1 by default, at most 100. */
  max?: number | null;
  /** Only from these queues [default: `default`]. */
  queues?: string[];
}

/** A job for a worker. */
export interface CheckoutBody {
  attempt: number;
  handler: string;
  headers: Record<string, string>;
  hold_until: string;
  id: string;
  input: unknown;
  tenant: string;
  /** The token for the worker's reports. */
  token: string;
}

/** Jobs for a worker. */
export interface Checkouts {
  jobs: CheckoutBody[];
}

/** The cost of a job: all its attempts, plus what operators recorded. */
export interface CostSum {
  /** Money, in cents. */
  cents: number;
  /** Any other unit. */
  units: number;
}

/** The number of jobs in each status, the same number as a list shows. */
export interface Counts {
  blocked: number;
  canceled: number;
  dead_lettered: number;
  pending: number;
  retrying: number;
  running: number;
  scheduled: number;
  succeeded: number;
  suspended: number;
}

/** A new webhook. */
export interface CreatedHook {
  /** The secret that signs each message. It is not shown again. */
  secret: string;
  webhook: Webhook;
}

/** A new key. */
export interface CreatedKey {
  key: Key;
  /** The secret that its calls send. It is not shown again. */
  secret: string;
}

/** The error of a job. */
export interface Failure {
  /** A stable name for programs. */
  code?: string | null;
  /** More data, for programs. */
  details?: unknown;
  /** For people. */
  message: string;
  /** The minimum delay before the next attempt. */
  retry_after_ms?: number | null;
  /** Whether another attempt may succeed [default: true]. */
  retryable?: boolean | null;
}

/** Jobs that fail in the same way. */
export interface FailureBody {
  code: string;
  dead: number;
  first_at: string;
  handler: string;
  jobs: number;
  last_at: string;
  latest: string;
  /** The message without the parts that vary. */
  message: string;
  retrying: number;
  /** The message of the latest failure. */
  sample: string;
  /** The signature of the group, 16 hexadecimal digits. */
  signature: string;
}

/** Failing jobs, grouped by cause. */
export interface Failures {
  /** The largest first. */
  groups: FailureBody[];
}

/** An invalid field. */
export interface FieldError {
  /** Its name. */
  field: string;
  /** The index of the item in a batch, from 0. */
  index?: number | null;
  /** What is wrong with it. */
  message: string;
}

/** A handler that some node has. */
export interface Handler {
  handler: string;
  /** Nodes that have it. */
  nodes: number;
  /** Whether it is paused. */
  paused: boolean;
}

/** The handlers that nodes have. */
export interface Handlers {
  handlers: Handler[];
}

/** The history of a job. */
export interface History {
  /** Oldest first. */
  history: HistoryLine[];
}

/** One line of a job's history. */
export interface HistoryLine {
  at: string;
  attempt: number;
  error?: JobError | null;
  node?: number | null;
  note?: string | null;
  started_at?: string | null;
  status: Status;
}

/** Until when a worker may stay silent. */
export interface Hold {
  hold_until: string;
}

/** A job. */
export interface Id {
  /** Its id. */
  id: string;
}

/** A job's input and headers. */
export interface Input {
  /** The headers that are stored with the job. */
  headers: Record<string, string>;
  /** The input. */
  input: unknown;
}

/** A job, without its input and output. */
export interface Job {
  /** Number of attempts so far, including the running one. */
  attempt: number;
  /** Its batch. */
  batch?: string | null;
  /** Whether a cancel was requested but is not complete yet. */
  cancel_requested: boolean;
  /** Groups it with other jobs of the same request. */
  correlation_id?: string | null;
  cost?: CostSum | null;
  /** When it was submitted. */
  created_at: string;
  error?: JobError | null;
  /** Failed attempts. */
  failed: number;
  /** When it ended. */
  finished_at?: string | null;
  /** The handler that runs it. */
  handler: string;
  /** Its id, a decimal number. */
  id: string;
  /** The node that holds it or ran it last. */
  node?: number | null;
  /** Its ordering key. */
  ordering_key?: string | null;
  /** Its priority: higher first. */
  priority: number;
  progress?: Progress | null;
  /** The queue it waits in. */
  queue: string;
  /** Why it ended or what it waits for. */
  reason?: string | null;
  /** Nodes lost while they held it. */
  recoveries: number;
  replayed?: Replayed | null;
  /** When it is due, if that is in the future or was in the future at its submit. */
  run_at?: string | null;
  /** How its attempts are run. */
  spec: Spec;
  /** When its last attempt started. */
  started_at?: string | null;
  /** Its status. */
  status: Status;
  /** Its labels. */
  tags: string[];
  /** The tenant that owns it. */
  tenant: string;
}

/** Why an attempt failed. */
export interface JobError {
  /** A stable name for programs. */
  code: string;
  /** More data, for programs. */
  details?: unknown;
  /** The consequence: `retryable`, `terminal`, `snooze`, `discard`, `retry_after`. */
  kind: unknown;
  /** For people. */
  message: string;
  /** Whether another attempt may succeed. */
  retryable: boolean;
}

/** A status change of a job. */
export interface JobEvent {
  at: string;
  attempt: number;
  error?: JobError | null;
  handler: string;
  job: string;
  status: Status;
  tenant: string;
}

/** A page of jobs, newest first. */
export interface JobPage {
  /** The jobs; may be fewer than requested although there are more. */
  jobs: Job[];
  /** Pass it as `before` to get the next page; absent on the last page. */
  next?: string | null;
}

/** An API key, without its secret. */
export interface Key {
  /** Whether it is for the whole installation. */
  all_tenants: boolean;
  created_at: string;
  created_by: string;
  expires_at?: string | null;
  /** Its public part, which is also part of the secret. */
  id: string;
  /** About when it was last used. */
  last_used_at?: string | null;
  /** Its name, for people. */
  name: string;
  revoked_at?: string | null;
  rights: string[];
  tenant: string;
  /** The user name of its calls. */
  user: string;
}

/** API keys. */
export interface Keys {
  /** Newest first. */
  keys: Key[];
}

/** One line that a job has logged. */
export interface LogLine {
  at: string;
  attempt: number;
  /** `trace`, `debug`, `info`, `warn` or `error`. */
  level: string;
  message: string;
  /** Counts the lines of the job; lines with missing numbers were dropped. */
  sequence: number;
}

/** The log of a job. */
export interface Logs {
  /** Oldest first. */
  lines: LogLine[];
}

/** The caller. */
export interface Me {
  /** Whether it operates the whole installation. */
  all_tenants: boolean;
  /** How it authenticated. */
  method: string;
  /** Whether the server rejects changes. */
  read_only: boolean;
  /** Its rights. */
  rights: string[];
  /** Its tenant. */
  tenant: string;
  /** Its name. */
  user: string;
}

/** What becomes of times at which no node was there to fire. */
export type Missed = string | {
  /** At most this many, from 1 to 100. */
  all: number;
};

/** Many jobs of one handler to submit. */
export interface NewBatch {
  /** The handler that runs them. */
  handler: string;
  /** One input per job. */
  inputs: unknown[];
  /** The submit options of all jobs. */
  options?: Options;
  /** Store the valid jobs even if others are invalid. */
  partial?: boolean;
}

/** A bulk action: what to do, to which jobs, how fast, and when to stop. */
export interface NewBulk {
  /** `cancel`, `replay`, `purge`, `run_now`, `retry` or `reprioritise`. */
  action: string;
  /** Maximum number of jobs [default: `confirm`]. */
  cap?: number | null;
  /** The count from the preview. No more jobs than this are changed. */
  confirm: number;
  /** Which jobs, such as `handler:mail.send status:dead`. */
  filter: string;
  /** Check the fraction only after this number of jobs has ended; 5 by default. */
  judge_after?: number | null;
  /** Maximum rate in jobs per second [default: no limit]. */
  per_second?: number | null;
  priority?: Priority | null;
  /** The reason of a cancel. */
  reason?: string;
  /** For actions that run jobs: stop when more than this fraction fails again, 0 to 1. */
  stop_when_failing?: number | null;
}

/** How a job is cloned. */
export interface NewClone {
  /** Another input [default: the job's input]. */
  input?: unknown;
}

/** The cost of a job; negative for a refund. */
export interface NewCost {
  /** Money, in cents. */
  cents?: number;
  /** Any other unit. */
  units?: number;
}

/** A webhook to create. */
export interface NewHook {
  /** Receives an event when a job reaches one of these statuses [default: every end]. */
  events?: string[] | null;
  /** Only jobs of this handler. */
  handler?: string | null;
  /** The URL that receives the events. */
  url: string;
}

/** One job to submit. */
export interface NewJob {
  /** The handler that runs it. */
  handler: string;
  /** Its input: any JSON, stored digit by digit. */
  input: unknown;
  /** The submit options. */
  options?: Options;
}

/** A key to create. */
export interface NewKey {
  /** For the whole installation. */
  all_tenants?: boolean;
  /** When it expires. */
  expires_at?: string | null;
  /** Its name, for people. */
  name: string;
  /** `read`, `submit`, `operate`, `admin`, `payload`; never more than the caller's own rights. */
  rights: string[];
  /** Its tenant. Only operators of the whole installation may choose another tenant than their own. */
  tenant?: string | null;
  /** The user name of its calls [default: the key's name]. */
  user?: string | null;
}

/** What to pause. */
export interface NewPause {
  /** Also pause a handler that no node has or had and no job uses; otherwise this is 404 `handler_not_found`. */
  force?: boolean;
  /** The reason, for people. */
  reason?: string;
  /** `all`, `handler:ID` or `tenant:UUID`. */
  target: string;
}

/** The new priority of a job. */
export interface NewPriority {
  priority: Priority;
}

/**
 * What a schedule does. Omitted fields get their defaults; only an omitted `input` or `headers` stays as it
 * was.
 */
export interface NewSchedule {
  /** Five or six fields, or a nickname such as `@daily`. */
  cron: string;
  /** The handler that runs its jobs. */
  handler: string;
  /** Headers that are stored with its jobs. Omitted: as they were. */
  headers?: Record<string, string> | null;
  /** The input of its jobs: any JSON. Omitted: as it was, or `null` for a new schedule. */
  input?: unknown;
  /** Each job starts up to this long after its nominal time, at most an hour. */
  jitter_ms?: number | null;
  missed?: Missed | null;
  overlap?: Overlap | null;
  priority?: Priority | null;
  /** The queue of its jobs [default: the handler's own]. */
  queue?: string | null;
  /** How long ended jobs are stored. */
  retention_ms?: number | null;
  retry?: Retry | null;
  /** The labels of its jobs, besides `schedule:NAME`. */
  tags?: string[];
  /** The time limit of each attempt; 0 means no limit. */
  timeout_ms?: number | null;
  /** The version that the schedule must have, or 0 if it must not exist. Omitted: whatever it has. */
  version?: number | null;
  /** The IANA name of its time zone [default: UTC]. */
  zone?: string | null;
}

/** When a job starts: give one of the two. */
export interface NewStart {
  /** After this delay. */
  delay_ms?: number | null;
  /** At this time. */
  run_at?: string | null;
}

/** One time at which a schedule fires. */
export interface NextRun {
  at: string;
  /** The same time by the clocks of the schedule's zone. */
  local: string;
  /** The same time by the clocks of the viewer's zone. */
  viewer?: string | null;
}

/** The next runs of a schedule. */
export interface NextRuns {
  /** The soonest first, also while the schedule is paused. */
  runs: NextRun[];
  /** The viewer's zone, if one was given. */
  viewer_zone?: string | null;
  /** The schedule's zone. */
  zone: string;
}

/** A registered process. */
export interface Node {
  /** The age of that heartbeat. */
  age_ms: number;
  /** The maximum number of jobs it runs at once. */
  capacity: number;
  /** The handlers it has. */
  handlers: string[];
  heartbeat_at: string;
  host: string;
  /** Its identity, which is never reused. */
  node: number;
  pid: number;
  /** The number of jobs it ran at its last heartbeat. */
  running: number;
  /** Its part of job ids. */
  slot: number;
  started_at: string;
  version: string;
}

/** The registered processes. */
export interface Nodes {
  nodes: Node[];
}

/** How a job is submitted. Every field is optional. */
export interface Options {
  /** Groups it with other jobs. */
  correlation_id?: string | null;
  /** Ends the job if it has not succeeded by this time. */
  deadline_at?: string | null;
  /** Starts this long after the submit. */
  delay_ms?: number | null;
  /** Cancels the job if it has not started by this time. */
  expires_at?: string | null;
  /** Headers that are stored with it. */
  headers?: Record<string, string>;
  /** A second submit with this key returns the first job's id. */
  idempotency_key?: string | null;
  /** The time the job is for, such as the time of a schedule; it does not affect when the job starts. */
  nominal_at?: string | null;
  /** Jobs of one tenant with the same key run one at a time, in order of submission. */
  ordering_key?: string | null;
  priority?: Priority | null;
  /** The queue it waits in. */
  queue?: string | null;
  /** How long the ended job is stored. */
  retention_ms?: number | null;
  retry?: Retry | null;
  /** Starts at this time. */
  run_at?: string | null;
  /** Labels to find it by. */
  tags?: string[];
  /** The time limit of each attempt; 0 means no limit. */
  timeout_ms?: number | null;
  unique?: Unique | null;
}

/** What happens while an earlier job has not ended. */
export type Overlap = "allow" | "skip" | "queue";

/** An active pause. */
export interface Pause {
  at: string;
  by: string;
  reason: string;
  /** `all`, `handler:ID` or `tenant:UUID`. */
  target: string;
}

/** The active pauses. */
export interface Pauses {
  pauses: Pause[];
}

/** A later phase of a retry policy. */
export interface Phase {
  after: number;
  first_delay: number;
  max_delay: number;
  multiplier: number;
}

/** What a bulk action would act on. */
export interface Preview {
  /** The number of matching jobs, up to the cap: the `confirm` of the action. */
  jobs: number;
  /** Whether there are more than the cap. */
  more: boolean;
  /** The newest of them. */
  sample: Job[];
}

/** Which jobs to count. */
export interface PreviewOf {
  /** The action; counts only jobs that it can be applied to. */
  action?: string | null;
  /** Stop counting at this number: 1,000 by default, at most 100,000. */
  cap?: number | null;
  /** Which jobs, such as `handler:mail.send status:dead`. */
  filter?: string;
}

/** A priority: a name or a number, higher first. */
export type Priority = string | number;

/** An error, as callers see it (RFC 9457). */
export interface Problem {
  /** A stable name for programs. */
  code: string;
  /** What happened to this request. */
  detail: string;
  /** Every invalid field. */
  errors?: FieldError[];
  /** The path of the request. */
  instance?: string | null;
  /** The job concerned. */
  job?: string | null;
  /** The status of that job, if the status is the reason. */
  job_status?: string | null;
  quota?: QuotaProblem | null;
  /** The id to give to an operator. */
  request_id?: string | null;
  /** When the same call may succeed. */
  retry_after_ms?: number | null;
  /** The HTTP status. */
  status: number;
  /** The code in words. */
  title: string;
  /** `urn:windlass:problem:` and the code. */
  type: string;
}

/** The progress of a job. */
export interface Progress {
  /** What it is doing, for people. */
  message: string;
  /** 0 to 100. */
  percent: number;
  /** Counts the reports of a job; a stream can continue after it. */
  sequence: number;
  /** When it was reported. */
  updated_at: string;
}

/** The limits of a tenant. Omitted fields are not limited. */
export interface Quota {
  /** Maximum bytes of the inputs of unfinished jobs. */
  bytes?: number | null;
  /** Maximum number of unfinished jobs. */
  queued?: number | null;
  /** Maximum number of running jobs. */
  running?: number | null;
  submit_rate?: Rate | null;
  /** Its scheduling weight relative to other tenants. */
  weight?: number | null;
}

/** A quota that was exceeded. */
export interface QuotaProblem {
  /** `queued`, `submit_rate` or `bytes`. */
  kind: string;
  /** How much is allowed. */
  limit: number;
  /** How much would still have been accepted. */
  room: number;
}

/** A token bucket: each submitted job takes one token. */
export interface Rate {
  burst: number;
  per_second: number;
}

/** How a dead letter is replayed. */
export interface Replay {
  /** Replays it as a new job that refers to the dead letter, which stays unchanged. */
  as_new?: boolean;
  /** Another input; implies `as_new`. */
  input?: unknown;
}

/** Which dead letters to replay, how fast, and when to stop. */
export interface ReplayMany {
  /** The count from the preview. No more jobs than this are changed. */
  confirm: number;
  /** A filter for dead letters [default: all]. */
  filter?: string;
  /** Check the fraction only after this number of jobs has ended; 5 by default. */
  judge_after?: number | null;
  /** Maximum number of dead letters. */
  limit?: number | null;
  /** Maximum rate in jobs per second. */
  per_second?: number | null;
  /** Stop when more than this fraction fails again, 0 to 1. */
  stop_when_failing?: number | null;
}

/** Marks a replayed dead letter. */
export interface Replayed {
  as_job: string;
  at: string;
  by: string;
}

/** How a job ended. */
export interface Result {
  error?: JobError | null;
  /** Its output, once it has succeeded. */
  output?: unknown;
  /** The status of the job. */
  status: Status;
}

/** When a failed job runs again; durations are milliseconds. */
export interface Retry {
  /** The delay after the first failure. */
  first_delay?: number | null;
  /** The random fraction of each delay, 0 to 1. */
  jitter?: number | null;
  /** Maximum number of attempts, including the first; 1 or 0 means no retries. */
  max_attempts?: number | null;
  /** The maximum delay. */
  max_delay?: number | null;
  /** No retry starts later than this after the submit. */
  max_elapsed?: number | null;
  /** Each delay is the previous one times this factor. */
  multiplier?: number | null;
  /** An attempt that ran this long before it failed resets the count. */
  reset_after?: number | null;
  then?: Phase | null;
}

/** How a group is retried. */
export interface RetryGroup {
  /** Maximum number of jobs. */
  cap?: number | null;
  /** The number of jobs in the group. No more jobs than this are changed. */
  confirm: number;
  /** Maximum rate in jobs per second. */
  per_second?: number | null;
}

/** A schedule, without the input of its jobs. */
export interface Schedule {
  changed_at: string;
  created_at: string;
  /** Five or six fields, or a nickname such as `@daily`. */
  cron: string;
  /** The service whose code defines it; its next start undoes changes made here. */
  defined_by?: string | null;
  /** The handler that runs its jobs. */
  handler: string;
  /** Each job starts up to this long after its nominal time. */
  jitter_ms: number;
  /** The last nominal time that it fired. */
  last_at?: string | null;
  missed: Missed;
  name: string;
  /** Its next nominal time; absent while it is paused. */
  next_at?: string | null;
  /** While an earlier job has not ended: `allow` another beside it, `skip` this time, or `queue` behind it. */
  overlap: Overlap;
  /** Whether it fires nothing until it is resumed. */
  paused: boolean;
  priority?: number | null;
  /** The queue of its jobs; the handler's own if absent. */
  queue?: string | null;
  retention_ms?: number | null;
  retry?: Record<string, unknown> | null;
  /** The labels of its jobs, besides `schedule:NAME`. */
  tags: string[];
  tenant: string;
  timeout_ms?: number | null;
  /** Grows with every change; send it with the next change to be refused if somebody else was faster. */
  version: number;
  /** The IANA name of its time zone. */
  zone: string;
}

/** A page of schedules, by name. */
export interface Schedules {
  /** Pass it as `after` to get the next page; absent on the last page. */
  next?: string | null;
  schedules: Schedule[];
}

/** How a job's attempts are run; durations are milliseconds. */
export interface Spec {
  callback?: string | null;
  deadline_at?: string | null;
  expires_at?: string | null;
  idempotency_key?: string | null;
  nominal_at?: string | null;
  parent?: string | null;
  retention?: number | null;
  retry?: Record<string, unknown> | null;
  sealed?: boolean;
  service?: string | null;
  timeout?: number | null;
  user?: string | null;
}

/** The status of a job. */
export type Status = "pending" | "scheduled" | "retrying" | "blocked" | "suspended" | "running" | "succeeded" | "canceled" | "dead_lettered";

/** A status change of a job. */
export interface StatusEvent {
  error?: JobError | null;
  progress?: Progress | null;
  status: Status;
}

/** The result of a submit. */
export interface Submitted {
  /** Whether another job already has its key, so that nothing was stored. */
  duplicate: boolean;
  /** Its id, or the id of the job that already has its key. */
  id: string;
}

/** The result of a worker. */
export interface Success {
  /** The output of the job. */
  output?: unknown;
}

/** A tenant's usage and limits. */
export interface Tenant {
  /** Bytes of inputs of unfinished jobs, if they are limited. */
  bytes?: number | null;
  /** Whether the policy is its own, not the default. */
  own: boolean;
  /** Unfinished jobs. */
  queued: number;
  quota?: Quota | null;
  /** Jobs running now. */
  running: number;
  /** The tenant; absent for the default policy. */
  tenant?: string | null;
}

/** Tenants. */
export interface Tenants {
  tenants: Tenant[];
}

/** How many jobs to run. */
export interface Tick {
  /** Maximum number of jobs: 10 by default, at most 100. */
  max?: number | null;
}

/** How many jobs ran. */
export interface TickBody {
  ran: number;
}

/** Uniqueness by content or by a key. */
export interface Unique {
  /** The key; without a key, the content decides. */
  key?: string | null;
  /** How long it holds; without a window, until the job has ended. */
  window_ms?: number | null;
}

/** The cost of jobs. */
export interface Usage {
  usage: UsageRow[];
}

/** One recorded cost. */
export interface UsageEvent {
  at: string;
  cents: number;
  handler: string;
  job: string;
  /** Increases with each entry: pass the last one as `after`. */
  sequence: number;
  tenant: string;
  units: number;
}

/** Costs one by one. */
export interface UsageEvents {
  events: UsageEvent[];
}

/** The cost of the jobs of one tenant and handler on one day, in UTC. */
export interface UsageRow {
  cents: number;
  day: string;
  handler: string;
  jobs: number;
  tenant: string;
  units: number;
}

/** A URL that receives status events. */
export interface Webhook {
  /** Receives events since this time: when it was created, or last resumed. */
  active_since: string;
  created_at: string;
  created_by: string;
  /** Receives an event when a job reaches one of these statuses. */
  events: string[];
  /** Only jobs of this handler. */
  handler?: string | null;
  id: string;
  /**
   * Receives nothing until it is resumed: a person paused it, or the server switched it off because
   * deliveries failed.
   */
  paused: boolean;
  tenant: string;
  url: string;
}

/** Webhooks. */
export interface Webhooks {
  webhooks: Webhook[];
}

/** The progress of a worker. */
export interface WorkerProgress {
  /** What it is doing, for people. */
  message?: string;
  /** 0 to 100. */
  percent: number;
}
