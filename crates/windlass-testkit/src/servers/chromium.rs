//! A headless Chromium behind its WebDriver, for tests that use the dashboard as people do. Called by the browser tests
//! of the server; `xtask` installs it before. Never downloads a browser itself: only packages of the system.

use std::net::TcpStream;
use std::path::PathBuf;

use anyhow::{Context, Result};
use serde_json::{Value, json};

use super::binaries::{install_package, path_dirs};
use super::process::{ServerProcess, free_port};

/// The variable that names the directory of the Chromium and chromedriver to use.
const CHROMIUM_BIN_VAR: &str = "WINDLASS_CHROMIUM_BIN";
/// What the browser is called by Debian, by Ubuntu, and by those who install Google's build.
const BROWSERS: [&str; 4] = ["chromium", "chromium-browser", "google-chrome", "chrome"];
const DRIVER: &str = "chromedriver";

/// How the browser is started. It runs as root in most containers, where its own sandbox cannot; the rest keeps it from
/// speaking to anyone but the server under test.
const ARGUMENTS: [&str; 13] = [
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-dev-shm-usage",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--hide-scrollbars",
    "--force-color-profile=srgb",
    "--lang=en-US",
    "--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE 127.0.0.1, EXCLUDE localhost",
];

/// A chromedriver that is gone, with the browsers it has started, when this is dropped or the process ends in any way.
#[derive(Debug)]
pub struct ChromeDriver {
    process: ServerProcess,
    port: u16,
    browser: PathBuf,
}

impl ChromeDriver {
    /// Makes sure that there is a browser with its driver: installs Debian's packages if there is none and this process
    /// is root.
    pub fn install() -> Result<()> {
        Programs::find_or_install().map(drop)
    }

    /// Starts a driver on a free port; browsers start with its sessions.
    pub fn start() -> Result<Self> {
        let programs = Programs::find_or_install()?;
        // However it ends, a driver leaves its browsers running.
        let mut process = ServerProcess::prepare_group("chromedriver")?;
        let port = free_port()?;
        let mut command = process.command(&programs.driver);
        // The browser keeps its profile under TMPDIR and its crash reports under HOME: both go with the server.
        command.arg(format!("--port={port}")).env("HOME", process.dir()).env("TMPDIR", process.dir());
        process.spawn(command)?;
        process.wait_until_ready(|_| TcpStream::connect(("127.0.0.1", port)).is_ok())?;
        Ok(ChromeDriver { process, port, browser: programs.browser })
    }

    /// Where WebDriver commands go.
    pub fn url(&self) -> String {
        format!("http://127.0.0.1:{}", self.port)
    }

    /// What a new session asks for: a headless browser that keeps what its console says and which requests it makes.
    pub fn capabilities(&self) -> serde_json::Map<String, Value> {
        let capabilities = json!({
            "goog:chromeOptions": { "binary": self.browser, "args": ARGUMENTS },
            "goog:loggingPrefs": { "browser": "ALL", "performance": "ALL" },
        });
        let Value::Object(capabilities) = capabilities else { unreachable!("it is written as an object above") };
        capabilities
    }

    /// What the driver has logged last, for the messages of failed tests.
    pub fn log_tail(&self) -> String {
        self.process.log_tail()
    }
}

/// A browser and the driver that belongs to it.
#[derive(Debug, PartialEq, Eq)]
struct Programs {
    browser: PathBuf,
    driver: PathBuf,
}

impl Programs {
    fn find_or_install() -> Result<Self> {
        if let Some(dir) = std::env::var_os(CHROMIUM_BIN_VAR).map(PathBuf::from) {
            let found = Programs::among(std::slice::from_ref(&dir));
            return found.with_context(|| format!("{CHROMIUM_BIN_VAR}: {} lacks Chromium or {DRIVER}", dir.display()));
        }
        if let Some(programs) = Programs::among(&path_dirs()) {
            return Ok(programs);
        }
        // The driver's package brings the browser of its own version.
        install_package("chromium-driver", CHROMIUM_BIN_VAR)?;
        let found = Programs::among(&path_dirs());
        found.context("the package chromium-driver is installed, but its programs are not where they are expected")
    }

    fn among(dirs: &[PathBuf]) -> Option<Self> {
        let find = |name: &str| dirs.iter().map(|dir| dir.join(name)).find(|path| path.is_file());
        Some(Programs { browser: BROWSERS.into_iter().find_map(find)?, driver: find(DRIVER)? })
    }
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};
    use std::time::Instant;

    use super::super::process::{LOOK_EVERY, PATIENCE};
    use super::*;

    #[test]
    fn a_browser_without_its_driver_is_of_no_use() {
        let dir = tempfile::tempdir().expect("temp dir");
        let dirs = [dir.path().to_owned()];
        std::fs::write(dir.path().join("chromium-browser"), "").expect("write");
        assert_eq!(Programs::among(&dirs), None);
        std::fs::write(dir.path().join(DRIVER), "").expect("write");
        let found = Programs::among(&dirs).expect("both are there");
        assert_eq!(found.browser, dir.path().join("chromium-browser"));
    }

    #[test]
    fn browsers_end_with_their_driver() {
        let driver = ChromeDriver::start().expect("a driver starts");
        let dir = driver.process.dir().to_owned();
        let asked = json!({ "capabilities": { "alwaysMatch": driver.capabilities() } }).to_string();
        let answer = post(driver.port, "/session", &asked);
        assert!(answer.starts_with("HTTP/1.1 200"), "{answer}\n{}", driver.log_tail());
        assert!(processes_in(&dir) > 0, "the browser keeps its profile in the directory");
        drop(driver);
        // The signal has been sent to all; the driver alone is waited for.
        let deadline = Instant::now() + PATIENCE;
        while processes_in(&dir) > 0 || dir.exists() {
            assert!(
                Instant::now() < deadline,
                "{} processes are left, directory: {}",
                processes_in(&dir),
                dir.exists()
            );
            std::thread::sleep(LOOK_EVERY);
        }
    }

    /// The answer to a request, as far as it fits into one read; the driver keeps the connection open.
    fn post(port: u16, path: &str, body: &str) -> String {
        let mut stream = TcpStream::connect(("127.0.0.1", port)).expect("connect");
        stream.set_read_timeout(Some(PATIENCE)).expect("set a timeout");
        let head = format!("POST {path} HTTP/1.1\r\nHost: localhost\r\nContent-Length: {}\r\n\r\n", body.len());
        stream.write_all((head + body).as_bytes()).expect("send");
        let mut answer = [0; 4096];
        let length = stream.read(&mut answer).expect("receive");
        String::from_utf8_lossy(&answer[..length]).into_owned()
    }

    /// The processes that name the directory in their arguments.
    fn processes_in(dir: &std::path::Path) -> usize {
        let dir = dir.to_str().expect("UTF-8");
        let processes = std::fs::read_dir("/proc").expect("a system with /proc").flatten();
        let arguments = processes.filter_map(|process| std::fs::read(process.path().join("cmdline")).ok());
        arguments.filter(|arguments| String::from_utf8_lossy(arguments).contains(dir)).count()
    }
}
