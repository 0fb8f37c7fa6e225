// The client: one method for each thing a program does with jobs. Everything else the API offers goes through `request`.

import { JobFailed, Problem, Unreachable, WaitTimeout } from "./errors.js";
import type {
  Batch,
  Counts,
  History,
  Job,
  JobError,
  JobPage,
  Logs,
  NewSchedule,
  NextRuns,
  Options,
  Progress,
  Result,
  Schedule,
  Schedules,
  Status,
  StatusEvent,
  Submitted,
} from "./schema.js";
import { events } from "./sse.js";

/** The server's address, and the caller's credential. */
export interface Settings {
  /** The server's address, with its base path if it has one: `https://jobs.example.com`. */
  url: string;
  /** An API key or a JWT. Without one, a browser on the server's own page sends its session. */
  key?: string | undefined;
  /** One tenant, for a key of all tenants. */
  tenant?: string | undefined;
  /** Another `fetch`, such as one that goes through a proxy. */
  fetch?: typeof fetch;
  /** How long one request may take, except event streams. 30 s by default. */
  timeoutMs?: number;
  /** How often to repeat a repeatable request when the server is busy or unreachable. 2 by default. */
  retries?: number;
}

/** Which jobs to list. `filter` is the same text as in dashboard and command line: `handler:mail.send status:dead`. */
export interface ListQuery {
  filter?: string;
  handler_id?: string;
  status?: Status | Status[];
  created_after?: string;
  created_before?: string;
  /** Jobs of one page; 50 by default, at most 200. */
  limit?: number;
  /** `next` of the previous page. */
  before?: string;
}

/** An event of a watched job. The last event of every job that ends is its status. */
export type WatchEvent =
  | ({ type: "progress" } & Progress)
  | { type: "status"; status: Status; error?: JobError };

export interface WatchOptions {
  /** Only progress after this sequence. */
  after?: number;
  /** Stops watching. */
  signal?: AbortSignal;
}

export interface WaitOptions {
  /** How long to wait; for ever by default. */
  timeoutMs?: number;
  /** Stops waiting. */
  signal?: AbortSignal;
}

/** What a cancel did: canceled a waiting job, asked a running job to stop, or found that it had already ended. */
export type CancelOutcome = "canceled" | "requested" | "already_finished";

/** Why a job is not running now: a name for programs, a sentence for people, and the facts. */
export interface Why {
  reason: string;
  text: string;
  [fact: string]: unknown;
}

/** A change of a job's status, from the feed of all jobs. */
export interface Feed {
  sequence: number;
  job: string;
  tenant: string;
  handler: string;
  status: Status;
  error?: JobError | null;
  at: string;
}

const TIMEOUT_MS = 30_000;
const RETRIES = 2;
/** The longest pause before a request or a stream is tried again, whatever the server asks for: the caller waits. */
const LONGEST_PAUSE_MS = 10_000;
const FIRST_PAUSE_MS = 200;
/** How often in a row a stream may break without a single event before the caller gets the error. */
const SILENT_BREAKS = 10;

const ENDED: readonly Status[] = ["succeeded", "canceled", "dead_lettered"];

interface RequestOptions {
  query?: Record<string, unknown>;
  body?: unknown;
  headers?: Record<string, string>;
  signal?: AbortSignal | undefined;
  /** Whether doing it twice has the same effect as doing it once; true for reads. */
  repeatable?: boolean;
}

/** A request as it is sent, its body as text. */
type SentOptions = Omit<RequestOptions, "body"> & { body?: string | undefined };

/** A Windlass server. Holds no connection: create one and share it, or create many. */
export class Windlass {
  readonly #base: string;
  readonly #settings: Settings;

  constructor(settings: Settings) {
    this.#base = settings.url.replace(/\/+$/, "") + "/api/v1";
    this.#settings = settings;
  }

  /** Stores a job; it runs as soon as a worker is free. With an `idempotency_key` a repeated call returns the same job. */
  async submit(handler: string, input: unknown, options?: Options): Promise<Submitted> {
    const body = { handler, input, ...(options && { options }) };
    return this.request("POST", "/jobs", { body, repeatable: options?.idempotency_key != null });
  }

  /** Stores many jobs at once, all or none; with `partial`, the valid ones. Returns results in input order. */
  async submitMany(
    handler: string,
    inputs: unknown[],
    options?: Options,
    more?: { partial?: boolean },
  ): Promise<Batch> {
    return this.request("POST", "/jobs/batch", { body: { handler, inputs, ...(options && { options }), ...more } });
  }

  /** Returns a job without its input and output. */
  async get(id: string): Promise<Job> {
    return this.request("GET", job(id));
  }

  /** Returns how a job ended, or its status if it has not ended yet. */
  async result<Output = unknown>(id: string): Promise<Result & { output?: Output }> {
    return this.request("GET", job(id, "/result"));
  }

  /** Returns every status change and every attempt. */
  async history(id: string): Promise<History["history"]> {
    return (await this.request<History>("GET", job(id, "/history"))).history;
  }

  /** Returns why a job is not running now, and when it will. */
  async why(id: string): Promise<Why> {
    return this.request("GET", job(id, "/why"));
  }

  /** Returns what the handler has logged. */
  async logs(id: string, after?: number): Promise<Logs["lines"]> {
    return (await this.request<Logs>("GET", job(id, "/logs"), { query: { after } })).lines;
  }

  /** Returns the number of jobs in each status. */
  async counts(): Promise<Counts> {
    return this.request("GET", "/counts");
  }

  /** Returns one page of jobs, newest first. */
  async page(query: ListQuery = {}): Promise<JobPage> {
    return this.request("GET", "/jobs", { query: { ...query } });
  }

  /** Yields all matching jobs, newest first; fetches the pages as needed. */
  async *list(query: ListQuery = {}): AsyncGenerator<Job> {
    let before = query.before;
    for (;;) {
      const page = await this.page({ ...query, ...(before !== undefined && { before }) });
      yield* page.jobs;
      if (page.next == null) return;
      before = page.next;
    }
  }

  /** Asks a job to stop. Once this has returned `canceled` or `requested`, the job will not succeed. */
  async cancel(id: string, reason?: string): Promise<CancelOutcome> {
    const body = reason === undefined ? {} : { reason };
    return (await this.request<{ outcome: CancelOutcome }>("POST", job(id, "/cancel"), { body, repeatable: true })).outcome;
  }

  /** Runs a dead letter again, in place or as a new job; with another input always as a new job. */
  async replay(id: string, how: { as_new?: boolean; input?: unknown } = {}): Promise<string> {
    return (await this.request<{ id: string }>("POST", job(id, "/replay"), { body: how })).id;
  }

  /** Runs a retrying job now, or replays a dead letter. */
  async retry(id: string): Promise<string> {
    return (await this.request<{ id: string }>("POST", job(id, "/retry"))).id;
  }

  /** Yields all schedules by name; fetches the pages as needed. */
  async *schedules(query: { after?: string; limit?: number } = {}): AsyncGenerator<Schedule> {
    let after = query.after;
    for (;;) {
      const page = await this.request<Schedules>("GET", "/schedules", { query: { ...query, after } });
      yield* page.schedules;
      if (page.next == null) return;
      after = page.next;
    }
  }

  /** Returns a schedule without the input of its jobs. */
  async schedule(name: string): Promise<Schedule> {
    return this.request("GET", schedule(name));
  }

  /** Creates a schedule, or changes the one with this name; with `version`, only if it still has that version. */
  async putSchedule(name: string, content: NewSchedule): Promise<Schedule> {
    return this.request("PUT", schedule(name), { body: content });
  }

  /** Removes a schedule. Jobs that it has started stay. */
  async removeSchedule(name: string): Promise<void> {
    await this.request("DELETE", schedule(name));
  }

  /** Pauses a schedule: once this has returned, it fires nothing. */
  async pauseSchedule(name: string): Promise<Schedule> {
    return this.request("POST", schedule(name, "/pause"), { repeatable: true });
  }

  /** Lets a paused schedule fire again, from its next time on. */
  async resumeSchedule(name: string): Promise<Schedule> {
    return this.request("POST", schedule(name, "/resume"), { repeatable: true });
  }

  /** Starts a job of a schedule now, whether it is paused or not. */
  async triggerSchedule(name: string): Promise<Submitted> {
    return this.request("POST", schedule(name, "/trigger"));
  }

  /** Returns the next times of a schedule: in UTC, in its zone and in the viewer's `zone`. */
  async nextRuns(name: string, query: { count?: number; zone?: string } = {}): Promise<NextRuns> {
    return this.request("GET", schedule(name, "/next"), { query });
  }

  /** Returns one page of the jobs that a schedule has started, newest first. */
  async scheduleRuns(name: string, query: { limit?: number; before?: string } = {}): Promise<JobPage> {
    return this.request("GET", schedule(name, "/runs"), { query });
  }

  /**
   * Waits for a job and returns its output. Throws `JobFailed` if it ends without success, and `WaitTimeout` if it takes
   * longer; the job itself continues.
   */
  async wait<Output = unknown>(id: string, options: WaitOptions = {}): Promise<Output> {
    const { timeoutMs, signal } = options;
    const stop = new AbortController();
    const leave = () => stop.abort(signal?.reason);
    const timer = timeoutMs === undefined ? undefined : setTimeout(() => stop.abort(new WaitTimeout(id, timeoutMs)), timeoutMs);
    if (signal?.aborted) leave();
    signal?.addEventListener("abort", leave, { once: true });
    try {
      for (let tried = 0; ; tried += 1) {
        const result = await this.result<Output>(id);
        if (result.status === "succeeded") return result.output as Output;
        if (ENDED.includes(result.status)) throw new JobFailed(id, result.status, result.error ?? undefined);
        await this.#untilEnded(id, tried, stop.signal);
      }
    } catch (error) {
      throw stop.signal.aborted ? stop.signal.reason : error;
    } finally {
      clearTimeout(timer);
      signal?.removeEventListener("abort", leave);
    }
  }

  /** Returns when a job has ended, or after a while if this key may not watch more jobs at once. */
  async #untilEnded(id: string, tried: number, signal: AbortSignal): Promise<void> {
    try {
      for await (const event of this.watch(id, { signal })) {
        if (event.type === "status" && ENDED.includes(event.status)) return;
      }
    } catch (error) {
      if (!(error instanceof Problem && error.status === 429)) throw error;
      await pause(pauseAfter(tried, error), signal);
    }
  }

  /**
   * Yields the events of a job, live, until it has ended: its current status, then every change and every progress report.
   * After a broken connection it continues where it stopped.
   */
  async *watch(id: string, options: WatchOptions = {}): AsyncGenerator<WatchEvent> {
    const stream = this.#stream(job(id, "/events"), {}, options.after, options.signal);
    for await (const { event, data } of stream) {
      if (event === "progress") yield { type: "progress", ...(JSON.parse(data) as Progress) };
      if (event === "status") {
        const { status, progress, error } = JSON.parse(data) as StatusEvent;
        // Before the status, so that the last event of a job that has ended is its status.
        if (progress) yield { type: "progress", ...progress };
        yield { type: "status", status, ...(error && { error }) };
      }
      if (event === "end") return;
    }
  }

  /** Yields every status change of every job, from now on or after a sequence, at least once. */
  async *feed(
    query: { handler_id?: string; status?: Status | Status[]; after?: number; signal?: AbortSignal } = {},
  ): AsyncGenerator<Feed> {
    const { after, signal, ...filter } = query;
    for await (const { event, data, id } of this.#stream("/events", filter, after, signal)) {
      if (event === "job") yield { sequence: Number(id), ...(JSON.parse(data) as Omit<Feed, "sequence">) };
    }
  }

  /**
   * Calls any route of the API under `/api/v1`. Throws a `Problem` for every response that is not a success, and
   * `Unreachable` if there is no response.
   */
  async request<Answer = unknown>(method: string, path: string, options: RequestOptions = {}): Promise<Answer> {
    const repeats = options.repeatable ?? method === "GET" ? (this.#settings.retries ?? RETRIES) : 0;
    for (let tried = 0; ; tried += 1) {
      try {
        const text = await this.#send(method, path, options);
        return (text === "" ? undefined : JSON.parse(text)) as Answer;
      } catch (error) {
        if (tried >= repeats || !isPassing(error) || options.signal?.aborted) throw error;
        await pause(pauseAfter(tried, error), options.signal);
      }
    }
  }

  /** The whole text of a successful response. */
  async #send(method: string, path: string, options: RequestOptions): Promise<string> {
    const limit = AbortSignal.timeout(this.#settings.timeoutMs ?? TIMEOUT_MS);
    const signal = options.signal ? AbortSignal.any([options.signal, limit]) : limit;
    // Before anything is sent: a value that is not JSON is the caller's mistake, not an unknown outcome.
    const body = options.body === undefined ? undefined : JSON.stringify(options.body);
    try {
      const response = await this.#fetch(method, path, { ...options, body, signal });
      return await response.text();
    } catch (error) {
      throw unanswered(method, path, error, options.signal);
    }
  }

  async #fetch(method: string, path: string, { query, body, headers, signal }: SentOptions): Promise<Response> {
    const { key, tenant, fetch: send = fetch } = this.#settings;
    const response = await send(this.#base + path + search(query), {
      method,
      headers: {
        accept: "application/json",
        ...(key !== undefined && { authorization: `Bearer ${key}` }),
        ...(tenant !== undefined && { "windlass-tenant": tenant }),
        ...(body !== undefined && { "content-type": "application/json" }),
        ...headers,
      },
      ...(body !== undefined && { body }),
      ...(signal && { signal }),
    });
    if (!response.ok) throw await problem(response);
    return response;
  }

  /** Yields the events of a stream; reopens it after its last event whenever it breaks. */
  async *#stream(path: string, query: Record<string, unknown>, after?: number, signal?: AbortSignal) {
    let last = after === undefined ? undefined : String(after);
    let opened = false;
    for (let silent = 0; silent < SILENT_BREAKS; silent += 1) {
      let reason: unknown;
      try {
        const headers = { accept: "text/event-stream", ...(last !== undefined && { "last-event-id": last }) };
        const response = await this.#fetch("GET", path, { query, headers, signal });
        if (!response.body) return;
        opened = true;
        for await (const event of events(response.body)) {
          silent = 0;
          last = event.id ?? last;
          yield event;
        }
      } catch (error) {
        const failure = unanswered("GET", path, error, signal);
        // A rejected new stream would be rejected again a moment later; only a broken stream waits for its place.
        const isCrowded = !opened && failure instanceof Problem && failure.status === 429;
        if (isCrowded || !isPassing(failure)) throw failure;
        reason = failure;
      }
      await pause(pauseAfter(silent, reason), signal);
    }
    throw new Unreachable(`the stream ${path} broke ${SILENT_BREAKS} times without an event`);
  }
}

function job(id: string, rest = ""): string {
  return `/jobs/${encodeURIComponent(id)}${rest}`;
}

function schedule(name: string, rest = ""): string {
  return `/schedules/${encodeURIComponent(name)}${rest}`;
}

/** The query of a URL; omits undefined, joins arrays with commas. */
function search(query: Record<string, unknown> = {}): string {
  const given = Object.entries(query).filter(([, value]) => value !== undefined && value !== null);
  const text = new URLSearchParams(given.map(([name, value]) => [name, String(value)])).toString();
  return text === "" ? "" : `?${text}`;
}

async function problem(response: Response): Promise<Problem> {
  const body: unknown = await response.json().catch(() => ({}));
  const seconds = Number(response.headers.get("retry-after") ?? Number.NaN);
  const fields = typeof body === "object" && body !== null ? (body as Record<string, unknown>) : {};
  return new Problem(response.status, fields, Number.isNaN(seconds) ? undefined : seconds * 1000);
}

/** What a failed call throws: `Unreachable` for whatever `fetch` throws without a response, but not for the caller's own abort. */
function unanswered(method: string, path: string, error: unknown, wish?: AbortSignal): unknown {
  if (wish?.aborted) return wish.reason;
  const isSilence = error instanceof TypeError || (error instanceof DOMException && error.name === "TimeoutError");
  return isSilence ? new Unreachable(`${method} ${path}: ${error.message}`, { cause: error }) : error;
}

/** Whether the same request may succeed a moment later: there was no response, or the server was busy. */
function isPassing(error: unknown): boolean {
  return error instanceof Unreachable || (error instanceof Problem && [429, 502, 503, 504].includes(error.status));
}

/** Doubles from one attempt to the next, or is what the server asks for; bounded. */
function pauseAfter(tried: number, error: unknown): number {
  const asked = error instanceof Problem ? error.retryAfterMs : undefined;
  return Math.min(asked ?? FIRST_PAUSE_MS * 2 ** tried, LONGEST_PAUSE_MS);
}

async function pause(ms: number, signal?: AbortSignal): Promise<void> {
  signal?.throwIfAborted();
  await new Promise<void>((resolve, reject) => {
    const leave = () => {
      clearTimeout(timer);
      reject(signal?.reason);
    };
    const timer = setTimeout(() => {
      signal?.removeEventListener("abort", leave);
      resolve();
    }, ms);
    signal?.addEventListener("abort", leave, { once: true });
  });
}
