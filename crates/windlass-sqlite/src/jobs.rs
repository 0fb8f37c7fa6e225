//! The life of a job: one file for each step, and this one as their table of contents.

pub(crate) mod claim;
pub(crate) mod finish;
pub(crate) mod note;
pub(crate) mod submit;

use crate::SqliteStore;
use async_trait::async_trait;
use windlass_core::store::{Claim, Claimed, Fence, Finish, Finished, Jobs, NodeId, Note, Result, Submit, Submitted};

#[async_trait]
impl Jobs for SqliteStore {
    async fn submit(&self, submit: Submit) -> Result<Vec<Submitted>> {
        self.write(move |conn, state| submit::submit(conn, state, &submit.jobs, submit.lease, submit::Quota::Enforced))
            .await
    }

    async fn claim(&self, claim: Claim) -> Result<Claimed> {
        self.write(move |conn, state| claim::claim(conn, state, &claim)).await
    }

    async fn finish(&self, node: NodeId, finishes: Vec<Finish>) -> Result<Vec<Finished>> {
        self.write(move |conn, state| finish::finish(conn, state, node, &finishes)).await
    }

    async fn note(&self, node: NodeId, notes: Vec<Note>) -> Result<Vec<bool>> {
        self.write(move |conn, _| note::note(conn, node, &notes)).await
    }

    async fn held(&self, node: NodeId) -> Result<Vec<Fence>> {
        self.read(move |conn, _| crate::nodes::held(conn, node)).await
    }
}
