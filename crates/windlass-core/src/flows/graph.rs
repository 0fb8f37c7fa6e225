//! Graphs of jobs that wait for one another: submitted in one call, and read back from any of them. `order` sorts and finds
//! cycles (pure); what becomes of each job is decided in `depend.rs`.

use std::collections::{BTreeMap, BTreeSet, HashMap, VecDeque};

use serde::Serialize;

use crate::flows::depend::IfFailed;
use crate::life::handler_ref::{Caller, HandlerRef};
use crate::life::submit::{check_name, check_submit_unreserved};
use crate::model::error::{BadItem, Error, InvalidInput};
use crate::model::id::JobId;
use crate::model::job::{JobRecord, NewJob, SubmitOptions};
use crate::model::payload::Payload;
use crate::model::tenant::SecurityContext;
use crate::service::JobService;
use crate::store::Edge;

/// How many jobs one call may submit as a graph.
pub const GRAPH_JOBS_MAX: usize = 1_000;

/// How many jobs of a graph are read back at most: far more than anyone reads on one page.
pub const GRAPH_JOBS_SHOWN: usize = 500;

/// Edges read at a time.
const EDGES_READ: usize = 5_000;

/// Jobs that wait for one another, to submit in one call: [`JobService::graph`].
#[must_use = "a graph is stored by `submit`"]
pub struct GraphBuilder<'a, C> {
    by: &'a C,
    nodes: Vec<Node>,
    edges: Vec<(String, String)>,
    problem: Option<InvalidInput>,
}

struct Node {
    name: String,
    handler: String,
    payload: Result<Payload, InvalidInput>,
    options: SubmitOptions,
}

impl JobService {
    /// Jobs of the root tenant that wait for one another, stored by one call, all or none.
    ///
    /// ```
    /// # tokio::runtime::Runtime::new().unwrap().block_on(async {
    /// # use std::sync::Arc;
    /// use windlass_core::{HandlerRef, JobService, MemoryStore, SecurityContext};
    /// const COPY: HandlerRef<String, ()> = HandlerRef::new("copy");
    /// const JOIN: HandlerRef<Vec<String>, ()> = HandlerRef::new("join");
    /// # let jobs = JobService::builder(Arc::new(MemoryStore::new()));
    /// # let jobs = jobs.remote_handler("copy").remote_handler("join").start().await?;
    /// let ids = jobs
    ///     .graph()
    ///     .add("left", COPY, "a")
    ///     .add("right", COPY, "b")
    ///     .add("both", JOIN, vec!["a".to_owned(), "b".to_owned()])
    ///     .after("both", ["left", "right"])
    ///     .submit()
    ///     .await?;
    /// let graph = jobs.graph_of(&SecurityContext::system(), ids["left"]).await?;
    /// assert_eq!((graph.jobs.len(), graph.edges.len()), (3, 2));
    /// # jobs.shutdown().await;
    /// # Ok::<_, windlass_core::Error>(()) }).unwrap();
    /// ```
    pub fn graph(&self) -> GraphBuilder<'_, JobService> {
        graph_by(self)
    }
}

/// The same for a tenant.
pub fn graph_by<C: Caller>(by: &C) -> GraphBuilder<'_, C> {
    GraphBuilder { by, nodes: Vec::new(), edges: Vec::new(), problem: None }
}

impl<C: Caller> GraphBuilder<'_, C> {
    /// Adds a job under a name that only this graph uses.
    pub fn add<I: Serialize, O>(self, name: &str, handler: HandlerRef<I, O>, input: impl Into<I>) -> Self {
        self.add_with(name, handler, input, SubmitOptions::new())
    }

    /// The same with options. What they say to wait for is added to what [`GraphBuilder::after`] says.
    pub fn add_with<I: Serialize, O>(
        self,
        name: &str,
        handler: HandlerRef<I, O>,
        input: impl Into<I>,
        options: SubmitOptions,
    ) -> Self {
        let payload = self.by.jobs().encode(&input.into());
        self.add_payload(name, handler.id(), payload, options)
    }

    /// The same for a handler by its name and an input as JSON.
    pub fn add_named(self, name: &str, handler: &str, input: Payload, options: SubmitOptions) -> Self {
        self.add_payload(name, handler, Ok(input), options)
    }

    fn add_payload(
        mut self,
        name: &str,
        handler: &str,
        payload: Result<Payload, InvalidInput>,
        options: SubmitOptions,
    ) -> Self {
        if self.nodes.iter().any(|node| node.name == name) {
            self.problem.get_or_insert(InvalidInput::new("graph", format!("there are two jobs named `{name}`")));
        }
        self.nodes.push(Node { name: name.to_owned(), handler: handler.to_owned(), payload, options });
        self
    }

    /// Lets a job of the graph wait for others of it.
    pub fn after<S: AsRef<str>>(mut self, name: &str, parents: impl IntoIterator<Item = S>) -> Self {
        self.edges.extend(parents.into_iter().map(|parent| (parent.as_ref().to_owned(), name.to_owned())));
        self
    }

    /// What happens to a job if what it waits for does not succeed.
    pub fn if_failed(mut self, name: &str, policy: IfFailed) -> Self {
        match self.nodes.iter_mut().find(|node| node.name == name) {
            Some(node) => node.options = std::mem::take(&mut node.options).if_failed(policy),
            None => {
                self.problem.get_or_insert(unknown(name));
            }
        }
        self
    }

    /// Stores all jobs, or none, and returns their ids by name. A cycle is refused and printed.
    pub async fn submit(self) -> Result<BTreeMap<String, JobId>, Error> {
        let (jobs, ctx) = (self.by.jobs(), self.by.context());
        if let Some(problem) = self.problem {
            return Err(problem.into());
        }
        jobs.submit_graph(&ctx, self.nodes, &self.edges).await
    }
}

fn unknown(name: &str) -> InvalidInput {
    InvalidInput::new("graph", format!("there is no job named `{name}`"))
}

/// Sorts names so that everything comes after what it waits for. An edge goes from a parent to a child. A cycle is
/// refused, with its names in the order in which they wait. Pure.
fn order(names: &[&str], edges: &[(String, String)]) -> Result<Vec<usize>, InvalidInput> {
    let index: HashMap<&str, usize> = names.iter().enumerate().map(|(n, name)| (*name, n)).collect();
    let place = |name: &str| index.get(name).copied().ok_or_else(|| unknown(name));
    let mut parents: Vec<BTreeSet<usize>> = vec![BTreeSet::new(); names.len()];
    let mut children: Vec<BTreeSet<usize>> = vec![BTreeSet::new(); names.len()];
    for (parent, child) in edges {
        let (parent, child) = (place(parent)?, place(child)?);
        parents[child].insert(parent);
        children[parent].insert(child);
    }
    let mut left: Vec<usize> = parents.iter().map(BTreeSet::len).collect();
    let mut free: VecDeque<usize> = (0..names.len()).filter(|n| left[*n] == 0).collect();
    let mut sorted = Vec::with_capacity(names.len());
    while let Some(next) = free.pop_front() {
        sorted.push(next);
        for child in &children[next] {
            left[*child] -= 1;
            if left[*child] == 0 {
                free.push_back(*child);
            }
        }
    }
    if sorted.len() == names.len() {
        return Ok(sorted);
    }
    // Whoever is left waits for somebody who is left, so going from one to the next comes back at last.
    let mut way: Vec<usize> = left.iter().position(|waits| *waits > 0).into_iter().collect();
    while let Some(next) = way.last().and_then(|last| parents[*last].iter().find(|parent| left[**parent] > 0)) {
        if let Some(start) = way.iter().position(|seen| seen == next) {
            let mut cycle: Vec<&str> = way[start..].iter().rev().map(|n| names[*n]).collect();
            cycle.push(cycle[0]);
            return Err(InvalidInput::new("graph", format!("jobs wait for one another: {}", cycle.join(" → "))));
        }
        way.push(*next);
    }
    Err(InvalidInput::new("graph", "jobs wait for one another"))
}

/// A graph that was read back.
#[derive(Clone, Debug, Default, PartialEq)]
#[non_exhaustive]
pub struct Graph {
    /// The jobs, by id.
    pub jobs: Vec<JobRecord>,
    /// Who waits for whom. A parent that is no job of the list is a batch, or is gone.
    pub edges: Vec<Edge>,
    /// Whether there are more than [`GRAPH_JOBS_SHOWN`].
    pub cut: bool,
}

impl JobService {
    async fn submit_graph(
        &self,
        ctx: &SecurityContext,
        nodes: Vec<Node>,
        edges: &[(String, String)],
    ) -> Result<BTreeMap<String, JobId>, Error> {
        if nodes.is_empty() || nodes.len() > GRAPH_JOBS_MAX {
            let message = format!("{} jobs, 1 to {GRAPH_JOBS_MAX} are allowed", nodes.len());
            return Err(InvalidInput::new("graph", message).into());
        }
        for node in &nodes {
            check_name("graph", &node.name, self.limits().name_bytes)?;
        }
        let names: Vec<&str> = nodes.iter().map(|node| node.name.as_str()).collect();
        let order = order(&names, edges)?;
        let mut ids: BTreeMap<String, JobId> = BTreeMap::new();
        let (mut jobs, mut bad) = (Vec::with_capacity(nodes.len()), Vec::new());
        let mut nodes: Vec<Option<Node>> = nodes.into_iter().map(Some).collect();
        for index in order {
            let node = nodes[index].take().expect("each is sorted once");
            let name = node.name.clone();
            let parents = edges.iter().filter(|(_, child)| *child == name).filter_map(|(parent, _)| ids.get(parent));
            let parents: BTreeSet<JobId> = parents.copied().collect();
            match self.graph_job(ctx, node, parents).await {
                Ok(job) => {
                    ids.insert(name, job.id);
                    jobs.push(job);
                }
                Err(Error::InvalidInput(error)) => bad.push(BadItem { index, error }),
                Err(error) => return Err(error),
            }
        }
        if !bad.is_empty() {
            bad.sort_by_key(|item| item.index);
            return Err(Error::InvalidBatch(bad));
        }
        self.submitter().submit(jobs).await?;
        Ok(ids)
    }

    async fn graph_job(&self, ctx: &SecurityContext, node: Node, parents: BTreeSet<JobId>) -> Result<NewJob, Error> {
        let Node { name, handler, payload, options } = node;
        check_submit_unreserved(&handler, &options)?;
        if options.idempotency_key.is_some() || options.unique.is_some() {
            let message = format!("job `{name}` has a key: what waits for it would wait for another job");
            return Err(InvalidInput::new("graph", message).into());
        }
        // What the options name is stored already and is checked there; what the graph names is stored with it.
        let mut options = options;
        let policy = options.spec.after.as_ref().map(|after| after.if_failed).unwrap_or_default();
        options.spec.after = options.spec.after.filter(|after| !after.of.is_empty());
        let mut job = self.prepare_payload(ctx, &handler, payload?, options).await?;
        if self.in_memory(&handler).is_some() {
            let message = format!("`{handler}` is not restartable: its jobs run in memory and cannot be waited for");
            return Err(InvalidInput::new("handler", message).into());
        }
        if !parents.is_empty() {
            let after = job.spec.after.get_or_insert_default();
            after.of.extend(parents);
            after.if_failed = policy;
            after.check()?;
        }
        Ok(job)
    }

    /// The jobs that are tied to one by waiting for one another, as far as the caller may see them.
    pub async fn graph_of(&self, ctx: &SecurityContext, job: JobId) -> Result<Graph, Error> {
        self.get(ctx, job).await?;
        let store = &self.worker().store;
        let (mut known, mut edges) = (BTreeSet::from([job]), BTreeSet::new());
        let mut ask = vec![job];
        let mut cut = false;
        // Each round reads what is tied to jobs that were not known before, so there are no more rounds than jobs.
        while !ask.is_empty() && !cut {
            let found = store.edges(&ask, EDGES_READ).await?;
            cut |= found.len() >= EDGES_READ;
            ask.clear();
            for edge in found {
                for end in [edge.parent, edge.child] {
                    if known.len() < GRAPH_JOBS_SHOWN && known.insert(end) {
                        ask.push(end);
                    }
                }
                cut |= !known.contains(&edge.parent) || !known.contains(&edge.child);
                edges.insert(edge);
            }
        }
        let ids: Vec<JobId> = known.iter().copied().collect();
        let mut jobs = store.get(ctx.scope(), &ids).await?;
        jobs.sort_by_key(|record| record.id);
        for record in &mut jobs {
            self.worker().seals.open_record(record).await;
        }
        let mine: BTreeSet<JobId> = jobs.iter().map(|record| record.id).collect();
        let edges = edges.into_iter().filter(|edge| mine.contains(&edge.child)).collect();
        Ok(Graph { jobs, edges, cut })
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn edges(of: &[(&str, &str)]) -> Vec<(String, String)> {
        of.iter().map(|(parent, child)| (parent.to_string(), child.to_string())).collect()
    }

    #[test]
    fn parents_come_first() {
        let sorted = order(&["c", "b", "a"], &edges(&[("a", "b"), ("b", "c"), ("a", "c")])).expect("no cycle");
        assert_eq!(sorted, [2, 1, 0]);
    }

    #[test]
    fn a_cycle_is_printed() {
        let refused = order(&["a", "b", "c"], &edges(&[("a", "b"), ("b", "a"), ("b", "c")])).expect_err("a cycle");
        let text = refused.to_string();
        assert!(text.contains("a → b → a") || text.contains("b → a → b"), "{text}");
        let alone = order(&["a"], &edges(&[("a", "a")])).expect_err("a cycle").to_string();
        assert!(alone.contains("a → a"), "{alone}");
        assert!(order(&["a"], &edges(&[("x", "a")])).expect_err("unknown").to_string().contains("`x`"));
    }

    proptest! {
        /// FLW-3: every graph is sorted, or has a cycle whose names wait for one another as printed.
        #[test]
        fn each_graph_is_sorted_or_has_a_cycle(pairs in prop::collection::vec((0_usize..8, 0_usize..8), 0..20)) {
            let names = ["a", "b", "c", "d", "e", "f", "g", "h"];
            let edges: Vec<(String, String)> =
                pairs.iter().map(|(parent, child)| (names[*parent].to_owned(), names[*child].to_owned())).collect();
            match order(&names, &edges) {
                Ok(sorted) => {
                    let place = |name: &str| sorted.iter().position(|n| names[*n] == name);
                    prop_assert!(edges.iter().all(|(parent, child)| place(parent) < place(child)));
                    prop_assert_eq!(sorted.len(), names.len());
                }
                Err(refused) => {
                    let cycle: Vec<&str> = refused.message.split(": ").last().expect("names").split(" → ").collect();
                    prop_assert!(cycle.len() >= 2 && cycle.first() == cycle.last());
                    let waits = |two: &[&str]| edges.contains(&(two[0].to_owned(), two[1].to_owned()));
                    prop_assert!(cycle.windows(2).all(waits), "{}", refused);
                }
            }
        }
    }
}
