//! `cargo xtask schemathesis`: requests made up from the OpenAPI document, right and wrong ones, against a running server.
//! Called by people and by the full tier of `test`. Any answer of 500 is a failure, whatever the request was.

use std::path::Path;

use anyhow::{Context, Result};

use crate::python::Venv;
use crate::server::Server;
use crate::step::{Verdict, pass};

/// The version, so that a run of today finds what one of tomorrow does.
const PACKAGE: &str = "schemathesis==4.32.5";
/// Streams last until the client leaves: a tool that reads to the end would wait for ever. Revoking keys would sooner or
/// later hit the one that it works with.
const LEFT_OUT: &str = "/events$|^/keys/";

/// How hard to try.
#[derive(clap::Args)]
pub(crate) struct Arguments {
    /// Requests made up for each route.
    #[arg(long, default_value_t = 50)]
    examples: u32,
    /// Where the random numbers start; a run prints it.
    #[arg(long)]
    seed: Option<u64>,
}

impl Default for Arguments {
    fn default() -> Self {
        Arguments { examples: 50, seed: None }
    }
}

/// Builds the server and runs against it.
pub(crate) fn run(root: &Path, arguments: &Arguments) -> Result<bool> {
    let windlass = crate::build_windlass(root)?;
    Ok(check(root, &windlass, arguments)? == Verdict::Passed)
}

/// Runs against the given program.
pub(crate) fn check(root: &Path, windlass: &Path, arguments: &Arguments) -> Result<Verdict> {
    let tools = Venv::of(root)?.with(PACKAGE)?;
    let server = Server::start(windlass)?;
    let mut schemathesis = tools.program("schemathesis");
    schemathesis.current_dir(root.join("target")).arg("run").arg(format!("{}/api/v1/openapi.json", server.url));
    schemathesis.args(["--header", &format!("Authorization: Bearer {}", server.key)]);
    schemathesis.args(["--checks", "not_a_server_error,content_type_conformance,response_schema_conformance"]);
    schemathesis.args(["--exclude-path-regex", LEFT_OUT, "--max-examples", &arguments.examples.to_string()]);
    // Wrong credentials are counted, and whoever sends many is kept out for a while.
    schemathesis.args(["--generation-with-security-parameters", "false"]);
    // Found failures would be replayed from a directory beside the sources.
    schemathesis.args(["--generation-database", "none", "--workers", "2", "--no-color"]);
    if let Some(seed) = arguments.seed {
        schemathesis.args(["--seed", &seed.to_string()]);
    }
    pass(&mut schemathesis).with_context(|| format!("the server said:\n{}", server.log()))
}
