//! Runs the real binary against a SQLite file of its own, as a person or a script would. Used by every test of the
//! command line. Knows nothing of the library: what is promised is what the process prints and how it exits.

use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::OnceLock;

use serde_json::Value;
use tempfile::TempDir;

/// A directory, a database or a server, and the binary to use on it.
pub(crate) struct Windlass {
    directory: TempDir,
    place: Vec<(&'static str, String)>,
}

/// How a command ended.
#[derive(Debug)]
pub(crate) struct Ran {
    pub(crate) code: i32,
    pub(crate) stdout: String,
    pub(crate) stderr: String,
}

impl Windlass {
    /// A SQLite file without jobs.
    pub(crate) fn new() -> Windlass {
        let windlass = Windlass::missing();
        assert_eq!(windlass.run(&["migrate"]).code, 0);
        windlass
    }

    /// A SQLite file, which is not there yet.
    pub(crate) fn missing() -> Windlass {
        let directory = TempDir::new().expect("a temporary directory");
        let url = format!("sqlite:{}", directory.path().join("windlass.db").display());
        Windlass { directory, place: vec![("WINDLASS_DB", url)] }
    }

    /// A database on a server, as it is.
    pub(crate) fn on(url: String) -> Windlass {
        Windlass { place: vec![("WINDLASS_DB", url)], ..Windlass::missing() }
    }

    /// A Windlass server, with a key for it.
    pub(crate) fn through(served: &Served, key: &str) -> Windlass {
        let place = vec![("WINDLASS_URL", served.url.clone()), ("WINDLASS_API_KEY", key.to_owned())];
        Windlass { place, ..Windlass::missing() }
    }

    /// With jobs in it that the demo has left: ended ones, waiting ones and at least one dead letter.
    pub(crate) fn with_demo_jobs() -> Windlass {
        static LEFT: OnceLock<Windlass> = OnceLock::new();
        let left = LEFT.get_or_init(|| {
            let windlass = Windlass::missing();
            let mut up = windlass.up(&[]);
            up.wait_for("a success and a dead letter", |counts| counts("succeeded") > 0 && counts("dead_lettered") > 0);
            assert_eq!(up.stop("INT").code, 0);
            windlass
        });
        let copy = Windlass::missing();
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

    /// The command with this database, free of what the environment of the tests says. `up` listens to its command line
    /// alone.
    pub(crate) fn command(&self, args: &[&str]) -> Command {
        let mut command = bare(args);
        command.envs(self.place.iter().map(|(name, value)| (name, value)));
        if let (Some(&"up"), [("WINDLASS_DB", url)]) = (args.first(), &self.place[..])
            && !args.contains(&"--data")
        {
            command.args(["--db", url]);
        }
        command.env("WINDLASS_CONFIG", self.path().join("profiles.toml"));
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
        Windlass::start(self.command(&[&["up", "--listen", "127.0.0.1:0"], args].concat()))
    }

    /// The same with the file in this directory.
    pub(crate) fn up_in(&self, data: &Path, args: &[&str]) -> Up {
        let mut command = self.command(&["up", "--listen", "127.0.0.1:0", "--data"]);
        command.arg(data).args(args);
        Windlass::start(command)
    }

    fn start(mut command: Command) -> Up {
        let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("it starts");
        let lines = BufReader::new(child.stdout.take().expect("piped"));
        Up { child, lines }
    }
}

/// A running `windlass serve`, ended when dropped.
pub(crate) struct Served {
    child: Child,
    pub(crate) url: String,
    /// What it said when it was ready.
    pub(crate) said: Value,
}

impl Windlass {
    /// Serves this database on a free port of this machine, and waits until it listens.
    pub(crate) fn serve(&self, args: &[&str]) -> Served {
        let args = [&["serve", "--listen", "127.0.0.1:0", "--json"], args].concat();
        let mut child =
            self.command(&args).stdout(Stdio::piped()).stderr(Stdio::null()).spawn().expect("the binary runs");
        let mut line = String::new();
        BufReader::new(child.stdout.take().expect("piped")).read_line(&mut line).expect("text");
        let said: Value = serde_json::from_str(&line).unwrap_or_else(|error| panic!("{error} in {line}"));
        let url = said["address"].as_str().expect("an address").to_owned();
        Served { child, url, said }
    }

    /// Makes an API key and answers its secret.
    #[track_caller]
    pub(crate) fn key(&self, args: &[&str]) -> String {
        let made = self.json(&[&["api-key", "create", "test"], args].concat());
        made["secret"].as_str().expect("a secret").to_owned()
    }
}

impl Served {
    /// Ends it in good order.
    pub(crate) fn stop(mut self) -> i32 {
        self.signal();
        self.child.wait().expect("it ends").code().expect("it was not killed")
    }

    fn signal(&self) {
        let _ = Command::new("kill").args(["-TERM", &self.child.id().to_string()]).status();
    }
}

impl Drop for Served {
    fn drop(&mut self) {
        if let Ok(None) = self.child.try_wait() {
            self.signal();
            let _ = self.child.wait();
        }
    }
}

/// The command without any database named.
pub(crate) fn bare(args: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_windlass"));
    command
        .args(args)
        .stdin(Stdio::null())
        .env_remove("RUST_LOG")
        .env_remove("WINDLASS_DB")
        .env_remove("WINDLASS_URL")
        .env_remove("WINDLASS_API_KEY")
        .env_remove("WINDLASS_PROFILE")
        .env("WINDLASS_CONFIG", "/nonexistent/windlass/profiles.toml")
        .env_remove("WINDLASS_TENANT")
        .env_remove("WINDLASS_KEYS")
        .env_remove("WINDLASS_KEY_FILE")
        .env_remove("WINDLASS_LISTEN")
        .env_remove("WINDLASS_BENCH_STORE")
        .env("USER", "tester")
        .env("HOSTNAME", "here");
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

/// Asks a server of this machine for a page and answers with all it said.
pub(crate) fn http_get(host: &str, path: &str) -> String {
    let mut connection = std::net::TcpStream::connect(host).expect("it listens");
    write!(connection, "GET {path} HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n\r\n").expect("it reads");
    let mut answer = Vec::new();
    std::io::Read::read_to_end(&mut connection, &mut answer).expect("it answers");
    String::from_utf8_lossy(&answer).into_owned()
}

/// What a terminal of 80 columns and 24 rows shows, as far as `up` writes to it.
pub(crate) struct Terminal {
    rows: Vec<Vec<char>>,
    at: (usize, usize),
}

impl Terminal {
    pub(crate) const COLUMNS: usize = 80;
    pub(crate) const ROWS: usize = 24;

    pub(crate) fn new() -> Terminal {
        Terminal { rows: vec![vec![' '; Terminal::COLUMNS]; Terminal::ROWS], at: (0, 0) }
    }

    /// A command on such a terminal; its output is what is written to the terminal.
    pub(crate) fn run(command: &Command) -> Command {
        let quote = |text: &std::ffi::OsStr| format!("'{}'", text.to_str().expect("text"));
        let words: Vec<String> = std::iter::once(command.get_program()).chain(command.get_args()).map(quote).collect();
        let mut script = Command::new("script");
        let (columns, rows) = (Terminal::COLUMNS, Terminal::ROWS);
        let line = format!("stty cols {columns} rows {rows} && exec {}", words.join(" "));
        script.args(["--quiet", "--flush", "--return", "--command", &line, "/dev/null"]);
        if let Some(directory) = command.get_current_dir() {
            script.current_dir(directory);
        }
        for (name, value) in command.get_envs() {
            match value {
                Some(value) => script.env(name, value),
                None => script.env_remove(name),
            };
        }
        script.env("TERM", "xterm").stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::null());
        script
    }

    /// Shows what was written, and hands over each whole picture: `up` ends one by clearing what is below.
    pub(crate) fn show(&mut self, written: &str, mut picture: impl FnMut(Vec<String>)) {
        let mut letters = written.chars();
        while let Some(letter) = letters.next() {
            match letter {
                '\r' => self.at.1 = 0,
                '\n' => self.down(),
                '\x1b' => {
                    assert_eq!(letters.next(), Some('['), "only these escape codes are known here");
                    let code: String = letters
                        .by_ref()
                        .take_while(|c| !matches!(c, 'A' | 'K' | 'J' | 'H' | 'm' | 'h' | 'l'))
                        .collect();
                    // `take_while` has taken the letter that ends the code.
                    let end = written[..written.len() - letters.as_str().len()].chars().next_back();
                    self.escape(&code, end.expect("a letter"), &mut picture);
                }
                letter => {
                    if self.at.1 == Terminal::COLUMNS {
                        self.down();
                        self.at.1 = 0;
                    }
                    self.rows[self.at.0][self.at.1] = letter;
                    self.at.1 += 1;
                }
            }
        }
    }

    fn down(&mut self) {
        if self.at.0 + 1 < Terminal::ROWS {
            self.at.0 += 1;
            return;
        }
        self.rows.remove(0);
        self.rows.push(vec![' '; Terminal::COLUMNS]);
    }

    fn escape(&mut self, code: &str, end: char, picture: &mut impl FnMut(Vec<String>)) {
        let (row, column) = self.at;
        match (end, code) {
            ('A', up) => self.at.0 = row.saturating_sub(up.parse().unwrap_or(1)),
            ('H', _) => self.at = (0, 0),
            ('K', _) => self.rows[row].iter_mut().skip(column).for_each(|cell| *cell = ' '),
            ('J', "2") => self.rows = Terminal::new().rows,
            ('J', _) => {
                self.rows[row].iter_mut().skip(column).for_each(|cell| *cell = ' ');
                self.rows.iter_mut().skip(row + 1).for_each(|row| row.fill(' '));
                picture(self.rows.iter().map(|row| row.iter().collect::<String>().trim_end().to_owned()).collect());
            }
            _ => {}
        }
    }
}
