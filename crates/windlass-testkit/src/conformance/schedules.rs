//! Cases of schedules: what is stored of them, and that each nominal time is fired once.

use std::time::Duration;

use windlass_core::store::{
    AuditFilter, Fired, Firing, SCHEDULER, ScheduleAsk, ScheduleChange, ScheduleChanged, ScheduleContent,
    ScheduleRecord, ScheduleTo,
};
use windlass_core::{Scope, TenantId, Timestamp};

use super::Rig;
use super::rig::{A, B, EVERYONE, HOUR, PAST_SOON, SOON, payload};

impl Rig {
    async fn change_schedule(
        &self,
        tenant: TenantId,
        name: &str,
        expect: Option<u64>,
        to: ScheduleTo,
    ) -> ScheduleChanged {
        let change = ScheduleChange { tenant, name: name.to_owned(), expect, to, actor: "ann".to_owned() };
        self.store().change_schedule(change).await.expect("a change is answered")
    }

    async fn put_schedule(&self, tenant: TenantId, name: &str, next_at: Timestamp) -> ScheduleRecord {
        let content = ScheduleContent {
            id: self.job().0.id,
            spec: payload(r#"{"cron":"@daily"}"#),
            input: payload(r#"{"n": 1}"#),
            sealed: false,
            next_at: Some(next_at),
        };
        match self.change_schedule(tenant, name, None, ScheduleTo::Put(Box::new(content))).await {
            ScheduleChanged::Done(record) => *record,
            other => panic!("{other:?}"),
        }
    }

    async fn schedules(&self, scope: Scope) -> Vec<ScheduleRecord> {
        self.store().schedules(scope, ScheduleAsk::page(100)).await.expect("a list")
    }

    async fn due_names(&self) -> Vec<String> {
        let due = self.store().due_schedules(100).await.expect("what is due");
        due.due.into_iter().map(|record| record.name).collect()
    }

    async fn scheduler(&self) -> u64 {
        self.store().hold(SCHEDULER, self.node, HOUR).await.expect("returns").expect("it is free").epoch
    }

    fn firing(&self, record: &ScheduleRecord, next_at: Timestamp, jobs: usize) -> Firing {
        Firing {
            tenant: record.tenant,
            name: record.name.clone(),
            version: record.version,
            due: record.next_at.expect("it fires"),
            last_at: record.next_at,
            next_at: Some(next_at),
            jobs: self.jobs(jobs).into_iter().map(|job| job.tenant(record.tenant).0).collect(),
        }
    }

    async fn fire(&self, epoch: u64, firings: Vec<Firing>) -> Option<Vec<Fired>> {
        self.store().fire(epoch, firings).await.expect("a firing is answered")
    }
}

/// TIM-2: schedules are stored in their tenant, read back as they were, and listed by name in pages.
pub(super) async fn schedules_are_kept_in_their_scope(rig: Rig) {
    let later = rig.now().await + HOUR;
    for (tenant, name) in [(B, "b"), (A, "y"), (A, "x")] {
        rig.put_schedule(tenant, name, later).await;
    }
    let names = |records: Vec<ScheduleRecord>| records.into_iter().map(|record| record.name).collect::<Vec<_>>();
    assert_eq!(names(rig.schedules(Scope::Tenant(A)).await), ["x", "y"]);
    assert_eq!(names(rig.schedules(Scope::Tenant(B)).await), ["b"]);
    assert_eq!(rig.schedules(EVERYONE).await.len(), 3);
    let mut ask = ScheduleAsk::page(10);
    ask.after = Some((A, "x".to_owned()));
    let after = rig.store().schedules(Scope::Tenant(A), ask).await.expect("a page");
    assert_eq!(names(after), ["y"]);
    let named = rig.store().schedules(Scope::Tenant(B), ScheduleAsk::named("x")).await.expect("a look");
    assert!(named.is_empty(), "another tenant's schedule looks like a missing one");
    let rig = rig.restart().await;
    let kept = rig.store().schedules(Scope::Tenant(A), ScheduleAsk::named("x")).await.expect("a look").pop();
    let kept = kept.expect("it outlives a restart");
    assert_eq!((kept.spec.as_str(), kept.input.as_str()), (r#"{"cron":"@daily"}"#, r#"{"n": 1}"#));
    assert_eq!((kept.version, kept.paused, kept.next_at, kept.last_at), (1, false, Some(later), None));
}

/// TIM-2: a change is made to the version it is meant for, and the audit log names it.
pub(super) async fn a_schedule_is_changed_in_the_version_that_is_meant(rig: Rig) {
    let later = rig.now().await + HOUR;
    let made = rig.put_schedule(A, "x", later).await;
    let refused = rig.change_schedule(A, "x", Some(7), ScheduleTo::Paused).await;
    assert!(matches!(refused, ScheduleChanged::Differs(Some(is)) if is.version == 1));
    assert_eq!(rig.change_schedule(B, "x", None, ScheduleTo::Paused).await, ScheduleChanged::Differs(None));
    let paused = rig.change_schedule(A, "x", Some(1), ScheduleTo::Paused).await;
    assert!(matches!(paused, ScheduleChanged::Done(is) if is.version == 2 && is.paused && is.id == made.id));
    let again = rig.put_schedule(A, "x", later).await;
    assert!(again.paused && again.version == 3 && again.id == made.id, "a put keeps the id and the pause");
    let resumed = rig.change_schedule(A, "x", None, ScheduleTo::Resumed { next_at: Some(later + HOUR) }).await;
    assert!(matches!(resumed, ScheduleChanged::Done(is) if !is.paused && is.next_at == Some(later + HOUR)));
    let removed = rig.change_schedule(A, "x", Some(4), ScheduleTo::Removed).await;
    assert!(matches!(removed, ScheduleChanged::Done(_)));
    assert_eq!(rig.change_schedule(A, "x", None, ScheduleTo::Removed).await, ScheduleChanged::Differs(None));
    assert!(rig.schedules(EVERYONE).await.is_empty());
    let mut filter = AuditFilter::default();
    filter.target = Some("x".to_owned());
    let log = rig.store().audit_log(Scope::Tenant(A), &filter).await.expect("the log");
    let actions: Vec<&str> = log.iter().rev().map(|entry| entry.action.as_str()).collect();
    let expected = ["SCHEDULE_CREATED", "SCHEDULE_PAUSED", "SCHEDULE_CHANGED", "SCHEDULE_RESUMED", "SCHEDULE_REMOVED"];
    assert_eq!(actions, expected);
}

/// TIM-2: what is due is found, the longest first, without what is paused; the survey says when the next one is.
pub(super) async fn due_schedules_are_found(rig: Rig) {
    let now = rig.now().await;
    rig.put_schedule(A, "late", now - HOUR).await;
    rig.put_schedule(B, "later", now - HOUR - HOUR).await;
    rig.put_schedule(A, "paused", now - HOUR).await;
    rig.change_schedule(A, "paused", None, ScheduleTo::Paused).await;
    assert_eq!(rig.due_names().await, ["later", "late"]);
    let first = rig.store().due_schedules(1).await.expect("what is due");
    assert_eq!((first.due.len(), first.next_in), (1, Some(Duration::ZERO)), "another one is due already");
    let survey = rig.store().survey(HOUR, &[]).await.expect("a survey");
    assert_eq!(survey.schedule_in, Some(Duration::ZERO));
    for (tenant, name) in [(A, "late"), (B, "later")] {
        rig.put_schedule(tenant, name, rig.now().await + SOON).await;
    }
    assert!(rig.due_names().await.is_empty());
    let survey = rig.store().survey(HOUR, &[]).await.expect("a survey");
    assert!(survey.schedule_in.is_some_and(|left| left <= SOON && left > Duration::ZERO), "{:?}", survey.schedule_in);
    rig.advance(PAST_SOON).await;
    assert_eq!(rig.due_names().await.len(), 2);
}

/// TIM-2: a firing stores its jobs and moves the schedule on, once; what was fired, changed or paused in between is not
/// fired again.
pub(super) async fn a_nominal_time_is_fired_once(rig: Rig) {
    let now = rig.now().await;
    let (one, two) = (rig.put_schedule(A, "one", now - HOUR).await, rig.put_schedule(B, "two", now - HOUR).await);
    let none = rig.put_schedule(A, "none", now - HOUR).await;
    let epoch = rig.scheduler().await;
    let firings =
        vec![rig.firing(&one, now + HOUR, 2), rig.firing(&none, now + HOUR, 0), rig.firing(&two, now + HOUR, 1)];
    let fired = rig.fire(epoch, firings.clone()).await.expect("the lease is held");
    let stored: Vec<usize> =
        fired.iter().map(|fired| if let Fired::Stored(jobs) = fired { jobs.len() } else { 99 }).collect();
    assert_eq!(stored, [2, 0, 1]);
    assert_eq!(rig.fire(epoch, firings).await, Some(vec![Fired::Changed; 3]));
    assert!(rig.due_names().await.is_empty());
    assert_eq!(rig.claim(10).await.len(), 3, "the jobs are there once");
    let moved = rig.schedules(Scope::Tenant(A)).await;
    assert!(
        moved
            .iter()
            .all(|record| record.next_at == Some(now + HOUR) && record.last_at == one.next_at && record.version == 1)
    );
    let due = rig.put_schedule(A, "one", now - HOUR).await;
    rig.change_schedule(A, "one", None, ScheduleTo::Paused).await;
    assert_eq!(rig.fire(epoch, vec![rig.firing(&due, now + HOUR, 1)]).await, Some(vec![Fired::Changed]), "paused");
    assert!(rig.claim(10).await.is_empty());
}

/// TIM-2: whoever has lost the lease of the scheduler fires nothing, also if it holds it again under another epoch.
pub(super) async fn a_deposed_scheduler_fires_nothing(rig: Rig) {
    let now = rig.now().await;
    let due = rig.put_schedule(A, "one", now - HOUR).await;
    let old = rig.store().hold(SCHEDULER, rig.node, SOON).await.expect("returns").expect("it is free").epoch;
    rig.advance(PAST_SOON).await;
    let other = rig.another_node().await;
    let new = rig.store().hold(SCHEDULER, other, HOUR).await.expect("returns").expect("it ran out").epoch;
    assert_eq!(rig.fire(old, vec![rig.firing(&due, now + HOUR, 1)]).await, None);
    assert!(rig.claim(10).await.is_empty());
    let fired = rig.fire(new, vec![rig.firing(&due, now + HOUR, 1)]).await.expect("the lease is held");
    assert!(matches!(&fired[..], [Fired::Stored(jobs)] if jobs.len() == 1));
    assert!(rig.store().let_go(SCHEDULER, new).await.expect("returns"));
    assert_eq!(rig.fire(new, Vec::new()).await, None);
}

/// TIM-2: of schedulers that race with a pause, none fires after its answer.
pub(super) async fn nothing_fires_after_the_answer_of_a_pause(rig: Rig) {
    let now = rig.now().await;
    let epoch = rig.scheduler().await;
    for round in 0..20 {
        let name = format!("s{round}");
        let due = rig.put_schedule(A, &name, now - HOUR).await;
        let (fires, pauses) = (rig.clone(), rig.clone());
        let firing = vec![fires.firing(&due, now + HOUR, 1)];
        let fire = tokio::spawn(async move { fires.fire(epoch, firing).await });
        let pause = tokio::spawn(async move { pauses.change_schedule(A, &name, None, ScheduleTo::Paused).await });
        let ScheduleChanged::Done(paused) = pause.await.expect("no panic") else { panic!("paused") };
        let fired = fire.await.expect("no panic").expect("the lease is held");
        let was_fired = matches!(&fired[..], [Fired::Stored(_)]);
        let record = rig.store().schedules(Scope::Tenant(A), ScheduleAsk::named(&paused.name)).await.expect("a look");
        assert_eq!(record[0].last_at.is_some(), was_fired, "what it says is what happened");
        assert_eq!(rig.claim(10).await.len(), usize::from(was_fired));
        let again = vec![Firing { version: record[0].version, ..rig.firing(&due, now + HOUR, 1) }];
        assert_eq!(rig.fire(epoch, again).await, Some(vec![Fired::Changed]), "it is paused");
    }
}
