//! A real `windlass up` with its demo's handlers and a key, for what speaks to the API from outside: the clients of
//! other languages and schemathesis. Called by `clients` and `schemathesis`. Gone, with its data, when it is dropped.

use std::fs;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use serde::Deserialize;
use tempfile::TempDir;
use windlass_testkit::servers::free_port;

/// How long it may take until the server answers, on a machine that is busy with other tests.
const PATIENCE: Duration = Duration::from_secs(60);
const LOOK_EVERY: Duration = Duration::from_millis(50);

/// A server on loopback.
pub(crate) struct Server {
    child: Child,
    /// Its address.
    pub(crate) url: String,
    /// A key with every right over all tenants.
    pub(crate) key: String,
    /// Its data and its log.
    dir: PathBuf,
    /// Removed with the server, where the directory is its own.
    _own: Option<TempDir>,
}

/// What `windlass api-key create --json` prints, as far as it matters here.
#[derive(Deserialize)]
struct Created {
    secret: String,
}

impl Server {
    /// Starts the given `windlass` on a file of its own.
    pub(crate) fn start(windlass: &Path) -> Result<Self> {
        let own = tempfile::tempdir().context("make a directory for a server")?;
        let mut server = Server::start_in(windlass, own.path())?;
        server._own = Some(own);
        Ok(server)
    }

    /// The same with its data in a directory that the caller removes.
    pub(crate) fn start_in(windlass: &Path, dir: &Path) -> Result<Self> {
        fs::create_dir_all(dir).with_context(|| format!("make {}", dir.display()))?;
        let port = free_port()?;
        let log = fs::File::create(dir.join("log")).context("make a file for the log")?;
        let child = Command::new(windlass)
            .args(["up", "--listen", &format!("127.0.0.1:{port}"), "--data"])
            .arg(dir)
            .stdin(Stdio::null())
            .stdout(log.try_clone()?)
            .stderr(log)
            .spawn()
            .context("start windlass up")?;
        let (url, dir) = (format!("http://127.0.0.1:{port}"), dir.to_owned());
        let mut server = Server { child, url, key: String::new(), dir, _own: None };
        server.wait_until_ready(port)?;
        // Through the server, which has the file.
        server.key = create_key(windlass, &server.dir)?;
        Ok(server)
    }

    fn wait_until_ready(&mut self, port: u16) -> Result<()> {
        let deadline = Instant::now() + PATIENCE;
        while !is_ready(port) {
            if let Some(status) = self.child.try_wait()? {
                bail!("windlass up ended while it started ({status}):\n{}", self.log());
            }
            ensure!(Instant::now() < deadline, "windlass up was not ready after {PATIENCE:?}:\n{}", self.log());
            thread::sleep(LOOK_EVERY);
        }
        Ok(())
    }

    /// What it has said so far.
    pub(crate) fn log(&self) -> String {
        String::from_utf8_lossy(&fs::read(self.dir.join("log")).unwrap_or_default()).into_owned()
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // The data goes too, so there is nothing to end gently.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn create_key(windlass: &Path, data: &Path) -> Result<String> {
    let output = Command::new(windlass)
        .arg("--db")
        .arg(format!("sqlite:{}", data.join("windlass.db").display()))
        .args(["--json", "api-key", "create", "tests", "--rights", "admin,payload", "--all-tenants"])
        .stdin(Stdio::null())
        .output()
        .context("start windlass api-key create")?;
    ensure!(output.status.success(), "no key was made: {}", String::from_utf8_lossy(&output.stderr));
    let created: Created = serde_json::from_slice(&output.stdout).context("read what windlass api-key create says")?;
    Ok(created.secret)
}

/// Whether the server says that it is ready. One plain request, for which no HTTP library is worth its build.
fn is_ready(port: u16) -> bool {
    let Ok(mut stream) = TcpStream::connect(("127.0.0.1", port)) else { return false };
    let _ = stream.set_read_timeout(Some(PATIENCE));
    let mut answer = String::new();
    let request = b"GET /readyz HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n";
    stream.write_all(request).is_ok()
        && stream.read_to_string(&mut answer).is_ok()
        && answer.starts_with("HTTP/1.1 200")
}
