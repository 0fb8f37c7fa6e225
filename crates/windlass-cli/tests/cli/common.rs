//! Runs the real binary against a SQLite file of its own, as a person or a script would. Used by every test of the
//! command line. Knows nothing of the library: what is promised is what the process prints and how it exits.

use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::OnceLock;

use serde_json::Value;
use tempfile::TempDir;

/// A directory with a database, and the binary to use on it.
pub(crate) struct Windlass {
    directory: TempDir,
    url: String,
}

/// How a command ended.
#[derive(Debug)]
pub(crate) struct Ran {
    pub(crate) code: i32,
    pub(crate) stdout: String,
    pub(crate) stderr: String,
}

impl Windlass {
    /// A SQLite file, which is not there yet.
    pub(crate) fn new() -> Windlass {
        let directory = TempDir::new().expect("a temporary directory");
        let url = format!("sqlite:{}", directory.path().join("windlass.db").display());
        Windlass { directory, url }
    }

    /// A database on a server.
    pub(crate) fn on(url: String) -> Windlass {
        Windlass { url, ..Windlass::new() }
    }

    /// With jobs in it that the demo has left: ended ones, waiting ones and at least one dead letter.
    pub(crate) fn with_demo_jobs() -> Windlass {
        static LEFT: OnceLock<Windlass> = OnceLock::new();
        let left = LEFT.get_or_init(|| {
            let windlass = Windlass::new();
            let mut up = windlass.up(&[]);
            up.wait_for("a success and a dead letter", |counts| counts("succeeded") > 0 && counts("dead_lettered") > 0);
            assert_eq!(up.stop("INT").code, 0);
            windlass
        });
        let copy = Windlass::new();
        for file in std::fs::read_dir(left.path()).expect("the directory is there") {
            let file = file.expect("it can be read");
            std::fs::copy(file.path(), copy.path().join(file.file_name())).expect("files can be copied");
        }
        copy
    }

    pub(crate) fn path(&self) -> &Path {
        self.directory.path()
    }

    pub(crate) fn database(&self) -> PathBuf {
        self.path().join("windlass.db")
    }

    /// The command with this database, free of what the environment of the tests says.
    pub(crate) fn command(&self, args: &[&str]) -> Command {
        let mut command = bare(args);
        command.env("WINDLASS_DB", &self.url);
        command
    }

    pub(crate) fn run(&self, args: &[&str]) -> Ran {
        finish(self.command(args))
    }

    /// Runs it with something on stdin.
    pub(crate) fn run_with_input(&self, args: &[&str], input: &str) -> Ran {
        let mut command = self.command(args);
        let mut child =
            command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("starts");
        child.stdin.take().expect("piped").write_all(input.as_bytes()).expect("it reads its input");
        ran(child.wait_with_output().expect("it ends"))
    }

    /// Runs it with `--json`, expects success, and reads the answer.
    #[track_caller]
    pub(crate) fn json(&self, args: &[&str]) -> Value {
        let ran = self.run(&[args, &["--json"]].concat());
        assert_eq!(ran.code, 0, "{args:?}: {ran:?}");
        serde_json::from_str(&ran.stdout).unwrap_or_else(|error| panic!("{args:?}: {error} in {ran:?}"))
    }

    /// Runs it with `--json`, expects this exit code and error code, and returns the error.
    #[track_caller]
    pub(crate) fn fails(&self, args: &[&str], exit: i32, code: &str) -> Value {
        failed(self.run(&[args, &["--json"]].concat()), exit, code)
    }

    /// Submits a job and returns its id.
    #[track_caller]
    pub(crate) fn submit(&self, args: &[&str]) -> String {
        let submitted = self.json(&[&["submit"], args].concat());
        submitted["id"].as_str().expect("an id").to_owned()
    }

    /// The id of some job in this status, of any tenant.
    #[track_caller]
    pub(crate) fn any(&self, status: &str) -> String {
        let listed = self.json(&["list", "--all-tenants", "--limit", "1", "--status", status]);
        listed["jobs"][0]["id"].as_str().unwrap_or_else(|| panic!("no {status} job: {listed}")).to_owned()
    }

    /// Starts `up` in the background.
    pub(crate) fn up(&self, args: &[&str]) -> Up {
        let mut command = self.command(&[&["up"], args].concat());
        let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("it starts");
        let lines = BufReader::new(child.stdout.take().expect("piped"));
        Up { child, lines }
    }
}

/// The command without any database named.
pub(crate) fn bare(args: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_windlass"));
    command
        .args(args)
        .stdin(Stdio::null())
        .env_remove("RUST_LOG")
        .env_remove("WINDLASS_TENANT")
        .env_remove("WINDLASS_KEYS")
        .env_remove("WINDLASS_KEY_FILE")
        .env("USER", "tester");
    command
}

/// Runs a command to its end.
pub(crate) fn finish(mut command: Command) -> Ran {
    ran(command.output().expect("the binary runs"))
}

/// Expects this exit code, and one JSON object on stderr with this error code.
#[track_caller]
pub(crate) fn failed(ran: Ran, exit: i32, code: &str) -> Value {
    assert_eq!(ran.code, exit, "{ran:?}");
    let last = ran.stderr.lines().last().unwrap_or_default();
    let said: Value = serde_json::from_str(last).unwrap_or_else(|error| panic!("{error} in {ran:?}"));
    assert_eq!(said["error"]["code"], code, "{ran:?}");
    said["error"].clone()
}

fn ran(output: std::process::Output) -> Ran {
    Ran {
        code: output.status.code().expect("it was not killed"),
        stdout: String::from_utf8(output.stdout).expect("text"),
        stderr: String::from_utf8(output.stderr).expect("text"),
    }
}

/// A running `windlass up`.
pub(crate) struct Up {
    child: Child,
    lines: BufReader<std::process::ChildStdout>,
}

impl Up {
    /// The next line it prints.
    pub(crate) fn line(&mut self) -> String {
        let mut line = String::new();
        let read = self.lines.read_line(&mut line).expect("text");
        assert!(read > 0, "it ended early");
        line
    }

    /// Reads its lines until the counts are as wanted. They come once a second; a minute of them is long enough.
    pub(crate) fn wait_for(&mut self, what: &str, wanted: impl Fn(&dyn Fn(&str) -> u64) -> bool) -> String {
        for _ in 0..60 {
            let line = self.line();
            if line.contains("rate=") && wanted(&|name| count(&line, name)) {
                return line;
            }
        }
        panic!("{what} did not come");
    }

    /// Sends it a signal and waits until it has ended.
    pub(crate) fn stop(mut self, signal: &str) -> Ran {
        let kill = Command::new("kill").args([&format!("-{signal}"), &self.child.id().to_string()]).status();
        assert!(kill.expect("there is a kill command").success());
        let mut stdout = String::new();
        std::io::Read::read_to_string(&mut self.lines, &mut stdout).expect("text");
        let output = self.child.wait_with_output().expect("it ends");
        Ran { stdout, ..ran(output) }
    }
}

/// A count in a line such as `pending=3 running=2`.
#[track_caller]
pub(crate) fn count(line: &str, name: &str) -> u64 {
    let value = line.split_whitespace().find_map(|word| word.strip_prefix(name)?.strip_prefix('='));
    value.unwrap_or_else(|| panic!("no {name} in {line}")).parse().expect("a number")
}
