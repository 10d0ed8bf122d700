//! The promises of the codec, the server and the client, from the outside.

use std::{net::SocketAddr, time::Duration};

use bytes::Bytes;
use tidegate_message::Instant;

use super::*;

mod blocks;
mod bounds;
mod codec;
mod golden;
mod lossy;
mod observe;
mod requests;

/// A message as its parts, which own what they hold.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Said {
    message_type: MessageType,
    code: Code,
    id: u16,
    token: Vec<u8>,
    options: Vec<(u16, Vec<u8>)>,
    payload: Vec<u8>,
}

impl Said {
    fn decode(datagram: &[u8]) -> Self {
        let message = Message::decode(datagram).unwrap_or_else(|error| panic!("{error}"));
        Self {
            message_type: message.message_type,
            code: message.code,
            id: message.id,
            token: message.token.as_bytes().to_vec(),
            options: message.options.iter().map(|(it, value)| (it.0, value.to_vec())).collect(),
            payload: message.payload.to_vec(),
        }
    }

    fn option(&self, number: OptionNumber) -> Option<u32> {
        let value = &self.options.iter().find(|(found, _)| *found == number.0)?.1;
        Some(value.iter().fold(0, |sum, byte| sum << 8 | u32::from(*byte)))
    }

    fn is_empty_of(&self, message_type: MessageType, id: u16) -> bool {
        (self.message_type, self.code, self.id) == (message_type, Code::EMPTY, id)
    }
}

fn encode(
    message_type: MessageType,
    code: Code,
    id: u16,
    token: &[u8],
    options: &[(OptionNumber, &[u8])],
    payload: &[u8],
) -> Bytes {
    let mut list = OptionList::new();
    for (number, value) in options {
        list.push(*number, value).unwrap();
    }
    let options = list.as_options();
    let token = Token::new(token).unwrap();
    let mut out = Vec::new();
    Message { message_type, code, id, token, options, payload }.encode(&mut out).unwrap();
    out.into()
}

/// A server, a time and what has been sent and asked so far.
struct Stage {
    server: Server,
    now: Instant,
}

const PEER: SocketAddr =
    SocketAddr::new(std::net::IpAddr::V4(std::net::Ipv4Addr::new(10, 0, 0, 1)), 40_000);

fn peer(number: u32) -> SocketAddr {
    let [_, high, middle, low] = number.to_be_bytes();
    SocketAddr::from(([10, high, middle, low], 5683))
}

impl Stage {
    fn new() -> Self {
        Self::with(|_| {})
    }

    fn with(change: impl FnOnce(&mut ServerConfig)) -> Self {
        let mut config = ServerConfig::default();
        change(&mut config);
        let now = Instant::from_millis(1_700_000_000_000);
        Self { server: Server::new(config, [7; 32]), now }
    }

    fn say(&mut self, peer: SocketAddr, datagram: &Bytes) -> Vec<Said> {
        let _ = self.server.handle(self.now, peer, datagram);
        self.sent()
    }

    fn sent(&mut self) -> Vec<Said> {
        let mut sent = Vec::new();
        while let Some(transmit) = self.server.poll_transmit() {
            sent.push(Said::decode(transmit.datagram));
        }
        sent
    }

    /// The only datagram that is sent.
    fn one(&mut self) -> Said {
        let mut sent = self.sent();
        assert_eq!(sent.len(), 1, "{sent:?}");
        sent.remove(0)
    }

    fn events(&mut self) -> Vec<Event> {
        std::iter::from_fn(|| self.server.poll_event()).collect()
    }

    fn publish(&mut self) -> Publish {
        match self.server.poll_event() {
            Some(Event::Publish(publish)) => publish,
            other => panic!("{other:?}"),
        }
    }

    /// The next request to read; new and ended observations in the meantime are left out.
    fn read(&mut self) -> Read {
        loop {
            match self.server.poll_event() {
                Some(Event::Read(read)) => return read,
                Some(Event::Followed { .. } | Event::Unfollowed { .. }) => {}
                other => panic!("{other:?}"),
            }
        }
    }

    /// Lets time pass, to the next timer and on, and returns what is sent with when.
    fn pass(&mut self, time: Duration) -> Vec<(Instant, Said)> {
        let end = self.now + time;
        let mut sent = Vec::new();
        while let Some(due) = self.server.poll_timeout().filter(|due| *due <= end) {
            self.now = self.now.max(due);
            self.server.handle_timeout(self.now);
            sent.extend(self.sent().into_iter().map(|said| (self.now, said)));
        }
        self.now = end;
        sent
    }

    fn acknowledge(&mut self, peer: SocketAddr, said: &Said) -> Vec<Said> {
        self.empty(peer, MessageType::Acknowledgement, said.id)
    }

    fn empty(&mut self, peer: SocketAddr, message_type: MessageType, id: u16) -> Vec<Said> {
        self.say(peer, &encode(message_type, Code::EMPTY, id, b"", &[], b""))
    }

    /// Asks for `path`, and answers with `value`.
    fn get(&mut self, id: u16, path: &str, observe: Option<u8>, value: &str) -> Vec<Said> {
        // With the name of the host, as most clients send it, a short answer is no longer than three times the request.
        let mut options: Vec<(OptionNumber, &[u8])> = Vec::new();
        options.push((OptionNumber::URI_HOST, b"gate.example.net"));
        let observe = observe.map(|value| if value == 0 { vec![] } else { vec![value] });
        if let Some(value) = &observe {
            options.push((OptionNumber::OBSERVE, value));
        }
        options.extend(path.split('/').map(|level| (OptionNumber::URI_PATH, level.as_bytes())));
        let token = id.to_be_bytes();
        let get = encode(MessageType::Confirmable, Code::GET, id, &token, &options, b"");
        assert_eq!(self.say(PEER, &get), []);
        let read = self.read();
        let answer = Answer::Content(representation(value));
        self.server.answer(self.now, read.request, answer);
        self.sent()
    }
}

fn representation(value: &str) -> Representation {
    Representation { payload: Bytes::copy_from_slice(value.as_bytes()), ..Default::default() }
}

fn post(id: u16, path: &str, payload: &[u8]) -> Bytes {
    let options: Vec<_> =
        path.split('/').map(|level| (OptionNumber::URI_PATH, level.as_bytes())).collect();
    encode(MessageType::Confirmable, Code::POST, id, &id.to_be_bytes(), &options, payload)
}

fn seconds(count: u64) -> Duration {
    Duration::from_secs(count)
}
