//! `cargo xtask test`: the gate every change passes, from a clean clone, with no prior setup and nobody to answer
//! questions. The servers that tests use live exactly as long as this run, also when it fails or is interrupted.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, ensure};
use clap::ValueEnum;
use windlass_testkit::servers::{
    BIN_VAR, ChromeDriver, PGBOUNCER_VAR, POSTGRES_VAR, PgBouncer, PgBouncerOptions, PostgresOptions, PostgresServer,
    TIER_VAR,
};

use crate::clients::Clients;
use crate::step::{Steps, Verdict, pass, works};
use crate::{deploy, dist, examples, floors, fuzz, postgres, schemathesis, tidy};

/// What to test.
#[derive(clap::Args)]
pub(crate) struct Arguments {
    /// How much: `short` is what every change runs, `full` adds every promise behind PgBouncer, all sabotages, other versions of PostgreSQL, longer runs of what is random, made-up requests, the floors of speed, the files of a release, and libFuzzer.
    #[arg(long, value_enum, default_value_t = Tier::Short)]
    tier: Tier,
    /// Go on after a failed step or test, and report all failures at the end.
    #[arg(long)]
    keep_going: bool,
    /// Run only tests that these select, and no other step: names, or any options of the test runner.
    #[arg(last = true)]
    filter: Vec<String>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Tier {
    Short,
    Full,
}

/// Runs every step; false if one failed.
pub(crate) fn run(root: &Path, arguments: &Arguments) -> Result<bool> {
    // Taken before anything is built: a build may replace the file this process runs from.
    let target = Target::of_this_process(root)?;
    let mut steps = Steps::new(arguments.keep_going, arguments.tier == Tier::Full);
    if arguments.filter.is_empty() {
        steps.step("format", || format(&target));
        steps.step("lint", || lint(&target));
        steps.step("without features", || pass(target.cargo().args(["check", "--tests"]).args(BARE)));
        steps.step("tidy", || tidy::run(root).map(|()| Verdict::Passed));
    }
    test(&mut steps, &target, arguments);
    if arguments.filter.is_empty() {
        steps.step("deny", || deny(&target));
    }
    if arguments.filter.is_empty() && arguments.tier == Tier::Full {
        let floors = || floors::check(root).map(|held| if held { Verdict::Passed } else { Verdict::Failed });
        steps.step("versions", || postgres::run(root, &postgres::Arguments::default()));
        steps.step("floors", floors);
        steps.step("dist", || dist::run(root).map(|_| Verdict::Passed));
        steps.step("fuzz", || fuzz::run(root, &fuzz::Arguments::default()));
    }
    println!("{}", steps.summary());
    Ok(!steps.failed())
}

/// The steps that need servers. The servers end with this function.
fn test(steps: &mut Steps, target: &Target, arguments: &Arguments) {
    steps.step("build", || pass(target.cargo().args(["build", "--all-targets"]).args(EVERYTHING)));
    let mut servers = None;
    steps.step("servers", || {
        servers = Some(Servers::start(arguments.tier)?);
        Ok(Verdict::Passed)
    });
    // Without servers every test that needs one would fail, and say less about the reason than the step above.
    let Some(servers) = servers else { return };
    let variables = servers.variables(target);
    let prepare = |mut command: Command| {
        command.envs(variables.iter().map(|(name, value)| (*name, value)));
        command
    };
    if arguments.filter.is_empty() {
        steps.step("doctests", || pass(prepare(target.cargo()).args(["test", "--doc"]).args(EVERYTHING)));
    }
    steps.step("tests", || pass(prepare(test_command(target, arguments)).args(&arguments.filter)));
    if arguments.filter.is_empty() {
        steps.step("faults", || pass(&mut faults(target)));
        steps.step("sabotages", || sabotages(target, arguments.tier));
        steps
            .step("examples", || examples::run(&target.root, &target.dir.join("examples"), &servers.postgres, prepare));
        let windlass = target.windlass();
        let clients = Clients { root: &target.root, windlass: &windlass, types: arguments.tier == Tier::Full };
        steps.step("python", || clients.python());
        steps.step("typescript", || clients.typescript());
        for (name, check) in deploy::CHECKS {
            steps.step(name, || check(&target.root, &windlass));
        }
        if arguments.tier == Tier::Full {
            steps.step("schemathesis", || schemathesis::check(&target.root, &windlass, &Default::default()));
        }
    }
}

/// The matrix of faults, with the seed that every change runs; other seeds are for `cargo xtask faults`.
fn faults(target: &Target) -> Command {
    let mut harness = Command::new(target.dir.join(format!("windlass-faults{}", std::env::consts::EXE_SUFFIX)));
    harness.current_dir(&target.root).args(["--seed", "1"]);
    harness
}

/// Breaks promises on purpose, and sees that the matrix notices: one that a quick row finds on each store, or every one of
/// them. Both stores at once, because the rows mostly wait for jobs that never end.
fn sabotages(target: &Target, tier: Tier) -> Result<Verdict> {
    let which: &[&str] = match tier {
        Tier::Short => &["--sabotage", "unlocked-claim", "--only", "F17"],
        Tier::Full => &["--sabotage", "all"],
    };
    let on = |store: &str| pass(faults(target).args(["--store", store]).args(which));
    std::thread::scope(|scope| {
        let sqlite = scope.spawn(|| on("sqlite"));
        let postgres = on("postgres");
        let sqlite = sqlite.join().expect("running a command does not panic");
        postgres.and(sqlite)
    })
}

/// What others build on, without the features that the other steps switch on.
const BARE: [&str; 3] = ["--package", "windlass-core", "--no-default-features"];

/// Every crate with every feature.
const EVERYTHING: [&str; 2] = ["--workspace", "--all-features"];

fn format(target: &Target) -> Result<Verdict> {
    if !works(target.cargo().args(["fmt", "--version"])) {
        return Ok(Verdict::Skipped("rustfmt is not installed (`rustup component add rustfmt`)".into()));
    }
    pass(target.cargo().args(["fmt", "--all", "--check"]))
}

fn lint(target: &Target) -> Result<Verdict> {
    if !works(target.cargo().args(["clippy", "--version"])) {
        return Ok(Verdict::Skipped("clippy is not installed (`rustup component add clippy`)".into()));
    }
    pass(target.cargo().args(["clippy", "--all-targets"]).args(EVERYTHING).args(["--", "-D", "warnings"]))
}

fn deny(target: &Target) -> Result<Verdict> {
    if !works(target.cargo().args(["deny", "--version"])) {
        return Ok(Verdict::Skipped("cargo-deny is not installed (`cargo install cargo-deny`)".into()));
    }
    pass(target.cargo().args(["deny", "check"]))
}

fn test_command(target: &Target, arguments: &Arguments) -> Command {
    let mut command = target.cargo();
    if works(target.cargo().args(["nextest", "--version"])) {
        command.args(["nextest", "run"]);
    } else {
        // Doctests are a step of their own.
        command.args(["test", "--tests"]);
    }
    command.args(EVERYTHING);
    if arguments.keep_going {
        command.arg("--no-fail-fast");
    }
    command
}

/// Where cargo works and builds.
struct Target {
    root: PathBuf,
    /// The directory of built programs: the one this program was built into, whatever cargo's settings are.
    dir: PathBuf,
}

impl Target {
    fn of_this_process(root: &Path) -> Result<Self> {
        let program = std::env::current_exe().context("find the path of xtask")?;
        let dir = program.parent().context("xtask lies in a directory")?.to_owned();
        let is_dev = dir.file_name().is_some_and(|name| name == "debug");
        ensure!(is_dev, "run it as `cargo xtask test`: tests use the programs of the dev profile, built beside xtask");
        Ok(Target { root: root.to_owned(), dir })
    }

    /// The program users get.
    fn windlass(&self) -> PathBuf {
        self.dir.join(format!("windlass{}", std::env::consts::EXE_SUFFIX))
    }

    /// The cargo that runs us, or the one on the path.
    fn cargo(&self) -> Command {
        let mut cargo = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
        cargo.current_dir(&self.root);
        // What cargo says about this package to this process is not for the tests of others.
        for (name, _) in std::env::vars_os().filter(|(name, _)| name.as_encoded_bytes().starts_with(b"CARGO_PKG_")) {
            cargo.env_remove(name);
        }
        cargo.env_remove("CARGO_MANIFEST_DIR").env_remove("CARGO_MANIFEST_PATH");
        cargo
    }
}

/// The servers of one run. The pooler is first because it is dropped first.
struct Servers {
    pgbouncer: PgBouncer,
    postgres: PostgresServer,
    tier: Tier,
}

impl Servers {
    fn start(tier: Tier) -> Result<Self> {
        // What survives a crash is tested on servers of the tests' own, with fsync on; here it would only cost time.
        let options = PostgresOptions::fleeting().setting("max_connections", "400");
        let postgres = PostgresServer::start(options)?;
        // Before any test asks for it: several would install it at once.
        ChromeDriver::install()?;
        println!("PostgreSQL: {}", postgres.admin_url());
        let pgbouncer = PgBouncer::start(&postgres, PgBouncerOptions::default())?;
        println!("PgBouncer: {}", pgbouncer.admin_url());
        Ok(Servers { pgbouncer, postgres, tier })
    }

    /// What tests are told.
    fn variables(&self, target: &Target) -> [(&'static str, String); 4] {
        let tier = match self.tier {
            Tier::Short => "short",
            Tier::Full => "full",
        };
        [
            (POSTGRES_VAR, self.postgres.admin_url()),
            (PGBOUNCER_VAR, self.pgbouncer.admin_url()),
            (BIN_VAR, target.windlass().display().to_string()),
            (TIER_VAR, tier.to_owned()),
        ]
    }
}
