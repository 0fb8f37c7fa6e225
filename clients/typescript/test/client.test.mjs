// The client against a real server with the demo's handlers (`cargo xtask clients`). BEY-12, the client half.

import assert from "node:assert/strict";
import { test } from "node:test";

import { JobFailed, Problem, Unreachable, WaitTimeout } from "../dist/index.js";
import { client, unique } from "./server.mjs";

const PICTURE = { picture: "cat", width: 10 };
const jobs = client();

test("a submitted job is waited for and answers its output", async () => {
  const { id, duplicate } = await jobs.submit("demo.thumbnail", PICTURE);
  assert.match(id, /^\d+$/);
  assert.equal(duplicate, false);
  assert.equal(await jobs.wait(id, { timeoutMs: 20_000 }), "cat-10.webp");
  const job = await jobs.get(id);
  assert.equal(job.status, "succeeded");
  assert.equal(job.handler, "demo.thumbnail");
  assert.deepEqual(await jobs.result(id), { status: "succeeded", output: "cat-10.webp" });
  assert.ok((await jobs.history(id)).some((entry) => entry.status === "succeeded"));
});

test("an idempotency key answers the same job again", async () => {
  const options = { idempotency_key: unique("order"), tags: ["typescript"] };
  const first = await jobs.submit("demo.thumbnail", PICTURE, options);
  const second = await jobs.submit("demo.thumbnail", PICTURE, options);
  assert.deepEqual(second, { id: first.id, duplicate: true });
});

test("many jobs are stored at once and listed by filter, page by page", async () => {
  const tag = unique("many");
  const inputs = Array.from({ length: 7 }, (_, width) => ({ picture: "dog", width }));
  const { jobs: stored } = await jobs.submitMany("demo.thumbnail", inputs, { tags: [tag] });
  const ids = stored.map((one) => one.id);
  const listed = [];
  for await (const job of jobs.list({ filter: `tag:${tag}`, limit: 3 })) listed.push(job.id);
  assert.deepEqual(listed.sort(), ids.sort());
  const page = await jobs.page({ filter: `tag:${tag}`, limit: 3 });
  assert.equal(page.jobs.length, 3);
  assert.ok(page.next);
});

test("progress is watched live, in order, until the end", async () => {
  const { id } = await jobs.submit("demo.report", { month: "May", pages: 3 });
  const percents = [];
  let last;
  for await (const event of jobs.watch(id)) {
    if (event.type === "progress") percents.push(event.percent);
    if (event.type === "status") last = event.status;
  }
  assert.equal(last, "succeeded");
  assert.ok(percents.length >= 2, `${percents}`);
  assert.deepEqual(percents, [...percents].sort((a, b) => a - b));
});

test("a stream that breaks goes on after its last event", async () => {
  const asked = [];
  // The real server, but every connection is cut after its first progress report.
  const fragile = async (url, init) => {
    const response = await fetch(url, init);
    if (!String(url).includes("/events")) return response;
    asked.push(init.headers["last-event-id"]);
    return new Response(cutAfter(response.body, "event: progress"), response);
  };
  const { id } = await jobs.submit("demo.report", { month: "June", pages: 3 });
  const sequences = [];
  let ended = false;
  for await (const event of client({ fetch: fragile }).watch(id)) {
    if (event.type === "progress") sequences.push(event.sequence);
    if (event.type === "status") ended = event.status === "succeeded";
  }
  assert.ok(ended);
  assert.ok(asked.length >= 2, "it was opened again");
  assert.ok(asked.slice(1).some((id) => id !== undefined), "and told where to go on");
  assert.deepEqual(sequences, [...new Set(sequences)].sort((a, b) => a - b), "nothing came twice");
});

test("a job that fails is an error with its reason, and can be replayed", async () => {
  const retry = { max_attempts: 1 };
  const { id } = await jobs.submit("demo.flaky", { service: "mail", failures: 1 }, { retry });
  const failed = await jobs.wait(id, { timeoutMs: 20_000 }).then(assert.fail, (error) => error);
  assert.ok(failed instanceof JobFailed, String(failed));
  assert.equal(failed.status, "dead_lettered");
  assert.equal(failed.error.code, "upstream");
  const again = await jobs.replay(id, { input: { service: "mail", failures: 0 } });
  assert.notEqual(again, id);
  assert.equal(await jobs.wait(again, { timeoutMs: 20_000 }), 1);
});

test("a retrying job is retried now", async () => {
  const retry = { max_attempts: 2, first_delay: 3_600_000, max_delay: 3_600_000 };
  const { id } = await jobs.submit("demo.flaky", { service: "mail", failures: 1 }, { retry });
  for await (const event of jobs.watch(id)) {
    if (event.type === "status" && event.status === "retrying") break;
  }
  assert.equal(await jobs.retry(id), id);
  assert.equal(await jobs.wait(id, { timeoutMs: 20_000 }), 2);
});

test("a job is canceled, once", async () => {
  const { id } = await jobs.submit("demo.reminder", { note: "never" }, { delay_ms: 3_600_000 });
  assert.match((await jobs.why(id)).text, /\S/);
  assert.equal(await jobs.cancel(id, "not needed"), "canceled");
  assert.equal(await jobs.cancel(id), "already_finished");
  const failed = await jobs.wait(id).then(assert.fail, (error) => error);
  assert.equal(failed.status, "canceled");
});

test("waiting ends in time although the job goes on", async () => {
  const { id } = await jobs.submit("demo.reminder", { note: "later" }, { delay_ms: 3_600_000 });
  await assert.rejects(jobs.wait(id, { timeoutMs: 200 }), WaitTimeout);
  await assert.rejects(jobs.wait(id, { signal: AbortSignal.abort(new Error("left")) }), /left/);
  assert.equal((await jobs.get(id)).status, "scheduled");
  await jobs.cancel(id);
});

test("the feed tells of every job", async () => {
  const stop = new AbortController();
  const feed = jobs.feed({ handler_id: "demo.thumbnail", signal: stop.signal });
  // The feed begins when the server has the request, which nothing announces: submit until one shows up.
  const submitting = (async () => {
    while (!stop.signal.aborted) await jobs.wait((await jobs.submit("demo.thumbnail", PICTURE)).id);
  })();
  const { value } = await feed.next();
  stop.abort();
  await submitting;
  assert.equal(value.handler, "demo.thumbnail");
  assert.ok(value.sequence > 0 && value.job && value.status && value.at);
});

test("refusals are problems with a code", async () => {
  await check(jobs.get("1"), 404, "job_not_found");
  await check(jobs.submit("no.such.handler", {}), 404, "handler_not_found");
  await check(jobs.submit("demo.thumbnail", { picture: 1 }), 422, "invalid_input");
  await check(jobs.page({ filter: "nonsense" }), 422, "invalid_input");
  await check(client({ key: "wl_test_wrong" }).counts(), 401, "unauthorized");
});

async function check(call, status, code) {
  const error = await call.then(assert.fail, (error) => error);
  assert.ok(error instanceof Problem, String(error));
  assert.deepEqual([error.status, error.code], [status, code], error.message);
}

test("a server that is away for a moment is asked again", async () => {
  let calls = 0;
  const busy = async (url, init) => {
    calls += 1;
    if (calls === 1) throw new TypeError("fetch failed");
    if (calls === 2) return Response.json({ code: "unavailable" }, { status: 503, headers: { "retry-after": "0" } });
    return fetch(url, init);
  };
  assert.ok((await client({ fetch: busy }).counts()).succeeded >= 0);
  assert.equal(calls, 3);
});

test("a schedule is put, previewed, triggered and removed", async () => {
  const content = { cron: "30 2 * * *", zone: "Europe/Berlin", handler: "demo.thumbnail", input: PICTURE, missed: { all: 5 } };
  const name = `typescript / ${Date.now()}`;
  const made = await jobs.putSchedule(name, { ...content, version: 0 });
  assert.deepEqual([made.version, made.missed, made.paused], [1, { all: 5 }, false]);
  await assert.rejects(jobs.putSchedule(name, { ...content, version: 0 }), { status: 409, code: "schedule_changed" });
  await assert.rejects(jobs.putSchedule(name, { ...content, cron: "0 0 30 2 *" }), { status: 422, code: "invalid_input" });
  const next = await jobs.nextRuns(name, { count: 3, zone: "Asia/Kathmandu" });
  assert.deepEqual([next.zone, next.viewer_zone, next.runs.length], ["Europe/Berlin", "Asia/Kathmandu", 3]);
  assert.match(next.runs[0].local, /T0[23]:[03]0:00\+0[12]:00$/);
  assert.ok((await jobs.pauseSchedule(name)).paused);
  const { id } = await jobs.triggerSchedule(name);
  assert.equal(await jobs.wait(id, { timeoutMs: 20_000 }), "cat-10.webp");
  assert.equal((await jobs.scheduleRuns(name)).jobs[0].id, id);
  assert.ok(!(await jobs.resumeSchedule(name)).paused);
  assert.equal((await jobs.schedule(name)).version, 3);
  const names = [];
  for await (const schedule of jobs.schedules({ limit: 1 })) names.push(schedule.name);
  assert.ok(names.includes(name), String(names));
  await jobs.removeSchedule(name);
  await assert.rejects(jobs.schedule(name), { status: 404, code: "schedule_not_found" });
});

test("a submit that may not be repeated is not", async () => {
  let calls = 0;
  const away = async () => {
    calls += 1;
    throw new TypeError("fetch failed");
  };
  await assert.rejects(client({ fetch: away }).submit("demo.thumbnail", PICTURE), Unreachable);
  assert.equal(calls, 1);
});

test("an input that is no JSON is the caller's mistake", async () => {
  await assert.rejects(jobs.submit("demo.echo", { big: 1n }), TypeError);
});

test("a server that is not there is unreachable", async () => {
  // Port 9 is `discard`, which nobody runs.
  const nobody = client({ url: "http://127.0.0.1:9", retries: 0 });
  const error = await nobody.counts().then(assert.fail, (error) => error);
  assert.ok(error instanceof Unreachable, String(error));
  assert.match(error.message, /^GET \/counts: /);
  assert.ok(error.cause, "and says why");
  await assert.rejects(client({ fetch: hang, timeoutMs: 50, retries: 0 }).counts(), Unreachable);
  const left = client({ fetch: hang }).request("GET", "/counts", { signal: AbortSignal.timeout(50) });
  await assert.rejects(left, { name: "TimeoutError" }, "the caller's own wish stays the caller's");
});

/** A server that never answers. */
function hang(_, { signal }) {
  return new Promise((_, reject) => {
    // The timer of a signal alone does not keep the process alive.
    const alive = setTimeout(() => {}, 20_000);
    signal.addEventListener("abort", () => {
      clearTimeout(alive);
      reject(signal.reason);
    });
  });
}

/** The bytes of a stream up to the end of the first event that begins with `mark`, then an error. */
function cutAfter(body, mark) {
  const decoder = new TextDecoder();
  let seen = "";
  return body.pipeThrough(
    new TransformStream({
      transform(bytes, controller) {
        seen += decoder.decode(bytes, { stream: true });
        controller.enqueue(bytes);
        const at = seen.indexOf(mark);
        if (at >= 0 && seen.indexOf("\n\n", at) >= 0) controller.error(new TypeError("terminated"));
      },
    }),
  );
}
