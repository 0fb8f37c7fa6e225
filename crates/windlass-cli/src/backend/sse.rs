//! Reads server-sent events from an answer, one frame after the other. Called by `http` and by
//! measurements. Knows nothing of what they mean.

use futures_util::StreamExt;
use reqwest::Response;

use crate::error::{CliError, Result};

/// One event.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Frame {
    pub(crate) event: String,
    pub(crate) id: Option<u64>,
    pub(crate) data: String,
}

/// A frame larger than this comes from something else than Windlass.
const MOST_BYTES: usize = 1 << 20;

/// The frames of an answer.
pub(crate) struct Frames {
    bytes: std::pin::Pin<Box<dyn futures_util::Stream<Item = reqwest::Result<Vec<u8>>> + Send>>,
    parser: Parser,
}

impl Frames {
    pub(crate) fn of(response: Response) -> Frames {
        let bytes = response.bytes_stream().map(|bytes| bytes.map(|bytes| bytes.to_vec()));
        Frames { bytes: Box::pin(bytes), parser: Parser::default() }
    }

    /// The next frame; none when the server has ended the answer.
    pub(crate) async fn next(&mut self) -> Result<Option<Frame>> {
        loop {
            if let Some(frame) = self.parser.frame() {
                return Ok(Some(frame));
            }
            if self.parser.pending() > MOST_BYTES {
                return Err(CliError::Failed("the server sent an event without an end".to_owned()));
            }
            match self.bytes.next().await {
                Some(Ok(bytes)) => self.parser.feed(&bytes),
                Some(Err(error)) => {
                    return Err(CliError::Unavailable(format!("the connection to the server was lost: {error}")));
                }
                None => return Ok(None),
            }
        }
    }
}

/// Cuts bytes into frames.
#[derive(Debug, Default)]
struct Parser {
    rest: Vec<u8>,
    frame: Frame,
}

impl Parser {
    fn feed(&mut self, bytes: &[u8]) {
        self.rest.extend_from_slice(bytes);
    }

    fn pending(&self) -> usize {
        self.rest.len() + self.frame.data.len()
    }

    /// The next whole frame, if there is one.
    fn frame(&mut self) -> Option<Frame> {
        while let Some(end) = self.rest.iter().position(|byte| *byte == b'\n') {
            let line: Vec<u8> = self.rest.drain(..=end).collect();
            let line = String::from_utf8_lossy(&line);
            let line = line.trim_end_matches(['\r', '\n']);
            if !line.is_empty() {
                self.field(line);
                continue;
            }
            let frame = std::mem::take(&mut self.frame);
            // A frame without data is a comment that keeps the connection open.
            if !frame.data.is_empty() || !frame.event.is_empty() {
                return Some(frame);
            }
        }
        None
    }

    fn field(&mut self, line: &str) {
        let (name, value) = line.split_once(':').unwrap_or((line, ""));
        let value = value.strip_prefix(' ').unwrap_or(value);
        match name {
            "event" => self.frame.event = value.to_owned(),
            "id" => self.frame.id = value.parse().ok(),
            "data" => {
                if !self.frame.data.is_empty() {
                    self.frame.data.push('\n');
                }
                self.frame.data.push_str(value);
            }
            _ => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn frames_are_read_however_the_bytes_are_cut() {
        let text = ": hello\n\nevent: job\nid: 7\ndata: {\"a\":\ndata: 1}\r\n\r\nevent: end\n\n";
        for size in [1, 2, 7, text.len()] {
            let (mut parser, mut frames) = (Parser::default(), Vec::new());
            for bytes in text.as_bytes().chunks(size) {
                parser.feed(bytes);
                frames.extend(std::iter::from_fn(|| parser.frame()));
            }
            let job = Frame { event: "job".to_owned(), id: Some(7), data: "{\"a\":\n1}".to_owned() };
            let end = Frame { event: "end".to_owned(), ..Frame::default() };
            assert_eq!(frames, [job, end], "in pieces of {size}");
        }
    }
}
