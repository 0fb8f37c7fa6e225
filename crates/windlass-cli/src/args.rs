//! What can be typed: every command, option and help text. Read by `main`, carried out by `commands` and `up`.
//! Values are checked here, so that a wrong one is refused before anything is opened.

use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, Parser, Subcommand};
use windlass::store::PauseTarget;
use windlass::{
    BatchId, BulkOptions, JobId, Missed, OperatorRight, Overlap, Priority, Quota, Rights, Scope, Signature, Start,
    Status, TenantId, Timestamp,
};

use crate::bench::Target;
use crate::secret::Secret;
use windlass::text::{When, parse_duration, parse_time, parse_timeout, parse_when};

/// Durable background jobs: run, inspect and control them.
#[derive(Debug, Parser)]
#[command(
    name = "windlass",
    version,
    propagate_version = true,
    disable_help_subcommand = true,
    max_term_width = 110,
    after_help = "Examples:
  windlass up                                   a demo, with jobs on a SQLite file
  windlass list --status retrying               jobs that wait for a retry
  windlass show 6237184712970240 --history      one job: why it waits, its attempts, its errors
  windlass submit email.send '{\"to\":\"ann\"}' --delay 5m
  windlass --db postgres://localhost/app stats  the same commands on PostgreSQL
  windlass --url https://jobs.example.org top   or on a server, with a key in WINDLASS_API_KEY

Exit codes: 0 done, 1 failed, 2 wrong usage or invalid input, 3 not found, 4 conflict, 5 not allowed, 6 unavailable or timed out."
)]
pub(crate) struct Cli {
    #[command(flatten)]
    pub(crate) global: Global,
    #[command(subcommand)]
    pub(crate) command: Command,
}

/// What every command understands.
#[derive(Clone, Debug, Args)]
#[command(next_help_heading = "Everywhere")]
pub(crate) struct Global {
    /// The database: `sqlite:PATH` or `postgres://…` (or WINDLASS_DB) [default: sqlite:./windlass-data/windlass.db]
    #[arg(long, global = true, value_name = "URL")]
    pub(crate) db: Option<String>,
    /// A Windlass server instead of a database (or WINDLASS_URL); its API key comes from WINDLASS_API_KEY or a profile
    #[arg(long, global = true, value_name = "URL", conflicts_with = "db")]
    pub(crate) url: Option<String>,
    /// A profile saved with `windlass profile add` (or WINDLASS_PROFILE)
    #[arg(long, global = true, value_name = "NAME")]
    pub(crate) profile: Option<String>,
    /// The tenant: a UUID (or WINDLASS_TENANT) [default: the root tenant, or the tenant of the API key]
    #[arg(long, global = true, value_name = "UUID", value_parser = tenant)]
    pub(crate) tenant: Option<TenantId>,
    /// Jobs of all tenants, for operators
    #[arg(long, global = true, conflicts_with = "tenant")]
    pub(crate) all_tenants: bool,
    /// A file with the keys of sealed jobs: one `name:base64` per line, current key first (or WINDLASS_KEY_FILE, or
    /// WINDLASS_KEYS)
    #[arg(long, global = true, value_name = "FILE")]
    pub(crate) key_file: Option<PathBuf>,
    /// Never an option, because other users can read a command line. Filled in by `settings`.
    #[arg(skip)]
    pub(crate) api_key: Option<Secret>,
    /// Print JSON for programs; errors are JSON too, on stderr
    #[arg(long, global = true)]
    pub(crate) json: bool,
    /// Print only data, no messages
    #[arg(long, short, global = true)]
    pub(crate) quiet: bool,
    /// No colours (also with NO_COLOR set)
    #[arg(long, global = true)]
    pub(crate) no_color: bool,
    /// Log to stderr (-v events, -vv every step)
    #[arg(long, short, global = true, action = clap::ArgAction::Count)]
    pub(crate) verbose: u8,
}

impl Global {
    /// Which tenant was searched, to print with an empty result: the jobs often belong to another tenant.
    pub(crate) fn whose(&self) -> String {
        match self.scope() {
            Scope::All(_) => String::new(),
            _ if self.url.is_some() && self.tenant.is_none() => " of the tenant of this API key".to_owned(),
            Scope::Tenant(TenantId::ROOT) => " of the root tenant; use --all-tenants to include all tenants".to_owned(),
            Scope::Tenant(tenant) => format!(" of tenant {tenant}; use --all-tenants to include all tenants"),
        }
    }

    /// The tenant that submits and acts.
    pub(crate) fn tenant(&self) -> TenantId {
        self.tenant.unwrap_or(TenantId::ROOT)
    }

    /// The jobs that reads and writes may touch.
    pub(crate) fn scope(&self) -> Scope {
        if self.all_tenants { Scope::All(OperatorRight::assume()) } else { Scope::Tenant(self.tenant()) }
    }
}

/// What to do.
#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    Up(UpArgs),
    Submit(SubmitArgs),
    List(ListArgs),
    Show(ShowArgs),
    /// Show why a job is not running now, and when it will
    #[command(after_help = "Example:\n  windlass why 6237184712970240")]
    Why {
        /// The id of the job
        #[arg(value_parser = job_id)]
        id: JobId,
    },
    Watch(WatchArgs),
    Logs(LogsArgs),
    Events(EventsArgs),
    Top(TopArgs),
    Cancel(CancelArgs),
    /// Retry now: a retrying job without its delay, a dead letter with its attempts reset
    #[command(after_help = "Examples:
  windlass retry 6237184712970240
  windlass retry --filter 'handler:email.send error:\"time out\"' --dry-run
  windlass retry --filter 'status:dead created>1h' --rate 10/s --yes")]
    Retry(Pick),
    /// Start scheduled and retrying jobs without waiting for their time
    #[command(after_help = "Examples:
  windlass run-now 6237184712970240
  windlass run-now --filter 'handler:report.build status:scheduled' --yes")]
    RunNow(Pick),
    Priority(PriorityArgs),
    Reschedule(RescheduleArgs),
    Edit(EditArgs),
    Clone(CloneArgs),
    /// Show failures grouped by cause, and act on a whole group
    #[command(subcommand)]
    Failures(FailuresCommand),
    /// Show, replay and purge dead letters
    #[command(subcommand)]
    Dead(DeadCommand),
    /// Show and change what starts jobs again and again
    #[command(subcommand)]
    Schedules(SchedulesCommand),
    Pause(PauseArgs),
    Resume(ResumeArgs),
    /// List the active pauses
    Pauses,
    /// List the registered processes
    Nodes,
    /// List the handlers that live nodes have
    Handlers,
    /// Show the waiting jobs of each handler, how long they wait, and their rate
    #[command(
        after_help = "For autoscalers: reads only a bounded part of the waiting jobs, so it can be polled often."
    )]
    Backlog,
    Usage(UsageArgs),
    /// List tenants with their usage and limits
    #[command(
        after_help = "Lists every tenant with unfinished jobs or its own policy; with --tenant only that tenant."
    )]
    Tenants,
    /// Show, set and clear the limits of tenants
    #[command(subcommand)]
    Quota(QuotaCommand),
    Audit(AuditArgs),
    /// Count jobs by status
    #[command(
        after_help = "Counts the jobs that `windlass list` shows: ended jobs count until they are purged or their retention has passed.\n\nExamples:
  windlass stats
  windlass stats --all-tenants --json"
    )]
    Stats,
    Doctor(DoctorArgs),
    Healthy(HealthyArgs),
    /// Manage the keys of sealed jobs
    #[command(subcommand)]
    Keys(KeysCommand),
    /// Create, list and revoke the API keys of a server
    #[command(subcommand)]
    ApiKey(ApiKeyCommand),
    /// Manage webhooks: URLs that receive status changes
    #[command(subcommand)]
    Webhook(WebhookCommand),
    Serve(ServeArgs),
    /// Print a new login link for the dashboard of the server that uses the database
    #[command(
        after_help = "The link works once, on this machine. Works with servers that accept local logins: `windlass up` and
`windlass serve --auth local`. On other servers, log in with an API key.

Examples:
  windlass login
  windlass login --db sqlite:/srv/jobs/windlass.db
  windlass login --url http://127.0.0.1:7878          with a key that has every right in WINDLASS_API_KEY"
    )]
    Login,
    Migrate(MigrateArgs),
    /// Copy a SQLite database into a new file while it is in use
    #[command(
        after_help = "The copy is a consistent snapshot that only its owner may read. To restore it, put it in the place of
the database while no process uses it. For PostgreSQL use its own tools: docs/operations.md.

Example:
  windlass backup /backup/windlass-$(date +%F).db"
    )]
    Backup {
        /// The file to create; it must not exist
        #[arg(value_name = "FILE")]
        file: PathBuf,
    },
    Bench(BenchArgs),
    /// Save, choose and list profiles
    #[command(subcommand)]
    Profile(ProfileCommand),
    /// A process that `bench` starts and controls
    #[command(hide = true)]
    BenchNode,
    /// Print a completion script for a shell
    #[command(
        after_help = "Example:\n  windlass completions bash > ~/.local/share/bash-completion/completions/windlass"
    )]
    Completions {
        /// Which shell
        shell: clap_complete::Shell,
    },
    /// Write a manual page for each command into a directory
    #[command(after_help = "Example:\n  windlass man ~/.local/share/man/man1 && man windlass-dead-replay")]
    Man {
        /// The directory; created if it does not exist
        #[arg(value_name = "DIR")]
        directory: PathBuf,
    },
}

impl Command {
    /// Whether it uses only its own command line, so that no variable and no profile can send its demo jobs or
    /// measurements to another database, or stop it.
    pub(crate) fn stays_here(&self) -> bool {
        matches!(self, Command::Up(_) | Command::Bench(_) | Command::BenchNode)
    }

    /// The jobs that it names on the command line.
    pub(crate) fn jobs(&self) -> Vec<JobId> {
        let parse = |pick: &Pick| pick.ids.iter().filter_map(|id| id.parse().ok()).collect();
        match self {
            Command::Why { id } | Command::Dead(DeadCommand::Show { id }) => vec![*id],
            Command::Show(ShowArgs { id, .. })
            | Command::Watch(WatchArgs { id, .. })
            | Command::Logs(LogsArgs { id, .. })
            | Command::Reschedule(RescheduleArgs { id, .. })
            | Command::Edit(EditArgs { id, .. })
            | Command::Clone(CloneArgs { id, .. }) => vec![*id],
            Command::Cancel(CancelArgs { pick, .. })
            | Command::Priority(PriorityArgs { pick, .. })
            | Command::Dead(DeadCommand::Replay(ReplayArgs { pick, .. }))
            | Command::Retry(pick)
            | Command::RunNow(pick)
            | Command::Dead(DeadCommand::Purge(pick)) => parse(pick),
            _ => Vec::new(),
        }
    }
}

/// Run Windlass on this machine, with demo jobs
///
/// Opens or creates a SQLite file, runs demo jobs on it, shows their progress, and serves the API and the dashboard on
/// this machine. When started again, it continues where it stopped. Ctrl-C lets running jobs end, releases the rest and
/// exits.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  windlass up                        a SQLite file in ./windlass-data
  windlass up --data /tmp/demo       in another directory
  windlass up --db postgres://localhost/app
  windlass up --for 10 | tail -1     ten seconds, one line per second

It ignores WINDLASS_DB, WINDLASS_URL and profiles: demo jobs go into another database only if --db names it.
While it runs, use the other commands from another terminal; their writes go through this process.")]
pub(crate) struct UpArgs {
    /// The directory of the SQLite file [default: ./windlass-data]
    #[arg(long, value_name = "DIR")]
    pub(crate) data: Option<PathBuf>,
    /// The loopback address of the API and the dashboard [default: 127.0.0.1:7878, or a free port if that is taken]
    #[arg(long, value_name = "ADDRESS")]
    pub(crate) listen: Option<std::net::SocketAddr>,
    /// Jobs to run at once
    #[arg(long, value_name = "N", default_value_t = 16, value_parser = clap::value_parser!(u16).range(1..))]
    pub(crate) concurrency: u16,
    /// No demo handlers and no demo jobs: only maintain the store
    #[arg(long)]
    pub(crate) no_demo: bool,
    /// Run the handlers that this TOML file turns on: download, http, email, command (docs/handlers.md)
    #[arg(long, value_name = "FILE")]
    pub(crate) handlers: Option<PathBuf>,
    /// Stop after this number of seconds
    #[arg(long = "for", value_name = "SECONDS")]
    pub(crate) for_seconds: Option<u64>,
}

/// Store a job
///
/// Prints its id once it is durable. If a job with the same key exists, prints the id of that job.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  windlass submit email.send '{\"to\":\"ann@example.org\"}'
  windlass submit report.build @input.json --key report-2026-11 --priority high
  echo '[1,2,3]' | windlass submit numbers.add - --wait
  windlass submit email.send --many @mails.json --key welcome        one job per item of the array
  windlass submit order.ship '{\"order\":7}' --ordering-key customer-12 --delay 5m")]
pub(crate) struct SubmitArgs {
    /// The handler that runs it, such as `email.send`
    pub(crate) handler: String,
    /// Its input: JSON, @FILE to read a file, - to read stdin [default: null]
    #[arg(allow_hyphen_values = true)]
    pub(crate) input: Option<String>,
    /// The input is a JSON array: store one job per item, all or none
    #[arg(long, conflicts_with = "wait")]
    pub(crate) many: bool,
    /// Idempotency key: a second submit with the same key returns the first job; with --many, item i has the key KEY:i
    #[arg(long, value_name = "KEY")]
    pub(crate) key: Option<String>,
    /// low, normal, high, critical, or a number; a higher number runs sooner
    #[arg(long, value_name = "P", value_parser = priority, allow_hyphen_values = true)]
    pub(crate) priority: Option<Priority>,
    /// Start this long from now, such as 30s or 5m
    #[arg(long, value_name = "DURATION", value_parser = parse_duration, allow_hyphen_values = true, conflicts_with = "at")]
    pub(crate) delay: Option<Duration>,
    /// Start at this time, such as 2026-11-15T10:00:00Z
    #[arg(long, value_name = "TIME", value_parser = parse_time)]
    pub(crate) at: Option<Timestamp>,
    /// Jobs of a tenant with the same key run one at a time, in order
    #[arg(long, value_name = "KEY")]
    pub(crate) ordering_key: Option<String>,
    /// A label to find it by; repeatable
    #[arg(long = "tag", value_name = "TAG")]
    pub(crate) tags: Vec<String>,
    /// Groups the jobs of one request
    #[arg(long, value_name = "ID")]
    pub(crate) correlation_id: Option<String>,
    /// How long an attempt may take; `none` or 0 means no limit
    #[arg(long, value_name = "DURATION", value_parser = parse_timeout, allow_hyphen_values = true)]
    pub(crate) timeout: Option<Duration>,
    /// The queue it waits in
    #[arg(long, value_name = "NAME")]
    pub(crate) queue: Option<String>,
    /// Cancel it if it has not started by this time
    #[arg(long, value_name = "TIME", value_parser = parse_time)]
    pub(crate) expires_at: Option<Timestamp>,
    /// Wait until it has ended and print its output
    #[arg(long)]
    pub(crate) wait: bool,
    /// How long to wait; the job continues after that
    #[arg(long, value_name = "DURATION", value_parser = parse_duration, default_value = "30s", requires = "wait")]
    pub(crate) wait_timeout: Duration,
}

/// List jobs, newest first
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  windlass list --status running --status retrying
  windlass list --handler email.send --created-after 2h
  windlass list --filter 'status:retrying,dead error:\"time out\" input.user.id:42'
  windlass list --filter '-status:succeeded handler:email.* attempt>2 ran>10s'
  windlass list --json --limit 200 | jq -r '.jobs[].id'
  windlass list --before 6237184712970240       the next page, after the one that ended with this job")]
pub(crate) struct ListArgs {
    /// pending, scheduled, retrying, blocked, suspended, running, succeeded, canceled or dead_lettered; repeatable
    #[arg(long = "status", value_name = "STATUS", value_parser = status)]
    pub(crate) statuses: Vec<Status>,
    /// Only jobs of this handler
    #[arg(long)]
    pub(crate) handler: Option<String>,
    /// Only jobs with this label
    #[arg(long)]
    pub(crate) tag: Option<String>,
    /// Only jobs of this batch
    #[arg(long, value_name = "ID", value_parser = batch_id)]
    pub(crate) batch: Option<BatchId>,
    /// Only jobs with this correlation id
    #[arg(long, value_name = "ID")]
    pub(crate) correlation_id: Option<String>,
    /// Only jobs submitted at or after this time; 2h means two hours ago
    #[arg(long, value_name = "TIME", value_parser = parse_when)]
    pub(crate) created_after: Option<When>,
    /// Only jobs submitted before this time; 2h means two hours ago
    #[arg(long, value_name = "TIME", value_parser = parse_when)]
    pub(crate) created_before: Option<When>,
    /// A filter, as in the dashboard: 'handler:email.send status:retrying tag:vip created>2h'
    #[arg(long, value_name = "FILTER", allow_hyphen_values = true)]
    pub(crate) filter: Option<String>,
    #[command(flatten)]
    pub(crate) page: PageArgs,
}

/// Which part of a list.
#[derive(Clone, Copy, Debug, Args)]
pub(crate) struct PageArgs {
    /// Maximum number of jobs, 1 to 200
    #[arg(long, value_name = "N", default_value_t = 50, value_parser = limit)]
    pub(crate) limit: usize,
    /// Only jobs older than this one, for the next page
    #[arg(long, value_name = "ID", value_parser = job_id)]
    pub(crate) before: Option<JobId>,
    /// Number of jobs to skip
    #[arg(long, value_name = "N", default_value_t = 0)]
    pub(crate) offset: usize,
}

/// Show one job: its state, why it waits, its errors
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  windlass show 6237184712970240 --history
  windlass show 6237184712970240 --input --json | jq .input")]
pub(crate) struct ShowArgs {
    /// The id of the job
    #[arg(value_parser = job_id)]
    pub(crate) id: JobId,
    /// Also show its input
    #[arg(long)]
    pub(crate) input: bool,
    /// Also show its history
    #[arg(long)]
    pub(crate) history: bool,
}

/// Follow one job until it has ended, with a progress bar
///
/// Succeeds if the job succeeds. In a pipe it prints one line per change, with --json one object.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  windlass watch 6237184712970240
  windlass watch $(windlass submit report.build) --timeout 10m && echo done
  windlass watch 6237184712970240 --json | jq .progress.percent")]
pub(crate) struct WatchArgs {
    /// The id of the job
    #[arg(value_parser = job_id)]
    pub(crate) id: JobId,
    /// How long to watch; the job continues after that
    #[arg(long, value_name = "DURATION", value_parser = parse_duration)]
    pub(crate) timeout: Option<Duration>,
}

/// Print the log lines of a job
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  windlass logs 6237184712970240
  windlass logs 6237184712970240 -f")]
pub(crate) struct LogsArgs {
    /// The id of the job
    #[arg(value_parser = job_id)]
    pub(crate) id: JobId,
    /// Keep following until the job has ended
    #[arg(long, short)]
    pub(crate) follow: bool,
    /// Only lines after this number
    #[arg(long, value_name = "N", default_value_t = 0)]
    pub(crate) after: u64,
}

/// Print status changes as they happen, one JSON object per line
///
/// Every line has a number; --after continues after it, also after an interruption. Without --follow it prints the
/// stored events (about an hour) and ends.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  windlass events --follow
  windlass events --follow --status dead_lettered | jq -r .handler
  windlass events --after 48213 --limit 1000")]
pub(crate) struct EventsArgs {
    /// Keep following until interrupted
    #[arg(long, short)]
    pub(crate) follow: bool,
    /// Only events after this number; 0 for all stored events
    #[arg(long, value_name = "N")]
    pub(crate) after: Option<u64>,
    /// Only jobs of this handler
    #[arg(long)]
    pub(crate) handler: Option<String>,
    /// Only changes to this status; repeatable
    #[arg(long = "status", value_name = "STATUS", value_parser = status)]
    pub(crate) statuses: Vec<Status>,
    /// End after this number of events
    #[arg(long, value_name = "N", value_parser = at_least_one)]
    pub(crate) limit: Option<usize>,
}

/// Live terminal dashboard: counts, rates, jobs, failures, nodes
#[derive(Debug, Args)]
#[command(
    after_help = "Keys: 1 to 4 or Tab choose a view, j and k a line, Enter shows it, c cancels, r retries, p pauses the display, q quits."
)]
pub(crate) struct TopArgs {
    /// Refresh interval
    #[arg(long, value_name = "DURATION", default_value = "1s", value_parser = parse_duration)]
    pub(crate) every: Duration,
}

/// Which jobs a verb is for: ids, or all that pass a filter.
#[derive(Clone, Debug, Default, Args)]
pub(crate) struct Pick {
    /// The ids of the jobs; - reads ids from stdin
    #[arg(value_name = "ID", conflicts_with = "filter")]
    pub(crate) ids: Vec<String>,
    /// Instead of ids: every job that matches, such as 'handler:email.send status:retrying'
    #[arg(long, value_name = "FILTER", allow_hyphen_values = true)]
    pub(crate) filter: Option<String>,
    /// With --filter: maximum number of jobs, newest first
    #[arg(long, value_name = "N", default_value_t = 1_000, value_parser = bulk_limit)]
    pub(crate) limit: usize,
    /// Maximum rate, such as 10/s
    #[arg(long, value_name = "N/s", value_parser = rate, allow_hyphen_values = true)]
    pub(crate) rate: Option<f64>,
    /// Only show which jobs match
    #[arg(long, short = 'n')]
    pub(crate) dry_run: bool,
    /// Do not ask for confirmation
    #[arg(long, short)]
    pub(crate) yes: bool,
}

/// Cancel jobs: at once while they wait, through their node while they run
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  windlass cancel 6237184712970240 --reason 'sent twice'
  windlass cancel --filter 'handler:email.send tag:newsletter' --dry-run
  windlass list --json --handler email.send | jq -r '.jobs[].id' | windlass cancel -")]
pub(crate) struct CancelArgs {
    #[command(flatten)]
    pub(crate) pick: Pick,
    /// The reason; stored with the job and in the audit log
    #[arg(long, default_value = "canceled")]
    pub(crate) reason: String,
}

/// Change the priority of waiting jobs
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  windlass priority high 6237184712970240
  windlass priority low --filter 'handler:report.build status:pending' --yes")]
pub(crate) struct PriorityArgs {
    /// low, normal, high, critical, or a number; a higher number runs sooner
    #[arg(value_name = "PRIORITY", value_parser = priority, allow_hyphen_values = true)]
    pub(crate) priority: Priority,
    #[command(flatten)]
    pub(crate) pick: Pick,
}

/// When a job is to start.
#[derive(Clone, Copy, Debug, Args)]
pub(crate) struct StartArgs {
    /// Start this long from now, such as 30s or 5m
    #[arg(long, value_name = "DURATION", value_parser = parse_duration, allow_hyphen_values = true, conflicts_with = "at")]
    pub(crate) delay: Option<Duration>,
    /// Start at this time, such as 2026-11-15T10:00:00Z
    #[arg(long, value_name = "TIME", value_parser = parse_time)]
    pub(crate) at: Option<Timestamp>,
}

impl StartArgs {
    /// The start, where one is named.
    pub(crate) fn start(self) -> Option<Start> {
        self.delay.map(Start::After).or(self.at.map(Start::At))
    }
}

/// Change when a waiting job starts
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  windlass reschedule 6237184712970240 --delay 2h
  windlass reschedule 6237184712970240 --at 2026-11-15T10:00:00Z")]
pub(crate) struct RescheduleArgs {
    /// The id of the job
    #[arg(value_parser = job_id)]
    pub(crate) id: JobId,
    #[command(flatten)]
    pub(crate) start: StartArgs,
}

/// Change a waiting job: its input, its priority, when it starts
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  windlass edit 6237184712970240 --input '{\"to\":\"bob@example.org\"}'
  windlass edit 6237184712970240 --input @input.json --priority high --now")]
pub(crate) struct EditArgs {
    /// The id of the job
    #[arg(value_parser = job_id)]
    pub(crate) id: JobId,
    /// The new input: JSON, @FILE to read a file, - to read stdin
    #[arg(long, value_name = "INPUT", allow_hyphen_values = true)]
    pub(crate) input: Option<String>,
    /// The new priority
    #[arg(long, value_name = "P", value_parser = priority, allow_hyphen_values = true)]
    pub(crate) priority: Option<Priority>,
    #[command(flatten)]
    pub(crate) start: StartArgs,
    /// Start as soon as a worker is free
    #[arg(long, conflicts_with_all = ["delay", "at"])]
    pub(crate) now: bool,
}

/// Submit a copy of a job as a new job that refers to it
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  windlass clone 6237184712970240
  windlass clone 6237184712970240 '{\"to\":\"bob@example.org\"}'")]
pub(crate) struct CloneArgs {
    /// The id of the job, which may have any status
    #[arg(value_parser = job_id)]
    pub(crate) id: JobId,
    /// Another input: JSON, @FILE to read a file, - to read stdin [default: the job's own input]
    #[arg(allow_hyphen_values = true)]
    pub(crate) input: Option<String>,
}

/// What to do with failures.
#[derive(Debug, Subcommand)]
pub(crate) enum FailuresCommand {
    /// List failures by cause: retrying jobs, and dead letters that were not replayed
    #[command(after_help = "Example:\n  windlass failures list --filter 'handler:email.send'")]
    List {
        /// Only failures of jobs that match
        #[arg(long, value_name = "FILTER", allow_hyphen_values = true)]
        filter: Option<String>,
        /// Maximum number of groups
        #[arg(long, value_name = "N", default_value_t = 20, value_parser = limit)]
        limit: usize,
    },
    /// Retry every job of a group now
    #[command(after_help = "Example:\n  windlass failures retry 9f86d081884c7d65 --rate 10/s")]
    Retry(GroupArgs),
    /// Cancel the jobs of a group that wait for a retry
    Cancel(GroupArgs),
}

/// A group of failures.
#[derive(Debug, Args)]
pub(crate) struct GroupArgs {
    /// The signature of the group, as `failures list` shows it
    #[arg(value_parser = signature)]
    pub(crate) signature: Signature,
    /// Maximum number of jobs, newest first
    #[arg(long, value_name = "N", default_value_t = 1_000, value_parser = bulk_limit)]
    pub(crate) limit: usize,
    /// Maximum rate, such as 10/s
    #[arg(long, value_name = "N/s", value_parser = rate, allow_hyphen_values = true)]
    pub(crate) rate: Option<f64>,
    /// Only show which jobs match
    #[arg(long, short = 'n')]
    pub(crate) dry_run: bool,
    /// Do not ask for confirmation
    #[arg(long, short)]
    pub(crate) yes: bool,
}

impl GroupArgs {
    /// The same as a choice by filter.
    pub(crate) fn pick(&self) -> Pick {
        Pick {
            ids: Vec::new(),
            filter: Some(format!("signature:{}", self.signature)),
            limit: self.limit,
            rate: self.rate,
            dry_run: self.dry_run,
            yes: self.yes,
        }
    }
}

/// Show the cost of jobs by tenant, handler and day
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  windlass usage --from 2026-11-01 --to 2026-11-30
  windlass usage --all-tenants --json")]
pub(crate) struct UsageArgs {
    /// The first day [default: 30 days ago]
    #[arg(long, value_name = "DAY", value_parser = day)]
    pub(crate) from: Option<jiff::civil::Date>,
    /// The last day [default: today]
    #[arg(long, value_name = "DAY", value_parser = day)]
    pub(crate) to: Option<jiff::civil::Date>,
}

/// What to do with API keys.
#[derive(Debug, Subcommand)]
pub(crate) enum ApiKeyCommand {
    Create(ApiKeyCreateArgs),
    /// List the keys, without their secrets
    List,
    /// Revoke keys: servers reject them within seconds
    #[command(after_help = "Example:\n  windlass api-key revoke k7f3a9c2")]
    Revoke {
        /// The ids of the keys, as `api-key list` shows them
        #[arg(required = true, value_name = "ID")]
        ids: Vec<String>,
    },
}

/// Create a key; its secret is printed once and not stored
///
/// The key is for the tenant of --tenant, or with --all-tenants for operators of the whole installation.
#[derive(Debug, Args)]
#[command(
    after_help = "Rights: read, submit, operate (includes read), admin (includes all of these), payload (may read inputs).

Examples:
  windlass api-key create importer --rights submit,read --expires 90d
  windlass --all-tenants api-key create oncall --rights operate,payload
  export WINDLASS_API_KEY=$(windlass -q api-key create ci --rights submit)"
)]
pub(crate) struct ApiKeyCreateArgs {
    /// The name of the key
    pub(crate) name: String,
    /// Its rights, separated by commas
    #[arg(long, value_name = "RIGHTS", value_parser = rights)]
    pub(crate) rights: Rights,
    /// The user name of its calls in the audit log [default: the key's name]
    #[arg(long, value_name = "NAME")]
    pub(crate) user: Option<String>,
    /// When it expires: a time, or 90d for ninety days from now [default: never]
    #[arg(long, value_name = "WHEN", value_parser = expiry)]
    pub(crate) expires: Option<Start>,
}

/// What to do with schedules.
#[derive(Debug, Subcommand)]
pub(crate) enum SchedulesCommand {
    /// List schedules by name, with their next and last run
    List {
        /// Maximum number of schedules, 1 to 200
        #[arg(long, value_name = "N", default_value_t = 50, value_parser = limit)]
        limit: usize,
        /// Only schedules after this name, for the next page
        #[arg(long, value_name = "NAME")]
        after: Option<String>,
    },
    /// Show one schedule
    Show {
        /// The name of the schedule
        name: String,
        /// Also show the input of its jobs
        #[arg(long)]
        input: bool,
    },
    Put(Box<ScheduleArgs>),
    /// Remove a schedule; jobs that it has started stay
    Remove {
        /// The name of the schedule
        name: String,
    },
    /// Fire nothing until it is resumed
    Pause {
        /// The name of the schedule
        name: String,
    },
    /// Fire again from the next time on; times that passed meanwhile do not run
    Resume {
        /// The name of the schedule
        name: String,
    },
    /// Start a job of the schedule now, whether it is paused or not
    Trigger {
        /// The name of the schedule
        name: String,
    },
    /// Show when it fires next, in its own time zone and in yours
    #[command(after_help = "Example:\n  windlass schedules next nightly --count 5 --zone America/New_York")]
    Next {
        /// The name of the schedule
        name: String,
        /// Number of runs, 1 to 1000
        #[arg(long, value_name = "N", default_value_t = 10, value_parser = run_count)]
        count: usize,
        /// Your time zone, such as Europe/Berlin [default: this machine's]
        #[arg(long, value_name = "ZONE")]
        zone: Option<String>,
    },
    /// List the jobs that it has started, newest first
    Runs {
        /// The name of the schedule
        name: String,
        /// Maximum number of jobs, 1 to 200
        #[arg(long, value_name = "N", default_value_t = 50, value_parser = limit)]
        limit: usize,
        /// Only jobs older than this one, for the next page
        #[arg(long, value_name = "ID", value_parser = job_id)]
        before: Option<JobId>,
    },
}

/// Create a schedule, or change the one with this name
///
/// Options that are not given get their defaults; only an input that is not given stays as it was.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  windlass schedules put nightly '0 3 * * *' report.write '\"sales\"' --zone Europe/Berlin --missed once
  windlass schedules put sync '*/30 * * * *' stock.sync --overlap skip --jitter 30s
  windlass schedules put nightly @daily report.write --expect 3        only if nobody has changed it since version 3")]
pub(crate) struct ScheduleArgs {
    /// The name of the schedule
    pub(crate) name: String,
    /// Five fields (minute, hour, day, month, weekday), six with seconds first, or @hourly, @daily, @weekly, @monthly, @yearly
    #[arg(allow_hyphen_values = true)]
    pub(crate) cron: String,
    /// The handler that runs its jobs
    pub(crate) handler: String,
    /// The input of its jobs: JSON, @FILE to read a file, - to read stdin [default: as it was, or null]
    #[arg(allow_hyphen_values = true)]
    pub(crate) input: Option<String>,
    /// Its time zone, such as Europe/Berlin
    #[arg(long, value_name = "ZONE", default_value = "UTC")]
    pub(crate) zone: String,
    /// Times at which no node was there: skip, once (the latest) or all:N (the latest N)
    #[arg(long, value_name = "POLICY", default_value = "skip", value_parser = missed)]
    pub(crate) missed: Missed,
    /// While an earlier job has not ended: allow, skip or queue
    #[arg(long, value_name = "POLICY", default_value = "allow", value_parser = overlap)]
    pub(crate) overlap: Overlap,
    /// Start each job up to this long after its time, at most 1h
    #[arg(long, value_name = "DURATION", value_parser = jitter, allow_hyphen_values = true)]
    pub(crate) jitter: Option<Duration>,
    /// The queue of its jobs
    #[arg(long, value_name = "NAME")]
    pub(crate) queue: Option<String>,
    /// low, normal, high, critical, or a number; a higher number runs sooner
    #[arg(long, value_name = "P", value_parser = priority, allow_hyphen_values = true)]
    pub(crate) priority: Option<Priority>,
    /// A label of its jobs; repeatable
    #[arg(long = "tag", value_name = "TAG")]
    pub(crate) tags: Vec<String>,
    /// How long an attempt may take; `none` or 0 means no limit
    #[arg(long, value_name = "DURATION", value_parser = parse_timeout, allow_hyphen_values = true)]
    pub(crate) timeout: Option<Duration>,
    /// The version it must have, as `schedules show` prints it; 0 if it must not exist yet
    // Not called `version`: that option prints the program's own.
    #[arg(long, value_name = "VERSION")]
    pub(crate) expect: Option<u64>,
}

fn missed(text: &str) -> Result<Missed, String> {
    Missed::parse(text).ok_or_else(|| "expected skip, once or all:N".to_owned())
}

fn jitter(text: &str) -> Result<Duration, String> {
    let max = windlass::flows::schedule::JITTER_MAX;
    parse_duration(text).and_then(|jitter| if jitter <= max { Ok(jitter) } else { Err("at most 1h".to_owned()) })
}

fn overlap(text: &str) -> Result<Overlap, String> {
    Overlap::parse(text).ok_or_else(|| "expected allow, skip or queue".to_owned())
}

fn run_count(text: &str) -> Result<usize, String> {
    let max = windlass::flows::schedule::NEXT_RUNS_MAX;
    text.parse().ok().filter(|n| (1..=max).contains(n)).ok_or_else(|| format!("expected a number from 1 to {max}"))
}

/// What to do with webhooks.
#[derive(Debug, Subcommand)]
pub(crate) enum WebhookCommand {
    /// Send each status change to a URL; the secret that signs the requests is printed once
    #[command(after_help = "Example:
  windlass webhook add https://example.org/hooks --event dead_lettered --event succeeded --handler email.send")]
    Add {
        /// The URL: https, with a public address
        // Not called `url`: that is the server of the option --url.
        #[arg(value_name = "URL")]
        to: String,
        /// Only changes to this status; repeatable [default: succeeded, canceled, dead_lettered]
        #[arg(long = "event", value_name = "STATUS", value_parser = status)]
        events: Vec<Status>,
        /// Only jobs of this handler; a node must have or have had it, or a job must use it
        #[arg(long)]
        handler: Option<String>,
    },
    /// List the webhooks, without their secrets
    List,
    /// Send nothing to a webhook until it is resumed
    Pause {
        /// The id of the webhook, as `webhook list` shows it
        id: String,
    },
    /// Send events to a webhook again from now on, also if the server had switched it off
    Resume {
        /// The id of the webhook, as `webhook list` shows it
        id: String,
    },
    /// Remove a webhook
    Remove {
        /// The id of the webhook, as `webhook list` shows it
        id: String,
    },
}

/// Serve the API and the dashboard
///
/// Does not run your jobs: the processes that have your handlers do. Maintains the store and calls webhooks. Listens
/// beyond this machine only with API keys or tokens.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  windlass --db postgres://localhost/app migrate
  windlass --db postgres://localhost/app api-key create admin --rights admin,payload --all-tenants
  windlass --db postgres://localhost/app serve --listen 0.0.0.0:7878
  windlass --db postgres://localhost/app serve --jwks https://id.example.org/jwks.json --issuer https://id.example.org \\
           --audience windlass --base-path /jobs --read-only")]
pub(crate) struct ServeArgs {
    /// The address to listen on (or WINDLASS_LISTEN) [default: 127.0.0.1:7878]
    #[arg(long, value_name = "ADDRESS")]
    pub(crate) listen: Option<std::net::SocketAddr>,
    /// required: API keys, tokens and sessions; local: anyone with the printed link, on this machine only
    #[arg(long, value_name = "HOW", default_value = "required")]
    pub(crate) auth: AuthKind,
    /// Accept tokens (JWT) signed by these keys: a file, or an https URL
    #[arg(long, value_name = "FILE|URL")]
    pub(crate) jwks: Option<String>,
    /// The required issuer of tokens
    #[arg(long, value_name = "ISS", requires = "jwks")]
    pub(crate) issuer: Option<String>,
    /// The required audience of tokens
    #[arg(long, value_name = "AUD", requires = "jwks")]
    pub(crate) audience: Option<String>,
    /// Accepted signature algorithms of tokens, separated by commas
    #[arg(long, value_name = "ALG", value_delimiter = ',', default_value = "RS256,ES256,EdDSA", requires = "jwks")]
    pub(crate) jwt_algorithms: Vec<String>,
    /// The token claim with the tenant [default: tenant_id]
    #[arg(long, value_name = "CLAIM", requires = "jwks")]
    pub(crate) tenant_claim: Option<String>,
    /// Reject every request that changes something
    #[arg(long)]
    pub(crate) read_only: bool,
    /// The base path behind a proxy, such as /jobs (or WINDLASS_BASE_PATH)
    #[arg(long, value_name = "PATH")]
    pub(crate) base_path: Option<String>,
    /// Serve only the API
    #[arg(long)]
    pub(crate) no_dashboard: bool,
    /// Browsers connect over https, through a proxy: send cookies over https only
    #[arg(long)]
    pub(crate) behind_https: bool,
    /// Take client addresses from X-Forwarded-For; use it only behind a proxy that sets this header
    #[arg(long)]
    pub(crate) trust_forwarded: bool,
    /// Serve /metrics without a key; only on this machine
    #[arg(long)]
    pub(crate) open_metrics: bool,
    /// Create or update the schema first, as `windlass migrate` does; without it an old schema is an error
    #[arg(long)]
    pub(crate) migrate: bool,
    /// Run the handlers that this TOML file turns on: download, http, email, command (docs/handlers.md)
    #[arg(long, value_name = "FILE")]
    pub(crate) handlers: Option<PathBuf>,
}

/// How callers authenticate.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum AuthKind {
    Required,
    Local,
}

/// What to do with dead letters.
#[derive(Debug, Subcommand)]
pub(crate) enum DeadCommand {
    List(DeadListArgs),
    /// Show one dead letter with its input and history
    Show {
        /// The id of the dead letter
        #[arg(value_parser = job_id)]
        id: JobId,
    },
    Replay(ReplayArgs),
    /// Remove ended jobs permanently, now
    #[command(after_help = "Examples:
  windlass dead purge 6237184712970240
  windlass dead purge --filter 'status:dead handler:email.send created<30d' --yes")]
    Purge(Pick),
}

/// What to do with keys.
#[derive(Debug, Subcommand)]
pub(crate) enum KeysCommand {
    /// List the tenant's data keys, with the keys that wrap them
    #[command(after_help = "Examples:\n  windlass keys status\n  windlass keys status --all-tenants --json")]
    Status,
    /// Create a new version of the tenant's data key; older versions still open what they sealed
    #[command(after_help = "Example:\n  windlass keys rotate --tenant 0190b3a2-7c1e-7000-8000-000000000001")]
    Rotate,
    /// Wrap every tenant's data keys with the current key of the key file; jobs do not change
    #[command(
        after_help = "Put the new key first in the key file and keep the old key until this command has succeeded."
    )]
    Rewrap,
    /// Destroy the tenant's data keys: the payloads of its sealed jobs can never be read again
    Destroy {
        /// Do not ask for confirmation
        #[arg(long)]
        yes: bool,
    },
    /// Print a new random key for a key file
    #[command(after_help = "Example:\n  windlass keys generate 2026-11 >> windlass.keys")]
    Generate {
        /// The name of the key
        name: String,
    },
}

/// What to do with profiles.
#[derive(Debug, Subcommand)]
pub(crate) enum ProfileCommand {
    Add(ProfileAddArgs),
    /// Make a profile the default
    #[command(after_help = "Examples:\n  windlass profile use prod\n  windlass profile use --none")]
    Use {
        /// The name of the profile
        #[arg(required_unless_present = "none", conflicts_with = "none")]
        name: Option<String>,
        /// Use no profile by default
        #[arg(long)]
        none: bool,
    },
    /// List the profiles, without their keys
    List,
    /// Remove a profile
    Remove {
        /// The name of the profile
        name: String,
    },
}

/// Save a profile for the server of --url or the database of --db
///
/// The API key is read from WINDLASS_API_KEY, from stdin with --api-key-stdin, or from a prompt on a terminal; never
/// from the command line, which other users can read.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  windlass profile add prod --url https://jobs.example.org
  pass show windlass | windlass profile add ci --url https://jobs.example.org --api-key-stdin
  windlass profile add local --db postgres://localhost/app --tenant 0190b3a2-7c1e-7000-8000-000000000001

The file is ~/.config/windlass/profiles.toml, or the one named by WINDLASS_CONFIG; only its owner may read it.")]
pub(crate) struct ProfileAddArgs {
    /// The name of the profile
    #[arg(value_parser = profile_name)]
    pub(crate) name: String,
    /// Read the API key from stdin
    #[arg(long)]
    pub(crate) api_key_stdin: bool,
    /// Also make it the default
    #[arg(long = "use")]
    pub(crate) choose: bool,
    /// Replace an existing profile with this name
    #[arg(long)]
    pub(crate) force: bool,
}

/// List dead letters, newest first
#[derive(Debug, Args)]
#[command(after_help = "Example:\n  windlass dead list --reason max_retries --replayed false")]
pub(crate) struct DeadListArgs {
    #[command(flatten)]
    pub(crate) only: DeadFilter,
    /// An additional filter, as in the dashboard: 'error:\"time out\" created>2h'
    #[arg(long, value_name = "FILTER", allow_hyphen_values = true)]
    pub(crate) filter: Option<String>,
    /// Only dead letters that were (true) or were not (false) replayed
    #[arg(long, value_name = "BOOL", num_args = 0..=1, default_missing_value = "true")]
    pub(crate) replayed: Option<bool>,
    #[command(flatten)]
    pub(crate) page: PageArgs,
}

/// Which dead letters.
#[derive(Clone, Debug, Args)]
pub(crate) struct DeadFilter {
    /// Only jobs of this handler
    #[arg(long)]
    pub(crate) handler: Option<String>,
    /// Only dead letters with this reason, such as max_retries
    #[arg(long)]
    pub(crate) reason: Option<String>,
    /// Only jobs with this label
    #[arg(long)]
    pub(crate) tag: Option<String>,
}

/// Run dead letters again
///
/// By id, by --filter, or --all. For the last two, shows the number first and asks for confirmation.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  windlass dead replay 6237184712970240
  windlass dead replay --all --handler email.send --rate 10/s --stop-when-failing 0.2
  windlass dead replay --filter 'error:\"time out\" created>1d' --dry-run
  windlass dead replay --all --reason max_retries --limit 5 --yes")]
pub(crate) struct ReplayArgs {
    #[command(flatten)]
    pub(crate) pick: Pick,
    /// Every dead letter that has not been replayed yet
    #[arg(long, conflicts_with = "ids")]
    pub(crate) all: bool,
    /// With --all: only dead letters of this handler
    #[arg(long, requires = "all")]
    pub(crate) handler: Option<String>,
    /// With --all: only dead letters with this reason
    #[arg(long, requires = "all")]
    pub(crate) reason: Option<String>,
    /// With --all: only dead letters with this label
    #[arg(long, requires = "all")]
    pub(crate) tag: Option<String>,
    /// Submit each as a new job that refers to it, instead of running it again under its own id; happens at most once
    #[arg(long)]
    pub(crate) as_new: bool,
    /// Stop when more than this fraction fails again, 0 to 1
    #[arg(long, value_name = "PART", value_parser = part, conflicts_with = "as_new", allow_hyphen_values = true)]
    pub(crate) stop_when_failing: Option<f64>,
}

/// Stop starting jobs: all, or those of a handler or a tenant; running jobs continue
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  windlass pause all --reason 'database upgrade'
  windlass pause handler email.send
  windlass pause tenant 0190b3a2-7c1e-7000-8000-000000000001")]
pub(crate) struct PauseArgs {
    #[command(flatten)]
    pub(crate) target: TargetArgs,
    /// The reason; shown to everyone who asks why a job waits
    #[arg(long, default_value = "")]
    pub(crate) reason: String,
    /// Also pause a handler that no node has or had and no job uses
    #[arg(long)]
    pub(crate) force: bool,
}

/// End a pause
#[derive(Debug, Args)]
#[command(after_help = "Example:\n  windlass resume handler email.send")]
pub(crate) struct ResumeArgs {
    #[command(flatten)]
    pub(crate) target: TargetArgs,
}

/// What is paused or resumed.
#[derive(Debug, Args)]
pub(crate) struct TargetArgs {
    /// all, handler or tenant
    #[arg(value_name = "WHAT")]
    what: Kind,
    /// The handler's id or the tenant's UUID
    #[arg(value_name = "NAME")]
    name: Option<String>,
}

#[derive(Clone, Copy, Debug, clap::ValueEnum)]
enum Kind {
    All,
    Handler,
    Tenant,
}

impl TargetArgs {
    /// The target, or the field that is wrong.
    pub(crate) fn target(&self) -> crate::error::Result<PauseTarget> {
        use crate::error::CliError;
        match (self.what, self.name.as_deref()) {
            (Kind::All, None) => Ok(PauseTarget::All),
            (Kind::All, Some(name)) => {
                Err(CliError::invalid("name", format!("`all` takes no name, got `{}`", name.escape_debug())))
            }
            (Kind::Handler, Some(name)) if !name.is_empty() => Ok(PauseTarget::Handler(name.to_owned())),
            (Kind::Handler, _) => {
                Err(CliError::invalid("handler", "give the handler's id, as in `handler email.send`"))
            }
            (Kind::Tenant, Some(name)) => Ok(PauseTarget::Tenant(TenantId::parse(name)?)),
            (Kind::Tenant, None) => Err(CliError::invalid("tenant", "give the tenant's UUID")),
        }
    }
}

/// Check the installation, and say how to fix problems
///
/// Changes nothing. On PostgreSQL it also checks for sessions with old snapshots, changes of the schema, and weak
/// settings; on SQLite the file and its disk; on a server whatever the key may read.
#[derive(Debug, Args)]
#[command(after_help = "Each line is ok, warn or fail. The exit code is 1 if anything fails, otherwise 0.\n\nExamples:
  windlass doctor
  windlass doctor --held-after 5s --json | jq '.checks[] | select(.level != \"ok\")'")]
pub(crate) struct DoctorArgs {
    /// Report sessions that have held an old snapshot for longer than this
    #[arg(long, value_name = "DURATION", default_value = "60s", value_parser = parse_duration)]
    pub(crate) held_after: Duration,
}

/// Check whether a server is ready
///
/// Asks the server of --url, or the one on this machine (at WINDLASS_LISTEN), like the probes of a cluster: without a
/// key, and from an image that has no shell and no curl. Exit code 0 if it is ready, 6 if it is not ready or does not
/// respond.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  windlass healthy                             http://127.0.0.1:7878
  windlass healthy --live                      only the process: its database may be unreachable
  windlass --url http://10.0.0.7:7878 healthy")]
pub(crate) struct HealthyArgs {
    /// Check only that the process responds, not its database
    #[arg(long)]
    pub(crate) live: bool,
    /// How long to wait for the response
    #[arg(long, value_name = "DURATION", value_parser = parse_duration, default_value = "3s")]
    pub(crate) timeout: Duration,
}

/// What to do with a policy.
#[derive(Debug, Subcommand)]
pub(crate) enum QuotaCommand {
    /// Show the policy that applies to a tenant
    Show(QuotaOf),
    Set(QuotaSetArgs),
    /// Clear a policy: the default applies to the tenant again
    Clear(QuotaOf),
}

/// Whose policy.
#[derive(Debug, Args)]
pub(crate) struct QuotaOf {
    /// The default policy, for every tenant without its own, instead of the policy of --tenant
    #[arg(long)]
    pub(crate) default: bool,
}

impl QuotaOf {
    /// The tenant; none for the default.
    pub(crate) fn target(&self, global: &Global) -> Option<TenantId> {
        (!self.default).then(|| global.tenant())
    }
}

/// Set the limits of a tenant; limits that are not given are removed
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  windlass quota set --tenant 0190b3a2-7c1e-7000-8000-000000000001 --queued 10000 --rate 500/s --burst 1000
  windlass quota set --default --running 50 --bytes 67108864
  windlass quota set --weight 4")]
pub(crate) struct QuotaSetArgs {
    #[command(flatten)]
    pub(crate) of: QuotaOf,
    /// Maximum number of unfinished jobs
    #[arg(long, value_name = "N")]
    queued: Option<u64>,
    /// Maximum rate of submits, such as 500/s
    #[arg(long, value_name = "N/s", value_parser = rate, allow_hyphen_values = true)]
    rate: Option<f64>,
    /// Maximum burst of submits, with --rate [default: one second's worth]
    #[arg(long, value_name = "N", requires = "rate")]
    burst: Option<u64>,
    /// Maximum number of running jobs, on all nodes
    #[arg(long, value_name = "N")]
    running: Option<u64>,
    /// Maximum payload bytes of unfinished jobs
    #[arg(long, value_name = "BYTES")]
    bytes: Option<u64>,
    /// Scheduling weight relative to other tenants
    #[arg(long, value_name = "N")]
    weight: Option<u32>,
}

impl QuotaSetArgs {
    /// The policy; an error if it is empty or makes no sense.
    pub(crate) fn quota(&self) -> crate::error::Result<Quota> {
        let mut quota = Quota::new();
        quota.queued = self.queued;
        quota.running = self.running;
        quota.bytes = self.bytes;
        quota.weight = self.weight;
        if let Some(rate) = self.rate {
            quota = quota.submit_rate(rate, self.burst.unwrap_or(rate.ceil() as u64).max(1));
        }
        if quota == Quota::new() {
            let message = "give a limit, such as --queued 10000; to remove a policy use `windlass quota clear`";
            return Err(crate::error::CliError::invalid("quota", message));
        }
        quota.check()?;
        Ok(quota)
    }
}

/// Read the audit log, newest first
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  windlass audit --action JOB_CANCELED
  windlass audit --all-tenants --json --limit 500")]
pub(crate) struct AuditArgs {
    /// Only this action: JOB_SUBMITTED, JOB_CANCELED, JOB_REPLAYED, JOB_PURGED, JOB_EXHAUSTED_RETRIES, JOB_FAILED, PAUSED, …
    #[arg(long)]
    pub(crate) action: Option<String>,
    /// Only this target: a job id, or a pause such as handler:email.send
    #[arg(long)]
    pub(crate) target: Option<String>,
    /// Maximum number of entries
    #[arg(long, value_name = "N", default_value_t = 50, value_parser = at_least_one)]
    pub(crate) limit: usize,
}

/// Create or update the schema of the database
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  windlass migrate
  windlass migrate --sql --db postgres: > schema.sql     without connecting")]
pub(crate) struct MigrateArgs {
    /// Print the SQL for the kind of database that --db names, without connecting
    #[arg(long)]
    pub(crate) sql: bool,
}

/// Measure how fast a store is on this machine
///
/// Uses a temporary database on the given server, or a file that does not exist yet. Both are removed at the end, also
/// after a failure or Ctrl-C. The database of --db is never touched.
#[derive(Debug, Args)]
#[command(
    after_help = "Examples:
  windlass bench --store memory
  windlass bench --store sqlite:bench.db --scenario submit,drain
  windlass bench --store postgres://localhost --scenario drain --jobs 200000 --json",
    after_long_help = "Scenarios:
  submit       callers each submit one job after another and wait until it is durable; no node runs them
  submit-bulk  the same with --batch jobs in each call
  drain        jobs wait, then a node starts and runs them all; records are kept
  end-to-end   callers submit while a node runs the jobs, until all have ended
  latency      one job every 20 ms on an otherwise idle node
  spawn        closures in memory, which are not stored
  idle         an idle node for --seconds

Stress, each with a pass line; missing it is a failure (exit code 1):
  held-snapshot  PostgreSQL: half of the highest rate, without and with an idle REPEATABLE READ transaction
  unanalysed     PostgreSQL: autovacuum off and statistics never gathered
  notify         PostgreSQL: callers submit without and with wake-ups and a second node that listens
  retention      PostgreSQL: a week of --jobs ended jobs is dropped, and as many are removed one by one, under load
  backlog        --jobs waiting, as many ended, a fifth of them scheduled
  tenants        10000 tenants with a few jobs each, and one tenant that floods
  bands          a few critical jobs, and a flood of ordinary ones
  waiting        the memory of a node while --jobs wait
  sleepers       the memory of a node that runs --jobs sleeping handlers at once
  start          the time from the start of a process until it serves
  http           a server: 2000 status reads/s for --seconds beside 200 watchers, then --jobs in batches of 100

Figures, by their keys in JSON (one object per scenario and line; unavailable figures are null):
  scenario, store, jobs                              what was measured
  jobs_per_second                                    of the whole scenario; the median of the repeats, like all figures
  p50_ms, p95_ms, p99_ms, max_ms                     from the submit call to the start of the handler
  submit_p50_ms, …_p95_ms, …_p99_ms, …_max_ms        how long calls to submit took
  reads_per_second, read_p50_ms, …, read_max_ms      of http: reads of a job's status
  watchers, errors                                   of http: watchers that saw their job; requests that failed
  cpu_us_per_job, server_cpu_us_per_job              CPU of this process; of a PostgreSQL server on this machine
  wal_bytes_per_job, commits_per_job, dead_tuples    of a PostgreSQL server
  bytes_per_finished_job                             what a job leaves on disk, with indexes
  queries_per_second, cpu_ms_per_second              of an idle node
  raw_jobs_per_second, ratio_to_raw                  the same rows with plain statements, in the same run; the ratio to that
  raw_p50_ms, ratio_to_raw                           of latency: one committed INSERT; how many times longer a job waits
  baseline_jobs_per_second, ratio_to_baseline        of stress: the same load without it; the ratio to that
  baseline_p50_ms, baseline_p99_ms                   waits without the stress
  p99_ratio_to_baseline                              the ratio of p99_ms to that
  worst_second_ratio_to_baseline, left_over          of retention: the worst second; jobs not removed in time
  baseline_memory_bytes, memory_bytes, start_ms      of a process
  other_cpu_ratio                                    how busy the machine was with other work: high means noisy figures
  goal, passed                                       the pass line of a stress, and whether it was met
  windows                                            of stress: stressed, second, jobs_per_second, p99_ms over time

Examples:
  windlass bench --store memory
  windlass bench --store sqlite:bench.db --scenario submit,drain
  windlass bench --store postgres://localhost --scenario drain --jobs 200000 --json
  windlass bench --store sqlite:bench.db --scenario submit,drain --against ./windlass-before"
)]
pub(crate) struct BenchArgs {
    /// What to measure: memory, sqlite:PATH or postgres://… (or WINDLASS_BENCH_STORE) [default: memory]
    #[arg(long, value_name = "STORE", value_parser = Target::parse)]
    pub(crate) store: Option<Target>,
    /// The scenarios, separated by commas
    #[arg(long = "scenario", value_name = "SCENARIO", value_enum, value_delimiter = ',', default_value = "end-to-end")]
    pub(crate) scenarios: Vec<Scenario>,
    /// Number of jobs [default: 200 to 1000000, depending on the scenario]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    pub(crate) jobs: Option<u64>,
    /// Number of concurrent callers [default: 64; 2 for submit-bulk and spawn]
    #[arg(long, value_name = "N", value_parser = at_least_one)]
    pub(crate) submitters: Option<usize>,
    /// Number of jobs that a node runs at once
    #[arg(long, value_name = "N", default_value_t = 2_000, value_parser = at_least_one)]
    pub(crate) workers: usize,
    /// Number of processes, on PostgreSQL. All submit and run jobs; for latency, one submits and the others run
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = nodes)]
    pub(crate) nodes: usize,
    /// The size of each job's input, as JSON
    #[arg(long, value_name = "N", default_value_t = 100, value_parser = payload_bytes)]
    pub(crate) payload_bytes: usize,
    /// Number of jobs in one call of submit-bulk
    #[arg(long, value_name = "N", default_value_t = 1_000, value_parser = clap::value_parser!(u64).range(2..=1_000))]
    pub(crate) batch: u64,
    /// Duration of scenarios that are not counted in jobs [default: 20; held-snapshot 60]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..=3_600))]
    pub(crate) seconds: Option<u64>,
    /// How often to measure, each time beside the raw statements; the medians count [default: 9 for short scenarios]
    #[arg(long, value_name = "N", value_parser = at_least_one)]
    pub(crate) repeats: Option<usize>,
    /// Another build of windlass to compare with, in alternating turns
    #[arg(long, value_name = "PROGRAM", conflicts_with = "full")]
    pub(crate) against: Option<PathBuf>,
    /// The long version of a stress: ten minutes, millions of jobs
    #[arg(long)]
    pub(crate) full: bool,
    /// Do not run the raw statements
    #[arg(long)]
    pub(crate) no_raw: bool,
}

/// What `bench` can measure.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum Scenario {
    Submit,
    SubmitBulk,
    Drain,
    EndToEnd,
    Latency,
    Spawn,
    Idle,
    HeldSnapshot,
    Backlog,
    Unanalysed,
    Tenants,
    Bands,
    Notify,
    Retention,
    Waiting,
    Sleepers,
    Start,
    Http,
}

fn tenant(text: &str) -> Result<TenantId, String> {
    TenantId::parse(text).map_err(|error| error.message)
}

fn profile_name(text: &str) -> Result<String, String> {
    let good = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.');
    match !text.is_empty() && text.len() <= 64 && text.chars().all(good) {
        true => Ok(text.to_owned()),
        false => {
            Err(format!("`{}` is not a profile name; use 1 to 64 letters, digits, - _ and .", text.escape_debug()))
        }
    }
}

fn status(text: &str) -> Result<Status, String> {
    Status::parse(text).map_err(|error| error.message)
}

fn job_id(text: &str) -> Result<JobId, String> {
    text.parse().map_err(|_| format!("`{}` is not a job id; job ids are decimal numbers", text.escape_debug()))
}

fn batch_id(text: &str) -> Result<BatchId, String> {
    text.parse()
        .map(BatchId)
        .map_err(|_| format!("`{}` is not a batch id; batch ids are decimal numbers", text.escape_debug()))
}

fn priority(text: &str) -> Result<Priority, String> {
    let known = "low, normal, high, critical or a number from -32768 to 32767";
    Priority::parse(text).ok_or_else(|| format!("`{}` is not a priority; use {known}", text.escape_debug()))
}

fn limit(text: &str) -> Result<usize, String> {
    let max = windlass::Page::MAX;
    let number = text.parse().ok().filter(|limit| (1..=max).contains(limit));
    number.ok_or_else(|| format!("`{}` is not a number from 1 to {max}", text.escape_debug()))
}

fn bulk_limit(text: &str) -> Result<usize, String> {
    let max = BulkOptions::MAX_CAP;
    let number = text.parse().ok().filter(|limit| (1..=max).contains(limit));
    number.ok_or_else(|| format!("`{}` is not a number from 1 to {max}", text.escape_debug()))
}

fn signature(text: &str) -> Result<Signature, String> {
    text.parse()
        .map_err(|_| format!("`{}` is not a signature; signatures have 16 hexadecimal digits", text.escape_debug()))
}

fn rights(text: &str) -> Result<Rights, String> {
    Rights::parse(text).map_err(|error| error.message)
}

/// A time, or a duration from now.
fn expiry(text: &str) -> Result<Start, String> {
    if let Ok(at) = parse_time(text) {
        return Ok(Start::At(at));
    }
    parse_duration(text).map(Start::After).map_err(|_| {
        format!("`{}` is not a time; write 2026-11-15T10:00:00Z, or 90d for ninety days from now", text.escape_debug())
    })
}

fn day(text: &str) -> Result<jiff::civil::Date, String> {
    text.trim().parse().map_err(|_| format!("`{}` is not a day; write it like 2026-11-15", text.escape_debug()))
}

fn at_least_one(text: &str) -> Result<usize, String> {
    let number = text.parse().ok().filter(|limit| *limit > 0);
    number.ok_or_else(|| format!("`{}` is not a number of at least 1", text.escape_debug()))
}

fn nodes(text: &str) -> Result<usize, String> {
    // Each is a process with some fifteen connections, and servers usually allow a hundred.
    let number = text.parse().ok().filter(|nodes| (1..=32).contains(nodes));
    number.ok_or_else(|| format!("`{}` is not a number from 1 to 32", text.escape_debug()))
}

fn payload_bytes(text: &str) -> Result<usize, String> {
    let max = windlass::Limits::default().payload_bytes;
    let number = text.parse().ok().filter(|bytes| *bytes <= max);
    number.ok_or_else(|| format!("`{}` is not a number from 0 to {max}", text.escape_debug()))
}

fn rate(text: &str) -> Result<f64, String> {
    let number = text.trim().trim_end_matches("/s").parse().ok();
    let rate = number.filter(|rate: &f64| rate.is_finite() && (0.001..=100_000.0).contains(rate));
    rate.ok_or_else(|| format!("`{}` is not a rate; write it like 10/s", text.escape_debug()))
}

fn part(text: &str) -> Result<f64, String> {
    let part = text.parse().ok().filter(|part: &f64| (0.0..=1.0).contains(part));
    part.ok_or_else(|| format!("`{}` is not a number from 0 to 1", text.escape_debug()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_commands_are_consistent() {
        use clap::CommandFactory;
        Cli::command().debug_assert();
    }

    #[test]
    fn rates_are_read_with_and_without_their_unit() {
        assert_eq!((rate("10/s"), rate("0.5")), (Ok(10.0), Ok(0.5)));
        for bad in ["0", "-1/s", "NaN", "inf", "fast"] {
            assert!(rate(bad).is_err(), "{bad}");
        }
    }
}
