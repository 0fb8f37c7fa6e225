//! What survives when processes and servers die: every test here starts real processes of its own, stops or kills them,
//! and then looks at what the store says and at what each process wrote into its own log. Run by `cargo xtask test`.
//! Nothing here waits for time to pass: each wait is for a condition, with a deadline.

mod cancel;
mod child;
mod file;
mod fleet;
mod poison;
mod server;
mod submits;
mod takeover;

/// Not a test by itself: the body of every process that the tests start, which are further runs of this very binary.
#[test]
fn child() {
    if let Ok(task) = std::env::var(fleet::TASK_VAR) {
        child::run(serde_json::from_str(&task).expect("the parent sends a task"));
    }
}
