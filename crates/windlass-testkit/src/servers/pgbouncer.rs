//! A PgBouncer in transaction mode in front of a test's PostgreSQL server, because many users have one and Windlass must
//! work behind it. Called by `xtask` and by tests of faults.

use std::fs;
use std::net::TcpStream;

use anyhow::{Context, Result};

use super::binaries;
use super::postgres::PostgresServer;
use super::process::{ServerProcess, free_port};

/// How a pooler is set up.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct PgBouncerOptions {
    /// How many connections to the server all clients of a database share. Small, so that transactions of one client
    /// really land on different sessions.
    pub pool_size: u16,
    /// How many clients may be connected.
    pub max_clients: u16,
}

impl Default for PgBouncerOptions {
    fn default() -> Self {
        PgBouncerOptions { pool_size: 4, max_clients: 400 }
    }
}

/// A PgBouncer that is gone when this is dropped or the process ends in any way.
#[derive(Debug)]
pub struct PgBouncer {
    process: ServerProcess,
    port: u16,
}

impl PgBouncer {
    /// Starts a pooler in front of `server`. Installs Debian's package first if there is none and this process is root.
    pub fn start(server: &PostgresServer, options: PgBouncerOptions) -> Result<Self> {
        let program = binaries::pgbouncer()?;
        let mut process = ServerProcess::prepare("pgbouncer", "KILL")?;
        let port = free_port()?;
        let config = process.dir().join("pgbouncer.ini");
        fs::write(&config, configuration(server.port(), port, &options)).context("write the pooler's configuration")?;
        process.hand_over(&config)?;
        let mut command = process.command(&program);
        command.arg(&config);
        process.spawn(command)?;
        process.wait_until_ready(|_| TcpStream::connect(("127.0.0.1", port)).is_ok())?;
        Ok(PgBouncer { process, port })
    }

    /// The URL of a database of the server, through the pooler.
    pub fn url(&self, database: &str) -> String {
        format!("postgres://postgres@127.0.0.1:{}/{database}", self.port)
    }

    /// The URL of the database that is always there.
    pub fn admin_url(&self) -> String {
        self.url("postgres")
    }

    /// The port on 127.0.0.1.
    pub fn port(&self) -> u16 {
        self.port
    }

    /// The process, while there is one.
    pub fn pid(&self) -> Option<u32> {
        self.process.pid()
    }

    /// What the pooler has logged last, for the messages of failed tests.
    pub fn log_tail(&self) -> String {
        self.process.log_tail()
    }

    /// Kills the pooler: every client loses its connection at once.
    pub fn kill_9(&mut self) {
        self.process.kill();
    }
}

fn configuration(server_port: u16, port: u16, options: &PgBouncerOptions) -> String {
    let PgBouncerOptions { pool_size, max_clients } = options;
    format!(
        "[databases]\n\
         * = host=127.0.0.1 port={server_port} user=postgres\n\
         [pgbouncer]\n\
         listen_addr = 127.0.0.1\n\
         listen_port = {port}\n\
         unix_socket_dir =\n\
         auth_type = any\n\
         pool_mode = transaction\n\
         default_pool_size = {pool_size}\n\
         max_client_conn = {max_clients}\n\
         ignore_startup_parameters = extra_float_digits\n"
    )
}

#[cfg(test)]
mod tests {
    use super::super::PostgresOptions;
    use super::*;

    #[test]
    fn every_database_of_the_server_is_reached_in_transaction_mode() {
        let text = configuration(5433, 6433, &PgBouncerOptions::default());
        assert!(text.contains("* = host=127.0.0.1 port=5433 user=postgres\n"));
        assert!(text.contains("listen_port = 6433\n") && text.contains("pool_mode = transaction\n"));
    }

    #[test]
    fn what_is_done_through_the_pooler_is_done_on_the_server() {
        let server = PostgresServer::start(PostgresOptions::new()).expect("a server starts");
        let mut pooler = PgBouncer::start(&server, PgBouncerOptions::default()).expect("a pooler starts");
        server.create_database_through(pooler.port(), "pooled").expect("create through the pooler");
        let error = server.create_database("pooled").expect_err("it is there").to_string();
        assert!(error.contains("already exists"), "{error}");
        pooler.kill_9();
        assert!(server.create_database_through(pooler.port(), "unreachable").is_err());
    }
}
