//! The functions of the schema: one file for each in `sql/<room>/`, applied again when its text has changed. Called by
//! `migrate`, in its transaction and under its lock. Never replaces functions that a newer release has written: that one
//! keeps the old names working (`docs/decisions/0009-functions-are-files.md`).

use std::collections::HashMap;
use std::fmt::Write;
use std::sync::LazyLock;

use sha2::{Digest, Sha256};

/// A file of functions, which may be run again at any time.
pub(crate) struct File {
    /// From `sql/` on.
    pub(crate) name: &'static str,
    pub(crate) sql: &'static str,
}

macro_rules! file {
    ($name:literal) => {
        File { name: concat!($name, ".sql"), sql: include_str!(concat!("../sql/", $name, ".sql")) }
    };
}

/// All of them. Functions may be in any order, because bodies are not checked while they are applied; a view comes after
/// what it calls.
pub(crate) const FILES: &[File] = &[
    file!("ground/own"),
    file!("ground/raise_walls"),
    file!("ground/schema"),
    file!("jobs/line"),
    file!("jobs/make_ready"),
    file!("jobs/submit_plain"),
    file!("jobs/place"),
    file!("jobs/keys"),
    file!("jobs/check"),
    file!("jobs/store_jobs"),
    file!("jobs/submit_jobs"),
    file!("jobs/submit"),
    file!("jobs/submit_many"),
    file!("jobs/start_of"),
    file!("jobs/pack"),
    file!("jobs/claim"),
    file!("jobs/sync_lines"),
    file!("jobs/hold"),
    file!("jobs/finish_succeeded"),
    file!("jobs/finish"),
    file!("jobs/finish_costed"),
    file!("jobs/keep"),
    file!("jobs/open_own_gates"),
    file!("jobs/pass_on"),
    file!("jobs/note"),
    file!("nodes/register"),
    file!("nodes/deregister"),
    file!("nodes/take_back"),
    file!("nodes/note_left"),
    file!("upkeep/last_served"),
    file!("upkeep/recover"),
    file!("upkeep/promote"),
    file!("upkeep/expire"),
    file!("upkeep/ended_holders"),
    file!("upkeep/open_pauses"),
    file!("upkeep/clean"),
    file!("upkeep/remove_jobs"),
    file!("upkeep/fold_counters"),
    file!("upkeep/correct_use"),
    file!("upkeep/weeks"),
    file!("reads/is_open"),
    file!("reads/running"),
    file!("reads/ended"),
    file!("reads/job_status_v"),
    file!("steering/take_waiting"),
    file!("steering/end_waiting"),
    file!("steering/cancel"),
    file!("steering/replay"),
    file!("steering/replay_as"),
    file!("steering/purge"),
    file!("steering/pause"),
    file!("steering/edit"),
    file!("tenancy/quota_of"),
    file!("tenancy/set_quota"),
    file!("tenancy/unfinished"),
    file!("tenancy/admit"),
    file!("tenancy/running_room"),
    file!("tenancy/add_usage"),
    file!("tenancy/record_cost"),
    file!("tenancy/publish_usage"),
    file!("tenancy/clean_usage"),
    file!("schedules/fire"),
    file!("groups/open_batch"),
    file!("groups/add_part"),
    file!("groups/fold"),
    file!("groups/settle"),
    file!("feed/note_feed"),
    file!("insight/add_activity"),
    file!("insight/sample_depth"),
    file!("insight/clean_activity"),
    file!("insight/backlog"),
];

/// The release that this binary is of.
const RELEASE: &str = env!("CARGO_PKG_VERSION");

/// What a database says of its functions: the digest of each file by its name, and the release that wrote them.
pub(crate) const NOTED: &str =
    "select name, digest from windlass.schema_object where name = 'release' or name like 'file %'";

/// Functions may come before those that they call.
pub(crate) const UNCHECKED: &str = "set local check_function_bodies = off";

/// The digests of all files, in order. Computed once: every store that connects asks for them.
static DIGESTS: LazyLock<Vec<String>> = LazyLock::new(|| FILES.iter().map(|file| digest(file.sql)).collect());

/// What is noted of the functions of a database.
#[derive(Default)]
pub(crate) struct Noted {
    release: String,
    digests: HashMap<String, String>,
}

impl Noted {
    /// Takes one row of `NOTED`.
    pub(crate) fn note(&mut self, name: String, digest: String) {
        match name.strip_prefix("file ") {
            Some(file) => drop(self.digests.insert(file.to_owned(), digest)),
            None => self.release = digest,
        }
    }

    /// The files that must be applied, with the statement that notes each of them: those whose text differs from what the
    /// database has, unless a newer release has written that.
    pub(crate) fn outdated(&self) -> Vec<(&'static File, String)> {
        self.outdated_for(RELEASE)
    }

    fn outdated_for(&self, own: &str) -> Vec<(&'static File, String)> {
        if number(&self.release) > number(own) {
            return Vec::new();
        }
        let differs = |(file, digest): &(&File, &String)| self.digests.get(file.name) != Some(*digest);
        let outdated = FILES.iter().zip(DIGESTS.iter()).filter(differs);
        outdated.map(|(file, digest)| (file, note(&format!("file {}", file.name), digest))).collect()
    }
}

/// The statement that notes which release wrote the functions.
pub(crate) fn note_release() -> String {
    note("release", RELEASE)
}

/// Both are names and numbers of this binary, without a quote in them.
fn note(name: &str, digest: &str) -> String {
    format!(
        "insert into windlass.schema_object (name, digest) values ('{name}', '{digest}') \
         on conflict (name) do update set digest = excluded.digest"
    )
}

/// Major, minor and patch. What stands behind a hyphen is left out: a test release and its release replace each other's.
fn number(release: &str) -> Vec<u32> {
    let plain = release.split(['-', '+']).next().unwrap_or_default();
    plain.split('.').map_while(|part| part.parse().ok()).collect()
}

fn digest(sql: &str) -> String {
    Sha256::digest(sql.as_bytes()).iter().fold(String::new(), |mut hex, byte| {
        let _ = write!(hex, "{byte:02x}");
        hex
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What a database has whose functions release `release` of this text has written.
    fn noted(release: &str) -> Noted {
        let mut noted = Noted::default();
        noted.note("release".into(), release.into());
        for (file, digest) in FILES.iter().zip(DIGESTS.iter()) {
            noted.note(format!("file {}", file.name), digest.clone());
        }
        noted
    }

    #[test]
    fn only_files_that_differ_are_applied() {
        assert_eq!(Noted::default().outdated().len(), FILES.len());
        assert!(noted(RELEASE).outdated().is_empty());
        let mut changed = noted(RELEASE);
        changed.note("file jobs/claim.sql".into(), "of another text".into());
        let outdated = changed.outdated();
        assert_eq!(outdated.len(), 1);
        let (file, note) = &outdated[0];
        assert!(file.name == "jobs/claim.sql" && note.contains(&digest(file.sql)), "{note}");
    }

    #[test]
    fn an_older_release_leaves_the_functions_of_a_newer_one() {
        let outdated = |wrote: &str, runs: &str| {
            let mut noted = noted(wrote);
            noted.note("file jobs/claim.sql".into(), "of another text".into());
            !noted.outdated_for(runs).is_empty()
        };
        assert!(outdated("0.9.0", "0.10.0"), "a newer release replaces them");
        assert!(outdated("0.9.0", "0.9.0"), "so does the same release, built again");
        assert!(!outdated("0.10.0", "0.9.1"));
        assert!(!outdated("1.0.0", "0.10.0"));
    }

    #[test]
    fn files_can_be_applied_again() {
        for file in FILES {
            let first = file.sql.lines().next().unwrap_or_default();
            assert!(first.starts_with("--"), "{}", file.name);
            assert!(!file.sql.contains("create function "), "{}: create or replace", file.name);
        }
    }
}
