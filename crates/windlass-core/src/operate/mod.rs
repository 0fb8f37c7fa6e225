//! What people do with jobs: look, steer, edit, act on many, and watch the installation.

pub(crate) mod within;
pub(crate) mod look;
pub(crate) mod lookup;
pub(crate) mod watch;
pub(crate) mod feed;
pub(crate) mod why;
pub(crate) mod steer;
pub mod edit;
pub mod failures;
pub(crate) mod bulk;
pub(crate) mod replay;
pub(crate) mod usage;
pub mod activity;
pub(crate) mod observe;
pub mod health;
