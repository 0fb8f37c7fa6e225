//! The command line as people and scripts use it: the real binary, real databases, what it prints and how it exits.

mod attempts;
mod bench;
mod common;
mod dead;
mod doctor;
mod errors;
mod healthy;
mod jobs;
mod keys;
mod many;
mod postgres;
mod profiles;
mod quotas;
mod schedules;
mod server;
mod system;
mod up;
mod watch;
