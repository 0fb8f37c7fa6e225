//! What attempts report on their way: progress, log lines and checkpoints, each kept under its fence. Also reads
//! lines back. What a line says is none of its business: it may be sealed.

use std::collections::BTreeSet;

use tokio_postgres::types::Type;
use windlass_core::store::{NewLine, NodeId, Note, Noted, Result};
use windlass_core::{JobId, LOG_LINES, LogLevel, LogLine, Progress, Scope};

use crate::PgStore;
use crate::ground::connect::{Access, Param};
use crate::ground::rows::{Row, readable};
use crate::ground::types::{Json, Time, counter, tenant};
use crate::jobs::finish::{mark, storable};

/// Keeps what held jobs report: `sql/jobs/note.sql`; lease_pkey, progress_pkey, job_log_pkey, checkpoint_pkey.
const NOTE: &str =
    "select windlass.note($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14, $15, $16, $17, $18)";

/// Keeps each note whose fence is current, in one statement. Returns in order.
pub(crate) async fn note(store: &PgStore, node: NodeId, notes: Vec<Note>) -> Result<Vec<bool>> {
    if notes.is_empty() {
        return Ok(Vec::new());
    }
    let leases: BTreeSet<i64> = notes.iter().map(|note| note.fence.lease.0).collect();
    let leases: Vec<i64> = leases.into_iter().collect();
    let lease: Vec<i64> = notes.iter().map(|note| note.fence.lease.0).collect();
    let id: Vec<i64> = notes.iter().map(|note| note.fence.job.as_i64()).collect();
    let sorted = Sorted::of(&notes);
    let progress = &sorted.progress;
    let sequence: Vec<i64> = progress.iter().map(|progress| progress.sequence as i64).collect();
    let percent: Vec<f32> = progress.iter().map(|progress| progress.percent).collect();
    let text: Vec<String> = progress.iter().map(|progress| storable(&progress.message)).collect();
    let updated_at: Vec<Time> = progress.iter().map(|progress| Time(progress.updated_at)).collect();
    let lines = &sorted.lines;
    let number: Vec<i64> = lines.iter().map(|line| line.number as i64).collect();
    let at: Vec<Time> = lines.iter().map(|line| Time(line.at)).collect();
    let level: Vec<i16> = lines.iter().map(|line| line.level.code()).collect();
    let message: Vec<String> = lines.iter().map(|line| storable(&line.message)).collect();
    let params: [Param<'_>; 18] = [
        (&node.0, Type::INT8),
        (&leases, Type::INT8_ARRAY),
        (&lease, Type::INT8_ARRAY),
        (&id, Type::INT8_ARRAY),
        (&sorted.progress_of, Type::INT4_ARRAY),
        (&sequence, Type::INT8_ARRAY),
        (&percent, Type::FLOAT4_ARRAY),
        (&text, Type::TEXT_ARRAY),
        (&updated_at, Type::TIMESTAMPTZ_ARRAY),
        (&sorted.line_of, Type::INT4_ARRAY),
        (&sorted.attempt, Type::INT4_ARRAY),
        (&number, Type::INT8_ARRAY),
        (&at, Type::TIMESTAMPTZ_ARRAY),
        (&level, Type::INT2_ARRAY),
        (&message, Type::TEXT_ARRAY),
        (&(LOG_LINES as i32), Type::INT4),
        (&sorted.checkpoint_of, Type::INT4_ARRAY),
        (&sorted.checkpoints, Type::JSON_ARRAY),
    ];
    let row = store.shared.pools.finish.query_one(Access::Write, NOTE, &params).await?;
    let mut kept = vec![false; notes.len()];
    for place in row.get::<_, Vec<i32>>(0)? {
        mark(&mut kept, place);
    }
    Ok(kept)
}

/// Notes by kind, each with the place of its note, counted from 1.
#[derive(Default)]
struct Sorted<'a> {
    progress_of: Vec<i32>,
    progress: Vec<&'a Progress>,
    line_of: Vec<i32>,
    attempt: Vec<i32>,
    lines: Vec<&'a NewLine>,
    checkpoint_of: Vec<i32>,
    checkpoints: Vec<Json<'a>>,
}

impl<'a> Sorted<'a> {
    fn of(notes: &'a [Note]) -> Self {
        let mut sorted = Sorted::default();
        for (place, note) in (1..).zip(notes) {
            match &note.what {
                Noted::Progress(progress) => {
                    sorted.progress_of.push(place);
                    sorted.progress.push(progress);
                }
                Noted::Log { attempt, lines } => {
                    sorted.line_of.extend(lines.iter().map(|_| place));
                    sorted.attempt.extend(lines.iter().map(|_| i32::from(*attempt)));
                    sorted.lines.extend(lines);
                }
                Noted::Checkpoint(data) => {
                    sorted.checkpoint_of.push(place);
                    sorted.checkpoints.push(Json(data.as_str()));
                }
            }
        }
        sorted
    }
}

/// The lines of a job that come after a sequence.
pub(crate) async fn lines(store: &PgStore, scope: Scope, id: JobId, after: u64) -> Result<Vec<LogLine>> {
    let after = i64::try_from(after).unwrap_or(i64::MAX);
    let params: [Param<'_>; 3] = [(&id.as_i64(), Type::INT8), (&tenant(scope), Type::UUID), (&after, Type::INT8)];
    let rows = store.within(scope).query(include_str!("../sql/jobs/logs.sql"), &params).await?;
    let line = |row: &Row| {
        Ok(LogLine {
            sequence: row.get::<_, i64>(0)? as u64,
            at: row.get::<_, Time>(1)?.0,
            attempt: counter(row.get(2)?),
            level: LogLevel::from_code(row.get(3)?),
            message: row.get(4)?,
        })
    };
    Ok(readable(&rows, line))
}
