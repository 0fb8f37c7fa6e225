// graphile-worker: lq=<size> turns worker.localQueue on, batch_ms=<ms> sets
// completeJobBatchDelay and failJobBatchDelay.
import pg from "pg";
import { Logger, makeWorkerUtils, run as runWorker } from "graphile-worker";
import { settings, hit, range, run } from "./harness.mjs";

const logger = new Logger(() => () => {});

await run("graphile-worker", async (url) => {
  const pgPool = new pg.Pool({ connectionString: url, max: settings.number("pool", 24) });
  pgPool.on("error", () => {});
  pgPool.on("connect", (client) => client.on("error", () => {}));
  const utils = await makeWorkerUtils({ pgPool, logger });
  await utils.migrate();
  return {
    remainingSql: "select count(*) from graphile_worker._private_jobs",
    enqueue: (n) => utils.addJob("noop", { n }),
    bulk: (from, to) => utils.addJobs(range(from, to).map((n) => ({ identifier: "noop", payload: { n } }))),
    async start() {
      const worker = { concurrentJobs: settings.number("conc", 10) };
      if (settings.number("lq", 0) > 0) worker.localQueue = { size: settings.number("lq", 0) };
      if (settings.number("batch_ms", -1) >= 0) {
        worker.completeJobBatchDelay = settings.number("batch_ms", -1);
        worker.failJobBatchDelay = settings.number("batch_ms", -1);
      }
      await runWorker({
        preset: { worker },
        pgPool,
        logger,
        noHandleSignals: true,
        taskList: { noop: (payload) => hit(payload.n) },
      });
    },
  };
});
