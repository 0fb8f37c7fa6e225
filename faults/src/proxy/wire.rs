//! As much of PostgreSQL's wire protocol as is needed to know whose connection this is and which reply is coming.
//! Reads what passes, in any pieces, and keeps only the beginnings of messages; called by `relay`. Never changes or
//! delays a byte, and gives up silently (nothing is known any more) on what it does not understand, such as TLS.

use std::collections::{HashMap, VecDeque};
use std::ops::Range;

/// Enough of a statement to tell what it is; the rest of long ones is not kept.
const KEPT: usize = 8 * 1024;
/// No client sends so many statements ahead of their replies; beyond it nothing more is learnt.
const MOST_AHEAD: usize = 10_000;

const SSL_REQUEST: u32 = 80_877_103;
const GSS_REQUEST: u32 = 80_877_104;
const CANCEL_REQUEST: u32 = 80_877_102;

/// What is known of one connection, from both directions.
#[derive(Debug, Default)]
pub(super) struct Talk {
    /// The name that the client gave itself.
    pub(super) application: Option<String>,
    /// Whether it has said LISTEN.
    pub(super) listens: bool,
    /// Statements by name (the unnamed one is ""), and portals by name.
    statements: HashMap<String, String>,
    portals: HashMap<String, String>,
    /// What has been asked and not yet answered, each up to its ReadyForQuery.
    asked: VecDeque<Asked>,
    /// What is being collected until Sync.
    collecting: Vec<String>,
    /// Whether the server is inside a transaction block, and what was said in it.
    in_transaction: bool,
    said_inside: Vec<String>,
    /// Bytes of single-byte answers (to SSLRequest) that come before anything else.
    single_answers: usize,
    client: Frames,
    server: Frames,
    opaque: bool,
}

/// Statements that the server answers with one ReadyForQuery.
#[derive(Debug)]
struct Asked {
    /// None for the start of the session.
    statements: Option<Vec<String>>,
}

/// A reply that passes.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Reply {
    /// Any message that answers a request.
    Any,
    /// A statement of its own transaction has written, or a transaction has committed: the texts of what it said.
    Committed(Vec<String>),
    /// The server has finished what it was asked.
    Ready,
}

impl Talk {
    /// Learns from what the client sends.
    pub(super) fn client_says(&mut self, bytes: &[u8]) {
        if self.opaque {
            return;
        }
        let mut messages = Vec::new();
        if !self.client.read(bytes, &mut messages) {
            self.opaque = true;
            return;
        }
        for message in messages {
            self.client_message(message.kind, &message.body);
        }
    }

    /// Learns from what the server sends. Answers where in `bytes` replies begin that may be held.
    pub(super) fn server_says(&mut self, bytes: &[u8]) -> Vec<(usize, Reply)> {
        let mut replies = Vec::new();
        if self.opaque {
            return replies;
        }
        let mut skipped = 0;
        while self.single_answers > 0 && skipped < bytes.len() {
            self.single_answers -= 1;
            if bytes[skipped] == b'S' {
                self.opaque = true;
                return replies;
            }
            skipped += 1;
        }
        let mut messages = Vec::new();
        self.server.started = true;
        if !self.server.read(&bytes[skipped..], &mut messages) {
            self.opaque = true;
        }
        for message in messages {
            self.server_message(message, skipped, &mut replies);
        }
        replies
    }

    /// Whether a statement with this text has been answered in the transaction block that is open.
    pub(super) fn has_said_inside(&self, text: &str) -> bool {
        self.in_transaction && self.said_inside.iter().any(|said| said.contains(text))
    }

    fn client_message(&mut self, kind: u8, body: &[u8]) {
        match kind {
            0 => self.start(body),
            b'Q' => {
                let text = text(body).0;
                self.note(&text);
                self.asks(vec![text]);
            }
            b'P' => {
                let (name, rest) = text(body);
                self.statements.insert(name, text(rest).0);
            }
            b'B' => {
                let (portal, rest) = text(body);
                let statement = self.statements.get(&text(rest).0).cloned().unwrap_or_default();
                self.portals.insert(portal, statement);
            }
            b'E' => {
                let statement = self.portals.get(&text(body).0).cloned().unwrap_or_default();
                self.note(&statement);
                self.collecting.push(statement);
            }
            b'S' => {
                let statements = std::mem::take(&mut self.collecting);
                self.asks(statements);
            }
            _ => {}
        }
    }

    fn start(&mut self, body: &[u8]) {
        match body.first_chunk::<4>().map(|code| u32::from_be_bytes(*code)) {
            Some(SSL_REQUEST | GSS_REQUEST) => self.single_answers += 1,
            Some(CANCEL_REQUEST) | None => self.opaque = true,
            Some(_) => {
                let mut rest = &body[4..];
                while !rest.is_empty() {
                    let (name, after) = text(rest);
                    let (value, after) = text(after);
                    if name == "application_name" {
                        self.application = Some(value);
                    }
                    rest = after;
                }
                self.asked.push_back(Asked { statements: None });
            }
        }
    }

    fn note(&mut self, statement: &str) {
        self.listens |= first_word(statement) == "listen";
    }

    fn asks(&mut self, statements: Vec<String>) {
        if self.asked.len() >= MOST_AHEAD {
            self.opaque = true;
        }
        self.asked.push_back(Asked { statements: Some(statements) });
    }

    fn server_message(&mut self, message: Message, skipped: usize, replies: &mut Vec<(usize, Reply)>) {
        let at = skipped + message.at.start;
        let Some(statements) = self.asked.front().map(|asked| asked.statements.clone()) else { return };
        let Some(statements) = statements else {
            if message.kind == b'Z' {
                self.asked.pop_front();
            }
            return;
        };
        // Notices, settings and notifications come at any time and answer nothing.
        if !matches!(message.kind, b'N' | b'S' | b'A') {
            replies.push((at, Reply::Any));
        }
        match message.kind {
            b'C' => {
                let tag = text(&message.body).0;
                if tag == "COMMIT" {
                    replies.push((at, Reply::Committed(std::mem::take(&mut self.said_inside))));
                } else if !self.in_transaction && !statements.iter().any(|said| opens_transaction(said)) {
                    replies.push((at, Reply::Committed(statements)));
                }
            }
            b'Z' => {
                self.in_transaction = message.body.first().is_some_and(|status| *status != b'I');
                if self.in_transaction {
                    self.said_inside.extend(statements);
                } else {
                    self.said_inside.clear();
                }
                self.asked.pop_front();
                replies.push((at, Reply::Ready));
            }
            _ => {}
        }
    }
}

/// Whether a statement changes anything, as far as its text tells: Windlass writes through functions.
pub(super) fn writes(statement: &str) -> bool {
    const WORDS: [&str; 8] = [
        "insert into",
        "update ",
        "delete from",
        "windlass.submit",
        "windlass.store_jobs",
        "windlass.claim",
        "windlass.finish",
        "copy ",
    ];
    let text = without_comments(statement).to_ascii_lowercase();
    WORDS.iter().any(|word| text.contains(word))
}

fn opens_transaction(statement: &str) -> bool {
    matches!(first_word(statement).as_str(), "begin" | "start")
}

fn first_word(statement: &str) -> String {
    let text = without_comments(statement);
    let word: String = text.trim_start().chars().take_while(char::is_ascii_alphabetic).collect();
    word.to_ascii_lowercase()
}

fn without_comments(statement: &str) -> String {
    statement.lines().filter(|line| !line.trim_start().starts_with("--")).collect::<Vec<_>>().join("\n")
}

/// A text that ends with a zero byte (or was cut short), and what follows it.
fn text(bytes: &[u8]) -> (String, &[u8]) {
    let end = bytes.iter().position(|byte| *byte == 0).unwrap_or(bytes.len());
    let rest = bytes.get(end + 1..).unwrap_or_default();
    (String::from_utf8_lossy(&bytes[..end]).into_owned(), rest)
}

/// A whole message that has passed.
#[derive(Debug)]
struct Message {
    /// Its type; 0 for the one that starts a session, which has none.
    kind: u8,
    /// Its beginning.
    body: Vec<u8>,
    /// Where it lies in the bytes just read; its start may have come before.
    at: Range<usize>,
}

/// Cuts a stream into messages.
#[derive(Debug, Default)]
struct Frames {
    /// Whether messages have a type byte; a client's first has none.
    started: bool,
    head: Vec<u8>,
    body: Vec<u8>,
    left: usize,
    inside: bool,
}

impl Frames {
    /// Appends the messages that end in `bytes`. False if this is not the protocol.
    fn read(&mut self, bytes: &[u8], messages: &mut Vec<Message>) -> bool {
        let (mut at, mut start) = (0, 0);
        while at < bytes.len() || (self.inside && self.left == 0) {
            if !self.inside {
                if self.head.is_empty() {
                    start = at;
                }
                self.head.push(bytes[at]);
                at += 1;
                let size = if self.started { 5 } else { 4 };
                if self.head.len() < size {
                    continue;
                }
                let length = self.head[size - 4..].first_chunk::<4>().map(|length| u32::from_be_bytes(*length));
                let Some(left) = length.and_then(|length| length.checked_sub(4)) else { return false };
                (self.left, self.inside) = (left as usize, true);
            }
            let here = self.left.min(bytes.len() - at);
            let kept = here.min(KEPT.saturating_sub(self.body.len()));
            self.body.extend_from_slice(&bytes[at..at + kept]);
            self.left -= here;
            at += here;
            if self.left > 0 {
                break;
            }
            let kind = if self.started { self.head[0] } else { 0 };
            messages.push(Message { kind, body: std::mem::take(&mut self.body), at: start..at });
            self.head.clear();
            self.inside = false;
            // An SSLRequest is the one case where another start follows, and it takes one message at a time.
            let request = messages.last().and_then(|message| message.body.first_chunk::<4>());
            let another = request.is_some_and(|code| matches!(u32::from_be_bytes(*code), SSL_REQUEST | GSS_REQUEST));
            self.started = self.started || !another;
            start = at;
        }
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn message(kind: u8, body: &[u8]) -> Vec<u8> {
        let mut bytes = vec![kind];
        bytes.extend((body.len() as u32 + 4).to_be_bytes());
        bytes.extend(body);
        bytes
    }

    fn startup(application: &str) -> Vec<u8> {
        let mut body = 196_608_u32.to_be_bytes().to_vec();
        body.extend(format!("user\0me\0application_name\0{application}\0\0").bytes());
        let mut bytes = (body.len() as u32 + 4).to_be_bytes().to_vec();
        bytes.extend(body);
        bytes
    }

    fn started() -> Talk {
        let mut talk = Talk::default();
        talk.client_says(&startup("tests"));
        assert_eq!(talk.server_says(&message(b'R', &[0; 4])), []);
        assert_eq!(talk.server_says(&message(b'Z', b"I")), []);
        talk
    }

    fn typed(statement: &str) -> Vec<u8> {
        let mut bytes = message(b'P', format!("\0{statement}\0\0\0").as_bytes());
        bytes.extend(message(b'B', b"\0\0\0\0\0\0\0\0"));
        bytes.extend(message(b'E', b"\0\0\0\0\0"));
        bytes.extend(message(b'S', b""));
        bytes
    }

    #[test]
    fn the_name_of_a_client_is_read_from_its_start_even_after_an_ssl_request() {
        let mut talk = Talk::default();
        let mut request = 8_u32.to_be_bytes().to_vec();
        request.extend(SSL_REQUEST.to_be_bytes());
        talk.client_says(&request);
        assert_eq!(talk.server_says(b"N"), []);
        for byte in startup("worker 3") {
            talk.client_says(&[byte]);
        }
        assert_eq!(talk.application.as_deref(), Some("worker 3"));
    }

    #[test]
    fn a_listener_is_known_by_what_it_said() {
        let mut talk = started();
        talk.client_says(&message(b'Q', b"select 'listen'\0"));
        assert!(!talk.listens);
        talk.client_says(&message(b'Q', b"listen windlass_wake\0"));
        assert!(talk.listens);
    }

    #[test]
    fn the_reply_of_a_statement_of_its_own_is_a_commit_and_names_it() {
        let mut talk = started();
        talk.client_says(&typed("-- Insert.\nselect windlass.submit_plain($1)"));
        assert_eq!(talk.server_says(&message(b'1', b"")), [(0, Reply::Any)]);
        let mut bytes = message(b'D', b"row");
        let at = bytes.len();
        bytes.extend(message(b'C', b"SELECT 1\0"));
        bytes.extend(message(b'Z', b"I"));
        let replies = talk.server_says(&bytes);
        let Some((found, Reply::Committed(said))) = replies.iter().find(|(_, r)| matches!(r, Reply::Committed(_)))
        else {
            panic!("no commit in {replies:?}");
        };
        assert_eq!(*found, at);
        assert!(said[0].ends_with("select windlass.submit_plain($1)") && writes(&said[0]));
        assert_eq!(replies.last().map(|(_, reply)| reply), Some(&Reply::Ready));
    }

    #[test]
    fn inside_a_transaction_only_commit_commits() {
        let mut talk = started();
        let mut say = |text: &str, tag: &str, status: &[u8]| {
            talk.client_says(&message(b'Q', format!("{text}\0").as_bytes()));
            let mut bytes = message(b'C', format!("{tag}\0").as_bytes());
            bytes.extend(message(b'Z', status));
            talk.server_says(&bytes).into_iter().find_map(|(_, reply)| match reply {
                Reply::Committed(said) => Some(said),
                _ => None,
            })
        };
        assert_eq!(say("begin", "BEGIN", b"T"), None);
        assert_eq!(say("insert into t values (1)", "INSERT 0 1", b"T"), None);
        assert_eq!(say("commit", "COMMIT", b"I"), Some(vec!["begin".into(), "insert into t values (1)".into()]));
        assert_eq!(say("begin", "BEGIN", b"T"), None);
        assert_eq!(say("rollback", "ROLLBACK", b"I"), None);
    }

    #[test]
    fn a_comment_does_not_make_a_statement_write() {
        assert!(!writes("-- insert into\nselect 1"));
        assert!(writes("  INSERT INTO t VALUES (1)"));
    }

    #[test]
    fn what_is_not_the_protocol_is_carried_without_a_word() {
        let mut talk = Talk::default();
        talk.client_says(b"\0\0\0\x01GET / HTTP/1.1");
        assert_eq!(talk.server_says(b"HTTP/1.1 200 OK"), []);
        assert_eq!(talk.application, None);
    }
}
