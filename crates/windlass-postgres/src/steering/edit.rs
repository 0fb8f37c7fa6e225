//! Changes jobs that wait.

use tokio_postgres::types::Type;
use windlass_core::edit::{Edit, can_edit};
use windlass_core::fair::Line;
use windlass_core::store::{EditReply, Error, Gate, Result};
use windlass_core::{JobId, Scope, Start};

use super::{code, status_of};
use crate::PgStore;
use crate::ground::connect::Param;
use crate::ground::types::{Json, Time, micros, tenant};
use crate::jobs::finish::storable;

/// Changes waiting job $2 of tenant $1 (null for all): `sql/steering/edit.sql`.
const EDIT: &str = "select o_code, o_gate, o_queue from windlass.edit($1, $2, $3, $4, $5, $6, $7, $8, $9)";

pub(crate) async fn edit(store: &PgStore, scope: Scope, id: JobId, by: &str, edit: &Edit) -> Result<EditReply> {
    let (at, delay) = match edit.start {
        Some(Start::At(at)) => (Some(Time(at)), None),
        Some(Start::After(delay)) => (None, Some(micros(delay))),
        Some(Start::Now) | None => (None, None),
    };
    let input = edit.input.as_ref().map(|input| Json(input.as_str()));
    let params: [Param<'_>; 9] = [
        (&tenant(scope), Type::UUID),
        (&id.as_i64(), Type::INT8),
        (&storable(by), Type::TEXT),
        (&edit.to_string(), Type::TEXT),
        (&input, Type::JSON),
        (&edit.priority.map(|priority| priority.0), Type::INT2),
        (&(edit.start == Some(Start::Now)), Type::BOOL),
        (&at, Type::TIMESTAMPTZ),
        (&delay, Type::INT8),
    ];
    let Some(row) = store.within(scope).write(id, EDIT, &params).await? else {
        return Ok(EditReply::NotFound);
    };
    let gate = || row.get::<_, Option<String>>(1).ok().flatten().as_deref().and_then(Gate::parse);
    match row.get::<_, i32>(0)? {
        code::NOT_FOUND => Ok(EditReply::NotFound),
        code::TOO_FAST => Err(Error::Unavailable(format!("cannot edit job {id}: its state changes too fast"))),
        code::BLOCKED => match gate() {
            Some(gate) => Ok(EditReply::Blocked(gate)),
            None => Err(Error::Internal(format!("job {id} waits behind an unknown gate"))),
        },
        status => match status_of(status)? {
            status if can_edit(status) => {
                // Nobody may have submitted anything there with its priority.
                let queue: Option<String> = row.get(2)?;
                if let (Some(queue), Some(priority)) = (queue, edit.priority) {
                    store.shared.lines.lock().know(&Line { queue, priority });
                }
                Ok(EditReply::Edited(status))
            }
            status => Ok(EditReply::NotWaiting(status)),
        },
    }
}
