//! HTTP/1.1 as a client speaks it that waits for each answer: a request in one piece, an answer by length, in chunks, or to the end.

use std::fmt::Write as _;

use super::link::{Link, LinkError};

/// Most bytes of the head of an answer.
const HEAD_BYTES_MAX: usize = 64 << 10;
/// Most bytes of an answer, and of a line between chunks.
const BODY_BYTES_MAX: usize = 64 << 20;
const LINE_BYTES_MAX: usize = 8 << 10;

/// A request without its body. Header lines end with CR LF.
pub(super) struct Request<'a> {
    pub(super) method: &'a str,
    pub(super) path: &'a str,
    pub(super) host: &'a str,
    pub(super) headers: &'a str,
}

impl Request<'_> {
    /// Its bytes with `body` behind.
    pub(super) fn with_body(&self, body: &[u8]) -> Vec<u8> {
        let Self { method, path, host, headers } = self;
        let mut head = format!("{method} {path} HTTP/1.1\r\nHost: {host}\r\n{headers}");
        if *method == "POST" {
            let _ = write!(head, "Content-Length: {}\r\n", body.len()); // memory takes all
        }
        head.push_str("\r\n");
        let mut bytes = head.into_bytes();
        bytes.extend_from_slice(body);
        bytes
    }
}

/// The head of an answer.
#[derive(Debug)]
pub(super) struct Head {
    pub(super) status: u16,
    /// Names in lower case.
    headers: Vec<(String, String)>,
    is_http_1_0: bool,
}

impl Head {
    /// Reads one, interim ones aside.
    pub(super) fn read(link: &mut Link) -> Result<Self, HttpError> {
        loop {
            let bytes = link.until(b"\r\n\r\n", HEAD_BYTES_MAX)?;
            let head = Self::parse(&bytes).ok_or(HttpError::NotHttp)?;
            // 101 ends the conversation in HTTP; the others of the hundreds come before an answer.
            if head.status == 101 || head.status >= 200 {
                return Ok(head);
            }
        }
    }

    fn parse(bytes: &[u8]) -> Option<Self> {
        let text = str::from_utf8(bytes).ok()?;
        let mut lines = text.split("\r\n");
        let start = lines.next()?;
        let rest = start.strip_prefix("HTTP/1.")?;
        let is_http_1_0 = rest.starts_with('0');
        let status = rest.get(2..5)?.parse().ok()?;
        let headers = lines.take_while(|line| !line.is_empty()).map(|line| {
            let (name, value) = line.split_once(':')?;
            Some((name.to_ascii_lowercase(), value.trim().to_owned()))
        });
        Some(Self { status, headers: headers.collect::<Option<_>>()?, is_http_1_0 })
    }

    pub(super) fn header(&self, name: &str) -> Option<&str> {
        self.headers.iter().find(|(key, _)| key == name).map(|(_, value)| &**value)
    }

    fn lists(&self, name: &str, item: &str) -> bool {
        let values = self.headers.iter().filter(|(key, _)| key == name);
        values
            .flat_map(|(_, value)| value.split(','))
            .any(|other| other.trim().eq_ignore_ascii_case(item))
    }

    /// Whether the server closes behind the answer.
    fn closes(&self) -> bool {
        self.lists("connection", "close")
            || self.is_http_1_0 && !self.lists("connection", "keep-alive")
    }
}

/// An answer.
#[derive(Debug)]
pub(super) struct Answer {
    pub(super) head: Head,
    pub(super) body: Vec<u8>,
    /// Whether another request can follow on this connection.
    pub(super) is_last: bool,
}

impl Answer {
    /// Reads one.
    pub(super) fn read(link: &mut Link) -> Result<Self, HttpError> {
        let head = Head::read(link)?;
        let mut is_last = head.closes();
        let body = if head.status == 204 || head.status == 304 {
            Vec::new()
        } else if head.lists("transfer-encoding", "chunked") {
            chunks(link)?
        } else if let Some(length) = head.header("content-length") {
            let length = length.parse().map_err(|_| HttpError::NotHttp)?;
            if length > BODY_BYTES_MAX {
                return Err(HttpError::TooLarge);
            }
            link.take(length)?
        } else {
            is_last = true;
            to_the_end(link)?
        };
        Ok(Self { head, body, is_last })
    }
}

fn chunks(link: &mut Link) -> Result<Vec<u8>, HttpError> {
    let mut body = Vec::new();
    loop {
        let line = link.until(b"\r\n", LINE_BYTES_MAX)?;
        let line = str::from_utf8(&line).map_err(|_| HttpError::NotHttp)?;
        let digits = line.split(';').next().unwrap_or_default().trim();
        let length = usize::from_str_radix(digits, 16).map_err(|_| HttpError::NotHttp)?;
        if length.saturating_add(body.len()) > BODY_BYTES_MAX {
            return Err(HttpError::TooLarge);
        }
        if length == 0 {
            break;
        }
        body.extend_from_slice(&link.take(length)?);
        if link.take(2)? != b"\r\n" {
            return Err(HttpError::NotHttp);
        }
    }
    while link.until(b"\r\n", LINE_BYTES_MAX)? != b"\r\n" {}
    Ok(body)
}

fn to_the_end(link: &mut Link) -> Result<Vec<u8>, HttpError> {
    loop {
        match link.fill() {
            Ok(_) if link.held().len() <= BODY_BYTES_MAX => {}
            Ok(_) => return Err(HttpError::TooLarge),
            Err(error) if error.is_ended() => {
                let held = link.held().len();
                return Ok(link.take(held)?);
            }
            Err(error) => return Err(error.into()),
        }
    }
}

/// Why there is no answer.
#[derive(Debug, thiserror::Error)]
pub(super) enum HttpError {
    #[error(transparent)]
    Link(#[from] LinkError),
    #[error(
        "the server does not answer in HTTP/1.1; is it the right port, and with --tls if it has TLS?"
    )]
    NotHttp,
    #[error("an answer is longer than {BODY_BYTES_MAX} bytes")]
    TooLarge,
}

#[cfg(test)]
mod tests {
    use std::{
        io::Write as _,
        net::{Ipv4Addr, TcpListener},
        thread,
        time::Duration,
    };

    use super::*;
    use crate::vision::link::Target;

    /// Reads as many answers as `bytes` hold, which come in pieces of `piece`, until the connection is over.
    fn read(bytes: &'static [u8], piece: usize) -> Vec<Result<(u16, String, bool), String>> {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let port = listener.local_addr().unwrap().port();
        let server = thread::spawn(move || {
            let (mut tcp, _) = listener.accept().unwrap();
            tcp.set_nodelay(true).unwrap();
            bytes.chunks(piece).for_each(|piece| tcp.write_all(piece).unwrap());
        });
        let timeout = Duration::from_secs(10);
        let host = Ipv4Addr::LOCALHOST.to_string();
        let target = Target { host, port, tls: None, server_name: None, timeout };
        let mut link = target.connect().unwrap();
        let mut answers = Vec::new();
        loop {
            match Answer::read(&mut link) {
                Ok(answer) => {
                    let body = String::from_utf8(answer.body).unwrap();
                    answers.push(Ok((answer.head.status, body, answer.is_last)));
                    if answer.is_last {
                        break;
                    }
                }
                Err(HttpError::Link(LinkError::Ended)) => break,
                Err(error) => {
                    answers.push(Err(error.to_string()));
                    break;
                }
            }
        }
        server.join().unwrap();
        answers
    }

    #[test]
    fn answers_end_where_they_say_however_they_are_cut() {
        let of = |status, body: &str, is_last| Ok((status, body.to_owned(), is_last));
        for (bytes, expected) in [
            (
                &b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nabHTTP/1.1 429 Busy\r\ncontent-length:0\r\nConnection: close\r\n\r\n"[..],
                vec![of(200, "ab", false), of(429, "", true)],
            ),
            (
                b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3;x=1\r\nabc\r\nA\r\n0123456789\r\n0\r\nT: 1\r\n\r\nHTTP/1.1 204 No\r\n\r\n",
                vec![of(200, "abc0123456789", false), of(204, "", false)],
            ),
            (b"HTTP/1.0 200 OK\r\n\r\nall of it", vec![of(200, "all of it", true)]),
            (
                b"HTTP/1.0 200 OK\r\nConnection: keep-alive\r\nContent-Length: 1\r\n\r\nx",
                vec![of(200, "x", false)],
            ),
        ] {
            for piece in [1, 7, bytes.len()] {
                assert_eq!(read(bytes, piece), expected, "in pieces of {piece}");
            }
        }
    }

    #[test]
    fn answers_that_are_none_are_errors() {
        for (bytes, expected) in [
            (&b"SSH-2.0-OpenSSH\r\n\r\n"[..], "does not answer in HTTP/1.1"),
            (b"HTTP/1.1 200 OK\r\nContent-Length: many\r\n\r\n", "does not answer in HTTP/1.1"),
            (b"HTTP/1.1 200 OK\r\nContent-Length: 99999999999\r\n\r\n", "longer than"),
            (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nx\r\n", "does not answer"),
            (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nfffffffff\r\n", "longer than"),
        ] {
            let answers = read(bytes, bytes.len());
            assert!(matches!(&*answers, [Err(error)] if error.contains(expected)), "{answers:?}");
        }
    }
}
