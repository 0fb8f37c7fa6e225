//! The command line as people and scripts use it: the real binary, real databases, what it prints and how it exits.

mod bench;
mod common;
mod dead;
mod errors;
mod jobs;
mod keys;
mod postgres;
mod quotas;
mod system;
mod up;
