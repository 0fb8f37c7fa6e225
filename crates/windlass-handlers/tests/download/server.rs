//! A file server that does as a test says: it forgets ranges, lies about lengths, drops connections and changes files.
//! Speaks HTTP over plain TCP, because no library for honest servers does any of this.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use parking_lot::Mutex;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

/// What a request asked for.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Asked {
    pub(crate) path: String,
    pub(crate) range: Option<String>,
    pub(crate) if_range: Option<String>,
}

impl Asked {
    /// The first byte that was asked for.
    pub(crate) fn from(&self) -> Option<usize> {
        self.range.as_deref()?.strip_prefix("bytes=")?.strip_suffix('-')?.parse().ok()
    }
}

/// What the server does.
#[derive(Clone, Debug, Default)]
pub(crate) struct Answer {
    pub(crate) head: String,
    pub(crate) body: Vec<u8>,
    /// Waits this long after each MiB.
    pub(crate) pace: Duration,
    /// The body is sent in chunks of HTTP, without a length; the last one is missing if `Some(false)`.
    pub(crate) chunked: Option<bool>,
}

impl Answer {
    pub(crate) fn new(status: &str, headers: &[(&str, String)], body: &[u8]) -> Answer {
        let headers: String = headers.iter().map(|(name, value)| format!("{name}: {value}\r\n")).collect();
        Answer {
            head: format!("HTTP/1.1 {status}\r\n{headers}connection: close\r\n\r\n"),
            body: body.to_vec(),
            ..Answer::default()
        }
    }

    /// What an honest server says to `asked` about `file` with the tag `etag`.
    pub(crate) fn honest(asked: &Asked, file: &[u8], etag: &str) -> Answer {
        let tag = ("etag", etag.to_owned());
        let same = asked.if_range.as_deref().is_none_or(|version| version == etag);
        match asked.from().filter(|_| same) {
            Some(from) if from >= file.len() => Answer::new(
                "416 Range Not Satisfiable",
                &[("content-range", format!("bytes */{}", file.len())), tag, ("content-length", "0".into())],
                b"",
            ),
            Some(from) => {
                let range = format!("bytes {from}-{}/{}", file.len() - 1, file.len());
                let length = ("content-length", (file.len() - from).to_string());
                Answer::new("206 Partial Content", &[("content-range", range), length, tag], &file[from..])
            }
            None => Answer::new("200 OK", &[("content-length", file.len().to_string()), tag], file),
        }
    }

    /// Ends the connection after so many bytes of the body.
    pub(crate) fn cut(mut self, bytes: usize) -> Answer {
        self.body.truncate(bytes);
        self
    }
}

pub(crate) struct FileServer {
    pub(crate) url: String,
    pub(crate) asked: Arc<Mutex<Vec<Asked>>>,
    /// Bytes of bodies sent so far.
    pub(crate) sent: Arc<AtomicU64>,
}

impl FileServer {
    /// Answers each request with what `answer` says to its number, from 0.
    pub(crate) async fn start(answer: impl Fn(usize, &Asked) -> Answer + Send + Sync + 'static) -> FileServer {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("listens");
        let url = format!("http://{}/file.bin", listener.local_addr().expect("an address"));
        let asked: Arc<Mutex<Vec<Asked>>> = Arc::default();
        let sent: Arc<AtomicU64> = Arc::default();
        let (kept, counted, answer) = (asked.clone(), sent.clone(), Arc::new(answer));
        tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                let (kept, counted, answer) = (kept.clone(), counted.clone(), answer.clone());
                tokio::spawn(async move { serve(stream, &kept, &counted, &*answer).await });
            }
        });
        FileServer { url, asked, sent }
    }

    pub(crate) fn asked(&self) -> Vec<Asked> {
        self.asked.lock().clone()
    }
}

async fn serve(
    mut stream: TcpStream,
    asked: &Mutex<Vec<Asked>>,
    sent: &AtomicU64,
    answer: &(dyn Fn(usize, &Asked) -> Answer + Send + Sync),
) {
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        match stream.read_u8().await {
            Ok(byte) => head.push(byte),
            Err(_) => return,
        }
    }
    let head = String::from_utf8_lossy(&head).into_owned();
    let header = |name: &str| {
        let found = head.lines().find(|line| line.to_ascii_lowercase().starts_with(&format!("{name}:")))?;
        Some(found.split_once(':')?.1.trim().to_owned())
    };
    let path = head.split(' ').nth(1).unwrap_or_default().to_owned();
    let request = Asked { path, range: header("range"), if_range: header("if-range") };
    let number = {
        let mut all = asked.lock();
        all.push(request.clone());
        all.len() - 1
    };
    let answer = answer(number, &request);
    // Whoever went away does not read the rest.
    let _ = send(&mut stream, answer, sent).await;
}

async fn send(stream: &mut TcpStream, answer: Answer, sent: &AtomicU64) -> std::io::Result<()> {
    stream.write_all(answer.head.as_bytes()).await?;
    for part in answer.body.chunks(1024 * 1024) {
        if answer.chunked.is_some() {
            stream.write_all(format!("{:x}\r\n", part.len()).as_bytes()).await?;
        }
        stream.write_all(part).await?;
        if answer.chunked.is_some() {
            stream.write_all(b"\r\n").await?;
        }
        sent.fetch_add(part.len() as u64, Ordering::Relaxed);
        if !answer.pace.is_zero() {
            tokio::time::sleep(answer.pace).await;
        }
    }
    if answer.chunked == Some(true) {
        stream.write_all(b"0\r\n\r\n").await?;
    }
    stream.shutdown().await
}
