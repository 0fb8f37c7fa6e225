//! Runs programs of this machine: only those that the program which registers the handler allows by name, without
//! a shell, in a process group of their own that ends with the attempt. What they print goes to the job's log, up to a
//! bound. Off unless it is registered.

use std::collections::BTreeMap;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{ExitStatus, Stdio};
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process_group};
use serde::{Deserialize, Serialize};
use serde_json::json;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWriteExt};
use tokio::process::{Child, ChildStdin};
use windlass_core::{
    HandlerOptions, HandlerRef, InvalidInput, JobContext, JobError, JobHandler, LOG_BYTES, LogLevel, Reason,
};

/// The handler, for those who submit.
pub const HANDLER: HandlerRef<CommandInput, CommandOutput> = HandlerRef::new(Command::ID);

/// Arguments of one run.
const ARGUMENTS: usize = 256;
/// Bytes of all arguments together; systems allow more.
const ARGUMENT_BYTES: usize = 64 * 1024;
/// Bytes that go to the job's log; the rest is read and dropped, so that no program hangs on a full pipe.
const LOGGED_BYTES: usize = 64 * 1024;
/// Kept of the end of the output, for the result or the error.
const TAIL_BYTES: usize = 4 * 1024;
/// How long a program may take to end after it was asked to; then its group is killed. Less than the grace of an attempt.
const GRACE: Duration = Duration::from_secs(2);
/// How long output may follow the end of the program: what it left behind has been killed by then.
const REST: Duration = Duration::from_secs(1);
/// Read at once.
const READ: usize = 8 * 1024;

/// A program to run.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CommandInput {
    /// The name under which the handler allows it.
    pub program: String,
    /// Its arguments, each as it is: no shell reads them.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub args: Vec<String>,
    /// What it reads from its standard input.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stdin: Option<String>,
}

impl CommandInput {
    /// Runs `program` with these arguments.
    pub fn new(program: impl Into<String>, args: impl IntoIterator<Item = impl Into<String>>) -> Self {
        CommandInput { program: program.into(), args: args.into_iter().map(Into::into).collect(), stdin: None }
    }
}

/// What a program came to.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CommandOutput {
    /// Its exit code, which is 0.
    pub code: i32,
    /// The end of what it printed on its standard output.
    pub stdout: String,
}

/// Runs programs of this machine that are allowed by name. Jobs of every tenant may run them.
///
/// An exit code of 0 is success. Codes of `sysexits.h` that speak of bad input or settings (64 to 68, 72, 76 to 78), and 126 and
/// 127, fail for good; any other, and a signal, is tried again.
///
/// ```no_run
/// # async fn example(store: std::sync::Arc<windlass_core::MemoryStore>) -> Result<(), Box<dyn std::error::Error>> {
/// use windlass_core::JobService;
/// use windlass_handlers::Handlers;
/// use windlass_handlers::command::{self, Command, CommandInput};
///
/// let allowed = Command::allow("thumbnail", "/usr/bin/convert").directory("/srv/pictures");
/// let jobs = JobService::builder(store).command(allowed).start().await?;
/// command::HANDLER.submit(&jobs, CommandInput::new("thumbnail", ["a.png", "-resize", "64x64", "a.webp"])).await?;
/// # Ok(()) }
/// ```
#[derive(Clone, Debug)]
pub struct Command {
    programs: BTreeMap<String, PathBuf>,
    directory: PathBuf,
    env: BTreeMap<String, String>,
    options: HandlerOptions,
}

impl Command {
    /// Allows one program under a name. A relative path is refused for every job: what it means depends on the directory.
    pub fn allow(name: impl Into<String>, program: impl Into<PathBuf>) -> Self {
        let command = Command {
            programs: BTreeMap::new(),
            directory: PathBuf::from("/"),
            env: BTreeMap::new(),
            options: HandlerOptions::new(),
        };
        command.also(name, program)
    }

    /// Allows another program.
    #[must_use]
    pub fn also(mut self, name: impl Into<String>, program: impl Into<PathBuf>) -> Self {
        self.programs.insert(name.into(), program.into());
        self
    }

    /// Runs them in this directory; `/` by default.
    #[must_use]
    pub fn directory(mut self, directory: impl Into<PathBuf>) -> Self {
        self.directory = directory.into();
        self
    }

    /// Sets a variable of their environment, which has nothing of this process's own.
    #[must_use]
    pub fn env(mut self, name: impl Into<String>, value: impl Into<String>) -> Self {
        self.env.insert(name.into(), value.into());
        self
    }

    /// Sets timeout, retries, concurrency and more.
    #[must_use]
    pub fn options(mut self, options: HandlerOptions) -> Self {
        self.options = options;
        self
    }

    fn check(&self, input: &CommandInput) -> Result<&Path, InvalidInput> {
        let Some(program) = self.programs.get(&input.program).filter(|program| program.is_absolute()) else {
            return Err(InvalidInput::new("program", "the handler allows no program of this name"));
        };
        let bytes: usize = input.args.iter().map(|argument| argument.len() + 1).sum();
        if input.args.len() > ARGUMENTS || bytes > ARGUMENT_BYTES {
            return Err(InvalidInput::new("args", "at most 256 arguments with 65536 bytes together are allowed"));
        }
        match input.args.iter().any(|argument| argument.contains('\0')) {
            true => Err(InvalidInput::new("args", "an argument cannot contain a NUL")),
            false => Ok(program),
        }
    }

    fn start(&self, ctx: &JobContext, program: &Path, input: &CommandInput) -> Result<Group, JobError> {
        let mut command = tokio::process::Command::new(program);
        command.args(&input.args).current_dir(&self.directory).env_clear().envs(&self.env);
        command.env("WINDLASS_JOB_ID", ctx.job_id().to_string()).env("WINDLASS_ATTEMPT", ctx.attempt().to_string());
        command.env("WINDLASS_TENANT", ctx.tenant().to_string());
        let stdin = if input.stdin.is_some() { Stdio::piped() } else { Stdio::null() };
        command.stdin(stdin).stdout(Stdio::piped()).stderr(Stdio::piped()).process_group(0).kill_on_drop(true);
        let child = command.spawn().map_err(|error| not_started(&error))?;
        let id = child.id().and_then(|id| Pid::from_raw(i32::try_from(id).ok()?));
        let id = id.ok_or_else(|| JobError::new("not_started", "the program has no process id"))?;
        Ok(Group { child, id })
    }
}

impl JobHandler for Command {
    const ID: &'static str = "command.run";
    type Input = CommandInput;
    type Output = CommandOutput;

    fn options(&self) -> HandlerOptions {
        self.options.clone()
    }

    fn validate(&self, input: &CommandInput) -> Result<(), InvalidInput> {
        self.check(input).map(drop)
    }

    async fn execute(&self, ctx: &JobContext, input: CommandInput) -> Result<CommandOutput, JobError> {
        let program = self.check(&input).map_err(|error| JobError::of(Reason::Validation, error))?;
        let mut group = self.start(ctx, program, &input)?;
        let (stdin, stdout, stderr) = (group.child.stdin.take(), group.child.stdout.take(), group.child.stderr.take());
        // Tasks of their own, so that a program that fills one pipe is never waited for at another.
        let feeding = tokio::spawn(feed(stdin, input.stdin));
        let out = tokio::spawn(listen(stdout, ctx.clone(), LogLevel::Info));
        let err = tokio::spawn(listen(stderr, ctx.clone(), LogLevel::Warn));
        let status = group.end(ctx).await;
        drop(group);
        feeding.abort();
        let (stdout, stderr) = (rest(out).await, rest(err).await);
        if ctx.cancellation().is_cancelled() {
            return Err(JobError::cancelled());
        }
        match verdict(status.map_err(|error| not_started(&error))?) {
            None => Ok(CommandOutput { code: 0, stdout }),
            Some(error) => Err(error.with_details(json!({ "stdout": stdout, "stderr": stderr }))),
        }
    }
}

/// A running program and all that it has started. Killed when this is dropped, however the attempt ends.
struct Group {
    child: Child,
    id: Pid,
}

impl Group {
    /// Waits for the program; if the attempt is to stop, asks its group to end, and goes on without waiting for ever.
    async fn end(&mut self, ctx: &JobContext) -> std::io::Result<ExitStatus> {
        tokio::select! {
            biased;
            status = self.child.wait() => return status,
            () = ctx.cancellation().cancelled() => {}
        }
        let _ = kill_process_group(self.id, Signal::TERM);
        match tokio::time::timeout(GRACE, self.child.wait()).await {
            Ok(status) => status,
            Err(_) => {
                let _ = kill_process_group(self.id, Signal::KILL);
                self.child.wait().await
            }
        }
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        // Also what the program left behind when it ended: the group has its id as long as anything is in it.
        let _ = kill_process_group(self.id, Signal::KILL);
    }
}

async fn feed(stdin: Option<ChildStdin>, text: Option<String>) {
    if let (Some(mut stdin), Some(text)) = (stdin, text) {
        // A program need not read all of it.
        let _ = stdin.write_all(text.as_bytes()).await;
    }
}

/// Writes what comes to the job's log, line by line, and returns the end of it.
async fn listen(pipe: Option<impl AsyncRead + Unpin>, ctx: JobContext, level: LogLevel) -> String {
    let Some(mut pipe) = pipe else { return String::new() };
    let mut lines = Lines::default();
    let mut buffer = vec![0; READ];
    while let Ok(read @ 1..) = pipe.read(&mut buffer).await {
        lines.take(&buffer[..read], |line| ctx.log(level, line));
    }
    lines.end(|line| ctx.log(level, line))
}

/// What the reader of a pipe has found, after a moment for what is still under way.
async fn rest(mut reader: tokio::task::JoinHandle<String>) -> String {
    match tokio::time::timeout(REST, &mut reader).await {
        Ok(text) => text.unwrap_or_default(),
        Err(_) => {
            reader.abort();
            String::new()
        }
    }
}

/// Cuts a stream of bytes into lines, within bounds: of a line, of all lines, and of the end that is kept.
#[derive(Default)]
struct Lines {
    line: Vec<u8>,
    logged: usize,
    tail: Vec<u8>,
}

impl Lines {
    fn take(&mut self, bytes: &[u8], mut log: impl FnMut(String)) {
        for byte in bytes {
            match byte {
                b'\n' => self.flush(&mut log),
                byte => self.line.push(*byte),
            }
            if self.line.len() >= LOG_BYTES {
                self.flush(&mut log);
            }
        }
        self.tail.extend_from_slice(bytes);
        let old = self.tail.len().saturating_sub(TAIL_BYTES);
        self.tail.drain(..old);
    }

    fn flush(&mut self, log: &mut impl FnMut(String)) {
        let line = std::mem::take(&mut self.line);
        let line = String::from_utf8_lossy(&line);
        let line = line.trim_end_matches('\r');
        if line.is_empty() || self.logged > LOGGED_BYTES {
            return;
        }
        self.logged += line.len();
        match self.logged > LOGGED_BYTES {
            true => log(format!("more than {LOGGED_BYTES} bytes were printed; the rest is not logged")),
            false => log(line.to_owned()),
        }
    }

    fn end(mut self, mut log: impl FnMut(String)) -> String {
        self.flush(&mut log);
        String::from_utf8_lossy(&self.tail).into_owned()
    }
}

/// What the end of a program means; nothing for success.
fn verdict(status: ExitStatus) -> Option<JobError> {
    match (status.code(), status.signal()) {
        (Some(0), _) => None,
        // Of sysexits.h: usage, data, no input, no user, no host, a missing system file, protocol, permission,
        // configuration; of shells: not executable, not found.
        (Some(code @ (64..=68 | 72 | 76..=78 | 126 | 127)), _) => {
            Some(JobError::terminal(format!("exit_{code}"), format!("the program exited with {code}")))
        }
        (Some(code), _) => Some(JobError::new(format!("exit_{code}"), format!("the program exited with {code}"))),
        (None, Some(signal)) => {
            Some(JobError::new(format!("signal_{signal}"), format!("the program was ended by signal {signal}")))
        }
        (None, None) => Some(JobError::retryable("the program ended without a code")),
    }
}

/// A program that is not there will not come by itself; a machine without a free process may have one later.
fn not_started(error: &std::io::Error) -> JobError {
    use std::io::ErrorKind::{NotFound, PermissionDenied};
    let error_of = JobError::new("not_started", format!("the program could not be started: {error}"));
    error_of.with_retryable(!matches!(error.kind(), NotFound | PermissionDenied))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// HND-4: exit codes become errors, told apart.
    #[test]
    fn exit_codes_are_told_apart() {
        let of = |code: i32| verdict(ExitStatus::from_raw(code << 8));
        assert!(of(0).is_none());
        for (code, retryable) in
            [(1, true), (2, true), (64, false), (65, false), (75, true), (78, false), (127, false), (255, true)]
        {
            let error = of(code).expect("an error");
            assert_eq!((error.is_retryable(), error.code), (retryable, format!("exit_{code}")));
        }
        let killed = verdict(ExitStatus::from_raw(9)).expect("an error");
        assert_eq!((killed.code.as_str(), killed.is_retryable()), ("signal_9", true));
    }

    /// HND-4: only allowed programs run, and bad input is refused by field.
    #[test]
    fn every_field_is_checked() {
        let handler = Command::allow("echo", "/bin/echo").also("relative", "bin/echo");
        let field = |input: CommandInput| handler.check(&input).expect_err("refused").field;
        assert!(handler.check(&CommandInput::new("echo", ["; rm -rf /", "$(id)"])).is_ok(), "no shell reads them");
        for program in ["", "/bin/echo", "sh", "echo ", "../echo", "relative"] {
            assert_eq!(field(CommandInput::new(program, ["x"])), "program", "{program}");
        }
        assert_eq!(field(CommandInput::new("echo", vec!["x"; 257])), "args");
        assert_eq!(field(CommandInput::new("echo", ["x".repeat(70_000)])), "args");
        assert_eq!(field(CommandInput::new("echo", ["a\0b"])), "args");
    }

    /// HND-4: output is bounded, however it comes.
    #[test]
    fn lines_are_bounded() {
        let mut logged = Vec::new();
        let mut lines = Lines::default();
        lines.take(b"one\ntw", |line| logged.push(line));
        lines.take(b"o\r\n\nend", |line| logged.push(line));
        assert_eq!(lines.end(|line| logged.push(line)), "one\ntwo\r\n\nend");
        assert_eq!(logged, ["one", "two", "end"]);
        let (mut count, mut bytes, mut lines) = (0, 0, Lines::default());
        for _ in 0..1000 {
            lines.take(&[b'x'; 1000], |line| (count, bytes) = (count + 1, bytes + line.len()));
            assert!(lines.line.len() < LOG_BYTES && lines.tail.len() <= TAIL_BYTES);
        }
        assert!(count > 1 && bytes <= LOGGED_BYTES + 100, "{count} lines, {bytes} bytes");
        assert_eq!(lines.end(drop).len(), TAIL_BYTES);
    }
}
