//! What a process does with schedules: it stores, pauses and resumes them, and writes down what it was told. Called by
//! `child` for the orders of a row.

use std::time::Duration;

use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use serde::{Deserialize, Serialize};
use serde_json::json;
use tokio::task::JoinSet;
use windlass::{Error, Missed, Overlap, Page, Payload, Schedule};

use super::{HANDLER, Process, caller};
use crate::event::What;

/// A schedule to store.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Timed {
    /// Of which tenant, by number.
    pub tenant: u8,
    /// Its name.
    pub name: String,
    /// Its expression.
    pub cron: String,
    /// Its time zone.
    pub zone: String,
    /// What becomes of missed times.
    pub missed: Missed,
    /// What happens while an earlier job has not ended.
    pub overlap: Overlap,
}

impl Timed {
    /// A schedule in UTC that makes nothing up, and lets its jobs overlap.
    pub fn new(tenant: u8, name: impl Into<String>, cron: impl Into<String>) -> Timed {
        let (missed, overlap) = (Missed::Skip, Overlap::Allow);
        Timed { tenant, name: name.into(), cron: cron.into(), zone: "UTC".into(), missed, overlap }
    }
}

/// Runs that are read at a time.
const PAGE: usize = 100;

impl Process {
    pub(super) async fn put_schedules(&self, schedules: Vec<Timed>) {
        for timed in schedules {
            let (ctx, name) = (caller(timed.tenant), timed.name.clone());
            let tenant = ctx.tenant.0;
            let input = json!({ "canary": tenant }).to_string();
            let input = Payload::check_bytes("input", input.as_bytes(), usize::MAX).expect("JSON");
            let schedule = Schedule::cron(timed.name, timed.cron)
                .zone(timed.zone)
                .missed(timed.missed)
                .overlap(timed.overlap)
                .starts_named(HANDLER, input);
            self.log.note(What::SchedulePut { tenant, name: name.clone() });
            self.log.note(match self.service.schedules().put(&ctx, schedule).await {
                Ok(state) => {
                    let next_at = state.next_at.expect("what never fires is refused").as_micros();
                    What::ScheduleStored { tenant, name, next_at }
                }
                Err(error) => What::Note { text: format!("schedule {name}: {error}") },
            });
        }
    }

    pub(super) async fn pause_schedules(self, tenant: u8, names: Vec<String>, within_ms: u64, seed: u64) {
        let mut rng = StdRng::seed_from_u64(seed);
        let mut callers = JoinSet::new();
        for name in names {
            let (this, after) = (self.clone(), Duration::from_micros(rng.random_range(0..=within_ms * 1_000)));
            callers.spawn(async move {
                tokio::time::sleep(after).await;
                if let Err(error) = this.service.schedules().pause(&caller(tenant), &name).await {
                    this.log.note(What::Note { text: format!("pause of {name}: {error}") });
                    return;
                }
                // Nothing can be added to what is read now.
                let runs = this.runs(tenant, &name).await;
                this.log.note(match runs {
                    Ok(runs) => What::SchedulePaused { tenant: caller(tenant).tenant.0, name, runs },
                    Err(error) => What::Note { text: format!("runs of {name}: {error}") },
                });
            });
        }
        callers.join_all().await;
    }

    pub(super) async fn resume_schedules(&self, tenant: u8, names: Vec<String>) {
        let ctx = caller(tenant);
        for name in names {
            match self.runs(tenant, &name).await {
                Ok(runs) => self.log.note(What::ScheduleResuming { tenant: ctx.tenant.0, name: name.clone(), runs }),
                Err(error) => {
                    self.log.note(What::Note { text: format!("runs of {name}: {error}") });
                    continue;
                }
            }
            if let Err(error) = self.service.schedules().resume(&ctx, &name).await {
                self.log.note(What::Note { text: format!("resume of {name}: {error}") });
            }
        }
    }

    async fn runs(&self, tenant: u8, name: &str) -> Result<Vec<i64>, Error> {
        let (mut runs, mut page) = (Vec::new(), Page::first(PAGE));
        loop {
            let found = self.service.schedules().runs(&caller(tenant), name, page).await?;
            runs.extend(found.iter().map(|record| record.id.as_i64()));
            match found.last() {
                Some(last) if found.len() == PAGE => page = Page::first(PAGE).after(last.id),
                _ => return Ok(runs),
            }
        }
    }
}
