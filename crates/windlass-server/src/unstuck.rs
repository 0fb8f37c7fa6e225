//! A connection that is closed when its client takes nothing of what is sent to it. Used by `server` around every
//! connection: without it, clients that never read would hold their connections, and what waits to be sent, for ever.

use std::future::Future;
use std::io::{Error, ErrorKind, IoSlice, Result};
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::time::{Instant, Sleep};

/// A connection whose writes make headway within a time, or fail.
pub(crate) struct Unstuck<T> {
    inner: T,
    within: Duration,
    /// Runs while a write waits for the client.
    patience: Pin<Box<Sleep>>,
    waiting: bool,
}

impl<T> Unstuck<T> {
    pub(crate) fn new(inner: T, within: Duration) -> Self {
        Unstuck { inner, within, patience: Box::pin(tokio::time::sleep(within)), waiting: false }
    }

    /// Passes on how a write went. One that has waited for too long has failed.
    fn heed<R>(&mut self, wrote: Poll<Result<R>>, cx: &mut Context<'_>) -> Poll<Result<R>> {
        if wrote.is_ready() {
            self.waiting = false;
            return wrote;
        }
        if !self.waiting {
            self.waiting = true;
            self.patience.as_mut().reset(Instant::now() + self.within);
        }
        ready!(self.patience.as_mut().poll(cx));
        Poll::Ready(Err(Error::new(ErrorKind::TimedOut, "the client does not read what the server sends")))
    }
}

impl<T: AsyncRead + Unpin> AsyncRead for Unstuck<T> {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, into: &mut ReadBuf<'_>) -> Poll<Result<()>> {
        Pin::new(&mut self.inner).poll_read(cx, into)
    }
}

impl<T: AsyncWrite + Unpin> AsyncWrite for Unstuck<T> {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<Result<usize>> {
        let wrote = Pin::new(&mut self.inner).poll_write(cx, bytes);
        self.heed(wrote, cx)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[IoSlice<'_>],
    ) -> Poll<Result<usize>> {
        let wrote = Pin::new(&mut self.inner).poll_write_vectored(cx, bytes);
        self.heed(wrote, cx)
    }

    fn is_write_vectored(&self) -> bool {
        self.inner.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Result<()>> {
        let flushed = Pin::new(&mut self.inner).poll_flush(cx);
        self.heed(flushed, cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Result<()>> {
        let shut = Pin::new(&mut self.inner).poll_shutdown(cx);
        self.heed(shut, cx)
    }
}
