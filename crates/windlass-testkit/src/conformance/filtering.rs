//! What a store promises about filters: that they mean the same in every store, how many jobs pass, and which jobs are
//! failing. Run by every store through `conformance_tests!`.

use std::time::Duration;

use windlass_core::failures::Failing;
use windlass_core::store::{ReplayedAs, Transition};
use windlass_core::{JobError, JobFilter, JobId, JobRecord, Page, Priority, Scope, Signature, Status, Timestamp};

use super::rig::*;

const SEVEN: Signature = Signature(7);
const EIGHT: Signature = Signature(8);

fn error(code: &str, message: &str, signature: Option<Signature>) -> JobError {
    let mut error = JobError::terminal(code, message);
    error.signature = signature;
    error
}

fn letter(error: JobError) -> Transition {
    Transition::DeadLetter { failed: 1, reason: error.code.clone(), error, keep: None }
}

fn retried(error: JobError) -> Transition {
    Transition::Retry { failed: 1, delay: HOUR, error }
}

fn input(json: &str) -> impl FnOnce(&mut windlass_core::NewJob) {
    let input = payload(json);
    move |job| job.payload = input
}

/// Jobs that differ in everything a filter can ask for.
async fn a_mixture(rig: &Rig) -> Vec<JobId> {
    let keyed = rig.job().key("order-7").with(|job| job.spec.idempotency_key = Some("order-7".into()));
    let mut all = vec![
        rig.ended(rig.job().handler("mail.send"), letter(error("smtp", "Time Out after 5 s", Some(SEVEN)))).await,
        rig.ended(rig.job().handler("mail.send").tenant(B), letter(error("smtp", "time out", Some(SEVEN)))).await,
        rig.ended(keyed, letter(error("gone", "ÄRGER \"quoted\" {}", Some(EIGHT)))).await,
        rig.ended(rig.job(), letter(error("gone", "not signed", None))).await,
        rig.ended(rig.job().queue("slow").priority(Priority(15)), succeed()).await,
        rig.ended(
            rig.job().with(input(r#"{"user":{"id":42,"name":"Ann"},"n":1.50,"ok":true,"none":null}"#)),
            succeed(),
        )
        .await,
    ];
    // Overcome by a later attempt: then it is history.
    let job = rig.running(rig.job().tag("overcome")).await;
    rig.end(&job, Transition::Retry { failed: 1, delay: SOON, error: error("smtp", "time out", Some(SEVEN)) }).await;
    rig.advance(PAST_SOON).await;
    rig.promote().await;
    let job = rig.claim_one().await;
    rig.end(&job, succeed()).await;
    all.push(job.id);
    // Tried again, and ready.
    let job = rig.running(rig.job().tag("ready again")).await;
    rig.end(&job, Transition::Retry { failed: 1, delay: SOON, error: error("smtp", "time out", Some(SEVEN)) }).await;
    rig.advance(PAST_SOON).await;
    rig.promote().await;
    all.push(job.id);
    let claimed = rig.claim_one().await;
    for (tag, failure) in [("a", error("smtp", "TIME OUT", Some(SEVEN))), ("b", error("io", "disk", Some(EIGHT)))] {
        let job = rig.running(rig.job().tag(tag).queue(tag)).await;
        rig.end(&job, retried(failure)).await;
        all.push(job.id);
    }
    rig.end(&claimed, Transition::Release).await;
    let canceled = rig.running(rig.job().queue("c")).await;
    rig.end(&canceled, retried(error("smtp", "time out", Some(SEVEN)))).await;
    rig.cancel(canceled.id).await;
    all.push(canceled.id);
    // Replayed in place: its old error is history too.
    let replayed = rig.ended(rig.job().queue("r"), letter(error("smtp", "time out", Some(SEVEN)))).await;
    rig.store().replay(EVERYONE, replayed, "operator").await.expect("replay");
    all.push(replayed);
    // Replayed as another job.
    let marked = rig.ended(rig.job().queue("m"), letter(error("smtp", "time out", Some(SEVEN)))).await;
    let brief = rig.job().queue("later").with(|job| job.spec.retention = Some(std::time::Duration::ZERO));
    let replayed = rig.store().replay_as(EVERYONE, marked, "operator", brief.0, HOUR).await.expect("replays");
    let ReplayedAs::New(instead) = replayed else { panic!("it is a dead letter") };
    // The case is about the letter: what took its place ends, and is gone at once.
    rig.cancel(instead).await;
    all.push(marked);
    let later = [
        rig.job().ordered("order-7").after(HOUR).priority(Priority(-1)),
        rig.job().ordered("k").with(input(r#"{"items":[{"sku":"a b"},7],"user":{"id":"42"},"twice":1,"twice":2}"#)),
        rig.job().ordered("k").with(input(r#""wls1:42""#)).priority(Priority(25)),
        rig.job().with(input(r#"{"user.id":42,"-1":1,"big":123456789012345678901234567890,"e":1e5}"#)),
        rig.job().with(input(r#"[["x"],{"user":{"id":43}}]"#)).priority(Priority(9)).tenant(B),
    ];
    all.extend(submitted_ids(&rig.submit_all(later.into()).await));
    let running = rig.running(rig.job().queue("busy").tag("it's \"odd\"")).await;
    all.push(running.id);
    all
}

/// Every text is asked, and compared with what the filter itself says of each job.
const FILTERS: &[(&str, usize)] = &[
    ("", 19),
    ("tenant:00000000-0000-0000-0000-00000000000b", 2),
    ("queue:slow", 1),
    ("queue:nowhere", 0),
    ("priority:critical", 1),
    ("priority:high", 1),
    ("priority:low", 1),
    ("error:\"time out\"", 6),
    ("error:SMTP", 6),
    ("error:out%", 0),
    ("error:Ärger", 1),
    ("error:ärger", 0),
    ("error:\"ÄRGER \\\"Quoted\\\" {\"", 1),
    ("signature:0000000000000007", 6),
    ("signature:0000000000000008", 2),
    ("signature:0000000000000009", 0),
    ("signature:0000000000000007 status:dead", 3),
    ("signature:0000000000000007 status:retrying", 1),
    ("signature:0000000000000007 status:dead,retrying", 4),
    ("signature:0000000000000007 status:dead replayed:no", 2),
    ("signature:0000000000000007 status:pending", 1),
    ("signature:0000000000000007 status:canceled", 1),
    ("error:smtp status:succeeded", 0),
    ("key:order-7", 2),
    ("key:order-7 status:scheduled", 1),
    ("key:ORDER-7", 0),
    ("input.user.id:42", 2),
    ("input.user.id:042", 0),
    ("input.user.name:Ann input.ok:true", 1),
    ("input.n:1.50", 1),
    ("input.n:1.5", 0),
    ("input.none:null", 0),
    ("input.user:\"{}\"", 0),
    ("input.items.0.sku:\"a b\"", 1),
    ("input.items.1:7", 1),
    ("input.items.2:7", 0),
    ("input.twice:2", 1),
    ("input.twice:1", 0),
    ("input.\"user.id\":42", 1),
    ("input.big:123456789012345678901234567890", 1),
    ("input.e:1e5", 1),
    ("input.e:100000", 0),
    ("input.1.user.id:43", 1),
    ("input.0.0:x", 1),
    ("input.x:wls1", 0),
    ("tag:\"it's \\\"odd\\\"\" status:running", 1),
    ("handler:mail.send error:out tenant:00000000-0000-0000-0000-00000000000a", 1),
    ("status:pending,running,blocked,scheduled,retrying", 10),
    ("-status:dead", 14),
    ("-status:dead,succeeded", 11),
    ("status:dead,retrying -status:dead", 2),
    ("status:dead -signature:0000000000000007", 2),
    ("handler:mail.*", 2),
    ("handler:\"mail.*\"", 0),
    ("-handler:mail.*", 17),
    ("-handler:mail.send -tag:a", 16),
    ("queue:slo*", 1),
    ("key:*", 4),
    ("-key:*", 15),
    ("key:order-*", 2),
    ("tag:*", 5),
    ("-tag:*", 14),
    ("-tag:a", 18),
    ("tag:over*", 1),
    ("tag:\"it's \"*", 1),
    ("tenant:root", 0),
    ("-tenant:root", 19),
    ("-tenant:00000000-0000-0000-0000-00000000000b", 17),
    ("-error:\"time out\"", 13),
    ("-error:smtp status:dead", 2),
    ("-signature:0000000000000007", 13),
    ("-replayed:no", 1),
    ("-priority:high", 18),
    ("-input.user.id:42", 17),
    ("input.user.id:42 -input.user.name:Ann", 1),
    ("-correlation:*", 19),
    ("attempt>1", 1),
    ("attempt>0 attempt<2", 12),
    ("attempt:0", 6),
    ("ended>2000-01-01", 9),
    ("ended<2000-01-01", 0),
];

/// BEY-6, OPS-1: a filter means the same in every store, and its count is how many pass.
pub(super) async fn a_filter_means_the_same_everywhere(rig: Rig) {
    a_mixture(&rig).await;
    let all = rig.store().find(EVERYONE, &JobFilter::all(), Page::first(Page::MAX), None).await.expect("list").jobs;
    for (text, passing) in FILTERS {
        let filter = JobFilter::parse(text, Timestamp::default()).expect(text);
        let mut expected = Vec::new();
        for record in all.iter().filter(|record| filter.matches(record)) {
            let input = rig.store().input(EVERYONE, record.id).await.expect("input").expect("there");
            expected.extend(filter.matches_input(&input).then_some(record.id));
        }
        assert_eq!(expected.len(), *passing, "{text}: what the case expects of the filter itself");
        assert_eq!(rig.list(filter.clone()).await, expected, "{text}");
        let counted = rig.store().count(EVERYONE, &filter, 1_000).await.expect("count");
        assert_eq!(counted, *passing as u64, "{text}: counted");
        let mut paged: Vec<JobId> = Vec::new();
        let mut page = Page::first(2);
        while let Some(last) = {
            let ids = rig.page(filter.clone(), page).await;
            paged.extend(&ids);
            ids.last().copied()
        } {
            page = page.after(last);
        }
        assert_eq!(paged, expected, "{text}: page by page");
        assert_eq!(
            rig.page(filter, Page { offset: 1, ..Page::first(3) }).await,
            sub(&expected, 1, 3),
            "{text}: offset"
        );
    }
    let of_node = |node| {
        let mut filter = JobFilter::all();
        filter.node = Some(node);
        filter
    };
    let here: Vec<JobId> = all.iter().filter(|record| record.node == Some(rig.node)).map(|record| record.id).collect();
    assert!(here.len() > 10);
    assert_eq!(rig.list(of_node(rig.node)).await, here);
    assert!(rig.list(of_node(rig.another_node().await)).await.is_empty());
}

fn sub(ids: &[JobId], offset: usize, limit: usize) -> Vec<JobId> {
    ids.iter().copied().skip(offset).take(limit).collect()
}

/// BEY-6, OPS-1: however few candidates a search looks at, page after page finds each job once, newest first, and ends.
pub(super) async fn a_search_finds_everything_page_by_page(rig: Rig) {
    a_mixture(&rig).await;
    let all = rig.store().find(EVERYONE, &JobFilter::all(), Page::first(Page::MAX), None).await.expect("list").jobs;
    let recent = format!("created>{}", all[8].created_at);
    let texts = FILTERS.iter().map(|(text, _)| *text).chain([recent.as_str(), "created<1h"]);
    for text in texts {
        let filter = JobFilter::parse(text, rig.now().await).expect(text);
        for scope in [EVERYONE, Scope::Tenant(A)] {
            let expected = rig.store().find(scope, &filter, Page::first(Page::MAX), None).await.expect("list").jobs;
            for (limit, look_at) in [(2, Some(3)), (5, Some(1)), (Page::MAX, Some(4)), (1, Some(1_000)), (2, None)] {
                let mut found = Vec::new();
                let mut page = Page::first(limit);
                for pages in 0.. {
                    assert!(pages <= all.len() + 1, "{text}: it ends");
                    let part = rig.store().find(scope, &filter, page, look_at).await.expect("search");
                    assert!(part.jobs.len() <= limit);
                    found.extend(part.jobs);
                    let Some(next) = part.next else { break };
                    assert!(page.before.is_none_or(|before| next < before), "{text}: it goes on");
                    page = page.after(next);
                }
                assert_eq!(found, expected, "{text}: {limit} of {look_at:?}");
            }
        }
    }
}

/// BEY-6, OPS-1: how long jobs ran and waited is compared in every store as the record tells it, to the microsecond; and a
/// job is found by its id at once, however many are newer.
pub(super) async fn times_and_ids_are_asked_alike(rig: Rig) {
    a_mixture(&rig).await;
    rig.advance(SOON).await;
    let (now, all) = (rig.now().await, JobFilter::all());
    let records = rig.store().find(EVERYONE, &all, Page::first(Page::MAX), None).await.expect("list").jobs;
    let check = async |text: String| -> usize {
        let filter = JobFilter::parse(&text, now).expect(&text);
        let expected: Vec<JobId> =
            records.iter().filter(|record| filter.matches(record)).map(|record| record.id).collect();
        assert_eq!(rig.list(filter).await, expected, "{text}");
        expected.len()
    };
    let micros = |took: Option<Duration>| took.map(|took| took.as_micros());
    let mut passed = 0;
    for record in &records {
        for (name, took) in [("ran", micros(record.ran(now))), ("waited", micros(record.waited(now)))] {
            for sign in [">", "<"] {
                if let Some(took) = took {
                    passed += check(format!("{name}{sign}{took}us")).await;
                    passed += check(format!("status:dead,running,pending {name}{sign}{took}us")).await;
                }
            }
        }
        if let Some(ended) = record.finished_at {
            passed += check(format!("ended>{ended}")).await;
            passed += check(format!("ended<{ended} -status:dead")).await;
        }
    }
    assert!(passed > 50, "{passed}: the comparisons tell jobs apart");
    assert!(check("ran>0us status:running".into()).await == 1, "what runs is measured up to now");
    assert!(check("waited>0us status:pending".into()).await > 2, "so is what waits");

    let oldest = records.last().expect("jobs").id;
    for scope in [EVERYONE, Scope::Tenant(A)] {
        for text in [format!("id:{oldest}"), format!("id:{oldest} status:dead")] {
            let filter = JobFilter::parse(&text, now).expect("a filter");
            let found = rig.store().find(scope, &filter, Page::first(10), Some(1)).await.expect("search");
            assert_eq!(found.jobs.iter().map(|job| job.id).collect::<Vec<_>>(), [oldest], "{text}");
            assert_eq!(found.next, None, "{text}: there is nothing to go on to");
        }
    }
    let foreign = JobFilter::parse(&format!("id:{oldest}"), now).expect("a filter");
    let found = rig.store().find(Scope::Tenant(B), &foreign, Page::first(10), Some(1)).await.expect("search");
    assert!(found.jobs.is_empty() && found.next.is_none(), "another tenant's id finds nothing");
    assert_eq!(check(format!("-id:{oldest}")).await, records.len() - 1);
}

/// BEY-6, SEC-1: a filter by tenant never widens the scope of the caller.
pub(super) async fn a_filter_by_tenant_does_not_widen_the_scope(rig: Rig) {
    let own = rig.submit(rig.job()).await;
    let theirs = rig.submit(rig.job().tenant(B)).await;
    let list = async |scope: Scope, filter: JobFilter| {
        let records = rig.store().find(scope, &filter, Page::default(), None).await.expect("list").jobs;
        let counted = rig.store().count(scope, &filter, 10).await.expect("count");
        assert_eq!(counted, records.len() as u64);
        records.iter().map(|record| record.id).collect::<Vec<_>>()
    };
    assert_eq!(list(EVERYONE, JobFilter::all().tenant(B)).await, [theirs]);
    assert_eq!(list(Scope::Tenant(A), JobFilter::all().tenant(A)).await, [own]);
    assert_eq!(list(Scope::Tenant(A), JobFilter::all()).await, [own]);
    assert!(list(Scope::Tenant(A), JobFilter::all().tenant(B)).await.is_empty());
}

/// BEY-6: nobody counts further than asked.
pub(super) async fn a_count_goes_up_to_its_cap(rig: Rig) {
    rig.submit_all(rig.jobs(25)).await;
    let count = async |filter: &JobFilter, cap: usize| rig.store().count(EVERYONE, filter, cap).await.expect("count");
    for (cap, counted) in [(1, 1), (24, 24), (25, 25), (26, 25), (100_000, 25)] {
        assert_eq!(count(&JobFilter::all(), cap).await, counted, "up to {cap}");
    }
    assert_eq!(count(&JobFilter::all().status(Status::Pending), 10).await, 10);
    assert_eq!(count(&JobFilter::all().input(["x"], "1"), 10).await, 0);
}

/// BEY-3: dead letters that wait for someone and jobs that wait for a retry, the newest of each, with their signatures.
pub(super) async fn failing_jobs_are_told_with_their_signatures(rig: Rig) {
    a_mixture(&rig).await;
    let failing = async |scope: Scope, filter: &str, newest: usize| {
        let filter = JobFilter::parse(filter, Timestamp::default()).expect("a filter");
        let mut failing = rig.store().failing(scope, &filter, newest).await.expect("failing");
        failing.sort_by_key(|failing| std::cmp::Reverse(failing.job));
        failing
    };
    let records = rig.store().find(EVERYONE, &JobFilter::all(), Page::first(Page::MAX), None).await.expect("list").jobs;
    let fails = |record: &&JobRecord| match record.status {
        Status::DeadLettered => record.replayed.is_none(),
        status => status == Status::Retrying,
    };
    let expected: Vec<Failing> = records.iter().filter(fails).cloned().map(Failing::from).collect();
    assert_eq!(expected.len(), 6);
    assert_eq!(expected.iter().filter(|failing| failing.signature == Some(SEVEN)).count(), 3);
    assert!(expected.iter().all(|failing| failing.signature.is_some() != failing.error.is_some()));
    let all = failing(EVERYONE, "", 100).await;
    assert_eq!(all, expected);
    assert_eq!(failing(EVERYONE, "status:retrying", 100).await.len(), 2);
    assert_eq!(failing(EVERYONE, "status:succeeded", 100).await, []);
    assert_eq!(failing(EVERYONE, "error:smtp", 100).await.len(), 3);
    assert_eq!(failing(Scope::Tenant(B), "", 100).await.len(), 1);
    let newest = failing(EVERYONE, "", 1).await;
    let is = |status| move |failing: &&Failing| failing.status == status;
    let of_each = [Status::Retrying, Status::DeadLettered].map(|status| expected.iter().find(is(status)).cloned());
    assert_eq!(newest, of_each.into_iter().flatten().collect::<Vec<_>>(), "the newest of each kind");
}
