//! Connections: a small pool for each role, so that heartbeats never wait behind claims, or claims behind a dashboard.
//! Every statement is unnamed and every call has a deadline, so that everything works behind PgBouncer in transaction
//! mode. Called by every module; never knows what a statement means. A connection in doubt is closed, not reused, and so is
//! one to a server that a failover has left behind (`server`).

use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::runtime::Handle;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::task::AbortHandle;
use tokio_postgres::error::SqlState;
use tokio_postgres::types::{ToSql, Type};
use tokio_postgres::{CancelToken, Client};
use windlass_core::InvalidInput;
use windlass_core::health::PoolUse;
use windlass_core::store::{Error, Result};

use crate::ground::rows::Row;
use crate::ground::server::{Server, Servers};
use crate::ground::tls::{self, Route};
use crate::{KEEPALIVE_EVERY, KEEPALIVE_IDLE, KEEPALIVE_TRIES, TCP_USER_TIMEOUT};

/// A parameter with its type: naming the type saves the round trip in which the server would tell it.
pub(crate) type Param<'a> = (&'a (dyn ToSql + Sync), Type);

/// How often a statement is repeated that lost to another one (deadlock, serialization): each loser lets one winner
/// through, so a few times are enough unless something is wrong.
const CONFLICT_RETRIES: u32 = 8;

/// How long a transaction of the engine may be silent between two of its statements, which follow each other at once,
/// before the server ends it. It may hold rows that others wait for.
pub(crate) const ENGINE_IDLE: Duration = Duration::from_secs(10);

/// Begins a transaction that the server ends if nothing is heard of it for `idle`: a network that swallows packets leaves
/// a session that holds its locks, for hours if nobody looks. Set for the transaction only, so that it holds behind a
/// pooler too.
pub(crate) fn begin(idle: Duration) -> String {
    format!("begin; {}", limit_idle(idle))
}

/// Sets how long the transaction may be silent from here on.
pub(crate) fn limit_idle(idle: Duration) -> String {
    format!("set local idle_in_transaction_session_timeout = {}", idle.as_millis().clamp(1, i32::MAX as u128))
}

/// Whether a call changes anything: decides what a lost connection means.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Access {
    Read,
    Write,
}

/// Connections of one role.
#[derive(Clone)]
pub(crate) struct Pool(Arc<Shared>);

struct Shared {
    route: Route,
    runtime: Handle,
    size: usize,
    permits: Arc<Semaphore>,
    idle: Mutex<Vec<Link>>,
    deadline: Duration,
    servers: Servers,
}

/// One connection and the task that drives it.
struct Link {
    client: Client,
    driver: AbortHandle,
    /// Where it leads, if the server tells.
    server: Option<Server>,
}

impl Drop for Link {
    fn drop(&mut self) {
        // Closes the socket at once; waiting for an orderly end could wait for a stuck statement.
        self.driver.abort();
    }
}

impl Pool {
    /// All pools of a store share `servers`: what one of them learns about a failover holds for the others.
    pub(crate) fn new(route: Route, runtime: Handle, size: usize, deadline: Duration, servers: Servers) -> Self {
        let size = size.max(1);
        let permits = Arc::new(Semaphore::new(size));
        Pool(Arc::new(Shared { route, runtime, size, permits, idle: Mutex::default(), deadline, servers }))
    }

    /// How many of its connections are in use now.
    pub(crate) fn in_use(&self, name: &str) -> PoolUse {
        let used = self.0.size.saturating_sub(self.0.permits.available_permits());
        PoolUse { name: name.to_owned(), used, max: self.0.size }
    }

    /// Runs one statement and returns its rows. Losing to another transaction is repeated here.
    pub(crate) async fn query(&self, access: Access, sql: &str, params: &[Param<'_>]) -> Result<Vec<Row>> {
        let mut conflicts = 0;
        loop {
            let mut conn = self.get().await?;
            match conn.query(access, sql, params).await {
                Err(Failure::Conflict(_)) if conflicts < CONFLICT_RETRIES => conflicts += 1,
                other => return other.map_err(Error::from),
            }
        }
    }

    /// The same for statements that answer with exactly one row.
    pub(crate) async fn query_one(&self, access: Access, sql: &str, params: &[Param<'_>]) -> Result<Row> {
        let rows = self.query(access, sql, params).await?;
        rows.into_iter().next().ok_or_else(|| Error::Internal(format!("no response to `{}`", headline(sql))))
    }

    /// The same inside a transaction that `opening` begins and puts behind a wall. Answers nothing where the wall has
    /// no such job.
    pub(crate) async fn query_behind(
        &self,
        opening: &str,
        access: Access,
        sql: &str,
        params: &[Param<'_>],
    ) -> Result<Vec<Row>> {
        let mut conflicts = 0;
        loop {
            let mut conn = self.get().await?;
            match conn.query_behind(opening, access, sql, params).await {
                Err(Failure::Conflict(_)) if conflicts < CONFLICT_RETRIES => conflicts += 1,
                Err(Failure::NotThere) => return Ok(Vec::new()),
                other => return other.map_err(Error::from),
            }
        }
    }

    /// A connection of this role, made if none is idle.
    pub(crate) async fn get(&self) -> Result<Conn> {
        let waiting = tokio::time::timeout(self.0.deadline, self.0.permits.clone().acquire_owned());
        let permit = match waiting.await {
            Ok(Ok(permit)) => permit,
            Ok(Err(_)) => return Err(Error::Unavailable("the store is closed".into())),
            Err(_) => return Err(Error::Unavailable("no connection became free in time".into())),
        };
        let idle = {
            let mut idle = self.0.idle.lock();
            idle.retain(|link| !link.client.is_closed() && self.0.servers.is_current(link.server));
            idle.pop()
        };
        let link = match idle {
            Some(link) => link,
            None => self.connect().await?,
        };
        Ok(Conn { link: Some(link), in_doubt: false, pool: self.clone(), _permit: permit })
    }

    async fn connect(&self) -> Result<Link> {
        let route = self.0.route.clone();
        let connecting = self.0.runtime.spawn(async move {
            let (client, connection) = route.connect().await?;
            let driver = tokio::spawn(async move {
                if let Err(error) = connection.await {
                    tracing::debug!(%error, "a connection to PostgreSQL ended");
                }
            });
            let mut link = Link { client, driver: driver.abort_handle(), server: None };
            link.server = Server::ask(&link.client).await?;
            notice_silence(&link.client).await;
            Ok::<_, tokio_postgres::Error>(link)
        });
        match tokio::time::timeout(self.0.deadline, connecting).await {
            Ok(Ok(Ok(link))) => {
                self.0.servers.admit(link.server)?;
                Ok(link)
            }
            Ok(Ok(Err(error))) => Err(refused_or_unavailable(error)),
            Ok(Err(_)) => Err(Error::Unavailable("the store is closed".into())),
            Err(_) => Err(Error::Unavailable("connecting to PostgreSQL took too long".into())),
        }
    }
}

/// Lets the server notice as soon as this side does that the network has swallowed the connection: until then it keeps the
/// session, and the locks it holds. Behind a pooler this is the pooler's own connection, for which it is as right.
async fn notice_silence(client: &Client) {
    let settings = format!(
        "set tcp_keepalives_idle = {}; set tcp_keepalives_interval = {}; set tcp_keepalives_count = {}; \
         set tcp_user_timeout = {}",
        KEEPALIVE_IDLE.as_secs(),
        KEEPALIVE_EVERY.as_secs(),
        KEEPALIVE_TRIES,
        TCP_USER_TIMEOUT.as_millis(),
    );
    if let Err(error) = client.batch_execute(&settings).await {
        tracing::debug!(%error, "the server rejects the settings for silent connections");
    }
}

/// A connection in use. Goes back to its pool when dropped, unless a statement was cut short.
pub(crate) struct Conn {
    link: Option<Link>,
    in_doubt: bool,
    pool: Pool,
    _permit: OwnedSemaphorePermit,
}

impl Conn {
    pub(crate) fn client(&self) -> &Client {
        &self.link.as_ref().expect("a connection in use has its link").client
    }

    /// From here on the connection may not be reused, until `settled`.
    pub(crate) fn in_doubt(&mut self) {
        self.in_doubt = true;
    }

    /// The connection is idle and outside of a transaction again.
    pub(crate) fn settled(&mut self) {
        self.in_doubt = false;
    }

    /// Runs one statement that is a transaction of its own.
    pub(crate) async fn query(
        &mut self,
        access: Access,
        sql: &str,
        params: &[Param<'_>],
    ) -> std::result::Result<Vec<Row>, Failure> {
        self.in_doubt();
        let rows = self.query_inside(access, sql, params).await;
        // The server has answered, with rows or with an error: nothing is under way on this connection.
        if matches!(rows, Ok(_) | Err(Failure::Conflict(_) | Failure::Answered(_) | Failure::NotThere)) {
            self.settled();
        }
        rows
    }

    /// Runs one statement in a transaction of its own that `opening` begins. A read goes out in one piece, so that it
    /// takes one round trip; its rows count only if the opening succeeded, because else they were read outside of it. A
    /// write waits for the opening.
    pub(crate) async fn query_behind(
        &mut self,
        opening: &str,
        access: Access,
        sql: &str,
        params: &[Param<'_>],
    ) -> std::result::Result<Vec<Row>, Failure> {
        self.in_doubt();
        let client = self.client();
        let exchange = async {
            let (opened, rows, ended) = match access {
                Access::Read => {
                    futures_util::join!(
                        client.batch_execute(opening),
                        client.query_typed(sql, params),
                        client.batch_execute("commit")
                    )
                }
                Access::Write => match client.batch_execute(opening).await {
                    Ok(()) => {
                        let (rows, ended) =
                            futures_util::join!(client.query_typed(sql, params), client.batch_execute("commit"));
                        (Ok(()), rows, ended)
                    }
                    refused => (refused, Ok(Vec::new()), client.batch_execute("rollback").await),
                },
            };
            let opened = opened.map_err(|error| Failure::of(error, Access::Read));
            let rows = rows.map_err(|error| Failure::of(error, access));
            let rows = rows.map(|rows| rows.into_iter().map(Row).collect::<Vec<_>>());
            let ended = ended.map_err(|error| Failure::of(error, access));
            (opened, rows, ended)
        };
        let answer = match tokio::time::timeout(self.pool.0.deadline, exchange).await {
            Ok((opened, rows, ended)) => {
                let lost = |failure: Option<&Failure>| matches!(failure, Some(Failure::Lost(_)));
                if lost(opened.as_ref().err()) || lost(rows.as_ref().err()) || lost(ended.as_ref().err()) {
                    return Err(opened.err().or(rows.err()).or(ended.err()).expect("one of them is lost"));
                }
                opened.and(rows).and_then(|rows| ended.map(|()| rows))
            }
            Err(_) => return Err(Failure::Lost(lost(access, &format!("no response to `{}` in time", headline(sql))))),
        };
        // Every part was answered, and whatever became of the transaction, its end was the last of them.
        self.settled();
        answer
    }

    /// Runs one statement of a transaction that the caller has opened and will end.
    pub(crate) async fn query_inside(
        &self,
        access: Access,
        sql: &str,
        params: &[Param<'_>],
    ) -> std::result::Result<Vec<Row>, Failure> {
        let answer = tokio::time::timeout(self.pool.0.deadline, self.client().query_typed(sql, params)).await;
        match answer {
            Ok(Ok(rows)) => Ok(rows.into_iter().map(Row).collect()),
            Ok(Err(error)) => Err(Failure::of(error, access)),
            Err(_) => Err(Failure::Lost(lost(access, &format!("no response to `{}` in time", headline(sql))))),
        }
    }

    /// Runs a statement without parameters, such as BEGIN.
    pub(crate) async fn run(&self, access: Access, sql: &str) -> std::result::Result<(), Failure> {
        match tokio::time::timeout(self.pool.0.deadline, self.client().batch_execute(sql)).await {
            Ok(Ok(())) => Ok(()),
            Ok(Err(error)) => Err(Failure::of(error, access)),
            Err(_) => Err(Failure::Lost(lost(access, &format!("no response to `{sql}` in time")))),
        }
    }
}

impl Drop for Conn {
    fn drop(&mut self) {
        let Some(link) = self.link.take() else { return };
        if self.in_doubt {
            let token = link.client.cancel_token();
            drop(link);
            cancel_behind(&self.pool.0, token);
        } else if !link.client.is_closed() && self.pool.0.servers.is_current(link.server) {
            self.pool.0.idle.lock().push(link);
        }
    }
}

/// Asks the server to stop what the closed connection was doing, so that its locks do not outlive it.
fn cancel_behind(shared: &Shared, token: CancelToken) {
    /// A hint only: the server notices the closed socket when it next writes to it.
    const PATIENCE: Duration = Duration::from_secs(2);
    let route = shared.route.clone();
    shared.runtime.spawn(async move {
        let _ = tokio::time::timeout(PATIENCE, route.cancel(token)).await;
    });
}

/// Why a statement failed.
#[derive(Debug)]
pub(crate) enum Failure {
    /// It lost to another transaction and may be repeated.
    Conflict(Error),
    /// The server answered with an error: nothing was written.
    Answered(Error),
    /// The server answered that a tenant has no such job.
    NotThere,
    /// The connection is of no use any more.
    Lost(Error),
}

impl From<Failure> for Error {
    fn from(failure: Failure) -> Error {
        match failure {
            Failure::Conflict(error) | Failure::Answered(error) | Failure::Lost(error) => error,
            Failure::NotThere => Error::Internal("a job does not exist".into()),
        }
    }
}

impl Failure {
    pub(crate) fn of(error: tokio_postgres::Error, access: Access) -> Failure {
        let Some(db) = error.as_db_error() else {
            return match error.is_closed()
                || std::error::Error::source(&error).is_some_and(|s| s.is::<std::io::Error>())
            {
                true => Failure::Lost(lost(access, &chain(&error))),
                // Encoding or decoding failed: the statement may have run.
                false => Failure::Lost(Error::Internal(chain(&error))),
            };
        };
        Failure::answered(db.code(), db.message(), db.detail(), access)
    }

    /// What an error of the server means, whichever driver brought it.
    pub(crate) fn answered(code: &SqlState, message: &str, detail: Option<&str>, access: Access) -> Failure {
        if code.code() == "WQ001" {
            return Failure::Answered(crate::tenancy::quota::exceeded(detail.unwrap_or_default()));
        }
        // Details of refused data (classes 22 and 23) repeat the data, which must not reach logs.
        let repeats_data = code.code().starts_with("22") || code.code().starts_with("23");
        let message = match detail.filter(|_| !repeats_data) {
            Some(detail) => format!("{message} ({detail})"),
            None => message.to_owned(),
        };
        match code {
            &SqlState::NO_DATA_FOUND => Failure::NotThere,
            &SqlState::INSUFFICIENT_PRIVILEGE => Failure::Answered(Error::Refused(format!(
                "{message}: the login must be a member of the roles windlass_engine and windlass_app \
                 (`grant windlass_engine, windlass_app to …`)"
            ))),
            &SqlState::T_R_DEADLOCK_DETECTED | &SqlState::T_R_SERIALIZATION_FAILURE => {
                Failure::Conflict(Error::Unavailable(message))
            }
            // Out of transaction ids until someone vacuums; the code is also that of data which is too large.
            &SqlState::PROGRAM_LIMIT_EXCEEDED if message.contains("wraparound") => {
                Failure::Answered(Error::Unavailable(message))
            }
            &SqlState::DISK_FULL => Failure::Answered(Error::Full(message)),
            // The session ends; whether a commit under way got through is not said.
            &SqlState::ADMIN_SHUTDOWN | &SqlState::CRASH_SHUTDOWN => Failure::Lost(lost(access, &message)),
            &SqlState::INVALID_PARAMETER_VALUE if message.starts_with("windlass: invalid ") => {
                let rest = message.trim_start_matches("windlass: invalid ");
                let (field, why) = rest.split_once(": ").unwrap_or(("input", rest));
                Failure::Answered(Error::InvalidInput(InvalidInput::new(field, why)))
            }
            &SqlState::UNDEFINED_TABLE
            | &SqlState::UNDEFINED_FUNCTION
            | &SqlState::UNDEFINED_COLUMN
            | &SqlState::INVALID_SCHEMA_NAME => Failure::Answered(Error::Refused(format!(
                "the schema `windlass` is missing or has another version ({message}); run `windlass migrate`"
            ))),
            // A NUL, which PostgreSQL keeps in no text. Whoever hands one in has done so by mistake or on purpose.
            &SqlState::CHARACTER_NOT_IN_REPERTOIRE | &SqlState::UNTRANSLATABLE_CHARACTER => {
                Failure::Answered(Error::InvalidInput(InvalidInput::new("text", "contains a NUL character")))
            }
            _ if is_outage(code) => Failure::Answered(Error::Unavailable(message)),
            _ => Failure::Answered(Error::Internal(format!("{message} [{}]", code.code()))),
        }
    }
}

/// Whether a write was refused because a job with one of its ids is there.
pub(crate) fn is_known_job(error: &Error) -> bool {
    matches!(error, Error::Internal(why) if why.ends_with("[23505]") && why.contains("constraint \"job_"))
}

/// Whether a write was refused because one of its jobs has an outcome.
pub(crate) fn is_ended_job(error: &Error) -> bool {
    matches!(error, Error::Internal(why) if why.ends_with("[23505]") && why.contains("constraint \"outcome_"))
}

/// Whether the server is there but cannot serve now.
fn is_outage(code: &SqlState) -> bool {
    let outage = [
        SqlState::QUERY_CANCELED,
        SqlState::CANNOT_CONNECT_NOW,
        SqlState::TOO_MANY_CONNECTIONS,
        SqlState::OUT_OF_MEMORY,
        SqlState::LOCK_NOT_AVAILABLE,
        SqlState::READ_ONLY_SQL_TRANSACTION,
        SqlState::IN_FAILED_SQL_TRANSACTION,
    ];
    outage.contains(code) || code.code().starts_with("08")
}

fn lost(access: Access, why: &str) -> Error {
    match access {
        Access::Read => Error::Unavailable(why.to_owned()),
        Access::Write => Error::Unknown(why.to_owned()),
    }
}

/// Nothing was sent yet. A wrong password or certificate does not go away by trying again; a role or a database that is
/// not there may still be created, as while an installation is set up.
fn refused_or_unavailable(error: tokio_postgres::Error) -> Error {
    match error.code() {
        Some(&SqlState::INVALID_AUTHORIZATION_SPECIFICATION) if is_missing_role(&error) => {
            Error::Unavailable(chain(&error))
        }
        Some(&SqlState::INVALID_PASSWORD | &SqlState::INVALID_AUTHORIZATION_SPECIFICATION) => {
            Error::Refused(chain(&error))
        }
        _ if tls::is_refused(&error) => Error::Refused(chain(&error)),
        _ => Error::Unavailable(chain(&error)),
    }
}

/// A missing role has the code of every login that is refused. The place in the server's source that says so differs, and
/// unlike the message it is not translated.
fn is_missing_role(error: &tokio_postgres::Error) -> bool {
    error.as_db_error().and_then(|error| error.routine()) == Some("InitializeSessionUserId")
}

fn chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(source) = cause {
        let source_text = source.to_string();
        if !text.contains(&source_text) {
            text.push_str(": ");
            text.push_str(&source_text);
        }
        cause = source.source();
    }
    text
}

/// What a statement is, for messages: its first line of code.
fn headline(sql: &str) -> &str {
    sql.lines().find(|line| !line.trim_start().starts_with("--") && !line.trim().is_empty()).unwrap_or(sql)
}
