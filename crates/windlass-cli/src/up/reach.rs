//! How commands in another terminal reach what `up` works on: whole commands to copy. Called by `screen` for the hints under
//! the picture. `up` follows neither variables nor profiles and other commands do, so a command without `--db` is shown only
//! where it reaches the same place. Pure but for looking up paths.

use std::path::{Path, PathBuf};

use crate::args::Global;
use crate::connect::Place;

/// One line of advice.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Hint {
    /// Text for people, broken between words.
    Words(String),
    /// A command to copy: never broken or cut, half of it does something else.
    Command(String),
}

/// The hints for a place that is served at `url`. `bare` is what commands work on that name no place.
pub(super) fn hints(place: &Place, bare: Option<&Global>, url: &str) -> Vec<Hint> {
    if *place == Place::Memory {
        return vec![Hint::Words("Everything is in memory and lost when this process ends.".to_owned())];
    }
    let way = Way::to(place, bare);
    let windlass = &way.prefix;
    let login = match place {
        Place::Sqlite(_) => format!("{windlass} login"),
        // A database does not say who serves it.
        _ => format!("windlass --url {url} login"),
    };
    let mut hints = vec![
        Hint::Words(format!("From another terminal{}:", way.remark)),
        Hint::Command(format!("{windlass} --all-tenants list")),
        Hint::Command(login),
    ];
    if matches!(place, Place::Postgres(_)) {
        let words = "Login needs a key with every right in WINDLASS_API_KEY: api-key create me --rights admin,payload --all-tenants.";
        hints.push(Hint::Words(words.to_owned()));
    }
    let words =
        "Also: top, show ID, watch ID, cancel ID, failures list, dead replay --all, pause handler demo.flaky, doctor.";
    hints.push(Hint::Words(words.to_owned()));
    hints
}

/// What a command begins with to reach a place, and what must hold for it to do so.
struct Way {
    prefix: String,
    remark: &'static str,
}

impl Way {
    fn to(place: &Place, bare: Option<&Global>) -> Way {
        let bare = bare.filter(|bare| bare.url.is_none()).and_then(|bare| Place::of(bare).ok());
        match (bare, place) {
            (Some(Place::Sqlite(bare)), Place::Sqlite(path)) if whole(&bare) == whole(path) => Way {
                prefix: "windlass".to_owned(),
                remark: if bare.is_relative() { " in this directory" } else { "" },
            },
            (Some(bare), place) if bare == *place => Way { prefix: "windlass".to_owned(), remark: "" },
            (_, Place::Sqlite(path)) => {
                let db = Place::Sqlite(whole(path)).describe();
                Way { prefix: format!("windlass --db {}", quoted(&db)), remark: "" }
            }
            (_, place) => {
                let db = place.describe();
                let is_whole = matches!(place, Place::Postgres(url) if *url == db);
                let remark = if is_whole { "" } else { ", with the password and options that this URL omits" };
                Way { prefix: format!("windlass --db {}", quoted(&db)), remark }
            }
        }
    }
}

/// The path as it is from every directory.
fn whole(path: &Path) -> PathBuf {
    path.canonicalize().or_else(|_| std::path::absolute(path)).unwrap_or_else(|_| path.to_owned())
}

/// A word as a shell reads it.
fn quoted(text: &str) -> String {
    let is_plain = |c: char| c.is_alphanumeric() || "/:._-@+,=%".contains(c);
    if text.chars().all(is_plain) { text.to_owned() } else { format!("'{}'", text.replace('\'', r"'\''")) }
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    /// The commands that are shown for a place, and what is said before them, while other commands work on `bare`.
    fn shown(place: &str, bare: &[&str]) -> (String, Vec<String>) {
        let place = Place::parse(place).expect("a place");
        let global =
            crate::args::Cli::try_parse_from([&["windlass"], bare, &["stats"]].concat()).expect("parses").global;
        let hints = hints(&place, Some(&global), "http://127.0.0.1:7878");
        let Hint::Words(first) = &hints[0] else { panic!("{hints:?}") };
        let command = |hint: &Hint| match hint {
            Hint::Command(command) => Some(command.clone()),
            Hint::Words(_) => None,
        };
        (first.clone(), hints.iter().filter_map(command).collect())
    }

    /// API-4.
    #[test]
    fn a_command_without_a_database_is_shown_only_where_it_reaches_the_same_one() {
        let default = "sqlite:./windlass-data/windlass.db";
        let (said, commands) = shown(default, &[]);
        assert_eq!(said, "From another terminal in this directory:");
        assert_eq!(commands, ["windlass --all-tenants list", "windlass login"]);

        let here = std::env::current_dir().expect("a directory");
        let named = format!("windlass --db sqlite:{}/windlass-data/windlass.db", here.display());
        for bare in
            [&["--db", "sqlite:/srv/jobs.db"][..], &["--url", "http://127.0.0.1:1"], &["--db", "postgres://h/d"]]
        {
            let (said, commands) = shown(default, bare);
            assert_eq!(said, "From another terminal:");
            assert_eq!(commands, [format!("{named} --all-tenants list"), format!("{named} login")], "{bare:?}");
        }
        let (_, commands) = shown("sqlite:/srv/jobs.db", &["--db", "sqlite:///srv/jobs.db"]);
        assert_eq!(commands, ["windlass --all-tenants list", "windlass login"]);
    }

    #[test]
    fn a_server_says_what_else_is_needed() {
        let (said, commands) = shown("postgres://ann:hunter2@db/app", &[]);
        assert!(said.contains("with the password"), "{said}");
        assert_eq!(
            commands,
            ["windlass --db postgres://ann@db/app --all-tenants list", "windlass --url http://127.0.0.1:7878 login"]
        );
        let (said, commands) = shown("postgres://ann:hunter2@db/app", &["--db", "postgres://ann:hunter2@db/app"]);
        assert_eq!((said.as_str(), commands[0].as_str()), ("From another terminal:", "windlass --all-tenants list"));
    }

    #[test]
    fn a_path_is_quoted_where_a_shell_would_read_it_otherwise() {
        assert_eq!(quoted("sqlite:/srv/jobs.db"), "sqlite:/srv/jobs.db");
        assert_eq!(quoted("sqlite:/my jobs/ann's.db"), r"'sqlite:/my jobs/ann'\''s.db'");
        assert_eq!(quoted("sqlite:/a;b"), "'sqlite:/a;b'");
    }
}
