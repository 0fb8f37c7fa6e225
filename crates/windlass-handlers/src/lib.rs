//! Handlers that come with Windlass.

#![doc = include_str!("../README.md")]

#[cfg(all(feature = "command", unix))]
pub mod command;
#[cfg(feature = "download")]
pub mod download;
#[cfg(feature = "egress")]
pub mod egress;
#[cfg(feature = "email")]
pub mod email;
#[cfg(feature = "http")]
pub mod http;

#[cfg(any(feature = "download", feature = "http", feature = "email"))]
mod reply;
#[cfg(feature = "root")]
mod root;
#[cfg(feature = "secrets")]
mod secrets;

#[cfg(feature = "secrets")]
pub use secrets::Secret;
use windlass_core::Builder;

/// Registers the handlers of this crate, a line each.
pub trait Handlers: Sized {
    /// Adds the handler of [downloads](download).
    #[cfg(feature = "download")]
    #[must_use]
    fn download(self, handler: download::Download) -> Self;

    /// Adds the handler of [HTTP calls](http).
    #[cfg(feature = "http")]
    #[must_use]
    fn http(self, handler: http::HttpCall) -> Self;

    /// Adds the handler of [e-mail](email).
    #[cfg(feature = "email")]
    #[must_use]
    fn email(self, handler: email::Email) -> Self;

    /// Adds the handler of [commands](command).
    #[cfg(all(feature = "command", unix))]
    #[must_use]
    fn command(self, handler: command::Command) -> Self;
}

impl Handlers for Builder {
    #[cfg(feature = "download")]
    fn download(self, handler: download::Download) -> Self {
        self.handler(handler)
    }

    #[cfg(feature = "http")]
    fn http(self, handler: http::HttpCall) -> Self {
        self.handler(handler)
    }

    #[cfg(feature = "email")]
    fn email(self, handler: email::Email) -> Self {
        self.handler(handler)
    }

    #[cfg(all(feature = "command", unix))]
    fn command(self, handler: command::Command) -> Self {
        self.handler(handler)
    }
}
