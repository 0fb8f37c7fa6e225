// Everything this client throws on purpose: the same four errors as the client for Python.

import type { JobError, Status } from "./schema.js";

/** A field that the server rejected. */
export interface FieldError {
  field: string;
  message: string;
  /** Which input of a batch, from 0. */
  index?: number;
}

/** An error response of the server (RFC 9457). `code` identifies the error. */
export class Problem extends Error {
  override readonly name = "Problem";
  readonly status: number;
  /** Such as `job_not_found`, `invalid_input`, `forbidden`, `backpressure`; docs/http.md lists them. */
  readonly code: string;
  readonly title: string;
  readonly detail: string | undefined;
  readonly requestId: string | undefined;
  /** Every invalid field of the request. */
  readonly errors: FieldError[];
  /** How long to wait before the next request, if the server says so. */
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

/** No response: the server is unreachable or too slow, or the connection broke. The outcome of the request is unknown. */
export class Unreachable extends Error {
  override readonly name = "Unreachable";
}

/** The awaited job has ended without success. */
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

/** The awaited job has not ended in time. It continues. */
export class WaitTimeout extends Error {
  override readonly name = "WaitTimeout";
  readonly id: string;

  constructor(id: string, afterMs: number) {
    super(`job ${id} has not ended after ${afterMs} ms`);
    this.id = id;
  }
}
