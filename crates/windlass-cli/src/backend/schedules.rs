//! Schedules as commands see them, from a database or from a server. The names of the fields are those of the HTTP API
//! (docs/http.md), and `--json` prints them.

use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use windlass::flows::calendar::local_time;
use windlass::{InvalidInput, Keeping, Missed, Overlap, RetryPolicy, Schedule, ScheduleState, TenantId, Timestamp};

use crate::error::Result;

/// A schedule and where it stands, without the input of its jobs.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct ScheduleView {
    pub(crate) name: String,
    pub(crate) tenant: TenantId,
    /// Grows with every change.
    pub(crate) version: u64,
    pub(crate) paused: bool,
    pub(crate) cron: String,
    pub(crate) zone: String,
    pub(crate) missed: Missed,
    pub(crate) overlap: Overlap,
    pub(crate) jitter_ms: u64,
    pub(crate) handler: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) queue: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) priority: Option<i16>,
    #[serde(default)]
    pub(crate) tags: Vec<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) timeout_ms: Option<u64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) retry: Option<RetryPolicy>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) retention_ms: Option<u64>,
    /// The service whose code defines it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) defined_by: Option<String>,
    /// Its next nominal time; absent while it is paused.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) next_at: Option<Timestamp>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) last_at: Option<Timestamp>,
    pub(crate) created_at: Timestamp,
    pub(crate) changed_at: Timestamp,
}

impl From<ScheduleState> for ScheduleView {
    fn from(state: ScheduleState) -> ScheduleView {
        let millis = |duration: std::time::Duration| u64::try_from(duration.as_millis()).unwrap_or(u64::MAX);
        let schedule = state.schedule;
        ScheduleView {
            tenant: state.tenant,
            version: state.version,
            paused: state.paused,
            missed: schedule.missed,
            overlap: schedule.overlap,
            jitter_ms: millis(schedule.jitter),
            priority: schedule.priority.map(|priority| priority.0),
            timeout_ms: schedule.spec.timeout.map(millis),
            retention_ms: schedule.spec.retention.map(millis),
            defined_by: schedule.defined_by().map(ToOwned::to_owned),
            retry: schedule.spec.retry,
            name: schedule.name,
            cron: schedule.cron,
            zone: schedule.zone,
            handler: schedule.handler,
            queue: schedule.queue,
            tags: schedule.tags,
            next_at: state.next_at.filter(|_| !state.paused),
            last_at: state.last_at,
            created_at: state.created_at,
            changed_at: state.changed_at,
        }
    }
}

/// A page of schedules, by name.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct SchedulePage {
    pub(crate) schedules: Vec<ScheduleView>,
    /// Where the next page begins.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) next: Option<String>,
}

/// The next runs of a schedule.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct NextRuns {
    /// The schedule's zone.
    pub(crate) zone: String,
    /// The zone of whoever looks.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) viewer_zone: Option<String>,
    /// The soonest first.
    pub(crate) runs: Vec<NextRun>,
}

/// One time at which a schedule fires.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct NextRun {
    pub(crate) at: Timestamp,
    /// By the clocks of the schedule's zone.
    pub(crate) local: String,
    /// By the clocks of the viewer's zone.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) viewer: Option<String>,
}

/// The next runs as a server would return them.
pub(super) fn next_runs(zone: String, viewer_zone: Option<String>, times: Vec<Timestamp>) -> Result<NextRuns> {
    let in_zone = |at, zone: &str| local_time(at, zone).map_err(|bad| InvalidInput::new("zone", bad.to_string()));
    let mut runs = Vec::with_capacity(times.len());
    for at in times {
        let viewer = viewer_zone.as_deref().map(|zone| in_zone(at, zone)).transpose()?;
        runs.push(NextRun { at, local: in_zone(at, &zone)?, viewer });
    }
    Ok(NextRuns { zone, viewer_zone, runs })
}

/// A schedule as the API takes it.
pub(super) fn schedule_json(schedule: &Schedule, keeping: Keeping) -> Result<Value> {
    let mut body = json!({
        "cron": schedule.cron, "zone": schedule.zone, "missed": schedule.missed, "overlap": schedule.overlap,
        "jitter_ms": schedule.jitter.as_millis() as u64, "handler": schedule.handler, "tags": schedule.tags,
    });
    let mut set = |name: &str, value: Option<Value>| {
        if let Some(value) = value {
            body[name] = value;
        }
    };
    set("queue", schedule.queue.as_ref().map(|queue| json!(queue)));
    set("priority", schedule.priority.map(|priority| json!(priority.0)));
    set("timeout_ms", schedule.spec.timeout.map(|timeout| json!(timeout.as_millis() as u64)));
    set("version", keeping.version.map(|version| json!(version)));
    if !keeping.input {
        set("input", Some(serde_json::from_str(schedule.input.as_str())?));
    }
    Ok(body)
}
