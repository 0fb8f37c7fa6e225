//! Runs models: every property of a healthy one, the counterexample of a sabotaged one, and whether the end can still be
//! reached from every state. Called by the tests. Prints what was explored, so that a run says how much it has seen.

#![expect(clippy::print_stdout, reason = "the figures belong into the output of the tests")]

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::fmt::Debug;
use std::hash::Hash;

use stateright::{Checker, HasDiscoveries, Model};

/// What a run has seen.
#[derive(Clone, Copy, Debug)]
pub struct Explored {
    /// Different states.
    pub states: usize,
    /// The longest of the shortest ways to a state.
    pub depth: usize,
}

/// More steps from state to state than this are a mistake in the bounds of a model: its test would take minutes.
const MOST_STEPS: usize = 8_000_000;

/// Explores the whole model and asserts its properties: `always` without a counterexample, `sometimes` with an example.
pub fn check<M>(name: &str, model: M) -> Explored
where
    M: Model + Send + Sync + 'static,
    M::State: Hash + Clone + PartialEq + Debug + Send + Sync + 'static,
    M::Action: Clone + PartialEq + Debug,
{
    let checker = model.checker().target_state_count(MOST_STEPS).spawn_bfs().join();
    let explored = Explored { states: checker.unique_state_count(), depth: checker.max_depth() };
    println!("{name}: {} states, depth {}", explored.states, explored.depth);
    assert!(checker.state_count() < MOST_STEPS, "{name}: too many states to explore them all");
    checker.assert_properties();
    explored
}

/// Finds the shortest way to violate `property`, prints it and returns its length. Panics if there is none.
pub fn find<M>(name: &str, model: M, property: &'static str) -> usize
where
    M: Model + Clone + Send + Sync + 'static,
    M::State: Hash + Clone + PartialEq + Debug + Send + Sync + 'static,
    M::Action: Clone + PartialEq + Debug,
{
    let mut steps = shortest_so_far(model.clone(), property, None)
        .unwrap_or_else(|| panic!("{name}: nothing violates `{property}`; the property cannot fail"));
    // The checker looks at states in blocks and reports the last violation of a block.
    while let Some(shorter) = shortest_so_far(model.clone(), property, Some(steps.len() + 1)) {
        steps = shorter;
    }
    println!("{name}: `{property}` is violated in {} steps: {steps:?}", steps.len());
    steps.len()
}

fn shortest_so_far<M>(model: M, property: &'static str, depth: Option<usize>) -> Option<Vec<M::Action>>
where
    M: Model + Send + Sync + 'static,
    M::State: Hash + Clone + PartialEq + Debug + Send + Sync + 'static,
    M::Action: Clone + PartialEq + Debug,
{
    let only = HasDiscoveries::AnyOf([property].into());
    let checker = model.checker().target_state_count(MOST_STEPS).finish_when(only);
    let checker = match depth {
        Some(depth) => checker.target_max_depth(depth),
        None => checker,
    };
    checker.spawn_bfs().join().discovery(property).map(|path| path.into_actions())
}

/// Whether, from every state, `done` can be reached when nothing bad happens any more. Answers the shortest way to a
/// state from which it cannot, if there is one. `bad` says which actions are faults.
///
/// The checker's own `eventually` does not see what goes round in circles, and time does.
pub fn stuck<M>(
    name: &str,
    model: &M,
    bad: fn(&M::Action) -> bool,
    done: fn(&M, &M::State) -> bool,
) -> Option<Vec<M::Action>>
where
    M: Model,
    M::State: Hash + Clone + Eq,
    M::Action: Clone + Debug,
{
    let mut known: HashMap<M::State, usize> = HashMap::new();
    let mut states: Vec<M::State> = Vec::new();
    let mut came_by: Vec<Option<(usize, M::Action)>> = Vec::new();
    let mut before: Vec<Vec<usize>> = Vec::new();
    for state in model.init_states() {
        known.insert(state.clone(), states.len());
        states.push(state);
        came_by.push(None);
        before.push(Vec::new());
    }
    let mut at = 0;
    while at < states.len() {
        for (action, state) in model.next_steps(&states[at]) {
            let healthy = !bad(&action);
            let next = match known.entry(state) {
                Entry::Occupied(entry) => *entry.get(),
                Entry::Vacant(entry) => {
                    states.push(entry.key().clone());
                    came_by.push(Some((at, action)));
                    before.push(Vec::new());
                    *entry.insert(states.len() - 1)
                }
            };
            if healthy {
                before[next].push(at);
            }
        }
        at += 1;
        assert!(states.len() < MOST_STEPS, "{name}: too many states to explore them all");
    }
    let mut ends: Vec<usize> = (0..states.len()).filter(|n| done(model, &states[*n])).collect();
    assert!(!ends.is_empty(), "{name}: no state is the end");
    let mut can_end = vec![false; states.len()];
    ends.iter().for_each(|n| can_end[*n] = true);
    while let Some(n) = ends.pop() {
        for &earlier in &before[n] {
            if !can_end[earlier] {
                can_end[earlier] = true;
                ends.push(earlier);
            }
        }
    }
    // States are in the order of their distance, so the first is the nearest.
    let first = can_end.iter().position(|can| !can);
    let mut way = Vec::new();
    let mut step = first;
    while let Some((earlier, action)) = step.and_then(|n| came_by[n].clone()) {
        way.push(action);
        step = Some(earlier);
    }
    way.reverse();
    match first {
        None => println!("{name}: the end can be reached from all {} states", states.len()),
        Some(_) => println!("{name}: stuck after {} steps: {way:?}", way.len()),
    }
    first.map(|_| way)
}
