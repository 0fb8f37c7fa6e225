//! The command line as people and scripts use it: the real binary, a real SQLite file, what it prints and how it exits.

mod common;
mod dead;
mod errors;
mod jobs;
mod system;
mod up;
