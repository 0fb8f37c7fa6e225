// Compiled, never run: the types say what callers may write, and refuse what they may not.

import { JobFailed, Windlass } from "../src/index.js";
import type { Job, Options, Status } from "../src/index.js";

export async function example(jobs: Windlass): Promise<number | undefined> {
  const options: Options = { priority: "high", delay_ms: 500, tags: ["vip"] };
  const { id } = await jobs.submit("mail.send", { to: "ada" }, options);
  const job: Job = await jobs.get(id);
  const status: Status = job.status;
  // @ts-expect-error a status is one of a few words
  const wrong: Status = "finished";
  // @ts-expect-error an option that does not exist
  await jobs.submit("mail.send", {}, { colour: "red" });
  for await (const event of jobs.watch(id)) {
    if (event.type === "progress") return event.percent;
    // @ts-expect-error only progress has a percentage
    event.percent;
  }
  try {
    return await jobs.wait<number>(id, { timeoutMs: 1000 });
  } catch (error) {
    if (error instanceof JobFailed) console.error(status, wrong, error.error?.code);
    throw error;
  }
}
