//! Rows about the SQLite file: killed writers, a full disk, two processes, a reader that never ends. Called by `runner`
//! through the matrix.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use rusqlite::{Connection, OpenFlags};
use rustix::mount::{MountFlags, UnmountFlags, mount, mount_remount, unmount};
use serde_json::json;

use crate::child::{Load, Order};
use crate::event::{Event, What};
use crate::fleet::Under;
use crate::rig::{Rig, SOON};

/// F37: the process is killed at random instants. What was acknowledged is there, and the file is whole.
pub(super) async fn killed(rig: &mut Rig) -> Result<()> {
    let seed = rig.seed();
    let at = rig.fleet(1, Load { seed, tasks: 8, pause_ms: 2, ..Load::default() }).await?;
    for _ in 0..rig.profile.times(12, 500) {
        rig.go_on_for(20..400).await;
        rig.kill_9(at);
        rig.restart(at).await?;
    }
    rig.quiet(Duration::from_secs(60)).await?;
    is_whole(rig)
}

/// F38: the disk under the file is full; when it grows, work goes on.
pub(super) async fn disk_full(rig: &mut Rig) -> Result<()> {
    let disk = Disk::mount(rig.dir.join("disk"), 8)?;
    rig.url = format!("sqlite:{}", disk.0.join("jobs.db").display());
    let at = rig.worker().await?;
    let fields = BTreeMap::from([("padding".to_owned(), json!("x".repeat(50_000)))]);
    rig.fault("a disk of 8 MB is filled");
    rig.submit(at, vec![Order { fields, ..Order::default() }; 400], 4);
    let refused = |events: &[Event]| {
        events.iter().any(|event| matches!(&event.what, What::SubmitRefused { code, .. } if code == "storage_full"))
    };
    let answered = |events: &[Event]| {
        let answer = |what: &What| {
            matches!(what, What::SubmitOk { .. } | What::SubmitRefused { .. } | What::SubmitUnknown { .. })
        };
        events.iter().filter(|event| answer(&event.what)).count() >= 400
    };
    rig.until("all submits to be answered", Duration::from_secs(60), answered).await?;
    let full = refused(&rig.events()?);
    rig.demand("submits are refused as storage_full", full, full);
    disk.grow(256)?;
    rig.healed("a disk of 8 MB is filled");
    let before = rig.count(|what| matches!(what, What::SubmitOk { .. }))?;
    rig.submit(at, vec![Order { key: Some("after".into()), until_acknowledged: true, ..Order::default() }], 1);
    let accepted =
        |events: &[Event]| events.iter().filter(|event| matches!(event.what, What::SubmitOk { .. })).count() > before;
    let took = rig.until("a submit after the disk has grown", SOON, accepted).await?;
    rig.demand_within("submits are accepted again", took, Duration::from_secs(10));
    rig.quiet(Duration::from_secs(60)).await?;
    is_whole(rig)?;
    // What the row leaves outlives the mount.
    for process in &mut rig.processes {
        process.stop(SOON).await?;
    }
    let kept = rig.dir.join("jobs.db");
    let file = Connection::open(rig.file())?;
    file.execute("vacuum into ?1", [kept.display().to_string()]).context("keep the file")?;
    rig.url = format!("sqlite:{}", kept.display());
    Ok(())
}

/// F39: a second process opens the file of a running one. It is refused and told why; the first is not disturbed.
pub(super) async fn two_processes(rig: &mut Rig) -> Result<()> {
    let seed = rig.seed();
    rig.fleet(1, Load { seed, ..Load::default() }).await?;
    for _ in 0..rig.profile.times(3, 50) {
        rig.go_on_for(100..400).await;
        rig.fault("a second process opens the file");
        let mut second = rig.spawn(rig.settings.clone(), rig.url.clone(), Under::default())?;
        second.ended(SOON).await?;
        let status = second.exited()?.context("it has ended")?;
        let said = second.errors();
        rig.demand("the second process is refused", status, !status.success());
        rig.demand("it is told why", said.clone(), said.contains("is in use by process"));
    }
    rig.quiet(SOON).await?;
    is_whole(rig)
}

/// F40: a reader that never ends keeps the log from being written back. Writes go on.
pub(super) async fn long_reader(rig: &mut Rig) -> Result<()> {
    let seed = rig.seed();
    // For minutes, no faster than one process works it off.
    let pause_ms = rig.profile.times(1, 20) as u64;
    rig.fleet(1, Load { seed, tasks: 8, pause_ms, ..Load::default() }).await?;
    rig.go_on(Duration::from_secs(1)).await;
    let reader = Connection::open_with_flags(rig.file(), OpenFlags::SQLITE_OPEN_READ_ONLY)?;
    reader.execute_batch("begin; select count(*) from windlass_job")?;
    rig.fault("a reader holds the file");
    let before = rig.count(|what| matches!(what, What::SubmitOk { .. }))?;
    rig.go_on(Duration::from_secs(rig.profile.times(5, 300) as u64)).await;
    let during = rig.count(|what| matches!(what, What::SubmitOk { .. }))? - before;
    rig.demand("submits go on", during, during > 0);
    reader.execute_batch("rollback")?;
    rig.healed("a reader holds the file");
    rig.quiet(SOON).await?;
    is_whole(rig)
}

/// Demands that the file passes SQLite's own check.
fn is_whole(rig: &mut Rig) -> Result<()> {
    let file = Connection::open_with_flags(rig.file(), OpenFlags::SQLITE_OPEN_READ_ONLY)?;
    let found: String = file.query_row("pragma integrity_check", [], |row| row.get(0))?;
    rig.demand("the file is whole", &found, found == "ok");
    Ok(())
}

/// A small disk in memory; unmounted when dropped.
pub(super) struct Disk(pub(super) PathBuf);

impl Disk {
    pub(super) fn mount(at: PathBuf, megabytes: u32) -> Result<Disk> {
        std::fs::create_dir_all(&at)?;
        let size = std::ffi::CString::new(format!("size={megabytes}m"))?;
        mount("tmpfs", &at, "tmpfs", MountFlags::empty(), Some(size.as_c_str())).context("mount a tmpfs")?;
        ensure!(at.is_dir(), "the mount is a directory");
        Ok(Disk(at))
    }

    pub(super) fn grow(&self, megabytes: u32) -> Result<()> {
        mount_remount(&self.0, MountFlags::empty(), format!("size={megabytes}m")).context("grow the tmpfs")
    }
}

impl Drop for Disk {
    fn drop(&mut self) {
        let _ = unmount(&self.0, UnmountFlags::DETACH);
    }
}
