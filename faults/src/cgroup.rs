//! Takes processor time and disk from the processes of a server, by control groups of version 1. Called by rows about
//! resources; does nothing to any process but the server's own, and gives everything back when dropped.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use windlass_testkit::servers::PostgresServer;

/// Where the groups of a kind are.
fn root(kind: &str) -> PathBuf {
    Path::new("/sys/fs/cgroup").join(kind)
}

/// Why there are none on this machine.
pub fn lack() -> Option<String> {
    if !rustix::process::geteuid().is_root() {
        return Some("needs root, to make control groups".into());
    }
    let files = [root("cpu").join("cpu.cfs_quota_us"), root("blkio").join("blkio.throttle.write_bps_device")];
    // The top group of the processor has no quota; what it is made of is there.
    let there = root("cpu").join("cgroup.procs").exists() && files[1].exists();
    (!there).then(|| format!("needs control groups of version 1 ({} is not there)", files[1].display()))
}

/// A group with a limit; its processes go back to the top when it is dropped.
pub struct Group {
    kind: &'static str,
    dir: PathBuf,
    limit: Limit,
}

/// What a group has little of.
enum Limit {
    Processor,
    Disk { bytes: u64 },
}

impl Group {
    fn make(kind: &'static str, limit: Limit) -> Result<Group> {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let name = format!("windlass-faults-{}-{}", std::process::id(), COUNT.fetch_add(1, Ordering::Relaxed));
        let dir = root(kind).join(name);
        fs::create_dir(&dir).with_context(|| format!("make {}", dir.display()))?;
        Ok(Group { kind, dir, limit })
    }

    fn set(&self, name: &str, value: &str) -> Result<()> {
        fs::write(self.dir.join(name), value).with_context(|| format!("write {value} to {name}"))
    }

    /// So many percent of one processor for all of them together.
    pub fn of_processor(percent: u32) -> Result<Group> {
        let group = Group::make("cpu", Limit::Processor)?;
        group.set("cpu.cfs_period_us", "100000")?;
        group.set("cpu.cfs_quota_us", &(percent * 1_000).to_string())?;
        Ok(group)
    }

    /// So many bytes and writes a second to the disk that holds `path`.
    pub fn of_disk(path: &Path, bytes: u64, writes: u64) -> Result<Group> {
        let device = fs::metadata(path)?.dev();
        let (major, minor) = (rustix::fs::major(device), rustix::fs::minor(device));
        ensure!(major != 0, "{} is not on a disk of its own", path.display());
        let group = Group::make("blkio", Limit::Disk { bytes })?;
        group.set("blkio.throttle.write_bps_device", &format!("{major}:{minor} {bytes}"))?;
        group.set("blkio.throttle.write_iops_device", &format!("{major}:{minor} {writes}"))?;
        Ok(group)
    }

    /// Whether the limit has held its processes back since they were put into the group `over` ago, in words too.
    pub fn held_back(&self, over: Duration) -> Result<(String, bool)> {
        match &self.limit {
            Limit::Processor => {
                let stat = self.get("cpu.stat")?;
                let of = |name: &str| stat.lines().find_map(|line| line.strip_prefix(name)?.trim().parse::<u64>().ok());
                let (periods, throttled) = (of("nr_periods").unwrap_or(0), of("nr_throttled").unwrap_or(0));
                Ok((format!("in {throttled} of {periods} periods"), throttled > 0))
            }
            Limit::Disk { bytes } => {
                let written = self.get("blkio.throttle.io_service_bytes")?;
                let written =
                    written.lines().filter_map(|line| line.split_once(" Write ")?.1.trim().parse::<u64>().ok());
                let per_second = (written.sum::<u64>() as f64 / over.as_secs_f64()) as u64;
                // A little more than allowed, because the kernel hands room out in slices.
                let holds = per_second > 0 && per_second <= bytes + bytes / 4;
                Ok((format!("{per_second} of {bytes} bytes a second"), holds))
            }
        }
    }

    fn get(&self, name: &str) -> Result<String> {
        fs::read_to_string(self.dir.join(name)).with_context(|| format!("read {name}"))
    }

    /// Puts a server into the group: all that it has started, and all that it will start.
    pub fn take(&self, server: &PostgresServer) -> Result<()> {
        let main = server.pid().context("the server runs")?;
        self.set("cgroup.procs", &main.to_string())?;
        for pid in children_of(main) {
            // One that has just ended does not mind.
            let _ = self.set("cgroup.procs", &pid.to_string());
        }
        Ok(())
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        /// New sessions may start while the others leave.
        const TRIES: usize = 50;
        for _ in 0..TRIES {
            let pids = fs::read_to_string(self.dir.join("cgroup.procs")).unwrap_or_default();
            for pid in pids.lines() {
                let _ = fs::write(root(self.kind).join("cgroup.procs"), pid);
            }
            if fs::remove_dir(&self.dir).is_ok() {
                return;
            }
            std::thread::sleep(Duration::from_millis(20));
        }
    }
}

fn children_of(parent: u32) -> Vec<u32> {
    let path = format!("/proc/{parent}/task/{parent}/children");
    fs::read_to_string(path).unwrap_or_default().split_whitespace().filter_map(|pid| pid.parse().ok()).collect()
}
