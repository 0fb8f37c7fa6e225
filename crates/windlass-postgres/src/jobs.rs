//! The life of a job: one file for each step, and this one as their table of contents.

pub(crate) mod claim;
pub(crate) mod finish;
pub(crate) mod note;
pub(crate) mod submit;

use crate::PgStore;
use async_trait::async_trait;
use windlass_core::store::{Claim, Claimed, Fence, Finish, Finished, Jobs, NodeId, Note, Result, Submit, Submitted};

#[async_trait]
impl Jobs for PgStore {
    async fn submit(&self, submit: Submit) -> Result<Vec<Submitted>> {
        submit::submit(self, submit).await
    }

    async fn claim(&self, claim: Claim) -> Result<Claimed> {
        claim::claim(self, claim).await
    }

    async fn finish(&self, node: NodeId, finishes: Vec<Finish>) -> Result<Vec<Finished>> {
        finish::finish(self, node, finishes).await
    }

    async fn note(&self, node: NodeId, notes: Vec<Note>) -> Result<Vec<bool>> {
        note::note(self, node, notes).await
    }

    async fn held(&self, node: NodeId) -> Result<Vec<Fence>> {
        crate::nodes::held(self, node).await
    }
}
