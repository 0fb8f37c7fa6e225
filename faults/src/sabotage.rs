//! What is broken on purpose, to show that the matrix notices: edits of PostgreSQL's own functions, or of what is said to
//! it, and triggers in a SQLite file, each of which takes one promise away. Applied by `runner` to the databases of rows when
//! `--sabotage` asks for it. An edit that does not find what it changes is an error, so that none rots when the functions
//! change.

use std::path::Path;

use anyhow::{Context, Result, ensure};
use tokio_postgres::Client;

use crate::StoreKind;

/// One promise taken away.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Sabotage {
    /// Any end of an attempt is accepted, whatever lease it names.
    FencingOff,
    /// A success is accepted by the job's id alone.
    UnfencedCompletion,
    /// A claim neither locks the chunks it takes nor checks that they were still there.
    UnlockedClaim,
    /// A node that is lost with a job is not counted.
    RecoveryNotCounted,
    /// The tenant of a read is set for the session, and not for its transaction.
    SessionTenant,
    /// Schedules are fired under any epoch, also after another node has taken over.
    FireWithoutEpoch,
    /// The jobs of schedules have no idempotency key.
    FireWithoutKey,
}

/// What an edit says that does not find its place: nothing was broken then, and nothing noticed.
pub const OUTDATED: &str = "change the sabotage with it";

/// An edit: a function, what it says, and what it says instead.
type Edit = (&'static str, &'static str, &'static str);

impl Sabotage {
    /// All of them.
    pub const ALL: [Sabotage; 7] = [
        Sabotage::FencingOff,
        Sabotage::UnfencedCompletion,
        Sabotage::UnlockedClaim,
        Sabotage::RecoveryNotCounted,
        Sabotage::SessionTenant,
        Sabotage::FireWithoutEpoch,
        Sabotage::FireWithoutKey,
    ];

    /// Whether there is a way to bring it about in a store.
    pub fn is_for(self, store: StoreKind) -> bool {
        store == StoreKind::Postgres || self.trigger().is_some()
    }

    /// The rows that must notice; one of them is enough.
    pub fn rows(self) -> &'static [&'static str] {
        match self {
            Sabotage::FencingOff | Sabotage::UnfencedCompletion => &["F07", "F18", "F32"],
            Sabotage::UnlockedClaim => &["F11", "F17", "F50"],
            Sabotage::RecoveryNotCounted => &["F20"],
            Sabotage::SessionTenant => &["F06"],
            Sabotage::FireWithoutEpoch | Sabotage::FireWithoutKey => &["F29"],
        }
    }

    fn edits(self) -> &'static [Edit] {
        match self {
            Sabotage::FencingOff => &[
                ("hold", "where l.lease_id = any (p_leases) and l.node_id + 0 = p_node", "where l.ids && p_id"),
                ("hold", "on u.lease_id = f.lease and u.id = f.id", "on u.id = f.id"),
            ],
            Sabotage::UnfencedCompletion => &[
                (
                    "finish_succeeded",
                    "where l.lease_id = u.lease and l.part = u.part and l.node_id + 0 = p_node",
                    "where l.ids && p_id[u.lo:u.hi]",
                ),
                ("finish_succeeded", "and l.canceled = '{}' for update) l) a", "limit 1 for update) l) a"),
                (
                    "finish_succeeded",
                    "else cardinality(a.ids) > a.hi - a.lo + 1 and p_id[a.lo:a.hi] <@ a.ids end",
                    "else true end",
                ),
            ],
            Sabotage::UnlockedClaim => &[
                ("claim", "limit v_limit for update skip locked", "limit v_limit"),
                ("claim", "if v_gone <> cardinality(v_ctids) then", "if false then"),
            ],
            Sabotage::RecoveryNotCounted => {
                &[("take_back", "case when p_lost then b.recoveries + 1 else b.recoveries end", "b.recoveries")]
            }
            Sabotage::SessionTenant => &[],
            Sabotage::FireWithoutEpoch => &[("fire", "h.epoch = p_epoch and h.node_id is not null", "true")],
            Sabotage::FireWithoutKey => &[(
                "fire",
                "json_agg(j.x order by e.n, j.n)",
                "json_agg((j.x::jsonb - 'idempotency_key')::json order by e.n, j.n)",
            )],
        }
    }

    /// What a SQLite file does by itself, where that takes the promise away: there its statements are in the program, and
    /// cannot be edited.
    fn trigger(self) -> Option<&'static str> {
        match self {
            // A lease that has ended is still there, and whoever names it is believed.
            Sabotage::FencingOff => {
                Some("create trigger sabotage before delete on windlass_lease begin select raise(ignore); end")
            }
            // What was taken is still there for the next one.
            Sabotage::UnlockedClaim => {
                Some("create trigger sabotage before delete on windlass_ready begin select raise(ignore); end")
            }
            Sabotage::RecoveryNotCounted => Some(
                "create trigger sabotage after insert on windlass_ready when new.recoveries > 0
                 begin update windlass_ready set recoveries = 0 where n = new.n; end",
            ),
            Sabotage::FireWithoutKey => Some(
                "create trigger sabotage after insert on windlass_job_key when new.key like 'windlass.schedule:%'
                 begin delete from windlass_job_key where job = new.job; end",
            ),
            // A file has one process, and its fires come one after the other.
            Sabotage::UnfencedCompletion | Sabotage::SessionTenant | Sabotage::FireWithoutEpoch => None,
        }
    }

    /// What the server hears instead of what processes say to it, where that is what is broken.
    pub fn instead(self) -> Option<(&'static str, &'static str)> {
        match self {
            Sabotage::SessionTenant => Some(("set local windlass.tenant", "set       windlass.tenant")),
            _ => None,
        }
    }

    /// Makes a SQLite file that has its tables misbehave.
    pub fn apply_to_file(self, file: &Path) -> Result<()> {
        let Some(trigger) = self.trigger() else { return Ok(()) };
        let connection = rusqlite::Connection::open(file).context("open the file")?;
        connection.execute_batch(trigger).with_context(|| format!("there is no such table; {OUTDATED}"))
    }

    /// Changes the functions of a database.
    pub async fn apply(self, client: &Client) -> Result<()> {
        for (function, says, instead) in self.edits() {
            let sql = "select pg_get_functiondef(p.oid) from pg_proc p
                       where p.pronamespace = 'windlass'::regnamespace and p.proname = $1";
            let row = client.query_opt(sql, &[function]).await?;
            let definition: String = row.with_context(|| format!("there is no function {function}"))?.get(0);
            ensure!(definition.contains(says), "{function} does not say `{says}` any more; {OUTDATED}");
            client.batch_execute(&definition.replace(says, instead)).await.context("sabotage a function")?;
        }
        Ok(())
    }
}
