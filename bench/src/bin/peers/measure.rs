//! Runs one program to its end or to the end of our patience, and reads what it printed. Called by `main` for every run
//! and by `build` for every build. Knows nothing about peers or benches.

use std::fs::File;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use serde_json::Value;

/// The variable that names a file to lock with flock(1) during each run, on machines where several people measure.
const LOCK_VAR: &str = "WINDLASS_BENCH_LOCK";
/// How often a running program is looked at: seldom, because looking costs what is measured.
const LOOK_EVERY: Duration = Duration::from_millis(200);
/// The longest reason that fits into a list.
const REASON_CHARS: usize = 300;

/// The figures that a run printed, or why there are none.
pub(crate) fn run(command: &mut Command, patience: Duration) -> Result<Result<Value, String>> {
    let _lock = Lock::take()?;
    // What ran before must not have anything left to write. The second call waits for what the first has made the file
    // system begin, such as giving back the space of removed files.
    for _ in 0..2 {
        let _ = Command::new("sync").status();
    }
    let end = finish(command, patience)?;
    let line = end.stdout.lines().rev().find(|line| line.starts_with('{'));
    Ok(match (end.success, line.map(serde_json::from_str)) {
        (Some(true), Some(Ok(figures))) => Ok(figures),
        (Some(true), _) => Err("printed no figures".to_owned()),
        (Some(false), _) => Err(format!("failed: {}", reason(&end.stderr))),
        (None, _) => Err(format!("was killed after {} s", patience.as_secs())),
    })
}

/// Whether a build succeeded, or why not.
pub(crate) fn build(command: &mut Command, patience: Duration) -> Result<Result<(), String>> {
    let _lock = Lock::take()?;
    let end = finish(command, patience)?;
    Ok(match end.success {
        Some(true) => Ok(()),
        Some(false) => Err(reason(&end.stderr)),
        None => Err(format!("was killed after {} s", patience.as_secs())),
    })
}

/// How a program ended: none if it did not in time.
struct End {
    success: Option<bool>,
    stdout: String,
    stderr: String,
}

fn finish(command: &mut Command, patience: Duration) -> Result<End> {
    // Files, because a pipe that nobody reads would block the program.
    let place = tempfile::tempdir().context("make a directory for output")?;
    let file = |name: &str| -> Result<(PathBuf, File)> {
        let path = place.path().join(name);
        let file = File::create(&path).context("make a file for output")?;
        Ok((path, file))
    };
    let ((out_path, out), (err_path, err)) = (file("out")?, file("err")?);
    let mut child = command
        .stdin(Stdio::null())
        .stdout(out)
        .stderr(err)
        .spawn()
        .with_context(|| format!("start {}", command.get_program().to_string_lossy()))?;
    let success = wait(&mut child, patience)?;
    let read = |path: &Path| String::from_utf8_lossy(&std::fs::read(path).unwrap_or_default()).into_owned();
    Ok(End { success, stdout: read(&out_path), stderr: read(&err_path) })
}

fn wait(child: &mut Child, patience: Duration) -> Result<Option<bool>> {
    let deadline = Instant::now() + patience;
    loop {
        if let Some(status) = child.try_wait()? {
            return Ok(Some(status.success()));
        }
        if Instant::now() > deadline {
            let _ = child.kill();
            child.wait()?;
            return Ok(None);
        }
        thread::sleep(LOOK_EVERY);
    }
}

/// The line of an error output that says most: the last error that is not the sum of others, or the message of a panic,
/// or else the last line. Paths of this machine are cut to their last part.
pub(crate) fn reason(stderr: &str) -> String {
    let lines: Vec<&str> = stderr.lines().map(str::trim).filter(|line| !line.is_empty()).collect();
    let is_sum = |line: &str| line.contains("could not compile") || line.contains("aborting due to");
    let is_error = |line: &str| line.starts_with("error") || line.starts_with("npm error") || line.starts_with("Error");
    let error = lines.iter().rev().find(|line| is_error(line) && !is_sum(line));
    // The message of a panic is the line after the one that says where.
    let panic = lines.iter().position(|line| line.contains("panicked at")).and_then(|at| lines.get(at + 1));
    let line = error.or(panic).or(lines.last()).copied().unwrap_or("said nothing");
    let words: Vec<String> = line.split(' ').map(without_directories).collect();
    words.join(" ").chars().take(REASON_CHARS).collect()
}

/// A word; of an absolute path only the last part.
fn without_directories(word: &str) -> String {
    let bare = word.trim_start_matches(['(', '`', '"', '\'']);
    let opening = &word[..word.len() - bare.len()];
    match bare.rsplit_once('/') {
        Some((_, last)) if bare.starts_with('/') => format!("{opening}{last}"),
        _ => word.to_owned(),
    }
}

/// A lock that a child process holds for us until this is dropped.
struct Lock(Option<Child>);

impl Lock {
    fn take() -> Result<Self> {
        let Some(file) = std::env::var_os(LOCK_VAR) else { return Ok(Lock(None)) };
        let mut holder = Command::new("flock")
            .arg(file)
            .args(["sh", "-c", "echo locked; read _"])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .context("start flock")?;
        let mut said = String::new();
        BufReader::new(holder.stdout.take().context("the output of flock")?).read_line(&mut said)?;
        ensure!(said.trim() == "locked", "flock could not lock the file that {LOCK_VAR} names");
        Ok(Lock(Some(holder)))
    }
}

impl Drop for Lock {
    fn drop(&mut self) {
        if let Some(holder) = &mut self.0 {
            drop(holder.stdin.take());
            let _ = holder.wait();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shell(script: &str) -> Command {
        let mut command = Command::new("sh");
        command.args(["-c", script]);
        command
    }

    #[test]
    fn the_last_line_of_json_is_the_result() {
        let mut command = shell(r#"echo noise; echo '{"n": 3}'"#);
        let figures = run(&mut command, Duration::from_secs(10)).expect("it starts").expect("it ends well");
        assert_eq!(figures["n"], 3);
    }

    #[test]
    fn a_run_that_hangs_is_killed_and_says_so() {
        let end = run(&mut shell("exec sleep 60"), Duration::from_secs(0)).expect("it starts");
        assert_eq!(end.expect_err("it hangs"), "was killed after 0 s");
    }

    #[test]
    fn a_run_that_fails_gives_its_reason() {
        let end = run(&mut shell("echo 'out of coffee' >&2; exit 3"), Duration::from_secs(10)).expect("it starts");
        assert_eq!(end.expect_err("it fails"), "failed: out of coffee");
        let end = run(&mut shell("true"), Duration::from_secs(10)).expect("it starts");
        assert_eq!(end.expect_err("it says nothing"), "printed no figures");
    }

    #[test]
    fn reasons_are_the_lines_that_say_most() {
        let cargo = "error[E0599]: no method named `push`\n  --> src/main.rs:3\nerror: could not compile `x` (bin)\n";
        assert_eq!(reason(cargo), "error[E0599]: no method named `push`");
        let panic = "thread 'main' panicked at /a/b/src/main.rs:38:9:\nno such table (/a/b/jobs.db)\nnote: run with\n";
        assert_eq!(reason(panic), "no such table (jobs.db)");
        assert_eq!(reason("npm error code ETARGET\n"), "npm error code ETARGET");
        assert_eq!(reason(""), "said nothing");
    }
}
