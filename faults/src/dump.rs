//! What a database holds, read by statements of the harness's own and not by the code under test. Called by `rig` when all
//! processes have ended, and to learn whether anything is left to do. Never writes.

use std::collections::BTreeMap;
use std::path::Path;

use anyhow::{Context, Result};
use rusqlite::{Connection, OpenFlags, Row as SqliteRow};
use tokio_postgres::{Client, Row};
use uuid::Uuid;
use windlass::{Status, Timestamp};

use crate::child::SIDE_TABLE;
use crate::history::{Counter, Dump, Job, Key, Place, Step};
use crate::log::mono;

/// What the tag of a schedule's job begins with.
const SCHEDULE_TAG: &str = "schedule:";

/// How many jobs have not ended.
pub async fn unfinished_in_postgres(client: &Client) -> Result<i64> {
    let sql = "select coalesce((select sum(cardinality(ids)) from windlass.ready), 0)::bigint
                    + coalesce((select sum(cardinality(ids)) from windlass.lease), 0)::bigint
                    + (select count(*) from windlass.scheduled) + (select count(*) from windlass.gated)";
    Ok(client.query_one(sql, &[]).await?.get(0))
}

/// The same in a file, beside the process that has it open.
pub fn unfinished_in_sqlite(path: &Path) -> Result<i64> {
    let file = open(path)?;
    let sql = "select coalesce((select sum(jobs) from windlass_ready), 0) - (select count(*) from windlass_withdrawn)
                    + coalesce((select sum(length(jobs)) / 12 from windlass_lease), 0)
                    + (select count(*) from windlass_scheduled) + (select count(*) from windlass_gated)";
    Ok(file.query_row(sql, [], |row| row.get(0))?)
}

/// How far schedules have come, by name: the next nominal time and the last one that was fired, Unix microseconds.
pub type Progress = BTreeMap<String, (Option<i64>, Option<i64>)>;

/// How far schedules have come.
pub async fn progress_in_postgres(client: &Client) -> Result<Progress> {
    let sql = "select name, (extract(epoch from next_at) * 1000000)::bigint,
                      (extract(epoch from last_at) * 1000000)::bigint
               from windlass.schedule";
    Ok(client.query(sql, &[]).await?.iter().map(|row| (row.get(0), (row.get(1), row.get(2)))).collect())
}

/// The same in a file, beside the process that has it open.
pub fn progress_in_sqlite(path: &Path) -> Result<Progress> {
    let sql = "select name, next_at, last_at from windlass_schedule";
    let found = rows(&open(path)?, sql, |row| Ok((row.get(0)?, (row.get(1)?, row.get(2)?))))?;
    Ok(found.into_iter().collect())
}

/// All tables of a database.
pub async fn of_postgres(client: &Client) -> Result<Dump> {
    let us = |column: &str| format!("(extract(epoch from {column}) * 1000000)::bigint");
    let jobs = format!(
        "select id, tenant_id, handler, payload->>'call', payload->>'canary', ordering_key, priority, {}, {},
                spec->>'parent', (select t.tag from unnest(tags) t(tag) where t.tag like '{SCHEDULE_TAG}%'), {}
         from windlass.job order by id",
        us("created_at"),
        us("run_at"),
        us("(spec->>'nominal_at')::timestamptz")
    );
    let places = format!(
        "select x.id, 'ready', 0::smallint, failed + recoveries, failed, recoveries, null::bigint, null::bigint,
                null::text
         from windlass.ready cross join unnest(ids) x(id)
         union all select id, 'scheduled', kind, failed + recoveries, failed, recoveries, null, {}, null
         from windlass.scheduled
         union all select id, 'gated', 3::smallint, failed + recoveries, failed, recoveries, null, null, gate from windlass.gated
         union all select x.id, 'lease', 5::smallint, failed + recoveries + 1, failed, recoveries, lease_id, {}, null
         from windlass.lease cross join unnest(ids) x(id)
         union all select id, 'outcome', status, attempt, failed, recoveries, null, {}, reason from windlass.outcome",
        us("run_at"),
        us("claimed_at"),
        us("finished_at")
    );
    let mut dump = Dump { mono: mono(), ..Dump::default() };
    dump.jobs = client.query(&jobs, &[]).await?.iter().map(job).collect();
    dump.places = client.query(&places, &[]).await?.iter().map(place).collect();
    let steps = "select id, status, attempt, failed, recoveries from windlass.event order by id, seq";
    dump.steps = client.query(steps, &[]).await?.iter().map(step).collect();
    let keys = "select kind::text, tenant_id, scope, key, id from windlass.job_key";
    dump.keys = client.query(keys, &[]).await?.iter().map(key).collect();
    // Of one moment: what is gone by then is neither counted nor listed.
    let at: String = client.query_one("select clock_timestamp()::text", &[]).await?.get(0);
    let counters = format!(
        "select tenant_id, status, sum(n)::bigint from
             (select tenant_id, status, n - gone as n from windlass.counter
              union all
              select tenant_id, status, -n from windlass.counter_end where until <= '{at}'
              union all
              select x.tenant_id, x.status, x.n from windlass.counter_delta d
              cross join unnest(d.tenants, d.statuses, d.counts, d.untils) x(tenant_id, status, n, until)
              where x.until is null or x.until > '{at}') c
         group by 1, 2"
    );
    dump.counters = client.query(&counters, &[]).await?.iter().map(counter).collect();
    let hidden = format!("select id from windlass.outcome where purge_at <= '{at}'");
    dump.hidden = client.query(&hidden, &[]).await?.iter().map(|row| row.get(0)).collect();
    let purged = "select target from windlass.audit where action = 'JOB_PURGED'";
    let targets = client.query(purged, &[]).await?;
    dump.purged = targets.iter().filter_map(|row| row.get::<_, String>(0).parse().ok()).collect();
    if client.query_one("select to_regclass($1) is not null", &[&SIDE_TABLE]).await?.get(0) {
        let rows = client.query(&format!("select call from {SIDE_TABLE}"), &[]).await?;
        dump.side_rows = rows.iter().map(|row| unsigned(row.get(0))).collect();
    }
    let leftovers = "select 'session ' || pid || ' of ' || application_name || ' is ' || state
                     from pg_stat_activity
                     where datname = current_database() and state like 'idle in transaction%'
                     union all
                     select 'advisory lock of ' || pid from pg_locks l
                     where locktype = 'advisory' and database = (select oid from pg_database
                                                                 where datname = current_database())";
    dump.leftovers = client.query(leftovers, &[]).await?.iter().map(|row| row.get(0)).collect();
    Ok(dump)
}

fn job(row: &Row) -> Job {
    Job {
        job: row.get(0),
        tenant: row.get::<_, Uuid>(1),
        handler: row.get(2),
        call: number(row.get(3)),
        canary: row.get::<_, Option<String>>(4).and_then(|text| text.parse().ok()),
        ordering: row.get(5),
        priority: row.get(6),
        created_at: row.get(7),
        run_at: row.get(8),
        parent: number(row.get(9)),
        schedule: row.get::<_, Option<String>>(10).and_then(|tag| schedule(&tag)),
        nominal: row.get(11),
    }
}

fn place(row: &Row) -> Place {
    Place {
        job: row.get(0),
        table: row.get(1),
        status: status(row.get(2)),
        attempt: small(row.get::<_, i32>(3).into()),
        failed: small(row.get::<_, i32>(4).into()),
        recoveries: small(row.get::<_, i32>(5).into()),
        lease: row.get(6),
        at: row.get(7),
        reason: row.get(8),
    }
}

fn step(row: &Row) -> Step {
    Step {
        job: row.get(0),
        status: status(row.get(1)),
        attempt: small(row.get::<_, i32>(2).into()),
        failed: small(row.get::<_, i32>(3).into()),
        recoveries: small(row.get::<_, i32>(4).into()),
    }
}

fn key(row: &Row) -> Key {
    Key { kind: row.get(0), tenant: row.get(1), scope: row.get(2), key: row.get(3), job: row.get(4) }
}

fn counter(row: &Row) -> Counter {
    Counter { tenant: row.get(0), status: status(row.get(1)), count: row.get(2) }
}

/// All tables of a file. No process may have it open for writing.
pub fn of_sqlite(path: &Path) -> Result<Dump> {
    let file = open(path)?;
    let mut dump = Dump { mono: mono(), ..Dump::default() };
    dump.jobs = rows(
        &file,
        "select id, tenant, handler, payload->>'call', payload->>'canary', ordering_key, priority, created_at, run_at,
                iif(json_valid(spec), spec, '{}')->>'parent',
                (select value from json_each(iif(json_valid(tags), tags, '[]')) where value like 'schedule:%'),
                iif(json_valid(spec), spec, '{}')->>'nominal_at'
         from windlass_job order by id",
        |row| {
            Ok(Job {
                job: row.get(0)?,
                tenant: uuid(row.get(1)?),
                handler: row.get(2)?,
                call: row.get::<_, Option<i64>>(3)?.map(unsigned),
                canary: row.get::<_, Option<String>>(4)?.and_then(|text| text.parse().ok()),
                ordering: row.get(5)?,
                priority: row.get(6)?,
                created_at: row.get(7)?,
                run_at: row.get(8)?,
                parent: row.get::<_, Option<String>>(9)?.and_then(|text| text.parse().ok()),
                schedule: row.get::<_, Option<String>>(10)?.and_then(|tag| schedule(&tag)),
                nominal: row.get::<_, Option<String>>(11)?.and_then(|at| Some(Timestamp::parse(&at)?.as_micros())),
            })
        },
    )?;
    dump.places = places(&file)?;
    let steps = "select job, status, attempt, failed, recoveries from windlass_event order by job, n";
    dump.steps = rows(&file, steps, |row| {
        Ok(Step {
            job: row.get(0)?,
            status: status(row.get(1)?),
            attempt: small(row.get(2)?),
            failed: small(row.get(3)?),
            recoveries: small(row.get(4)?),
        })
    })?;
    let keys = "select case kind when 0 then 'i' else 'u' end, tenant, handler, key, job from windlass_job_key";
    dump.keys = rows(&file, keys, |row| {
        Ok(Key { kind: row.get(0)?, tenant: uuid(row.get(1)?), scope: row.get(2)?, key: row.get(3)?, job: row.get(4)? })
    })?;
    // What is past its time and still there is counted here; the store subtracts it when it is asked.
    let counters = "select tenant, status, jobs - gone from windlass_counter";
    dump.counters = rows(&file, counters, |row| {
        Ok(Counter { tenant: uuid(row.get(0)?), status: status(row.get(1)?), count: row.get(2)? })
    })?;
    let purged = "select target from windlass_audit where action = 'JOB_PURGED'";
    let targets: Vec<String> = rows(&file, purged, |row| row.get(0))?;
    dump.purged = targets.iter().filter_map(|target| target.parse().ok()).collect();
    Ok(dump)
}

fn places(file: &Connection) -> Result<Vec<Place>> {
    let withdrawn: Vec<i64> = rows(file, "select job from windlass_withdrawn", |row| row.get(0))?;
    let mut places = Vec::new();
    let at = |job, table: &str, code, failed: i64, recoveries: i64| Place {
        job,
        table: table.into(),
        status: status(code),
        attempt: small(failed + recoveries),
        failed: small(failed),
        recoveries: small(recoveries),
        lease: None,
        at: None,
        reason: None,
    };
    let chunks: Vec<(i64, i64, Vec<u8>)> = rows(file, "select failed, recoveries, ids from windlass_ready", |row| {
        Ok((row.get(0)?, row.get(1)?, row.get(2)?))
    })?;
    for (failed, recoveries, ids) in chunks {
        for id in ids.chunks_exact(8) {
            let id = i64::from_le_bytes(id.try_into().expect("eight bytes"));
            // One that ended while it waited is still named by its chunk.
            if !withdrawn.contains(&id) {
                places.push(at(id, "ready", Status::Pending.code(), failed, recoveries));
            }
        }
    }
    let scheduled = "select job, kind, failed, recoveries, due from windlass_scheduled";
    places.extend(rows(file, scheduled, |row| {
        Ok(Place { at: row.get(4)?, ..at(row.get(0)?, "scheduled", row.get(1)?, row.get(2)?, row.get(3)?) })
    })?);
    let gated = "select job, failed, recoveries, gate from windlass_gated";
    places.extend(rows(file, gated, |row| {
        let place = at(row.get(0)?, "gated", Status::Blocked.code(), row.get(1)?, row.get(2)?);
        Ok(Place { reason: row.get(3)?, ..place })
    })?);
    let leases: Vec<(i64, i64, Vec<u8>)> = rows(file, "select lease, claimed_at, jobs from windlass_lease", |row| {
        Ok((row.get(0)?, row.get(1)?, row.get(2)?))
    })?;
    for (lease, claimed_at, jobs) in leases {
        for held in jobs.chunks_exact(12) {
            let id = i64::from_le_bytes(held[..8].try_into().expect("eight bytes"));
            let count = |at: usize| i64::from(u16::from_le_bytes([held[at], held[at + 1]]));
            let place = at(id, "lease", Status::Running.code(), count(8), count(10));
            places.push(Place { attempt: place.attempt + 1, lease: Some(lease), at: Some(claimed_at), ..place });
        }
    }
    let outcomes = "select job, status, attempt, failed, recoveries, at, reason from windlass_outcome";
    places.extend(rows(file, outcomes, |row| {
        let place = at(row.get(0)?, "outcome", row.get(1)?, row.get(3)?, row.get(4)?);
        Ok(Place { attempt: small(row.get(2)?), at: row.get(5)?, reason: row.get(6)?, ..place })
    })?);
    Ok(places)
}

fn open(path: &Path) -> Result<Connection> {
    let file = Connection::open_with_flags(path, OpenFlags::SQLITE_OPEN_READ_ONLY);
    let file = file.with_context(|| format!("open {}", path.display()))?;
    file.busy_timeout(std::time::Duration::from_secs(5))?;
    Ok(file)
}

fn rows<T>(file: &Connection, sql: &str, read: impl Fn(&SqliteRow<'_>) -> rusqlite::Result<T>) -> Result<Vec<T>> {
    let mut statement = file.prepare(sql).with_context(|| sql.to_owned())?;
    let rows = statement.query_map([], |row| read(row))?;
    rows.collect::<rusqlite::Result<Vec<T>>>().with_context(|| sql.to_owned())
}

fn status(code: i16) -> String {
    Status::from_code(code).map_or_else(|| format!("status {code}"), |status| status.to_string())
}

/// The schedule that a tag names.
fn schedule(tag: &str) -> Option<String> {
    tag.strip_prefix(SCHEDULE_TAG).map(str::to_owned)
}

fn uuid(bytes: Vec<u8>) -> Uuid {
    Uuid::from_slice(&bytes).unwrap_or(Uuid::max())
}

fn number<T: std::str::FromStr>(text: Option<String>) -> Option<T> {
    text?.parse().ok()
}

fn small(value: i64) -> u16 {
    u16::try_from(value).unwrap_or(u16::MAX)
}

fn unsigned(value: i64) -> u64 {
    u64::try_from(value).unwrap_or(0)
}
