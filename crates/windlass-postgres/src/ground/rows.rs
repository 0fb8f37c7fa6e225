//! Reading rows. A row that something else wrote may hold what no type of ours takes (a NULL among tags, an array of
//! arrays), and must cost one call or one job, never the task that reads it. Made by `connect`, read by every module.
//! Never panics.

use std::cell::OnceCell;
use std::fmt;

use tokio_postgres::row::RowIndex;
use tokio_postgres::types::FromSql;
use windlass_core::store::{Error, Result};

/// A row of an answer.
pub(crate) struct Row(pub(crate) tokio_postgres::Row);

impl Row {
    /// A column, by its number or its name.
    pub(crate) fn get<'a, I, T>(&'a self, column: I) -> Result<T>
    where
        I: RowIndex + fmt::Display,
        T: FromSql<'a>,
    {
        self.0.try_get(&column).map_err(|error| self.unreadable(&column.to_string(), &error))
    }

    fn unreadable(&self, column: &str, error: &tokio_postgres::Error) -> Error {
        let named = column.parse::<usize>().ok().and_then(|n| self.0.columns().get(n));
        let column = named.map_or(column, |column| column.name()).to_owned();
        // The cause alone: the rest of the driver's message is the number of the column.
        let why = std::error::Error::source(error).map_or_else(|| error.to_string(), ToString::to_string);
        Error::Unreadable { column, why }
    }
}

/// Reads a list. A row that cannot be read is left out: it must not hide the others.
pub(crate) fn readable<T>(rows: &[Row], read: impl Fn(&Row) -> Result<T>) -> Vec<T> {
    let read =
        |row: &Row| read(row).inspect_err(|error| tracing::error!(%error, "skipped an unreadable row: {error}")).ok();
    rows.iter().filter_map(read).collect()
}

/// Reads as much of a row as can be read, for jobs that people or maintenance must still be able to get at.
pub(crate) struct Lenient<'a> {
    row: &'a Row,
    failure: OnceCell<Error>,
}

impl<'a> Lenient<'a> {
    pub(crate) fn new(row: &'a Row) -> Self {
        Lenient { row, failure: OnceCell::new() }
    }

    /// A column; empty if it cannot be read.
    pub(crate) fn get<I, T>(&self, column: I) -> T
    where
        I: RowIndex + fmt::Display,
        T: FromSql<'a> + Default,
    {
        self.row.get(column).unwrap_or_else(|error| {
            self.fail(error);
            T::default()
        })
    }

    /// Takes note of something else that is wrong with the row. The first is what people are told.
    pub(crate) fn fail(&self, error: Error) {
        let _ = self.failure.set(error);
    }

    /// What could not be read, if anything.
    pub(crate) fn failure(self) -> Option<Error> {
        self.failure.into_inner()
    }
}
