//! Rows about jobs themselves: hostile inputs, keys that race, many who steer at once, clocks that lie. Called by `runner`
//! through the matrix.

use std::time::Duration;

use anyhow::Result;
use rand::seq::SliceRandom;
use serde_json::json;

use super::seen::{acknowledged, effects};
use crate::StoreKind;
use crate::child::{Command, Load, Order, STEERED, Todo};
use crate::event::{Event, What};
use crate::faketime;
use crate::fleet::Process;
use crate::rig::{Rig, SOON};

/// F13: nodes whose clocks are an hour ahead and an hour behind.
pub(super) async fn wrong_clocks(rig: &mut Rig) -> Result<()> {
    let hour = Duration::from_secs(3_600);
    let clocks = match rig.store {
        StoreKind::Postgres => vec![faketime::ahead(hour)?, faketime::behind(hour)?],
        // The file's own clock is the process's: it may be wrong, but the same for all.
        StoreKind::Sqlite => return shifted_file(rig).await,
    };
    for under in clocks {
        rig.fault(format!("a node's clock is off by {}", under.variables[1].1));
        rig.start(rig.settings.clone(), rig.url.clone(), under).await?;
    }
    let seed = rig.seed();
    let producer = rig.producer().await?;
    rig.load(producer, Load { seed, ..Load::default() });
    let delayed = |ms| Order { delay_ms: ms, ..Order::default() };
    rig.submit(producer, (1..20).map(|n| delayed(n * 150)).collect(), 4);
    rig.go_on(rig.settings.lease * 2).await;
    let recovered = rig.count(|what| matches!(what, What::Recovered { .. }))?;
    rig.demand("no lease is taken away early", format!("{recovered} were"), recovered == 0);
    let warns = |node: &&Process| {
        std::fs::read_to_string(node.errors_file()).is_ok_and(|said| said.contains("off the clock of this machine"))
    };
    let warned = rig.processes[..2].iter().filter(warns).count();
    rig.demand("each node warns that its clock is off", format!("{warned} of 2 did"), warned == 2);
    rig.quiet(Duration::from_secs(60)).await
}

/// On SQLite: the process restarts with a clock that has gone back an hour.
async fn shifted_file(rig: &mut Rig) -> Result<()> {
    let seed = rig.seed();
    let at = rig.fleet(1, Load { seed, ..Load::default() }).await?;
    for under in [faketime::behind(Duration::from_secs(3_600))?, crate::fleet::Under::default()] {
        rig.go_on_for(800..1_500).await;
        rig.fault("the process restarts with another clock");
        rig.processes[at].stop(SOON).await?;
        rig.processes[at].under = under;
        rig.restart(at).await?;
    }
    rig.quiet(Duration::from_secs(60)).await
}

/// F21: inputs that no handler can read, and a handler that nobody has. They do not block others.
pub(super) async fn unreadable(rig: &mut Rig) -> Result<()> {
    rig.worker().await?;
    let producer = rig.producer().await?;
    rig.fault("jobs that cannot be read");
    let mut orders = Vec::new();
    for (field, value) in [
        ("ms", json!("soon")),
        ("ms", json!(-1)),
        ("kills", json!({ "deep": [[[[]]]] })),
        ("fails", json!(1e300)),
        ("canary", json!("nobody")),
    ] {
        orders.push(Order { fields: [(field.to_owned(), value)].into(), ..Order::default() });
    }
    if rig.store == StoreKind::Postgres {
        orders.push(Order { handler: Some("nobody-has-this".into()), ..Order::default() });
    }
    let bad = orders.len();
    orders.extend(vec![Order::default(); 100]);
    rig.submit(producer, orders, 4);
    let took = rig.until("the readable jobs to end", SOON, |events| effects(events) >= 100).await?;
    rig.demand_within("readable jobs are not held up", took, Duration::from_secs(10));
    if rig.store == StoreKind::Postgres {
        // What nobody can run waits, and can be canceled.
        let jobs = jobs_of(&rig.events()?, "nobody-has-this");
        rig.processes[producer].tell(&Command::Cancel { tenant: 0, jobs });
    }
    rig.quiet(SOON).await?;
    // A process that knows the handler refuses them at once.
    let refused = rig.count(|what| matches!(what, What::SubmitRefused { code, .. } if code == "invalid_input"))?;
    let dead = ended_as(&rig.events()?, "dead_lettered");
    let found = format!("{dead} dead letters, {refused} refused");
    rig.demand("what cannot be read is refused or becomes a dead letter", found, (4..=bad).contains(&(dead + refused)));
    Ok(())
}

/// F65: something else writes into the rows of jobs that wait: what no type takes, what no attempt can read. Each costs its
/// own job and no other, and no loop of any node panics.
pub(super) async fn spoilt(rig: &mut Rig) -> Result<()> {
    let spoils: &[&str] = match rig.store {
        StoreKind::Postgres => &[
            "tags = array[null, 'a']",
            "tags = array[array['a'], array['b']]",
            "spec = '7'",
            "spec = '{\"timeout\": \"soon\"}'",
        ],
        StoreKind::Sqlite => &["tags = '{'", "tags = '[null]'", "spec = '7'", "correlation_id = cast(x'ff' as text)"],
    };
    let at = rig.worker().await?;
    let producer = rig.producer().await?;
    let wait = Order { delay_ms: 4_000, ..Order::default() };
    rig.submit(producer, vec![wait; spoils.len()], 1);
    rig.until("the jobs to be stored", SOON, |events| acknowledged(events).len() >= spoils.len()).await?;
    let jobs = acknowledged(&rig.events()?);
    rig.fault("rows that nobody can read");
    match rig.store {
        StoreKind::Postgres => {
            let sql = rig.sql().await?;
            sql.batch_execute("alter table windlass.job drop constraint job_tags").await?;
            for (spoil, job) in spoils.iter().zip(&jobs) {
                sql.execute(&format!("update windlass.job set {spoil} where id = {job}"), &[]).await?;
            }
        }
        StoreKind::Sqlite => {
            rig.processes[at].stop(SOON).await?;
            let file = rusqlite::Connection::open(rig.file())?;
            for (spoil, job) in spoils.iter().zip(&jobs) {
                file.execute(&format!("UPDATE windlass_job SET {spoil} WHERE id = {job}"), [])?;
            }
            drop(file);
            rig.restart(at).await?;
        }
    }
    for done in 1..=5 {
        rig.submit(producer, vec![Order::default(); 20], 4);
        let took = rig.until("other jobs to end", SOON, |events| effects(events) >= 20 * done).await?;
        rig.demand_within("other jobs are not held up", took, Duration::from_secs(3));
        rig.go_on(Duration::from_secs(1)).await;
    }
    rig.quiet(SOON).await?;
    let dead = ended_as(&rig.events()?, "dead_lettered");
    rig.demand("each of them is a dead letter", format!("{dead} of {} are", spoils.len()), dead == spoils.len());
    let said = |node: &Process| std::fs::read_to_string(node.errors_file()).unwrap_or_default();
    let panics = rig.processes.iter().filter(|node| said(node).contains("panicked")).count();
    rig.demand("no loop panics", format!("{panics} processes panicked"), panics == 0);
    Ok(())
}

/// F27: many cancel, replay, pause and finish the same jobs at once, each in an order of its own.
pub(super) async fn crowd(rig: &mut Rig) -> Result<()> {
    let workers = if rig.store == StoreKind::Sqlite { 1 } else { 2 };
    for _ in 0..workers {
        rig.worker().await?;
    }
    let mut crowd = Vec::new();
    for _ in 0..if rig.store == StoreKind::Sqlite { 1 } else { 3 } {
        crowd.push(rig.producer().await?);
    }
    let many = rig.profile.times(300, 10_000);
    let order = |n: usize| match n % 4 {
        0 => Order { delay_ms: 500, ..Order::default() },
        1 => {
            let todo = Todo { hopeless: true, ..Todo::default() };
            Order { todo, max_attempts: Some(1), ..Order::default() }
        }
        2 => Order { ordering: Some(format!("line {}", n % 12)), ..Order::default() },
        _ => Order { todo: Todo { ms: 100, ..Todo::default() }, ..Order::default() },
    };
    rig.submit(crowd[0], (0..many).map(order).collect(), 16);
    let stored = |events: &[Event]| acknowledged(events).len() >= many * 3 / 4;
    rig.until("most jobs to be stored", SOON, stored).await?;
    rig.fault("many steer the same jobs");
    let rounds = rig.profile.times(2, 6);
    for round in 0..rounds {
        for at in crowd.clone() {
            let mut jobs = acknowledged(&rig.events()?);
            jobs.shuffle(&mut rig.rng);
            let cancels = jobs.iter().take(many / 6).copied().collect();
            rig.processes[at].tell(&Command::Cancel { tenant: 0, jobs: cancels });
            jobs.shuffle(&mut rig.rng);
            let replays = jobs.iter().take(many / 3).copied().collect();
            rig.processes[at].tell(&Command::Replay { tenant: 0, jobs: replays });
        }
        if round == 0 {
            rig.processes[crowd[0]].tell(&Command::Pause("handler:work".into()));
            rig.go_on_for(300..600).await;
            rig.processes[crowd[0]].tell(&Command::Resume("handler:work".into()));
        }
        rig.go_on_for(300..900).await;
    }
    // A replay after the last look would find nobody to run it.
    let commands = 2 * rounds * crowd.len();
    let steered = |events: &[Event]| {
        let done = |what: &What| matches!(what, What::Note { text } if text == STEERED);
        events.iter().filter(|event| done(&event.what)).count() >= commands
    };
    rig.until("all to be steered", Duration::from_secs(60), steered).await?;
    rig.quiet(Duration::from_secs(60)).await?;
    let expected = ["canceled", "requested", "finished", "not_found"];
    let strange = |what: &What| matches!(what, What::CancelReply { reply, .. } if !expected.contains(&reply.as_str()));
    let strange = rig.count(strange)?;
    rig.demand("no conflict reaches a caller", format!("{strange} did"), strange == 0);
    Ok(())
}

/// F31: many submit the same key at once, with different inputs, in two tenants, while the first of them ends.
pub(super) async fn same_key(rig: &mut Rig) -> Result<()> {
    rig.worker().await?;
    let mut producers = Vec::new();
    for _ in 0..if rig.store == StoreKind::Sqlite { 1 } else { 3 } {
        producers.push(rig.producer().await?);
    }
    for round in 0..rig.profile.times(12, 200) {
        rig.fault("64 submits with one key");
        let mut submits = 0;
        for at in producers.clone() {
            let order = |n: usize| Order {
                tenant: u8::try_from(n % 2).expect("small"),
                key: Some(format!("key {round}")),
                todo: Todo { ms: n as u64, ..Todo::default() },
                ..Order::default()
            };
            let orders: Vec<Order> = (0..64 / producers.len()).map(order).collect();
            submits += orders.len();
            rig.submit(at, orders, 64);
        }
        let before = (round + 1) * submits;
        let answered = |events: &[Event]| {
            let answer = |what: &What| {
                matches!(what, What::SubmitOk { .. } | What::SubmitRefused { .. } | What::SubmitUnknown { .. })
            };
            events.iter().filter(|event| answer(&event.what)).count() >= before
        };
        rig.until("all to be answered", SOON, answered).await?;
    }
    rig.quiet(SOON).await?;
    let firsts = rig.count(|what| matches!(what, What::SubmitOk { duplicate: false, .. }))?;
    let expected = 2 * rig.profile.times(12, 200);
    rig.demand("one job for each key and tenant", format!("{firsts} of {expected}"), firsts == expected);
    Ok(())
}

/// F41: random bytes, deep nesting, NUL characters, huge numbers and inputs. Refused or kept byte by byte; never half.
pub(super) async fn hostile(rig: &mut Rig) -> Result<()> {
    rig.worker().await?;
    let producer = rig.producer().await?;
    let seed = rig.seed();
    rig.fault("hostile inputs");
    let changed = rig.profile.times(300, 20_000);
    rig.processes[producer].tell(&Command::Hostile { seed, changed });
    let done = |events: &[Event]| {
        let said = |what: &What| matches!(what, What::Note { text } if text == "all hostile inputs were answered");
        events.iter().any(|event| said(&event.what))
    };
    rig.until("all hostile inputs to be answered", Duration::from_secs(100), done).await?;
    let unknown = rig.count(|what| matches!(what, What::SubmitUnknown { .. }))?;
    rig.demand("every hostile input gets a clear answer", format!("{unknown} did not"), unknown == 0);
    let changed = rig.count(|what| matches!(what, What::Note { text } if text.ends_with("did not keep its input")))?;
    rig.demand("what is accepted comes back byte by byte", format!("{changed} did not"), changed == 0);
    let refused = rig.count(|what| matches!(what, What::SubmitRefused { .. }))?;
    rig.demand("bad inputs are refused", format!("{refused} were"), refused > 0);
    rig.quiet(SOON).await?;
    // A row stored half, or a process that died of one, would show.
    for at in 0..rig.processes.len() {
        let alive = rig.processes[at].exited()?.is_none();
        rig.demand("processes survive hostile inputs", alive, alive);
    }
    Ok(())
}

/// The acknowledged jobs of a handler.
fn jobs_of(events: &[Event], handler: &str) -> Vec<i64> {
    let calls = events.iter().filter_map(|event| match &event.what {
        What::SubmitCall { call, asked } if asked.handler == handler => Some(*call),
        _ => None,
    });
    let calls: Vec<u64> = calls.collect();
    let job = |event: &Event| match event.what {
        What::SubmitOk { call, job, .. } if calls.contains(&call) => Some(job),
        _ => None,
    };
    events.iter().filter_map(job).collect()
}

/// How many ends with this status the store has accepted.
fn ended_as(events: &[Event], status: &str) -> usize {
    let of = |event: &Event| match &event.what {
        What::FinishReply { replies, .. } => replies.iter().flatten().filter(|reply| *reply == status).count(),
        _ => 0,
    };
    events.iter().map(of).sum()
}
