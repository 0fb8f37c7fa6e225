//! One connection through the proxy: a pump each way, with a bounded buffer between reading and delivering, so that
//! latency delays without slowing. Made by `Proxy` for each client. Never decides the weather.

use std::future::pending;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use parking_lot::Mutex;
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::net::tcp::{ReadHalf, WriteHalf};
use tokio::sync::{mpsc, watch};
use tokio::time::Instant;

use super::wire::{Reply, Talk, writes};
use super::{Direction, Ending, Hold, Only, Protocol, Shared, Then, Weather, What};

/// What is read at once.
const CHUNK: usize = 16 * 1024;
/// Chunks on their way in one direction: a megabyte, more than latency and the rates of these tests need.
const CHUNKS: usize = 64;
/// How much of a held reply is kept; the server waits with the rest.
const MOST_HELD: usize = 1024 * 1024;
/// With a bandwidth, what is sent at once lasts about so long, so that it flows rather than drips.
const PIECE_LASTS: Duration = Duration::from_millis(20);

/// A connection as the proxy's handle sees it.
#[derive(Debug)]
pub(super) struct Connection {
    shared: Arc<Shared>,
    number: u64,
    talk: Mutex<Talk>,
    /// Whether bytes to the server, or to the client, were swallowed.
    holes: [AtomicBool; 2],
    /// Whether it has fallen silent: what was on its way to the client then is the last.
    silent: AtomicBool,
    ending: watch::Sender<Option<Ending>>,
}

impl Connection {
    pub(super) fn new(shared: Arc<Shared>, number: u64) -> Self {
        let (talk, holes) = (Mutex::default(), Default::default());
        let silent = AtomicBool::new(false);
        Connection { shared, number, talk, holes, silent, ending: watch::Sender::new(None) }
    }

    /// Ends it. The first ending counts.
    pub(super) fn end(&self, how: Ending) {
        self.ending.send_if_modified(|ending| {
            let first = ending.is_none();
            *ending = ending.or(Some(how));
            first
        });
    }

    pub(super) fn has_hole(&self) -> bool {
        self.holes.iter().any(|hole| hole.load(Ordering::Relaxed))
    }

    fn is_silent(&self) -> bool {
        self.silent.load(Ordering::Relaxed)
    }

    fn hole(&self, way: Direction) -> &AtomicBool {
        &self.holes[usize::from(way == Direction::ToClient)]
    }

    pub(super) fn is_one_of(&self, only: &Only) -> bool {
        let talk = self.talk.lock();
        match only {
            Only::All => true,
            Only::Application(part) => talk.application.as_ref().is_some_and(|name| name.contains(part.as_str())),
            Only::Listener => talk.listens,
            Only::NotListener => !talk.listens,
        }
    }

    /// Carries bytes both ways until both ends have closed, or the connection is ended from outside.
    pub(super) async fn carry(&self, mut client: TcpStream, mut server: TcpStream) {
        // Small packets must leave as they come, above all when they are split on purpose.
        let _ = client.set_nodelay(true);
        let _ = server.set_nodelay(true);
        let mut endings = self.ending.subscribe();
        let (ending, broken) = {
            let (from_client, to_client) = client.split();
            let (from_server, to_server) = server.split();
            tokio::select! {
                broken = async {
                    tokio::try_join!(
                        self.pump(Direction::ToServer, from_client, to_server),
                        self.pump(Direction::ToClient, from_server, to_client),
                    )
                } => (None, broken.is_err()),
                ending = endings.wait_for(Option::is_some) => (ending.ok().and_then(|ending| *ending), false),
            }
        };
        let tally = &self.shared.tally;
        match ending {
            Some(Ending::Reset) => tally.reset.fetch_add(1, Ordering::Relaxed),
            Some(Ending::Cut) => tally.cut.fetch_add(1, Ordering::Relaxed),
            None => 0,
        };
        // What broke at one end breaks at the other.
        if broken || ending == Some(Ending::Reset) {
            // Sockets that do not linger send an RST when they are dropped, which happens here.
            let _ = client.set_zero_linger();
            let _ = server.set_zero_linger();
        }
    }

    /// One direction. Ends when its source has closed and everything has been delivered; fails when an end breaks.
    async fn pump(&self, direction: Direction, from: ReadHalf<'_>, to: WriteHalf<'_>) -> io::Result<()> {
        let (pass, passed) = mpsc::channel(CHUNKS);
        tokio::try_join!(self.read(direction, from, pass), self.deliver(direction, to, passed)).map(|_| ())
    }

    /// Reads what comes, learns from it, holds replies, and hands on the rest with the time of its delivery.
    async fn read(&self, way: Direction, mut from: ReadHalf<'_>, pass: mpsc::Sender<Parcel>) -> io::Result<()> {
        let salt = self.number * 2 + u64::from(way == Direction::ToServer);
        let mut rng = StdRng::seed_from_u64(self.shared.seed ^ salt.wrapping_mul(0x9e37_79b9_7f4a_7c15));
        let mut buffer = vec![0; CHUNK];
        loop {
            let read = from.read(&mut buffer).await;
            let weather = self.weather();
            if !matches!(read, Ok(1..)) {
                // The end of a connection is swallowed like anything else; it then lasts until it is reset.
                if self.swallows(&weather, way) || self.is_silent() {
                    self.hole(way).store(true, Ordering::Relaxed);
                    pending::<()>().await;
                }
                return read.map(|_| ());
            }
            let size = read?;
            if let (Direction::ToServer, Some((said, heard))) = (way, weather.instead) {
                replace(&mut buffer[..size], said.as_bytes(), heard.as_bytes());
            }
            let bytes = &buffer[..size];
            let hold = self.learn(way, bytes);
            let due = Instant::now() + delay(&weather, &mut rng);
            let now = hold.as_ref().map_or(bytes.len(), |held| held.at);
            let last = way == Direction::ToClient && self.is_silent();
            if now > 0 && pass.send(Parcel { due, bytes: bytes[..now].to_vec(), last }).await.is_err() {
                return Ok(());
            }
            if let Some(held) = hold {
                let kept = self.hold(&held, &mut from, bytes[held.at..].to_vec()).await?;
                if pass.send(Parcel { due: Instant::now(), bytes: kept, last: false }).await.is_err() {
                    return Ok(());
                }
            }
        }
    }

    /// Reads along. Answers from where on the bytes are held, if they are.
    fn learn(&self, way: Direction, bytes: &[u8]) -> Option<Held> {
        if self.shared.protocol == Protocol::Raw {
            return None;
        }
        let concerned = self.is_one_of(&self.shared.weather.borrow().only);
        let mut talk = self.talk.lock();
        if way == Direction::ToServer {
            talk.client_says(bytes);
            return None;
        }
        let replies = talk.server_says(bytes);
        let done = replies.iter().any(|(_, reply)| *reply == Reply::Ready);
        if done && concerned && !self.is_silent() && self.shared.take_silence(|text| talk.has_said_inside(text)) {
            // The way to the server at once, before the client can say more; the way back after this reply.
            self.hole(Direction::ToServer).store(true, Ordering::Relaxed);
            self.silent.store(true, Ordering::Relaxed);
            self.shared.tally.silenced.fetch_add(1, Ordering::Relaxed);
        }
        let taken = replies.iter().filter(|_| concerned).find_map(|(at, reply)| {
            let hold = self.shared.take_hold(|what| match (what, reply) {
                (What::AnyReply, Reply::Any) => true,
                (What::Commit, Reply::Committed(said)) => said.iter().any(|statement| writes(statement)),
                (What::Statement(part), Reply::Committed(said)) => said.iter().any(|text| text.contains(part.as_str())),
                _ => false,
            });
            hold.map(|hold| Held { at: *at, hold, done })
        });
        if taken.is_some() {
            self.shared.tally.held.fetch_add(1, Ordering::Relaxed);
        }
        taken
    }

    /// Keeps a reply and what follows it for the time of the hold. Answers what to deliver then; a connection that is
    /// to be reset never comes back from here.
    async fn hold(&self, held: &Held, from: &mut ReadHalf<'_>, mut kept: Vec<u8>) -> io::Result<Vec<u8>> {
        let until = Instant::now() + held.hold.time;
        let mut done = held.done;
        let mut buffer = vec![0; CHUNK];
        while kept.len() < MOST_HELD {
            tokio::select! {
                read = from.read(&mut buffer) => {
                    let size = read?;
                    if size == 0 {
                        break;
                    }
                    let replies = self.talk.lock().server_says(&buffer[..size]);
                    done |= replies.iter().any(|(_, reply)| *reply == Reply::Ready);
                    kept.extend_from_slice(&buffer[..size]);
                }
                () = tokio::time::sleep_until(until) => break,
            }
        }
        tokio::time::sleep_until(until).await;
        if done {
            self.shared.tally.held_done.fetch_add(1, Ordering::Relaxed);
        }
        if held.hold.then == Then::Reset {
            self.end(Ending::Reset);
            pending::<()>().await;
        }
        Ok(kept)
    }

    /// Delivers in order, each parcel at its time, in the pieces and at the rate that the weather allows.
    async fn deliver(
        &self,
        way: Direction,
        mut to: WriteHalf<'_>,
        mut parcels: mpsc::Receiver<Parcel>,
    ) -> io::Result<()> {
        let tally = &self.shared.tally;
        let delivered = if way == Direction::ToServer { &tally.to_server } else { &tally.to_client };
        while let Some(Parcel { due, bytes, last }) = parcels.recv().await {
            tokio::time::sleep_until(due).await;
            let weather = self.weather();
            // After a hole nothing may follow: a stream that goes on with bytes missing would be a fault of ours.
            if self.swallows(&weather, way) || self.hole(way).load(Ordering::Relaxed) {
                self.hole(way).store(true, Ordering::Relaxed);
                tally.swallowed.fetch_add(bytes.len() as u64, Ordering::Relaxed);
                continue;
            }
            for piece in bytes.chunks(piece_size(&weather)) {
                if let Err(error) = to.write_all(piece).await {
                    // That the receiver is gone is told to the sender on the way back, which may be swallowed.
                    if self.swallows(&weather, way.back()) {
                        self.hole(way).store(true, Ordering::Relaxed);
                        break;
                    }
                    return Err(error);
                }
                to.flush().await?;
                delivered.fetch_add(piece.len() as u64, Ordering::Relaxed);
                match weather.bandwidth {
                    Some(rate) => {
                        tokio::time::sleep(Duration::from_secs_f64(piece.len() as f64 / rate as f64)).await;
                    }
                    None if weather.split.is_some() => tokio::task::yield_now().await,
                    None => {}
                }
            }
            if last {
                self.hole(way).store(true, Ordering::Relaxed);
            }
        }
        // The other end may be gone already; then there is nothing to tell it.
        let _ = to.shutdown().await;
        Ok(())
    }

    /// The weather for this connection.
    fn weather(&self) -> Weather {
        let weather = self.shared.weather.borrow().clone();
        if self.is_one_of(&weather.only) { weather } else { Weather::default() }
    }

    fn swallows(&self, weather: &Weather, way: Direction) -> bool {
        weather.blackhole.is_some_and(|blackhole| blackhole.covers(way))
    }
}

/// A reply that is held.
struct Held {
    /// From where on.
    at: usize,
    hold: Hold,
    /// Whether the server has finished already.
    done: bool,
}

/// Bytes on their way.
struct Parcel {
    due: Instant,
    bytes: Vec<u8>,
    /// Nothing is delivered after it.
    last: bool,
}

/// Replaces every `said` by `heard`, which is as long.
fn replace(bytes: &mut [u8], said: &[u8], heard: &[u8]) {
    let mut at = 0;
    while let Some(found) = bytes[at..].windows(said.len()).position(|window| window == said) {
        bytes[at + found..at + found + said.len()].copy_from_slice(heard);
        at += found + said.len();
    }
}

fn delay(weather: &Weather, rng: &mut StdRng) -> Duration {
    let Some(latency) = weather.latency else { return Duration::ZERO };
    // Drawn even when there is no jitter, so that the same seed gives the same draws in either case.
    let spread = rng.random_range(-1.0..=1.0) * latency.jitter.as_secs_f64();
    Duration::from_secs_f64((latency.mean.as_secs_f64() + spread).max(0.0))
}

fn piece_size(weather: &Weather) -> usize {
    let flowing = weather.bandwidth.map(|rate| (rate as f64 * PIECE_LASTS.as_secs_f64()) as usize);
    let sizes = [weather.split, flowing, Some(CHUNK)];
    sizes.into_iter().flatten().min().unwrap_or(CHUNK).max(1)
}
