// What the package offers: the client, its errors, and the types of the API.

export { Windlass } from "./client.js";
export type { CancelOutcome, Feed, ListQuery, Settings, WaitOptions, WatchEvent, WatchOptions, Why } from "./client.js";
export { JobFailed, Problem, Unreachable, WaitTimeout } from "./errors.js";
export type * from "./schema.js";
