//! Placeholder.
use crate::history::History;
#[derive(Debug)]
pub struct Violation {
    pub invariant: &'static str,
}
#[derive(Debug, Default)]
pub struct Facts;
pub struct Verdict {
    pub violations: Vec<Violation>,
    pub facts: Facts,
}
pub fn check(_: &History) -> Verdict {
    Verdict { violations: vec![], facts: Facts }
}
