//! A PostgreSQL server for one test run or one test: made, stopped, killed, started again and removed. Called by `xtask`
//! and by tests of faults. Never holds a connection: tests bring their own.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::thread;
use std::time::Instant;

use anyhow::{Context, Result, bail, ensure};

use super::binaries;
use super::process::{LOOK_EVERY, PATIENCE, ServerProcess, free_port};

/// The superuser; everyone may log in as it, from this machine, without a password.
const SUPERUSER: &str = "postgres";

/// How a server is set up.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct PostgresOptions {
    /// Whether a commit waits for the disk. On by default, because promises about durability are tested with it.
    pub fsync: bool,
    /// Whether the data may lie in memory: for servers without `fsync` on which many databases come and go, which a disk's
    /// file system is slow at. Only where there is a file system in memory with room to spare.
    pub in_memory: bool,
    /// The size of the page cache, as PostgreSQL writes it.
    pub shared_buffers: String,
    /// How many connections it accepts.
    pub max_connections: u16,
    /// Further settings, by name; they win over those above.
    pub settings: Vec<(String, String)>,
    /// An empty directory for the data, such as a small file system of its own. The server's own by default.
    pub data_dir: Option<PathBuf>,
    /// Variables of the server's environment, such as those of a fake clock.
    pub variables: Vec<(String, String)>,
    /// The directory of the programs to use. The system's own, or those of the variable, by default.
    pub programs: Option<PathBuf>,
}

impl Default for PostgresOptions {
    fn default() -> Self {
        PostgresOptions {
            fsync: true,
            in_memory: false,
            shared_buffers: "128MB".into(),
            max_connections: 200,
            settings: Vec::new(),
            data_dir: None,
            variables: Vec::new(),
            programs: None,
        }
    }
}

impl PostgresOptions {
    /// The default options.
    pub fn new() -> Self {
        PostgresOptions::default()
    }

    /// Sets any setting of `postgresql.conf`.
    #[must_use]
    pub fn setting(mut self, name: impl Into<String>, value: impl Into<String>) -> Self {
        self.settings.push((name.into(), value.into()));
        self
    }

    /// A server whose data nobody will miss: no waiting for a disk, and no disk where it can be helped.
    pub fn fleeting() -> Self {
        PostgresOptions { fsync: false, in_memory: true, ..PostgresOptions::default() }
    }

    /// Uses the programs in a directory: a server of a certain version.
    #[must_use]
    pub fn programs(mut self, dir: impl Into<PathBuf>) -> Self {
        self.programs = Some(dir.into());
        self
    }

    /// Puts the data into an empty directory, which is not removed with the server.
    #[must_use]
    pub fn data_dir(mut self, dir: impl Into<PathBuf>) -> Self {
        self.data_dir = Some(dir.into());
        self
    }
}

/// A file system in memory that has room for a server, if there is one.
fn memory() -> Option<PathBuf> {
    const ROOM: u64 = 2 << 30;
    let root = PathBuf::from("/dev/shm");
    let free = rustix::fs::statvfs(&root).map(|system| system.f_bavail * system.f_frsize);
    free.is_ok_and(|free| free >= ROOM).then_some(root)
}

/// How a server stops.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StopMode {
    /// Ends sessions, writes a checkpoint, then ends.
    Fast,
    /// Ends at once; the next start recovers from the log.
    Immediate,
}

/// A PostgreSQL server that is gone, with its data, when this is dropped or the process ends in any way.
///
/// ```no_run
/// use windlass_testkit::servers::{PostgresOptions, PostgresServer};
/// # fn main() -> anyhow::Result<()> {
/// let mut server = PostgresServer::start(PostgresOptions::new())?;
/// server.create_database("jobs")?;
/// println!("{}", server.url("jobs"));
/// server.kill_9();
/// server.start_again()?;
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
pub struct PostgresServer {
    process: ServerProcess,
    bin_dir: PathBuf,
    port: u16,
    options: PostgresOptions,
}

impl PostgresServer {
    /// Makes a new server and waits until it accepts connections. Installs Debian's package first if there is none and
    /// this process is root.
    pub fn start(options: PostgresOptions) -> Result<Self> {
        let bin_dir = options.programs.clone().map_or_else(binaries::postgres, Ok)?;
        let process = match memory().filter(|_| options.in_memory) {
            Some(root) => ServerProcess::prepare_in(root, "postgres", "QUIT")?,
            None => ServerProcess::prepare("postgres", "QUIT")?,
        };
        let mut server = PostgresServer { process, bin_dir, port: free_port()?, options };
        server.make_data()?;
        server.start_on_free_port()?;
        Ok(server)
    }

    /// Makes a server that follows `primary`: a copy of its data, read-only, kept up to date over the network as far as the
    /// network goes. It ends following with `pg_promote()`.
    pub fn standby_of(primary: &PostgresServer) -> Result<Self> {
        let mut server = PostgresServer::copy_of(primary, &["--write-recovery-conf"])?;
        server.start_on_free_port()?;
        Ok(server)
    }

    /// Keeps every finished file of the log in `dir`, and starts the server anew for it.
    pub fn archive_to(&mut self, dir: &Path) -> Result<()> {
        self.process.hand_over(dir)?;
        self.set("archive_mode", "on");
        // Under its name only when it is whole: the server may be killed in the middle of a copy.
        let dir = dir.display();
        self.set("archive_command", format!("cp %p {dir}/part && mv {dir}/part {dir}/%f"));
        self.restart(StopMode::Fast)
    }

    /// Copies the data of a running server into one that is not started yet. [`Backup::recover_to`] starts it.
    pub fn backup_of(running: &PostgresServer) -> Result<Backup> {
        Ok(Backup(PostgresServer::copy_of(running, &[])?))
    }

    /// A server with a copy of the data of a running one, not started.
    fn copy_of(running: &PostgresServer, how: &[&str]) -> Result<Self> {
        let process = ServerProcess::prepare("postgres", "QUIT")?;
        let mut options = running.options.clone();
        options.data_dir = None;
        let server = PostgresServer { process, bin_dir: running.bin_dir.clone(), port: free_port()?, options };
        let mut copy = server.process.command(&server.bin_dir.join("pg_basebackup"));
        copy.args(["--no-password", "--host", "127.0.0.1", "--username", SUPERUSER, "--port"]);
        copy.arg(running.port.to_string());
        copy.args(["--checkpoint=fast", "--wal-method=stream", "--no-sync"]).args(how);
        copy.arg("--pgdata").arg(server.data_dir());
        run(copy, "pg_basebackup")?;
        Ok(server)
    }

    /// The URL of a database over TCP.
    pub fn url(&self, database: &str) -> String {
        format!("postgres://{SUPERUSER}@127.0.0.1:{}/{database}", self.port)
    }

    /// The URL of the database that is always there, from which others are created.
    pub fn admin_url(&self) -> String {
        self.url("postgres")
    }

    /// The port on 127.0.0.1; the same for the server's whole life.
    pub fn port(&self) -> u16 {
        self.port
    }

    /// The directory of the server's unix socket.
    pub fn socket_dir(&self) -> &Path {
        self.process.dir()
    }

    /// The main process, while there is one.
    pub fn pid(&self) -> Option<u32> {
        self.process.pid()
    }

    /// What the server has logged last, for the messages of failed tests.
    pub fn log_tail(&self) -> String {
        self.process.log_tail()
    }

    /// Creates a database; fails if there is one of that name.
    pub fn create_database(&self, name: &str) -> Result<()> {
        self.create_database_through(self.port, name)
    }

    /// The same through whatever listens on `port`.
    pub(super) fn create_database_through(&self, port: u16, name: &str) -> Result<()> {
        let mut createdb = self.program("createdb");
        createdb.args(["--no-password", "--host", "127.0.0.1", "--username", SUPERUSER, "--port"]);
        createdb.arg(port.to_string()).arg("--").arg(name);
        run(createdb, "createdb")
    }

    /// Sets a setting for the next start.
    pub fn set(&mut self, name: impl Into<String>, value: impl Into<String>) {
        self.options.settings.push((name.into(), value.into()));
    }

    /// Sets the variables of the next start's environment.
    pub fn set_variables(&mut self, variables: Vec<(String, String)>) {
        self.options.variables = variables;
    }

    /// Stops the server and waits until it has ended. Nothing happens if it is not running.
    pub fn stop(&mut self, mode: StopMode) -> Result<()> {
        match mode {
            StopMode::Fast => self.process.stop("INT"),
            StopMode::Immediate => self.process.stop("QUIT"),
        }
    }

    /// Kills every process of the server at once, as a crash of its machine would.
    pub fn kill_9(&mut self) {
        self.process.kill();
    }

    /// Starts the server again on its data and port, and waits until it accepts connections.
    pub fn start_again(&mut self) -> Result<()> {
        ensure!(self.pid().is_none(), "the server is running already");
        // Sessions of a killed server may take a moment to notice and keep its memory until then; the server refuses to
        // start while they do.
        let deadline = Instant::now() + PATIENCE;
        loop {
            match self.run() {
                Err(error) if in_use(&error) && Instant::now() < deadline => thread::sleep(LOOK_EVERY),
                result => return result,
            }
        }
    }

    /// Stops the server and starts it again.
    pub fn restart(&mut self, mode: StopMode) -> Result<()> {
        self.stop(mode)?;
        self.start_again()
    }

    /// Where the data is.
    pub fn data_dir(&self) -> PathBuf {
        self.options.data_dir.clone().unwrap_or_else(|| self.process.dir().join("data"))
    }

    /// A program of this server's version, run as the server's user. Of a client that comes without its server, the
    /// system's own version: `createdb` and `psql` speak to newer servers too.
    pub fn program(&self, name: &str) -> Command {
        let own = self.bin_dir.join(name);
        let program = if own.is_file() { own } else { binaries::postgres_program(name).unwrap_or(own) };
        self.process.command(&program)
    }

    fn make_data(&self) -> Result<()> {
        if let Some(dir) = &self.options.data_dir {
            self.process.hand_over(dir)?;
        }
        let mut initdb = self.process.command(&self.bin_dir.join("initdb"));
        initdb.args(["--no-sync", "--auth=trust", "--encoding=UTF8", "--locale=C.UTF-8", "--username", SUPERUSER]);
        initdb.arg("--pgdata").arg(self.data_dir());
        run(initdb, "initdb")
    }

    /// Another process may take the port between the look and the start.
    fn start_on_free_port(&mut self) -> Result<()> {
        const TRIES: usize = 5;
        for _ in 1..TRIES {
            match self.run() {
                Err(error) if error.to_string().contains("could not bind") => self.port = free_port()?,
                result => return result,
            }
        }
        self.run()
    }

    fn run(&mut self) -> Result<()> {
        // Only this start's words count when it is asked why it failed.
        let _ = fs::remove_file(self.process.log());
        let mut postgres = self.process.command(&self.bin_dir.join("postgres"));
        postgres.arg("-D").arg(self.data_dir());
        postgres.envs(self.options.variables.iter().map(|(name, value)| (name, value)));
        for (name, value) in self.settings() {
            postgres.arg("-c").arg(format!("{name}={value}"));
        }
        self.process.spawn(postgres)?;
        let pid_file = self.data_dir().join("postmaster.pid");
        self.process.wait_until_ready(|process| is_ready(&pid_file, process.pid()))
    }

    fn settings(&self) -> Vec<(String, String)> {
        let on_off = |on| if on { "on" } else { "off" };
        let mut settings: Vec<(String, String)> = vec![
            ("listen_addresses".into(), "127.0.0.1".into()),
            ("port".into(), self.port.to_string()),
            ("unix_socket_directories".into(), self.process.dir().display().to_string()),
            ("fsync".into(), on_off(self.options.fsync).into()),
            ("shared_buffers".into(), self.options.shared_buffers.clone()),
            ("max_connections".into(), self.options.max_connections.to_string()),
        ];
        settings.extend(self.options.settings.iter().cloned());
        settings
    }
}

/// A copy of a server's data that is not running.
#[derive(Debug)]
pub struct Backup(PostgresServer);

impl Backup {
    /// Brings the copy up to the restore point `name` with the log that was archived in `archive`, and starts it as a
    /// server of its own. It may still be recovering when this returns.
    pub fn recover_to(self, name: &str, archive: &Path) -> Result<PostgresServer> {
        let mut server = self.0;
        let signal = server.data_dir().join("recovery.signal");
        fs::write(&signal, "")?;
        server.process.hand_over(&signal)?;
        // The copy has its own history from there on, which must not overwrite that of the first server.
        server.set("archive_mode", "off");
        server.set("restore_command", format!("cp {}/%f %p", archive.display()));
        server.set("recovery_target_name", name);
        server.set("recovery_target_action", "promote");
        server.start_on_free_port()?;
        Ok(server)
    }
}

/// Whether the server has written into its pid file that it accepts connections, or as a standby reads: what `pg_ctl --wait` looks at. The
/// first line tells a file that a killed predecessor left behind.
fn is_ready(pid_file: &Path, pid: Option<u32>) -> bool {
    let Ok(text) = fs::read_to_string(pid_file) else { return false };
    let lines: Vec<&str> = text.lines().map(str::trim).collect();
    const STATUS_LINE: usize = 7;
    lines.first().and_then(|line| line.parse().ok()) == pid
        && matches!(lines.get(STATUS_LINE), Some(&("ready" | "standby")))
}

fn in_use(error: &anyhow::Error) -> bool {
    let message = error.to_string();
    message.contains("pre-existing shared memory block") || message.contains("is still in use")
}

fn run(mut command: Command, name: &str) -> Result<()> {
    let output = command.stdout(Stdio::null()).output().with_context(|| format!("run {name}"))?;
    if !output.status.success() {
        bail!("{name} failed ({}): {}", output.status, String::from_utf8_lossy(&output.stderr).trim());
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::io::{BufRead, BufReader};

    use super::*;

    fn start() -> PostgresServer {
        PostgresServer::start(PostgresOptions::new()).expect("a PostgreSQL server starts")
    }

    /// There is no client here, but a database cannot be created twice.
    fn has_database(server: &PostgresServer, name: &str) -> bool {
        match server.create_database(name) {
            Ok(()) => false,
            Err(error) if error.to_string().contains("already exists") => true,
            Err(error) => panic!("createdb failed otherwise: {error:#}"),
        }
    }

    #[test]
    fn what_is_committed_survives_kill_9_and_restarts() {
        let mut server = start();
        let (url, first) = (server.url("kept"), server.pid());
        server.create_database("kept").expect("create");
        server.kill_9();
        assert_eq!(server.pid(), None);
        assert!(server.create_database("refused").is_err(), "nobody answers after a kill");
        server.start_again().expect("start after a kill");
        assert!(has_database(&server, "kept"));
        server.set("work_mem", "8MB");
        for mode in [StopMode::Fast, StopMode::Immediate] {
            server.restart(mode).expect("restart");
            assert!(has_database(&server, "kept"));
        }
        assert_eq!(server.url("kept"), url);
        assert_ne!(server.pid(), first);
    }

    #[test]
    fn a_standby_has_what_its_primary_has() {
        let primary = start();
        primary.create_database("followed").expect("create");
        let standby = PostgresServer::standby_of(&primary).expect("a standby starts");
        assert_ne!(standby.port(), primary.port());
        let refused = standby.create_database("followed").expect_err("a standby only reads").to_string();
        assert!(refused.contains("read-only") || refused.contains("recovery"), "{refused}");
    }

    #[test]
    fn a_dropped_server_leaves_nothing_behind() {
        let server = start();
        let (dir, pid) = (server.socket_dir().to_owned(), server.pid().expect("running"));
        drop(server);
        assert!(!dir.exists());
        assert!(!is_alive(pid));
    }

    #[test]
    fn a_setting_that_is_refused_is_reported_with_the_log() {
        let options = PostgresOptions::new().setting("max_connections", "many");
        let error = PostgresServer::start(options).expect_err("refused").to_string();
        assert!(error.contains("max_connections"), "{error}");
    }

    /// The owner is this test itself in a second process, which is killed so that no destructor of it runs.
    #[test]
    fn a_server_ends_with_its_owner_even_if_that_is_killed() {
        const OWNER_VAR: &str = "WINDLASS_TEST_OWNS_A_SERVER";
        if std::env::var_os(OWNER_VAR).is_some() {
            let server = start();
            eprintln!("owns {} {}", server.pid().expect("running"), server.socket_dir().display());
            loop {
                thread::park();
            }
        }
        let mut owner = Command::new(std::env::current_exe().expect("own path"))
            .args([
                "--exact",
                "--nocapture",
                "servers::postgres::tests::a_server_ends_with_its_owner_even_if_that_is_killed",
            ])
            .env(OWNER_VAR, "1")
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .expect("start the owner");
        let lines = BufReader::new(owner.stderr.take().expect("piped")).lines();
        let owned = lines.map_while(Result::ok).find_map(|line| line.strip_prefix("owns ").map(str::to_owned));
        let _ = owner.kill();
        let _ = owner.wait();
        let owned = owned.expect("the owner starts a server");
        let (pid, dir) = owned.split_once(' ').expect("pid and directory");
        let pid = pid.parse().expect("a pid");
        let deadline = Instant::now() + PATIENCE;
        while Path::new(dir).exists() || is_alive(pid) {
            assert!(Instant::now() < deadline, "process {pid} or its directory {dir} is still there");
            thread::sleep(LOOK_EVERY);
        }
    }

    /// A zombie that a lazy init has not collected is not alive.
    fn is_alive(pid: u32) -> bool {
        let state = |stat: String| stat.rsplit_once(") ").map(|(_, rest)| rest.starts_with('Z'));
        fs::read_to_string(format!("/proc/{pid}/stat")).ok().and_then(state) == Some(false)
    }
}
