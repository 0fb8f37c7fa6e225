// pg-boss: fetch=<batchSize>, conc=<localConcurrency>, burst=1 keeps fetching while
// batches are full, notify=1 turns LISTEN/NOTIFY on, poll=<seconds>.
import * as pgBoss from "pg-boss";
import { settings, hit, range, run } from "./harness.mjs";

const PgBoss = pgBoss.PgBoss ?? pgBoss.default;

await run("pg-boss", async (url) => {
  const notify = settings.number("notify", 0) === 1;
  const boss = new PgBoss({ connectionString: url, max: settings.number("pool", 24), useListenNotify: notify });
  boss.on("error", (e) => console.error(e));
  await boss.start();
  await boss.createQueue("noop", { notify });
  return {
    remainingSql: "select count(*) from pgboss.job where name = 'noop' and state <> 'completed'",
    enqueue: (n) => boss.send("noop", { n }),
    bulk: (from, to) => boss.insert("noop", range(from, to).map((n) => ({ data: { n } }))),
    start: () =>
      boss.work(
        "noop",
        {
          batchSize: settings.number("fetch", 1),
          localConcurrency: settings.number("conc", 1),
          burstWhenBatchFull: settings.number("burst", 0) === 1,
          pollingIntervalSeconds: settings.number("poll", 2),
        },
        async (jobs) => jobs.forEach((job) => hit(job.data.n)),
      ),
  };
});
