// Everything this client throws on purpose. What `fetch` throws when no server answers is passed on as it is.

import type { JobError, Status } from "./schema.js";

/** A field that the server refused. */
export interface FieldError {
  field: string;
  message: string;
  /** Which input of a batch, from 0. */
  index?: number;
}

/** The server's answer when it does not do what it was asked (RFC 9457). `code` says which case it is. */
export class Problem extends Error {
  override readonly name = "Problem";
  readonly status: number;
  /** Such as `job_not_found`, `invalid_input`, `forbidden`, `backpressure`; docs/http.md lists them. */
  readonly code: string;
  readonly title: string;
  readonly detail: string | undefined;
  readonly requestId: string | undefined;
  /** Every field that is wrong, where the request was. */
  readonly errors: FieldError[];
  /** How long to wait before asking again, where the server says so. */
  readonly retryAfterMs: number | undefined;
  /** The whole body. */
  readonly body: Record<string, unknown>;

  constructor(status: number, body: Record<string, unknown>, retryAfterMs?: number) {
    const text = (name: string) => (typeof body[name] === "string" ? body[name] : undefined);
    const title = text("title") ?? `HTTP ${status}`;
    const detail = text("detail");
    super(detail === undefined ? title : `${title}: ${detail}`);
    this.status = status;
    this.code = text("code") ?? "http_error";
    this.title = title;
    this.detail = detail;
    this.requestId = text("request_id");
    this.errors = Array.isArray(body["errors"]) ? (body["errors"] as FieldError[]) : [];
    this.retryAfterMs = retryAfterMs;
    this.body = body;
  }
}

/** A job that was waited for has ended, but not with success. */
export class JobFailed extends Error {
  override readonly name = "JobFailed";
  readonly id: string;
  readonly status: Status;
  readonly error: JobError | undefined;

  constructor(id: string, status: Status, error: JobError | undefined) {
    super(`job ${id} is ${status}${error ? `: ${error.code}: ${error.message}` : ""}`);
    this.id = id;
    this.status = status;
    this.error = error;
  }
}

/** A job that was waited for has not ended in time. It goes on. */
export class WaitTimeout extends Error {
  override readonly name = "WaitTimeout";
  readonly id: string;

  constructor(id: string, afterMs: number) {
    super(`job ${id} has not ended after ${afterMs} ms`);
    this.id = id;
  }
}
