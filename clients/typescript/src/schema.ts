// Made by clients/generate.py from the server's OpenAPI document. Do not edit.

/** The audit log. */
export interface Audit {
  /** Newest first. */
  entries: AuditLine[];
  /** For `before`, where there may be more. */
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
  /** What they have in common. */
  batch: string;
  /** One answer for each input. */
  jobs: BatchItem[];
}

/** What became of one input of a batch. */
export type BatchItem = Submitted | {
  /** Why. */
  error: FieldError;
};

/** Why something is done. */
export interface Because {
  /** For the history and the audit log. */
  reason?: string;
}

/** A bulk action and how far it has come. */
export interface Bulk {
  action: string;
  by: string;
  /** Jobs it was done to. */
  done: number;
  ended_at?: string | null;
  /** Why it ended, if not because it was done. */
  error?: string | null;
  /** Jobs it could not be done to, because of an error. */
  failed: number;
  /** Of those put back to work, how many have failed again. */
  failed_again: number;
  filter: string;
  id: string;
  /** Jobs that had moved on. */
  skipped: number;
  started_at: string;
  /** `running`, `finished`, `stopped` or `failed`. */
  state: string;
  /** Whose jobs; absent for every tenant's. */
  tenant?: string | null;
  /** How many passed when it began. */
  total: number;
}

/** Bulk actions of this server. */
export interface Bulks {
  /** Newest first. */
  bulks: Bulk[];
}

/** What a cancel did. */
export interface Cancel {
  /**
   * `canceled`: it waited and is canceled now; `requested`: it runs, and its node has been asked;
   * `already_finished`: it was canceled before.
   */
  outcome: string;
}

/** What is to change about a waiting job; what is left out stays. */
export interface Changes {
  /** Another start, this long from now. */
  delay_ms?: number | null;
  /** Another input. */
  input?: unknown;
  priority?: Priority | null;
  /** Another start, at this time. */
  run_at?: string | null;
}

/** What a worker takes. */
export interface Checkout {
  /** How long the worker may stay silent; 5 minutes by default. */
  hold_ms?: number | null;
  /** At most so many; 1 by default, 100 at most. */
  max?: number | null;
  /** From these queues; `default` unless given. */
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
  /** What the worker reports with. */
  token: string;
}

/** Jobs for a worker. */
export interface Checkouts {
  jobs: CheckoutBody[];
}

/** How many jobs are in each status. Ended ones are counted as they end. */
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

/** A webhook that was made. */
export interface CreatedHook {
  /** What signs each message. It cannot be shown again. */
  secret: string;
  webhook: Webhook;
}

/** A key that was made. */
export interface CreatedKey {
  key: Key;
  /** What its calls carry. It cannot be shown again. */
  secret: string;
}

/** What went wrong. */
export interface Failure {
  /** A stable name for programs. */
  code?: string | null;
  /** Anything more, for programs. */
  details?: unknown;
  /** For people. */
  message: string;
  /** Not before so long. */
  retry_after_ms?: number | null;
  /** Whether another attempt may cure it; yes unless said otherwise. */
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
  /** The message without what differs. */
  message: string;
  retrying: number;
  /** The message of the latest. */
  sample: string;
  /** What they have in common, 16 hexadecimal digits. */
  signature: string;
}

/** Failing jobs by what is wrong with them. */
export interface Failures {
  /** The largest first. */
  groups: FailureBody[];
}

/** A field that is wrong. */
export interface FieldError {
  /** Its name. */
  field: string;
  /** The place of the item in a batch, from 0. */
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

/** Everything that happened to a job. */
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

/** A job's input and what travels with it. */
export interface Input {
  /** What travels with the job. */
  headers: Record<string, string>;
  /** The input. */
  input: unknown;
}

/** A job as it is shown: never with its input or its output. */
export interface Job {
  /** Attempts begun or failed so far. */
  attempt: number;
  /** Its batch. */
  batch?: string | null;
  /** Whether a cancel has been asked for and not yet been carried out. */
  cancel_requested: boolean;
  /** What ties it to the request it came from. */
  correlation_id?: string | null;
  /** When it was submitted. */
  created_at: string;
  error?: JobError | null;
  /** Failed attempts. */
  failed: number;
  /** When it ended. */
  finished_at?: string | null;
  /** What runs it. */
  handler: string;
  /** Its id, a decimal number. */
  id: string;
  /** The node that holds it or ran it last. */
  node?: number | null;
  /** Its ordering key. */
  ordering_key?: string | null;
  /** How urgent it is: higher first. */
  priority: number;
  progress?: Progress | null;
  /** Where it waits. */
  queue: string;
  /** Why it ended or what it waits for. */
  reason?: string | null;
  /** Nodes lost while they held it. */
  recoveries: number;
  replayed?: Replayed | null;
  /** When it is due, if that lies ahead or lay ahead at the submit. */
  run_at?: string | null;
  /** How its attempts are run. */
  spec: Spec;
  /** When its last attempt started. */
  started_at?: string | null;
  /** Where it is in its life. */
  status: Status;
  /** Its labels. */
  tags: string[];
  /** Whose it is. */
  tenant: string;
}

/** Why an attempt failed. */
export interface JobError {
  /** A stable name for programs. */
  code: string;
  /** Anything more, for programs. */
  details?: unknown;
  /** What follows: `retryable`, `terminal`, `snooze`, `discard`, `retry_after`. */
  kind: unknown;
  /** For people. */
  message: string;
  /** Whether another attempt may cure it. */
  retryable: boolean;
}

/** A change of a job's status. */
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
  /** The jobs; may be fewer than asked for although there are more. */
  jobs: Job[];
  /** Pass it as `before` for the page after this one; absent on the last page. */
  next?: string | null;
}

/** An API key, without its secret. */
export interface Key {
  /** Whether it is for the whole installation. */
  all_tenants: boolean;
  created_at: string;
  created_by: string;
  expires_at?: string | null;
  /** Its public part, which stands in the secret too. */
  id: string;
  /** About when it was last used. */
  last_used_at?: string | null;
  /** What people call it. */
  name: string;
  revoked_at?: string | null;
  rights: string[];
  tenant: string;
  /** Who its calls act as. */
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
  /** Counts the lines of the job; missing numbers were dropped. */
  sequence: number;
}

/** What a job has logged. */
export interface Logs {
  /** Oldest first. */
  lines: LogLine[];
}

/** Who asks. */
export interface Me {
  /** Whether it operates the whole installation. */
  all_tenants: boolean;
  /** How it has shown who it is. */
  method: string;
  /** Whether the server refuses changes. */
  read_only: boolean;
  /** What it may do. */
  rights: string[];
  /** Its tenant. */
  tenant: string;
  /** Its name. */
  user: string;
}

/** Many jobs of one handler to submit. */
export interface NewBatch {
  /** What runs them. */
  handler: string;
  /** One input for each. */
  inputs: unknown[];
  /** How, for all of them. */
  options?: Options;
  /** Store what is good although others are bad. */
  partial?: boolean;
}

/** What to do to which jobs, how fast, and when to stop. */
export interface NewBulk {
  /** `cancel`, `replay`, `purge`, `run_now`, `retry` or `reprioritise`. */
  action: string;
  /** At most so many; as many as confirmed unless given. */
  cap?: number | null;
  /** How many the preview said. More than that are not touched. */
  confirm: number;
  /** Which jobs, such as `handler:mail.send status:dead`. */
  filter: string;
  /** Judged only once so many have ended; 5 by default. */
  judge_after?: number | null;
  /** So many per second; as fast as it goes unless given. */
  per_second?: number | null;
  priority?: Priority | null;
  /** Why, for a cancel. */
  reason?: string;
  /** For actions that make jobs run: stop when more than this part fails again, 0 to 1. */
  stop_when_failing?: number | null;
}

/** How a job is cloned. */
export interface NewClone {
  /** Another input; that of the job unless given. */
  input?: unknown;
}

/** What a job has cost; negative for a refund. */
export interface NewCost {
  /** Money, in hundredths. */
  cents?: number;
  /** Anything else that is counted. */
  units?: number;
}

/** A webhook to make. */
export interface NewHook {
  /** Told of jobs that come to one of these; of every end unless given. */
  events?: string[] | null;
  /** Only jobs of this handler. */
  handler?: string | null;
  /** Where it is told. */
  url: string;
}

/** One job to submit. */
export interface NewJob {
  /** What runs it. */
  handler: string;
  /** What it works on: any JSON, kept to the digit. */
  input: unknown;
  /** How. */
  options?: Options;
}

/** A key to make. */
export interface NewKey {
  /** For the whole installation. */
  all_tenants?: boolean;
  /** When it ends by itself. */
  expires_at?: string | null;
  /** What people call it. */
  name: string;
  /** `read`, `submit`, `operate`, `admin`, `payload`; never more than the caller has. */
  rights: string[];
  /** Of which tenant; the caller's own unless it operates the whole installation. */
  tenant?: string | null;
  /** Who its calls act as; the caller unless given. */
  user?: string | null;
}

/** What to pause. */
export interface NewPause {
  /** Why, for people. */
  reason?: string;
  /** `all`, `handler:ID` or `tenant:UUID`. */
  target: string;
}

/** How urgent a job is from now on. */
export interface NewPriority {
  priority: Priority;
}

/** When a job starts: one of the two. */
export interface NewStart {
  /** This long from now. */
  delay_ms?: number | null;
  /** At this time. */
  run_at?: string | null;
}

/** A registered process. */
export interface Node {
  /** How long ago that was. */
  age_ms: number;
  /** How many jobs it runs at once. */
  capacity: number;
  /** What it can run. */
  handlers: string[];
  heartbeat_at: string;
  host: string;
  /** Its identity, never used again. */
  node: number;
  pid: number;
  /** How many it ran at its last heartbeat. */
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

/** How a job is submitted. Everything may be left out. */
export interface Options {
  /** What ties it to other things. */
  correlation_id?: string | null;
  /** Ends the job if it has not succeeded by then. */
  deadline_at?: string | null;
  /** Starts this long after the submit. */
  delay_ms?: number | null;
  /** Cancels the job if it has not started by then. */
  expires_at?: string | null;
  /** What travels with it. */
  headers?: Record<string, string>;
  /** A second submit with this key returns the first job's id. */
  idempotency_key?: string | null;
  /** Jobs of one tenant with the same key run one at a time, in order of submission. */
  ordering_key?: string | null;
  priority?: Priority | null;
  /** The queue it waits in. */
  queue?: string | null;
  /** Keeps the ended job this long. */
  retention_ms?: number | null;
  retry?: Retry | null;
  /** Starts at this time. */
  run_at?: string | null;
  /** Labels to find it by. */
  tags?: string[];
  /** Limits each attempt. */
  timeout_ms?: number | null;
  unique?: Unique | null;
}

/** A pause in force. */
export interface Pause {
  at: string;
  by: string;
  reason: string;
  /** `all`, `handler:ID` or `tenant:UUID`. */
  target: string;
}

/** The pauses in force. */
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
  /** How many jobs pass, up to the cap: the `confirm` of the action. */
  jobs: number;
  /** Whether there are more than the cap. */
  more: boolean;
  /** The newest of them. */
  sample: Job[];
}

/** Which jobs to count. */
export interface PreviewOf {
  /** What would be done, to count only jobs to which it can be done. */
  action?: string | null;
  /** Count no further than this; 1,000 by default, 100,000 at most. */
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
  /** Every field that is wrong. */
  errors?: FieldError[];
  /** The path of the request. */
  instance?: string | null;
  /** The job in question. */
  job?: string | null;
  /** Where that job is, if that stands in the way. */
  job_status?: string | null;
  quota?: QuotaProblem | null;
  /** What to name when asking an operator. */
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

/** How far a job has come. */
export interface Progress {
  /** What it is doing. */
  message: string;
  /** 0 to 100. */
  percent: number;
  /** Counts the reports of a job; a stream goes on after it. */
  sequence: number;
}

/** What a tenant may use. What is left out is not limited. */
export interface Quota {
  /** Bytes of the inputs of unfinished jobs at most. */
  bytes?: number | null;
  /** Unfinished jobs at most. */
  queued?: number | null;
  /** Jobs running at once at most. */
  running?: number | null;
  submit_rate?: Rate | null;
  /** Turns it gets where others get one. */
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

/** A bucket of tokens: each submitted job takes one. */
export interface Rate {
  burst: number;
  per_second: number;
}

/** How a dead letter is replayed. */
export interface Replay {
  /** As a new job that is linked to the dead letter, which stays as it is. */
  as_new?: boolean;
  /** Another input; implies `as_new`. */
  input?: unknown;
}

/** Which dead letters to replay, how fast, and when to stop. */
export interface ReplayMany {
  /** How many the preview said. More than that are not touched. */
  confirm: number;
  /** Which of them; all unless given. */
  filter?: string;
  /** Judged only once so many have ended; 5 by default. */
  judge_after?: number | null;
  /** So many first. */
  limit?: number | null;
  /** So many per second. */
  per_second?: number | null;
  /** Stop when more than this part fails again, 0 to 1. */
  stop_when_failing?: number | null;
}

/** A mark on a dead letter that has been replayed. */
export interface Replayed {
  as_job: string;
  at: string;
  by: string;
}

/** How a job ended. */
export interface Result {
  error?: JobError | null;
  /** What it returned, once it has succeeded. */
  output?: unknown;
  /** Where it is. */
  status: Status;
}

/** When a failed job runs again; durations are milliseconds. */
export interface Retry {
  /** Wait after the first failure. */
  first_delay?: number | null;
  /** The part of each wait that is random, 0 to 1. */
  jitter?: number | null;
  /** Attempts in all, the first included. */
  max_attempts?: number | null;
  /** No wait is longer. */
  max_delay?: number | null;
  /** No retry starts later than this after the submit. */
  max_elapsed?: number | null;
  /** Each wait is this many times the one before. */
  multiplier?: number | null;
  /** An attempt that ran this long before it failed starts the count anew. */
  reset_after?: number | null;
  then?: Phase | null;
}

/** How a group is put back to work. */
export interface RetryGroup {
  /** At most so many. */
  cap?: number | null;
  /** How many jobs the group has. More than that are not touched. */
  confirm: number;
  /** So many per second. */
  per_second?: number | null;
}

/** How a job's attempts are run; durations are milliseconds. */
export interface Spec {
  callback?: string | null;
  deadline_at?: string | null;
  expires_at?: string | null;
  idempotency_key?: string | null;
  parent?: string | null;
  retention?: number | null;
  retry?: Record<string, unknown> | null;
  sealed?: boolean;
  timeout?: number | null;
  user?: string | null;
}

/** Where a job is in its life. */
export type Status = "pending" | "scheduled" | "retrying" | "blocked" | "suspended" | "running" | "succeeded" | "canceled" | "dead_lettered";

/** A change of a job's status. */
export interface StatusEvent {
  error?: JobError | null;
  progress?: Progress | null;
  status: Status;
}

/** What became of a submitted job. */
export interface Submitted {
  /** Whether another job holds its key, so that nothing was stored. */
  duplicate: boolean;
  /** Its id, or that of the job that holds its key. */
  id: string;
}

/** What a worker made. */
export interface Success {
  /** What the job returns. */
  output?: unknown;
}

/** What a tenant uses, beside what it may. */
export interface Tenant {
  /** Bytes of inputs of unfinished jobs, where they are limited. */
  bytes?: number | null;
  /** Whether the policy is its own, not the default. */
  own: boolean;
  /** Unfinished jobs. */
  queued: number;
  quota?: Quota | null;
  /** Jobs running now. */
  running: number;
  /** Who; absent for the default policy. */
  tenant?: string | null;
}

/** Tenants. */
export interface Tenants {
  tenants: Tenant[];
}

/** How many jobs to run. */
export interface Tick {
  /** At most so many; 10 by default, 100 at most. */
  max?: number | null;
}

/** How many jobs ran. */
export interface TickBody {
  ran: number;
}

/** Uniqueness by content or by a key. */
export interface Unique {
  /** The key; content decides without one. */
  key?: string | null;
  /** How long it holds; until the job has ended without one. */
  window_ms?: number | null;
}

/** What jobs have cost. */
export interface Usage {
  usage: UsageRow[];
}

/** One cost that was recorded. */
export interface UsageEvent {
  at: string;
  cents: number;
  handler: string;
  job: string;
  /** Rises from one to the next: pass the last one as `after`. */
  sequence: number;
  tenant: string;
  units: number;
}

/** Costs one by one. */
export interface UsageEvents {
  events: UsageEvent[];
}

/** What jobs of one tenant and handler have cost on one day, in UTC. */
export interface UsageRow {
  cents: number;
  day: string;
  handler: string;
  jobs: number;
  tenant: string;
  units: number;
}

/** An address that is told of status events. */
export interface Webhook {
  created_at: string;
  created_by: string;
  /** Told of jobs that come to one of these. */
  events: string[];
  /** Only jobs of this handler. */
  handler?: string | null;
  id: string;
  paused: boolean;
  tenant: string;
  url: string;
}

/** Webhooks. */
export interface Webhooks {
  webhooks: Webhook[];
}

/** How far a worker has come. */
export interface WorkerProgress {
  /** What it is doing. */
  message?: string;
  /** 0 to 100. */
  percent: number;
}
