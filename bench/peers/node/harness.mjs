// The benches for the Node peers: the same steps, words and output as bench/src/benches.rs.
// Called as `node PEER.mjs BENCH [key=value ...]`; prints one line of JSON.
import pg from "pg";

const [bench, ...words] = process.argv.slice(2);
const values = Object.fromEntries(words.map((word) => word.split("=")));
export const settings = {
  bench,
  number: (key, otherwise) => Number(values[key] ?? otherwise),
};

const DATABASE = "windlass_bench_run";
const BACKLOG = 5000;
const FILLING = 90000;
const sleep = (ms) => new Promise((resolve) => setTimeout(resolve, ms));
const rate = (jobs, seconds) => Math.round(jobs / seconds);
const now = () => performance.now();

// The start of every job by its number.
const starts = new Map();
let repeated = 0;

// What the no-op handler does.
export function hit(number) {
  if (starts.has(number)) repeated++;
  else starts.set(number, now());
}

export const range = (from, to) => Array.from({ length: to - from }, (_, i) => from + i);

// The main function of a peer program: `setup` gets the URL of an empty database and returns
// { enqueue(number), bulk(from, to), start(), remainingSql }.
export async function run(name, setup) {
  const url = await freshDatabase();
  const admin = await connect(url);
  const version = (await admin.query("show server_version")).rows[0].server_version;
  const peer = await setup(url);
  const result = await benches[bench]({ ...peer, url, admin });
  console.log(JSON.stringify({ ...result, peer: name, bench, postgres: version }));
  process.exit(0);
}

const benches = {
  async bulk(peer) {
    const begun = now();
    const n = await fill(peer, settings.number("n", 100000), settings.number("cap", 20) * 1000);
    const seconds = (now() - begun) / 1000;
    return { n, seconds, jobs_per_second: rate(n, seconds) };
  },

  async enqueue(peer) {
    const count = settings.number("n", 20000), callers = settings.number("sub", 16);
    const cap = settings.number("cap", 30) * 1000;
    await Promise.all(range(0, callers).map((i) => peer.enqueue(1e9 + i)));
    let next = 0, n = 0;
    const begun = now();
    const call = async () => {
      while (next < count && now() - begun < cap) {
        await peer.enqueue(next++);
        n++;
      }
    };
    await Promise.all(range(0, callers).map(call));
    const seconds = (now() - begun) / 1000;
    return { n, seconds, jobs_per_second: rate(n, seconds) };
  },

  async drain(peer) {
    const n = settings.number("n", 20000), cap = settings.number("cap", 60) * 1000;
    const filled = await fill(peer, n, FILLING);
    if (filled !== n) throw new Error(`only ${filled} of ${n} jobs were submitted in ${FILLING} ms`);
    await rest(peer.admin);
    const begun = now();
    await peer.start();
    while (starts.size < n && now() - begun < cap) await sleep(5);
    let unfinished;
    for (;;) {
      unfinished = Number((await peer.admin.query(peer.remainingSql)).rows[0].count);
      if (unfinished === 0 || now() - begun >= cap + 5000) break;
      await sleep(5);
    }
    const seconds = (now() - begun) / 1000;
    await sleep(300);
    return { n, seconds, jobs_per_second: rate(n - unfinished, seconds), unfinished, repeated };
  },

  async latency(peer) {
    const n = settings.number("n", 200), gap = settings.number("gap", 20);
    await peer.start();
    await sleep(1000);
    for (const i of range(0, 3)) await peer.enqueue(1e9 + i);
    await sleep(3000);
    const sent = [], calls = [];
    const begun = now();
    for (let i = 0; i < n; i++) {
      const due = begun + i * gap - now();
      if (due > 0) await sleep(due);
      sent[i] = now();
      calls.push(peer.enqueue(i));
    }
    await Promise.all(calls);
    const deadline = now() + 30000;
    const missing = () => sent.filter((_, i) => !starts.has(i)).length;
    while (missing() > 0 && now() < deadline) await sleep(5);
    const waits = sent.flatMap((at, i) => (starts.has(i) ? [Math.max(0, starts.get(i) - at)] : [])).sort((a, b) => a - b);
    const quantile = (share) => Math.round(waits[Math.max(1, Math.ceil(waits.length * share)) - 1] * 100) / 100;
    return {
      n, p50_ms: quantile(0.5), p95_ms: quantile(0.95), p99_ms: quantile(0.99), max_ms: quantile(1),
      unfinished: missing(), repeated,
    };
  },

  async held(peer) {
    const before = settings.number("before", 10) * 1000;
    const during = Math.max(settings.number("during", 30) * 1000, before);
    const backlog = settings.number("backlog", BACKLOG);
    const batch = Math.min(settings.number("batch", 1000), backlog);
    let submitted = 0, feeding = true;
    const feedOnce = async () => {
      await peer.bulk(submitted, submitted + batch);
      submitted += batch;
    };
    const feed = async () => {
      while (feeding) {
        if (submitted - starts.size < backlog) await feedOnce();
        else await sleep(1);
      }
    };
    const rateOver = async (ms) => {
      const from = starts.size, begun = now();
      await sleep(ms);
      return rate(starts.size - from, (now() - begun) / 1000);
    };
    await feedOnce();
    await rest(peer.admin);
    await peer.start();
    feed();
    await sleep(2000);
    const free = await rateOver(before);
    const snapshot = await connect(peer.url);
    await snapshot.query("begin isolation level repeatable read");
    await snapshot.query("select 1");
    await sleep(during - before);
    const burdened = await rateOver(before);
    const held = await snapshot.query("select 1").then(() => true, () => false);
    feeding = false;
    if (!held) return { skipped: "the server ended the transaction that held the snapshot" };
    return {
      n: submitted, seconds: during / 1000, free_per_second: free, held_per_second: burdened, ratio: burdened / free, repeated,
    };
  },
};

// Submits the jobs below `count` in bulk, until `cap` has passed; how many it were.
async function fill(peer, count, cap) {
  const callers = settings.number("sub", 1), batch = settings.number("batch", 1000);
  let next = 0;
  const begun = now();
  const call = async () => {
    while (next < count && now() - begun < cap) {
      const from = next;
      next = Math.min(from + batch, count);
      await peer.bulk(from, next);
    }
  };
  await Promise.all(range(0, callers).map(call));
  return next;
}

async function connect(url) {
  const client = new pg.Client({ connectionString: url });
  await client.connect();
  return client;
}

async function freshDatabase() {
  const base = process.env.PEER_DATABASE_URL;
  const admin = await connect(base);
  await admin.query(`drop database if exists ${DATABASE} with (force)`);
  await admin.query(`create database ${DATABASE}`);
  await admin.query("checkpoint");
  await admin.end();
  return `${base.slice(0, base.lastIndexOf("/"))}/${DATABASE}`;
}

async function rest(admin) {
  await admin.query("vacuum analyze");
  await admin.query("checkpoint");
}
