//! What a measurement costs: CPU of this process and of a local server, WAL, commits, dead tuples, bytes. Used by the
//! scenarios around what they time. A cost that cannot be read is absent, never guessed.

use std::path::Path;
use std::time::{Duration, Instant};

use tokio_postgres::Client;

use crate::bench::figures::{Figure, Figures};
use crate::bench::place::{Throwaway, connect, failed};
use crate::error::Result;

/// The costs of one measurement: opened before the store, started and stopped around what is timed, closed after the
/// store is.
pub(crate) struct Costs<'a> {
    place: &'a Throwaway,
    server: Option<Server>,
    commits_before: Option<f64>,
    at_start: Reading,
    at_stop: Reading,
}

/// What has been used so far.
#[derive(Clone, Copy, Debug, Default)]
struct Reading {
    at: Option<Instant>,
    cpu: Option<Duration>,
    /// Of everything on the machine.
    busy: Option<Duration>,
    server_cpu: Option<Duration>,
    wal: Option<f64>,
}

struct Server {
    client: Client,
    postmaster: Option<u32>,
}

impl<'a> Costs<'a> {
    /// Begins, while no store is open.
    pub(crate) async fn open(place: &'a Throwaway) -> Result<Costs<'a>> {
        let server = match place.database() {
            None => None,
            Some(database) => {
                // Not in the measured database: what is asked here must not be counted there.
                let client = connect(database.server).await?;
                let postmaster = local_postmaster(&client).await?;
                Some(Server { client, postmaster })
            }
        };
        let mut costs =
            Costs { place, server, commits_before: None, at_start: Reading::default(), at_stop: Reading::default() };
        costs.commits_before = costs.commits().await?;
        Ok(costs)
    }

    /// What is timed begins now.
    pub(crate) async fn start(&mut self) -> Result {
        self.at_start = self.read().await?;
        Ok(())
    }

    /// What is timed has ended.
    pub(crate) async fn stop(&mut self) -> Result {
        self.at_stop = self.read().await?;
        Ok(())
    }

    /// Writes the costs of `jobs` down, once the store is closed.
    pub(crate) async fn close(self, jobs: u64, figures: &mut Figures) -> Result {
        let per_job = |cost: Option<f64>| cost.map(|cost| cost / jobs as f64);
        let micros =
            |start: Option<Duration>, stop: Option<Duration>| Some(stop?.saturating_sub(start?).as_secs_f64() * 1e6);
        figures.set(Figure::OtherCpu, self.others());
        figures.set(Figure::CpuPerJob, per_job(micros(self.at_start.cpu, self.at_stop.cpu)));
        if self.place.database().is_some() {
            self.place.settle().await?;
            let (start, stop) = (self.at_start, self.at_stop);
            figures.set(Figure::ServerCpuPerJob, per_job(micros(start.server_cpu, stop.server_cpu)));
            figures.set(Figure::WalPerJob, per_job(difference(start.wal, stop.wal)));
            figures.set(Figure::CommitsPerJob, per_job(difference(self.commits_before, self.commits().await?)));
            figures.set(Figure::DeadTuples, dead_tuples(self.place).await?);
        }
        Ok(())
    }

    /// Transactions in the measured database so far; complete only while no store is open.
    pub(crate) async fn commits(&self) -> Result<Option<f64>> {
        let (Some(server), Some(database)) = (&self.server, self.place.database()) else { return Ok(None) };
        let sql = "select xact_commit::float8 from pg_stat_database where datname = $1";
        let row = server.client.query_opt(sql, &[&database.name]).await.map_err(failed)?;
        Ok(row.map(|row| row.get(0)))
    }

    /// How long this process has used the processors since `start`, if that can be read.
    pub(crate) fn cpu(&self) -> Option<Duration> {
        Some(self.at_stop.cpu?.saturating_sub(self.at_start.cpu?))
    }

    /// The part of the machine that was busy with neither this process nor a server seen here: noise, if it is much.
    fn others(&self) -> Option<f64> {
        let (start, stop) = (&self.at_start, &self.at_stop);
        let ours = stop.cpu?.saturating_sub(start.cpu?)
            + stop.server_cpu.unwrap_or_default().saturating_sub(start.server_cpu.unwrap_or_default());
        let busy = stop.busy?.saturating_sub(start.busy?);
        let all = stop.at?.duration_since(start.at?) * u32::try_from(processors()?).ok()?;
        Some(busy.saturating_sub(ours).as_secs_f64() / all.as_secs_f64())
    }

    async fn read(&self) -> Result<Reading> {
        let mut reading = Reading { at: Some(Instant::now()), cpu: own_cpu(), busy: busy_cpu(), ..Reading::default() };
        if let Some(server) = &self.server {
            reading.server_cpu = server.postmaster.and_then(family_cpu);
            let sql = "select (pg_current_wal_insert_lsn() - '0/0')::float8";
            reading.wal = Some(server.client.query_one(sql, &[]).await.map_err(failed)?.get(0));
        }
        Ok(reading)
    }
}

/// What came between two readings.
pub(crate) fn difference(before: Option<f64>, after: Option<f64>) -> Option<f64> {
    Some(after? - before?)
}

/// Rows that are dead and not yet cleaned, as the server has counted them.
async fn dead_tuples(place: &Throwaway) -> Result<Option<f64>> {
    let Some(database) = place.database() else { return Ok(None) };
    let client = connect(database.url).await?;
    let sql = "select coalesce(sum(n_dead_tup), 0)::float8 from pg_stat_user_tables";
    Ok(Some(client.query_one(sql, &[]).await.map_err(failed)?.get(0)))
}

/// The size of everything stored: tables with their indexes, or the file. To be asked while no store is open.
pub(crate) async fn bytes(place: &Throwaway) -> Result<Option<f64>> {
    if let Some(file) = place.file() {
        return Ok(std::fs::metadata(file).ok().map(|meta| meta.len() as f64));
    }
    let Some(database) = place.database() else { return Ok(None) };
    let client = connect(database.url).await?;
    let sql = "select coalesce(sum(pg_total_relation_size(c.oid)), 0)::float8
        from pg_class c join pg_namespace n on n.oid = c.relnamespace where n.nspname = 'windlass' and c.relkind = 'r'";
    Ok(Some(client.query_one(sql, &[]).await.map_err(failed)?.get(0)))
}

/// CPU that this process and the nodes it has started have used.
fn own_cpu() -> Option<Duration> {
    family_cpu(std::process::id())
}

/// CPU that everything on the machine has used.
fn busy_cpu() -> Option<Duration> {
    let text = std::fs::read_to_string("/proc/stat").ok()?;
    let ticks: Vec<u64> = text.lines().next()?.split_whitespace().skip(1).filter_map(|n| n.parse().ok()).collect();
    // user, nice, system, idle, iowait, irq, softirq, steal: all but idle and waiting.
    let busy = ticks.iter().take(8).sum::<u64>().checked_sub(ticks.get(3)? + ticks.get(4)?)?;
    Some(Duration::from_millis(busy * 1_000 / TICKS_PER_SECOND))
}

fn processors() -> Option<usize> {
    std::thread::available_parallelism().ok().map(Into::into)
}

/// The memory that a process has in use, and the most it has had.
pub(crate) fn memory(pid: u32) -> Option<(f64, f64)> {
    let text = std::fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
    let kilobytes = |name: &str| {
        let line = text.lines().find_map(|line| line.strip_prefix(name))?;
        line.split_whitespace().next()?.parse::<f64>().ok()
    };
    Some((kilobytes("VmRSS:")? * 1024.0, kilobytes("VmHWM:")? * 1024.0))
}

/// The server's first process, if it runs on this machine and can be seen: a backend of ours must be found here under
/// the id the server gives it, by the name the server gives it.
async fn local_postmaster(client: &Client) -> Result<Option<u32>> {
    let row = client.query_one("select pg_backend_pid(), current_database()::text", &[]).await.map_err(failed)?;
    let (pid, database): (i32, String) = (row.get(0), row.get(1));
    let Ok(pid) = u32::try_from(pid) else { return Ok(None) };
    let title = std::fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
    let title = String::from_utf8_lossy(&title);
    let ours = title.contains("postgres") && title.contains(&database);
    Ok(if ours { Stat::of(pid).map(|stat| stat.parent) } else { None })
}

/// CPU that a process and its children have used, also those children that have ended.
fn family_cpu(parent: u32) -> Option<Duration> {
    let first = Stat::of(parent)?;
    let processes = std::fs::read_dir("/proc").ok()?;
    let children = processes.filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok()).filter_map(Stat::of);
    let children: Duration = children.filter(|stat| stat.parent == parent).map(|stat| stat.own + stat.ended).sum();
    Some(first.own + first.ended + children)
}

/// What the system knows of a process.
struct Stat {
    parent: u32,
    own: Duration,
    /// Of its children that have ended.
    ended: Duration,
}

/// Ticks of the clock that /proc counts in: what Linux shows to programs, whatever it uses inside.
const TICKS_PER_SECOND: u64 = 100;

impl Stat {
    fn of(pid: u32) -> Option<Stat> {
        let text = std::fs::read_to_string(Path::new("/proc").join(pid.to_string()).join("stat")).ok()?;
        Stat::parse(&text)
    }

    /// Reads `pid (name) state ppid …`; the name may hold anything, also parentheses.
    fn parse(text: &str) -> Option<Stat> {
        let fields: Vec<&str> = text.rsplit_once(')')?.1.split_whitespace().collect();
        let ticks =
            |n: usize| Some(Duration::from_millis(fields.get(n)?.parse::<u64>().ok()? * 1_000 / TICKS_PER_SECOND));
        Some(Stat {
            parent: fields.get(1)?.parse().ok()?,
            own: ticks(11)? + ticks(12)?,
            ended: ticks(13)? + ticks(14)?,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_is_read_whatever_its_name() {
        let stat = Stat::parse("42 (a) b (c) S 7 42 42 0 -1 4194304 1 2 3 4 150 50 10 5 20 0 1 0 9 9 9").expect("read");
        assert_eq!((stat.parent, stat.own, stat.ended), (7, Duration::from_secs(2), Duration::from_millis(150)));
        assert!(Stat::parse("").is_none());
    }

    #[cfg(target_os = "linux")]
    #[test]
    fn work_shows_in_the_own_cpu() {
        let before = own_cpu().expect("linux has /proc");
        let mut n = 0_u64;
        while own_cpu().expect("still there") < before + Duration::from_millis(20) {
            n = std::hint::black_box(n + 1);
        }
    }
}
