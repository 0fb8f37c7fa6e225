//! One server process with a directory of its own: started without root's rights, and gone with everything it wrote when
//! its owner is, however the owner ends. Called by `postgres`, `pgbouncer` and `chromium`; knows nothing about them.

use std::fs;
use std::io::Write;
use std::net::TcpListener;
use std::os::unix::fs::{PermissionsExt, chown};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command, ExitStatus, Stdio};
use std::sync::OnceLock;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use tempfile::TempDir;

/// How long a server may take to start or to stop: a busy machine of two cores replays a crash's log in a few seconds.
pub(super) const PATIENCE: Duration = Duration::from_secs(60);
/// How often a state that nothing announces is looked at.
pub(super) const LOOK_EVERY: Duration = Duration::from_millis(20);

/// A directory, the process that lives in it, and the guard that removes both.
#[derive(Debug)]
pub(super) struct ServerProcess {
    name: &'static str,
    /// What makes the server end at once yet give back what the system keeps for it, such as shared memory.
    end_signal: &'static str,
    /// Whether a signal is for everything that the server has started too.
    whole_group: bool,
    // In the order of dropping: the guard goes last, so that it covers the removal too.
    child: Option<Child>,
    dir: TempDir,
    guard: Guard,
    user: Option<User>,
}

impl ServerProcess {
    /// A directory without a process yet.
    pub(super) fn prepare(name: &'static str, end_signal: &'static str) -> Result<Self> {
        Self::prepare_in(temp_root(), name, end_signal)
    }

    /// The same, below another directory than that for temporary files.
    pub(super) fn prepare_in(root: PathBuf, name: &'static str, end_signal: &'static str) -> Result<Self> {
        let user = unprivileged_user()?;
        let dir = tempfile::Builder::new()
            .prefix(&format!("windlass-{name}-"))
            .tempdir_in(root)
            .context("make a directory for a server")?;
        let guard = Guard::watch(dir.path(), end_signal)?;
        let process = ServerProcess { name, end_signal, whole_group: false, child: None, dir, guard, user };
        process.hand_over(process.dir())?;
        Ok(process)
    }

    /// The same for a server whose children do not end with it, such as a driver of browsers: it ends with all of them.
    pub(super) fn prepare_group(name: &'static str) -> Result<Self> {
        let mut process = Self::prepare(name, "KILL")?;
        process.whole_group = true;
        Ok(process)
    }

    /// Everything the server writes is in here.
    pub(super) fn dir(&self) -> &Path {
        self.dir.path()
    }

    /// The file with everything the server said.
    pub(super) fn log(&self) -> PathBuf {
        self.dir().join("log")
    }

    /// The end of that file, for error messages.
    pub(super) fn log_tail(&self) -> String {
        const LINES: usize = 20;
        let log = fs::read(self.log()).unwrap_or_default();
        let log = String::from_utf8_lossy(&log);
        let lines: Vec<&str> = log.lines().collect();
        lines[lines.len().saturating_sub(LINES)..].join("\n")
    }

    /// Gives a file or directory to the user the server runs as.
    pub(super) fn hand_over(&self, path: &Path) -> Result<()> {
        if let Some(user) = self.user {
            chown(path, Some(user.uid), Some(user.gid))
                .with_context(|| format!("give {} to another user", path.display()))?;
        }
        Ok(())
    }

    /// A command that runs as the server's user, in its directory, deaf to the caller's terminal and PG variables.
    pub(super) fn command(&self, program: &Path) -> Command {
        let mut command = Command::new(program);
        command.current_dir(self.dir()).stdin(Stdio::null()).env("LC_ALL", "C");
        for (name, _) in std::env::vars_os().filter(|(name, _)| name.as_encoded_bytes().starts_with(b"PG")) {
            command.env_remove(name);
        }
        if let Some(user) = self.user {
            command.uid(user.uid).gid(user.gid);
        }
        command
    }

    /// Starts the server. It is ours until it has been waited for.
    pub(super) fn spawn(&mut self, mut command: Command) -> Result<()> {
        ensure!(self.child.is_none(), "{} is running already", self.name);
        let log = fs::OpenOptions::new().create(true).append(true).open(self.log()).context("open a server's log")?;
        // A group of its own: Ctrl-C in a terminal is for the caller, whose end the guard then acts on.
        command.process_group(0).stdout(log.try_clone()?).stderr(log);
        let child = command.spawn().with_context(|| format!("start {}", self.name))?;
        self.guard.tell(Some(&self.target(child.id())));
        self.child = Some(child);
        Ok(())
    }

    /// The process, if it is running.
    pub(super) fn pid(&self) -> Option<u32> {
        self.child.as_ref().map(Child::id)
    }

    /// Waits until `ready` says so; fails when the server ends first or takes too long.
    pub(super) fn wait_until_ready(&mut self, ready: impl Fn(&Self) -> bool) -> Result<()> {
        let deadline = Instant::now() + PATIENCE;
        while !ready(self) {
            if let Some(status) = self.child.as_mut().context("nothing was started")?.try_wait()? {
                self.forget();
                bail!("{} ended while it started ({status}):\n{}", self.name, self.log_tail());
            }
            if Instant::now() > deadline {
                self.kill();
                bail!("{} was not ready after {PATIENCE:?}:\n{}", self.name, self.log_tail());
            }
            thread::sleep(LOOK_EVERY);
        }
        Ok(())
    }

    /// Asks the server to stop with a signal and waits for it; one that does not listen is killed.
    pub(super) fn stop(&mut self, signal: &str) -> Result<()> {
        let Some(target) = self.pid().map(|pid| self.target(pid)) else { return Ok(()) };
        send_signal(signal, &[target]);
        let ended = self.child.as_mut().map(wait_for_end).transpose()?.flatten();
        if ended.is_none() {
            self.kill();
            bail!("{} did not stop on SIG{signal} within {PATIENCE:?} and was killed", self.name);
        }
        self.forget();
        Ok(())
    }

    /// Kills the server and what it has started, without any warning.
    pub(super) fn kill(&mut self) {
        let Some(mut child) = self.child.take() else { return };
        let mut left: Vec<String> = children_of(child.id()).iter().map(u32::to_string).collect();
        if self.whole_group {
            left.push(self.target(child.id()));
        }
        // The parent first: it would restart a child that dies. Waiting for it also keeps its pid from staying a zombie,
        // which the next start would take for a server that is still alive.
        let _ = child.kill();
        let _ = child.wait();
        send_signal("KILL", &left);
        self.forget();
    }

    /// Whom a signal is for, as `kill` reads it. The server leads a group of its own, which is named by its pid.
    fn target(&self, pid: u32) -> String {
        if self.whole_group { format!("-{pid}") } else { pid.to_string() }
    }

    fn forget(&mut self) {
        self.child = None;
        self.guard.tell(None);
    }
}

impl Drop for ServerProcess {
    fn drop(&mut self) {
        // A server that does not listen has been killed by `stop`; there is nobody left to tell.
        let _ = self.stop(self.end_signal);
    }
}

/// A shell that outlives us by a moment: when the pipe from us closes, because the guard is dropped or because this
/// process has ended in any way at all, it ends the server it was told of last and removes the directory.
#[derive(Debug)]
struct Guard {
    shell: Child,
    pipe: Option<ChildStdin>,
}

/// `$1` is the directory, `$2` the signal; lines of input are the pid or group to end, empty for none. What a killed server leaves
/// running ends by itself, so the directory is removed until it stays away.
const GUARD_SCRIPT: &str = r#"
trap '' HUP INT TERM
pid=
while read -r line; do pid=$line; done
tries=0
if [ -n "$pid" ]; then
    kill -s "$2" -- "$pid"
    while kill -s 0 -- "$pid" && [ $tries -lt 100 ]; do
        tries=$((tries + 1))
        sleep 0.1
    done
    kill -s KILL -- "$pid"
fi
tries=0
while [ -e "$1" ] && [ $tries -lt 100 ]; do
    rm -rf "$1"
    tries=$((tries + 1))
    sleep 0.1
done
"#;

impl Guard {
    fn watch(dir: &Path, end_signal: &str) -> Result<Self> {
        let mut shell = Command::new("sh")
            .args(["-c", GUARD_SCRIPT, "guard"])
            .arg(dir)
            .arg(end_signal)
            .current_dir("/")
            .process_group(0)
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .context("start the guard of a server")?;
        let pipe = shell.stdin.take();
        Ok(Guard { shell, pipe })
    }

    fn tell(&mut self, target: Option<&str>) {
        let line = target.unwrap_or_default();
        // A guard that someone killed guards no more; the owner's own Drop still does.
        let _ = self.pipe.as_mut().map(|pipe| writeln!(pipe, "{line}"));
    }
}

impl Drop for Guard {
    fn drop(&mut self) {
        drop(self.pipe.take());
        let _ = self.shell.wait();
    }
}

/// A user to run servers as.
#[derive(Clone, Copy, Debug)]
struct User {
    uid: u32,
    gid: u32,
}

/// Whether this process is root, as whom no server will start.
pub(super) fn is_root() -> bool {
    static ROOT: OnceLock<bool> = OnceLock::new();
    *ROOT.get_or_init(|| {
        let output = Command::new("id").arg("-u").stdin(Stdio::null()).output();
        output.is_ok_and(|output| output.stdout.trim_ascii() == b"0")
    })
}

/// For root, the user that servers run as instead: the one PostgreSQL's package makes, or nobody.
fn unprivileged_user() -> Result<Option<User>> {
    if !is_root() {
        return Ok(None);
    }
    let users = fs::read_to_string("/etc/passwd").context("read the list of users")?;
    let user = ["postgres", "nobody"].iter().find_map(|name| parse_user(&users, name));
    Ok(Some(user.context("servers do not start as root, and there is neither a user `postgres` nor `nobody`")?))
}

fn parse_user(passwd: &str, name: &str) -> Option<User> {
    let fields = passwd.lines().map(|line| line.split(':').collect::<Vec<_>>()).find(|fields| fields[0] == name)?;
    Some(User { uid: fields.get(2)?.parse().ok()?, gid: fields.get(3)?.parse().ok()? })
}

/// Where directories of servers go: the usual place, unless its name is too long for a socket in it, or root's own.
fn temp_root() -> PathBuf {
    /// A socket's path has at most 103 bytes on some systems; ours add about 50.
    const LONGEST: usize = 50;
    let usual = std::env::temp_dir();
    let open = |dir: &Path| fs::metadata(dir).is_ok_and(|meta| meta.permissions().mode() & 0o001 != 0);
    let usable = usual.as_os_str().len() <= LONGEST && (!is_root() || usual.ancestors().all(open));
    if usable { usual } else { PathBuf::from("/tmp") }
}

/// A port that nothing listens on. Below the range from which systems give ports to outgoing connections, so that none
/// of them takes it while its server is stopped.
pub fn free_port() -> Result<u16> {
    const TRIES: usize = 100;
    for _ in 0..TRIES {
        let port = rand::random_range(15_000..32_000);
        if TcpListener::bind(("127.0.0.1", port)).is_ok() {
            return Ok(port);
        }
    }
    bail!("no free port found in {TRIES} tries")
}

/// Sends a signal; a process that is gone already is as good as signalled.
fn send_signal(signal: &str, targets: &[String]) {
    if targets.is_empty() {
        return;
    }
    // The shell's own `kill`, because minimal systems have no program of that name.
    let mut kill = Command::new("sh");
    kill.args(["-c", r#"signal=$1; shift; kill -s "$signal" -- "$@""#, "kill", signal]);
    kill.args(targets);
    let _ = kill.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).status();
}

/// The processes that `parent` has started, where the system has a /proc to tell.
fn children_of(parent: u32) -> Vec<u32> {
    let mut children = Vec::new();
    for entry in fs::read_dir("/proc").into_iter().flatten().flatten() {
        let Some(pid) = entry.file_name().to_str().and_then(|name| name.parse().ok()) else { continue };
        let Ok(stat) = fs::read_to_string(entry.path().join("stat")) else { continue };
        // `pid (name) state parent …`, where the name may hold anything.
        let after_name = stat.rsplit_once(')').map_or("", |(_, rest)| rest);
        if after_name.split_whitespace().nth(1) == Some(parent.to_string().as_str()) {
            children.push(pid);
        }
    }
    children
}

fn wait_for_end(child: &mut Child) -> Result<Option<ExitStatus>> {
    let deadline = Instant::now() + PATIENCE;
    loop {
        match child.try_wait()? {
            Some(status) => return Ok(Some(status)),
            None if Instant::now() > deadline => return Ok(None),
            None => thread::sleep(LOOK_EVERY),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn users_are_read_from_the_list() {
        let passwd = "root:x:0:0:root:/:/bin/sh\nnobody:x:65534:65533::/:/bin/false\n";
        let user = parse_user(passwd, "nobody").expect("listed");
        assert_eq!((user.uid, user.gid), (65534, 65533));
        assert!(parse_user(passwd, "postgres").is_none());
    }
}
