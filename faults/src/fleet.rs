//! The processes of a run: started as further runs of this binary, signalled, and gone with the run however it ends.
//! Called by `rig`. What a process did is read from its file of events; nothing here talks to a store.

use std::fs::{self, File};
use std::io::Write;
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Child, ChildStdin, Command as Program, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use rustix::process::{Pid, Signal, kill_process};

use crate::child::{Command, Load, TASK_VAR, Task};
use crate::event::{Event, What};

/// How often a state that nothing announces is looked at.
pub const LOOK_EVERY: Duration = Duration::from_millis(20);

/// How long a process may take to start on a busy machine.
const START_WITHIN: Duration = Duration::from_secs(30);

/// A process of a run; killed when dropped.
pub struct Process {
    /// What it was started for.
    pub task: Task,
    /// What it submits, until told otherwise; taken up again by the process that replaces it.
    pub load: Option<Load>,
    /// What it is started under: variables, such as those of a fake clock, and a limit of memory.
    pub under: Under,
    child: Child,
    /// A process whose input ends stops, so that none outlives a run that was killed.
    stdin: Option<ChildStdin>,
}

/// What a process is started under.
#[derive(Clone, Debug, Default)]
pub struct Under {
    /// Variables of its environment.
    pub variables: Vec<(String, String)>,
    /// The most memory it may ask for.
    pub memory_bytes: Option<u64>,
}

impl Process {
    /// Starts a process, which writes its events and its errors into files beside each other.
    pub fn start(task: Task, under: Under) -> Result<Process> {
        let program = std::env::current_exe().context("find the path of this program")?;
        let errors = File::create(task.events.with_extension("err")).context("make a file for errors")?;
        let mut command = match under.memory_bytes {
            None => Program::new(program),
            Some(bytes) => {
                let mut shell = Program::new("sh");
                // The limit is the shell's to set; the program takes its place.
                shell.args(["-c", &format!("ulimit -v {} && exec \"$0\"", bytes / 1_024)]).arg(program);
                shell
            }
        };
        command.env(TASK_VAR, serde_json::to_string(&task)?);
        command.envs(under.variables.iter().map(|(name, value)| (name, value)));
        // A group of its own: Ctrl-C is for the run, which then ends its processes.
        command.process_group(0).stdin(Stdio::piped()).stdout(Stdio::null()).stderr(errors);
        let mut child = command.spawn().context("start a process")?;
        let stdin = child.stdin.take();
        Ok(Process { task, load: None, under, child, stdin })
    }

    /// Waits until it has started.
    pub async fn up(&mut self) -> Result<()> {
        let started = Instant::now();
        while !self.has(|what| matches!(what, What::Up { .. }))? {
            if let Some(status) = self.exited()? {
                bail!("process {} ended while it started ({status}): {}", self.task.proc, self.errors());
            }
            ensure!(started.elapsed() < START_WITHIN, "process {} did not start in time", self.task.proc);
            tokio::time::sleep(LOOK_EVERY).await;
        }
        Ok(())
    }

    /// The number of the process.
    pub fn proc(&self) -> u32 {
        self.task.proc
    }

    /// Its process id.
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Sends a signal; a process that is gone does not mind.
    pub fn signal(&self, signal: Signal) {
        let pid = Pid::from_child(&self.child);
        let _ = kill_process(pid, signal);
    }

    /// Kills it as `kill -9` does and waits until it is gone.
    pub fn kill_9(&mut self) {
        self.signal(Signal::KILL);
        let _ = self.child.wait();
    }

    /// Sends an order. One that has just died does not get it.
    pub fn tell(&mut self, command: &Command) {
        if let Some(stdin) = &mut self.stdin {
            let line = serde_json::to_string(command).expect("a command is JSON");
            let _ = writeln!(stdin, "{line}").and_then(|()| stdin.flush());
        }
    }

    /// How it ended, if it has.
    pub fn exited(&mut self) -> Result<Option<ExitStatus>> {
        self.child.try_wait().context("look at a process")
    }

    /// Tells it to end in good order and waits until it has; killed if it takes longer. Answers how long it took.
    pub async fn stop(&mut self, at_most: Duration) -> Result<Duration> {
        self.stdin = None;
        self.ended(at_most).await
    }

    /// Waits until it has ended; killed and an error if it takes longer.
    pub async fn ended(&mut self, at_most: Duration) -> Result<Duration> {
        let started = Instant::now();
        while self.exited()?.is_none() {
            if started.elapsed() > at_most {
                self.kill_9();
                bail!("process {} did not end within {at_most:?}: {}", self.proc(), self.errors());
            }
            tokio::time::sleep(LOOK_EVERY).await;
        }
        Ok(started.elapsed())
    }

    /// What it has written so far; a kill may leave half a line.
    pub fn events(&self) -> Result<Vec<Event>> {
        let text = match fs::read_to_string(&self.task.events) {
            Ok(text) => text,
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(Vec::new()),
            Err(error) => return Err(error).context("read events"),
        };
        let whole = text.rfind('\n').map_or("", |end| &text[..end]);
        whole.lines().map(|line| serde_json::from_str(line).context("read an event")).collect()
    }

    /// Whether it has written such an event.
    pub fn has(&self, wanted: impl Fn(&What) -> bool) -> Result<bool> {
        Ok(self.events()?.iter().any(|event| wanted(&event.what)))
    }

    /// The last things it said.
    pub fn errors(&self) -> String {
        let text = fs::read_to_string(self.errors_file()).unwrap_or_default();
        let lines: Vec<&str> = text.lines().collect();
        lines[lines.len().saturating_sub(5)..].join(" | ")
    }

    /// Where it writes what it logs.
    pub fn errors_file(&self) -> PathBuf {
        self.task.events.with_extension("err")
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
