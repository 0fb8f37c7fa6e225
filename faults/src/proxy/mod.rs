//! A TCP proxy that stands between processes and their database and brings bad weather about: latency, cuts, one-way
//! silence, resets, held replies, small packets. Started by the rig, steered through a [`Handle`] while it runs. Every
//! draw comes from the seed it was given; it never looks at a clock to decide anything, and
//! changes no byte unless a sabotage asks for it.

mod relay;
mod wire;

use std::collections::BTreeMap;
use std::io;
use std::net::{Ipv4Addr, SocketAddr};
use std::ops::Deref;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use parking_lot::Mutex;
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::task::{JoinHandle, JoinSet};

use relay::Connection;

/// More connections than any row of the matrix opens at once; one more is reset, so that a leak shows.
const MOST_CONNECTIONS: usize = 2_000;
/// A server on the same machine answers at once or not at all.
const CONNECT_PATIENCE: Duration = Duration::from_secs(5);
/// How often connections draw whether they are reset: often enough that a share per second looks even.
const DRAW_EVERY: Duration = Duration::from_millis(100);

/// A running proxy. Its connections end when it is dropped.
#[derive(Debug)]
pub struct Proxy {
    handle: Handle,
    accepting: JoinHandle<()>,
}

impl Proxy {
    /// Listens on a free port of 127.0.0.1 and passes connections on to `upstream` (`host:port`), in fair weather.
    pub async fn start(upstream: &str, protocol: Protocol, seed: u64) -> io::Result<Proxy> {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await?;
        let shared = Shared {
            address: listener.local_addr()?,
            upstream: Mutex::new(upstream.to_owned()),
            protocol,
            seed,
            weather: watch::Sender::new(Weather::default()),
            holds: Mutex::default(),
            silences: Mutex::default(),
            connections: Mutex::default(),
            tally: Tally::default(),
        };
        let handle = Handle(Arc::new(shared));
        let accepting = tokio::spawn(accept_for_ever(handle.0.clone(), listener));
        Ok(Proxy { handle, accepting })
    }

    /// Steers the proxy from anywhere.
    pub fn handle(&self) -> Handle {
        self.handle.clone()
    }
}

impl Deref for Proxy {
    type Target = Handle;

    fn deref(&self) -> &Handle {
        &self.handle
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        // Its connections are tasks of the same set and end with it.
        self.accepting.abort();
    }
}

/// What the proxy understands of what it carries.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Protocol {
    /// Nothing: no replies can be held, and nobody is known by name.
    Raw,
    /// PostgreSQL's, without TLS; a connection that turns to TLS is carried as raw.
    Postgres,
}

/// What happens to what passes through.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Weather {
    /// Each direction waits so long, evenly spread over `mean ± jitter`.
    pub latency: Option<Latency>,
    /// Nobody is let through: there are no connections, and new ones are reset at once.
    pub cut: bool,
    /// What is swallowed without a word, ends of connections included.
    pub blackhole: Option<Direction>,
    /// The share of connections that is reset each second.
    pub reset_share: f64,
    /// The largest piece that is written at once.
    pub split: Option<usize>,
    /// Bytes a second, of each connection and direction.
    pub bandwidth: Option<u64>,
    /// What is said to the server, and what it hears instead: of the same length, because messages tell theirs.
    pub instead: Option<(&'static str, &'static str)>,
    /// Whom all this but a cut is for.
    pub only: Only,
}

/// A delay.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Latency {
    /// The middle.
    pub mean: Duration,
    /// How far from it at most.
    pub jitter: Duration,
}

/// Which way.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Direction {
    /// Both ways.
    Both,
    /// What clients say.
    ToServer,
    /// What the server answers.
    ToClient,
}

impl Direction {
    fn covers(self, one: Direction) -> bool {
        self == Direction::Both || self == one
    }

    /// The other way.
    fn back(self) -> Direction {
        match self {
            Direction::Both => Direction::Both,
            Direction::ToServer => Direction::ToClient,
            Direction::ToClient => Direction::ToServer,
        }
    }
}

/// Whom the weather is for.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Only {
    /// Everyone.
    #[default]
    All,
    /// Connections whose `application_name` contains this.
    Application(String),
    /// Connections that have said LISTEN.
    Listener,
    /// Connections that have not.
    NotListener,
}

/// Whose reply is held.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum What {
    /// That of a commit: of COMMIT itself, or of a writing statement that is a transaction of its own.
    Commit,
    /// That of a statement that contains this text and is a transaction of its own, or of COMMIT after one.
    Statement(String),
    /// Any.
    AnyReply,
}

/// What becomes of a held reply.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Then {
    /// It is lost: both ends see the connection reset.
    Reset,
    /// It is delivered after all.
    Release,
}

/// What passed, and what did not.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize)]
pub struct Counters {
    /// Connections accepted, refused ones included.
    pub connections: u64,
    /// Connections that are open now.
    pub open: u64,
    /// Bytes delivered to the server.
    pub to_server: u64,
    /// Bytes delivered to clients.
    pub to_client: u64,
    /// Replies held.
    pub held: u64,
    /// Of these, those where the server had surely finished before the client was told or cut off.
    pub held_done: u64,
    /// Connections reset, refused ones included.
    pub reset: u64,
    /// Connections closed by a cut.
    pub cut: u64,
    /// Bytes swallowed.
    pub swallowed: u64,
    /// Connections that fell silent after a statement.
    pub silenced: u64,
}

/// A cheap way to steer a proxy. Each verb keeps what other verbs have set; [`Handle::heal`] ends everything.
#[derive(Clone, Debug)]
pub struct Handle(Arc<Shared>);

impl Handle {
    /// Where clients connect.
    pub fn address(&self) -> SocketAddr {
        self.0.address
    }

    /// A database's URL with this proxy's address in place of the server's.
    pub fn url(&self, url: &str) -> String {
        let Some((scheme, rest)) = url.split_once("://") else { return url.to_owned() };
        let (authority, path) = match rest.find(['/', '?']) {
            Some(at) => rest.split_at(at),
            None => (rest, ""),
        };
        match authority.rsplit_once('@') {
            Some((user, _)) => format!("{scheme}://{user}@{}{path}", self.0.address),
            None => format!("{scheme}://{}{path}", self.0.address),
        }
    }

    /// New connections go to another server.
    pub fn retarget(&self, upstream: &str) {
        *self.0.upstream.lock() = upstream.to_owned();
    }

    /// The weather now.
    pub fn weather(&self) -> Weather {
        self.0.weather.borrow().clone()
    }

    /// Sets the weather as a whole. Connections that a cut covers are closed; connections that lost bytes to a blackhole
    /// which is over are reset, because a stream with a hole in it must not go on.
    pub fn set(&self, weather: Weather) {
        let (cut, healed) = (weather.cut, weather.blackhole.is_none());
        self.0.weather.send_replace(weather);
        for connection in self.0.connections.lock().values() {
            if cut {
                connection.end(Ending::Cut);
            } else if healed && connection.has_hole() {
                connection.end(Ending::Reset);
            }
        }
    }

    fn change(&self, change: impl FnOnce(&mut Weather)) {
        let mut weather = self.weather();
        change(&mut weather);
        self.set(weather);
    }

    /// Fair weather, and no reply is held from now on. Replies that are held already keep their time.
    pub fn heal(&self) {
        self.0.holds.lock().clear();
        self.0.silences.lock().clear();
        self.set(Weather::default());
    }

    /// Delays each direction.
    pub fn latency(&self, mean: Duration, jitter: Duration) {
        self.change(|weather| weather.latency = Some(Latency { mean, jitter }));
    }

    /// Closes all connections and lets no new ones in.
    pub fn cut(&self) {
        self.change(|weather| weather.cut = true);
    }

    /// Swallows what goes this way, without closing anything. New connections are accepted and treated alike.
    pub fn blackhole(&self, direction: Direction) {
        self.change(|weather| weather.blackhole = Some(direction));
    }

    /// Narrows the weather to some connections. The new weather of the others is fair.
    pub fn only(&self, only: Only) {
        self.change(|weather| weather.only = only);
    }

    /// Lets the server hear something else than what is said.
    ///
    /// # Panics
    /// When the two differ in length.
    pub fn say_instead(&self, said: &'static str, heard: &'static str) {
        assert_eq!(said.len(), heard.len(), "messages tell their length");
        self.change(|weather| weather.instead = Some((said, heard)));
    }

    /// Resets each second about this share of the connections.
    pub fn reset_share(&self, share: f64) {
        self.change(|weather| weather.reset_share = share);
    }

    /// Delivers in pieces of at most so many bytes.
    pub fn split(&self, bytes: usize) {
        self.change(|weather| weather.split = Some(bytes.max(1)));
    }

    /// Delivers so many bytes a second at most, for each connection and direction.
    pub fn bandwidth(&self, bytes_a_second: u64) {
        self.change(|weather| weather.bandwidth = Some(bytes_a_second.max(1)));
    }

    /// Resets the connections that the weather is for, now. Answers how many.
    pub fn reset(&self) -> usize {
        let only = self.weather().only;
        let connections = self.0.connections.lock();
        let chosen = connections.values().filter(|connection| connection.is_one_of(&only));
        chosen.map(|connection| connection.end(Ending::Reset)).count()
    }

    /// Holds the next `n` replies of this kind, each for `time`. Adds to what was asked for before.
    pub fn hold_next(&self, n: usize, what: What, time: Duration, then: Then) {
        self.0.holds.lock().push(Hold { left: n, what, time, then });
    }

    /// Lets one connection fall silent, both ways and without a word, as soon as a statement that contains `text` has been
    /// answered inside a transaction block: that reply is the last thing the client hears, and the server hears nothing
    /// more. Ends with [`Handle::heal`], which resets the connection.
    pub fn silence_after(&self, text: &str) {
        self.0.silences.lock().push(text.to_owned());
    }

    /// How many replies are still to be held.
    pub fn holds_left(&self) -> usize {
        self.0.holds.lock().iter().map(|hold| hold.left).sum()
    }

    /// What passed so far.
    pub fn counters(&self) -> Counters {
        let tally = &self.0.tally;
        Counters {
            connections: tally.connections.load(Ordering::Relaxed),
            open: self.0.connections.lock().len() as u64,
            to_server: tally.to_server.load(Ordering::Relaxed),
            to_client: tally.to_client.load(Ordering::Relaxed),
            held: tally.held.load(Ordering::Relaxed),
            held_done: tally.held_done.load(Ordering::Relaxed),
            reset: tally.reset.load(Ordering::Relaxed),
            cut: tally.cut.load(Ordering::Relaxed),
            swallowed: tally.swallowed.load(Ordering::Relaxed),
            silenced: tally.silenced.load(Ordering::Relaxed),
        }
    }
}

/// What all connections share.
#[derive(Debug)]
struct Shared {
    address: SocketAddr,
    upstream: Mutex<String>,
    protocol: Protocol,
    seed: u64,
    weather: watch::Sender<Weather>,
    holds: Mutex<Vec<Hold>>,
    /// Texts of statements; each silences one connection.
    silences: Mutex<Vec<String>>,
    /// By number, so that draws are made in the same order for the same seed.
    connections: Mutex<BTreeMap<u64, Arc<Connection>>>,
    tally: Tally,
}

/// Replies that are still to be held.
#[derive(Clone, Debug)]
struct Hold {
    left: usize,
    what: What,
    time: Duration,
    then: Then,
}

#[derive(Debug, Default)]
struct Tally {
    connections: AtomicU64,
    to_server: AtomicU64,
    to_client: AtomicU64,
    held: AtomicU64,
    held_done: AtomicU64,
    reset: AtomicU64,
    cut: AtomicU64,
    swallowed: AtomicU64,
    silenced: AtomicU64,
}

/// How the proxy ends a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Ending {
    /// Both ends are closed in order.
    Cut,
    /// Both ends get an RST.
    Reset,
}

impl Shared {
    /// Takes one from the replies that are to be held, if one of them is like this.
    fn take_hold(&self, fits: impl Fn(&What) -> bool) -> Option<Hold> {
        let mut holds = self.holds.lock();
        let hold = holds.iter_mut().find(|hold| hold.left > 0 && fits(&hold.what))?;
        hold.left -= 1;
        let taken = hold.clone();
        holds.retain(|hold| hold.left > 0);
        Some(taken)
    }

    /// Takes one of the silences, if the text of one is in what was said.
    fn take_silence(&self, said: impl Fn(&str) -> bool) -> bool {
        let mut silences = self.silences.lock();
        let found = silences.iter().position(|text| said(text));
        found.map(|at| silences.remove(at)).is_some()
    }

    fn refuse(&self, client: TcpStream) {
        // Dropping a socket that does not linger sends an RST.
        let _ = client.set_zero_linger();
        self.tally.reset.fetch_add(1, Ordering::Relaxed);
    }
}

async fn accept_for_ever(shared: Arc<Shared>, listener: TcpListener) {
    let mut connections = JoinSet::new();
    connections.spawn(draw_resets(shared.clone()));
    loop {
        let client = tokio::select! {
            accepted = listener.accept() => match accepted {
                Ok((client, _)) => client,
                // Out of files, or a client that is gone already: neither is for ever.
                Err(_) => {
                    tokio::time::sleep(Duration::from_millis(10)).await;
                    continue;
                }
            },
            Some(_) = connections.join_next() => continue,
        };
        let number = shared.tally.connections.fetch_add(1, Ordering::Relaxed);
        if shared.weather.borrow().cut || connections.len() > MOST_CONNECTIONS {
            shared.refuse(client);
            continue;
        }
        connections.spawn(carry(shared.clone(), number, client));
    }
}

/// One connection, from its acceptance to its end.
async fn carry(shared: Arc<Shared>, number: u64, client: TcpStream) {
    let upstream = shared.upstream.lock().clone();
    let server = match tokio::time::timeout(CONNECT_PATIENCE, TcpStream::connect(upstream)).await {
        Ok(Ok(server)) => server,
        Ok(Err(_)) | Err(_) => return shared.refuse(client),
    };
    let connection = Arc::new(Connection::new(shared.clone(), number));
    let _listed = Listed::new(&shared, number, connection.clone());
    // A cut that came while the connection was made did not find it in the list.
    if shared.weather.borrow().cut {
        return shared.refuse(client);
    }
    connection.carry(client, server).await;
}

/// Keeps a connection in the list while it is open.
struct Listed<'a> {
    shared: &'a Shared,
    number: u64,
}

impl<'a> Listed<'a> {
    fn new(shared: &'a Shared, number: u64, connection: Arc<Connection>) -> Self {
        shared.connections.lock().insert(number, connection);
        Listed { shared, number }
    }
}

impl Drop for Listed<'_> {
    fn drop(&mut self) {
        self.shared.connections.lock().remove(&self.number);
    }
}

/// Resets a share of the connections, for as long as the weather says so.
async fn draw_resets(shared: Arc<Shared>) {
    let mut rng = StdRng::seed_from_u64(shared.seed);
    let mut ticks = tokio::time::interval(DRAW_EVERY);
    ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    loop {
        ticks.tick().await;
        let (share, only) = {
            let weather = shared.weather.borrow();
            (weather.reset_share, weather.only.clone())
        };
        if share <= 0.0 {
            continue;
        }
        let chance = (share * DRAW_EVERY.as_secs_f64()).min(1.0);
        for connection in shared.connections.lock().values().filter(|connection| connection.is_one_of(&only)) {
            if rng.random_bool(chance) {
                connection.end(Ending::Reset);
            }
        }
    }
}
