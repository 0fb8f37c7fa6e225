//! `cargo xtask house`: measures how the code is laid out, and holds it there. Prints how many calls each room of the store
//! has, which files a step of a job's life leads through, long functions and how full the folders of the core are. `tidy`
//! calls `check`, which refuses what is worse than before. Pure but for `House::read`.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};

/// Calls in one room: what fits a screen with its documentation.
const ROOM: usize = 9;
/// Rooms that are too full, with how full they may be. They only shrink.
const CROWDED: [(&str, usize); 2] = [("reads", 10), ("records", 19)];
/// Lines of a function of Rust, and of SQL.
const LONG_RUST: usize = 60;
const LONG_SQL: usize = 80;
/// Functions that are longer. They only become fewer.
const LONG_RUST_FUNCTIONS: usize = 4;
const LONG_SQL_FUNCTIONS: usize = 5;
/// Statements that are used in more than one place.
const SHARED_SQL: [&str; 3] = ["claim_lease.sql", "read_job.sql", "read_line.sql"];

const ROOMS: &str = "crates/windlass-core/src/store/";
const STORES: [&str; 2] = ["crates/windlass-postgres/src/", "crates/windlass-sqlite/src/"];

/// The steps of a job's life, and the files that one opens to follow a step from the runtime to the statement.
const STEPS: [(&str, &[&str], &[&str]); 3] = [
    (
        "submit",
        &["life/submit.rs", "jobs/submit.rs", "sql/jobs/submit_plain.sql"],
        &["life/submit.rs", "jobs/submit.rs", "sql/submit_job.sql", "ground/place.rs", "sql/submit_ready.sql"],
    ),
    (
        "claim",
        &["life/claim.rs", "jobs/claim.rs", "sql/jobs/claim.sql"],
        &["life/claim.rs", "jobs/claim.rs", "sql/claim_ready.sql", "sql/claim_job.sql", "sql/claim_lease.sql"],
    ),
    (
        "finish",
        &["life/finish.rs", "jobs/finish.rs", "sql/jobs/finish_succeeded.sql"],
        &["life/finish.rs", "jobs/finish.rs", "sql/finish_lease.sql", "ground/place.rs", "sql/finish_outcome.sql"],
    ),
];

/// The text of every file that is measured, by its path from the root.
pub(crate) struct House(BTreeMap<PathBuf, String>);

/// Prints the measures.
pub(crate) fn run(root: &Path) -> Result<()> {
    let house = House::read(root)?;
    print!("{}", house.report());
    let findings = house.check();
    anyhow::ensure!(findings.is_empty(), "{}", findings.join("\n"));
    Ok(())
}

impl House {
    /// Reads the sources of the library: crates, without their tests and examples.
    pub(crate) fn read(root: &Path) -> Result<House> {
        let mut files = BTreeMap::new();
        let mut folders = vec![PathBuf::from("crates")];
        while let Some(folder) = folders.pop() {
            let entries =
                std::fs::read_dir(root.join(&folder)).with_context(|| format!("list {}", folder.display()))?;
            for entry in entries {
                let entry = entry?;
                let path = folder.join(entry.file_name());
                let kind = path.extension().and_then(|kind| kind.to_str());
                if entry.file_type()?.is_dir() {
                    folders.push(path);
                } else if path.components().any(|part| part.as_os_str() == "src") && matches!(kind, Some("rs" | "sql"))
                {
                    let text = std::fs::read_to_string(root.join(&path))?;
                    files.insert(path, text);
                }
            }
        }
        Ok(House(files))
    }

    /// What is worse than it may be.
    pub(crate) fn check(&self) -> Vec<String> {
        let mut found = Vec::new();
        for (room, calls) in self.rooms() {
            let most = CROWDED.iter().find(|(name, _)| *name == room).map_or(ROOM, |(_, most)| *most);
            if calls > most {
                found.push(format!("{ROOMS}{room}.rs: {calls} calls, at most {most} are allowed"));
            }
            for store in STORES.iter().filter(|_| room != "base") {
                if !self.0.contains_key(&Path::new(store).join(format!("{room}.rs"))) {
                    found.push(format!("{store}: has no {room}.rs, where readers look for the room"));
                }
            }
        }
        for (name, times) in self.statements() {
            match times {
                0 => found.push(format!("{name}: is used nowhere")),
                1 => {}
                _ if SHARED_SQL.iter().any(|shared| name.ends_with(shared)) => {}
                _ => found.push(format!("{name}: is used in {times} places; name what they share")),
            }
        }
        for (kind, most, long) in [("rs", LONG_RUST_FUNCTIONS, LONG_RUST), ("sql", LONG_SQL_FUNCTIONS, LONG_SQL)] {
            let functions = self.long(kind, long);
            if functions.len() > most {
                found
                    .push(format!("{} functions are longer than {long} lines, at most {most} may be", functions.len()));
                found.extend(functions);
            }
        }
        for (_, postgres, sqlite) in STEPS {
            for (store, files) in STORES.iter().zip([postgres, sqlite]) {
                found.extend(files.iter().filter_map(|file| {
                    let path = self.place(store, file);
                    (!self.0.contains_key(&path)).then(|| format!("{}: the way of a job led there", path.display()))
                }));
            }
        }
        found
    }

    fn report(&self) -> String {
        let mut report = String::new();
        let mut line = |text: String| {
            let _ = writeln!(report, "{text}");
        };
        line("calls in each room".into());
        let rooms = self.rooms();
        rooms.iter().for_each(|(room, calls)| line(format!("  {room:<10} {calls:>3}")));
        line(format!("  {:<10} {:>3}", "together", rooms.values().sum::<usize>()));
        for (store, of) in STORES.iter().zip(["postgres", "sqlite"]) {
            line(format!("files of a step on {of}"));
            let mut life = std::collections::BTreeSet::from(["store/jobs.rs", "life/run.rs", "life/lifecycle.rs"]);
            for (step, postgres, sqlite) in STEPS {
                let files = if store.contains("postgres") { postgres } else { sqlite };
                life.extend(files);
                line(format!("  {step:<10} {:>3}  {}", files.len(), files.join(" → ")));
            }
            line(format!("  {:<10} {:>3}", "a life", life.len()));
        }
        for (kind, long) in [("rs", LONG_RUST), ("sql", LONG_SQL)] {
            let functions = self.long(kind, long);
            line(format!("functions of .{kind} longer than {long} lines: {}", functions.len()));
            functions.iter().for_each(|function| line(format!("  {function}")));
        }
        line("modules in each folder of the core".into());
        self.folders().iter().for_each(|(folder, modules)| line(format!("  {folder:<10} {modules:>3}")));
        report
    }

    /// How many calls each room has.
    fn rooms(&self) -> BTreeMap<String, usize> {
        let of_rooms = self.0.iter().filter(|(path, _)| path.starts_with(ROOMS) && !path.ends_with("mod.rs"));
        let calls = |text: &str| {
            let inside = text.split_once("pub trait ").map_or("", |(_, rest)| rest);
            let inside = inside.split_once("\n}").map_or("", |(inside, _)| inside);
            inside.lines().filter(|line| line.starts_with("    fn ") || line.starts_with("    async fn ")).count()
        };
        of_rooms.map(|(path, text)| (stem(path), calls(text))).collect()
    }

    /// How often each file of SQL of a store is used: by `include_str!`, as a file of functions or as a migration.
    fn statements(&self) -> BTreeMap<String, usize> {
        let mut used = BTreeMap::new();
        for path in self.0.keys().filter(|path| path.components().any(|part| part.as_os_str() == "sql")) {
            let Some(store) = STORES.iter().find(|store| path.starts_with(store)) else { continue };
            let name = path.strip_prefix(Path::new(store).join("sql")).unwrap_or(path).display().to_string();
            let bare = name.trim_end_matches(".sql");
            let table = format!(", \"{}\")", bare.trim_start_matches("tables/"));
            let uses = [format!("sql/{name}\""), format!("file!(\"{bare}\")"), table];
            let code = self
                .0
                .iter()
                .filter(|(other, _)| other.starts_with(store) && other.extension().is_some_and(|kind| kind == "rs"));
            let times = |text: &String| uses.iter().map(|used| text.matches(used).count()).sum::<usize>();
            used.insert(path.display().to_string(), code.map(|(_, text)| times(text)).sum());
        }
        used
    }

    fn long(&self, kind: &str, long: usize) -> Vec<String> {
        let mut found = Vec::new();
        let is_test = |path: &Path| path.starts_with("crates/windlass-testkit") || path.ends_with("tests.rs");
        let wanted = |path: &Path| path.extension().is_some_and(|of| of == kind) && !is_test(path);
        for (path, text) in self.0.iter().filter(|(path, _)| wanted(path)) {
            let functions = if kind == "rs" { rust_functions(text) } else { sql_functions(text) };
            let too_long = functions.into_iter().filter(|(_, lines)| *lines > long);
            found.extend(too_long.map(|(name, lines)| format!("{}: {name} has {lines} lines", path.display())));
        }
        found
    }

    fn folders(&self) -> BTreeMap<String, usize> {
        let core = Path::new("crates/windlass-core/src");
        let mut folders = BTreeMap::new();
        for path in self.0.keys().filter_map(|path| path.strip_prefix(core).ok()) {
            let folder = path.parent().map_or(String::new(), |folder| folder.display().to_string());
            *folders.entry(if folder.is_empty() { ".".to_owned() } else { folder }).or_default() += 1;
        }
        folders
    }

    fn place(&self, store: &str, file: &str) -> PathBuf {
        let core = file.starts_with("life/");
        Path::new(if core { "crates/windlass-core/src" } else { store }).join(file)
    }
}

fn stem(path: &Path) -> String {
    path.file_stem().map_or(String::new(), |stem| stem.to_string_lossy().into_owned())
}

/// The functions of a Rust file before its tests, with their lines. Goes by indentation, which rustfmt keeps.
fn rust_functions(text: &str) -> Vec<(String, usize)> {
    let code = text.split("#[cfg(test)]\nmod ").next().unwrap_or_default();
    let lines: Vec<&str> = code.lines().collect();
    let mut functions = Vec::new();
    for (at, line) in lines.iter().enumerate() {
        let indent = line.len() - line.trim_start().len();
        let words = line.trim_start().trim_start_matches("pub(crate) ").trim_start_matches("pub(super) ");
        let words = words.trim_start_matches("pub ").trim_start_matches("const ").trim_start_matches("async ");
        let Some(name) = words.strip_prefix("fn ").and_then(|rest| rest.split(['(', '<']).next()) else { continue };
        // A call of a trait has no body.
        let opens =
            lines[at..].iter().find(|line| line.ends_with(['{', ';', '}'])).is_some_and(|line| line.ends_with('{'));
        if !opens {
            continue;
        }
        let end = format!("{}}}", " ".repeat(indent));
        let length = lines[at..].iter().position(|line| **line == end);
        functions.extend(length.map(|length| (name.to_owned(), length + 1)));
    }
    functions
}

/// The functions of a file of SQL, with their lines.
fn sql_functions(text: &str) -> Vec<(String, usize)> {
    let starts = text.match_indices("create function ").chain(text.match_indices("create or replace function "));
    let function = |(at, start): (usize, &str)| {
        let rest = &text[at..];
        let name = rest[start.len()..].split('(').next().unwrap_or_default().to_owned();
        let body = rest.find("$$").map_or(0, |open| open + 2);
        let end = rest[body..].find("$$").map_or(rest.len(), |close| body + close);
        (name, rest[..end].lines().count())
    };
    starts.map(function).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn house(files: &[(&str, &str)]) -> House {
        House(files.iter().map(|(path, text)| (PathBuf::from(path), (*text).to_owned())).collect())
    }

    #[test]
    fn calls_are_counted_and_a_full_room_is_refused() {
        let calls = "    /// A call.\n    async fn a(&self);\n".repeat(10);
        let house = house(&[(
            "crates/windlass-core/src/store/nodes.rs",
            &format!("pub trait Nodes {{\n{calls}}}\n\nfn b() {{}}\n"),
        )]);
        assert_eq!(house.rooms()["nodes"], 10);
        assert!(house.check().iter().any(|found| found.contains("nodes.rs: 10 calls")));
        assert!(house.check().iter().any(|found| found.contains("has no nodes.rs")));
    }

    #[test]
    fn a_statement_is_used_exactly_once() {
        let sql = "crates/windlass-sqlite/src/sql/a.sql";
        let used = |times: usize| {
            let code = "include_str!(\"sql/a.sql\");\n".repeat(times);
            let house = house(&[(sql, "-- a"), ("crates/windlass-sqlite/src/reads.rs", &code)]);
            house.check().into_iter().find(|found| found.contains("a.sql"))
        };
        assert!(used(0).is_some_and(|found| found.ends_with("is used nowhere")));
        assert_eq!(used(1), None);
        assert!(used(2).is_some_and(|found| found.contains("2 places")));
    }

    #[test]
    fn the_lines_of_functions_are_counted() {
        let rust = "impl A {\n    pub(crate) async fn a<T>() {\n        b();\n    }\n}\n\nfn c() {\n}\n#[cfg(test)]\nmod tests {\n    fn d() {\n    }\n}\n";
        assert_eq!(rust_functions(rust), [("a".to_owned(), 3), ("c".to_owned(), 2)]);
        let sql =
            "create function w.a(p int) returns int as $$\nbegin\nend $$;\ncreate function w.b() as $$ select 1 $$;";
        assert_eq!(sql_functions(sql), [("w.a".to_owned(), 3), ("w.b".to_owned(), 1)]);
    }
}
