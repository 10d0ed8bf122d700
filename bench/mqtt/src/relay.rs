//! The cost of a message that is only received and sent on: the least that a broker can take on this machine.
//!
//! Clients introduce themselves in MQTT, and the first message of a connection says to whom it goes; from then on bytes are
//! copied from one socket to the other unseen. Answers go back the same way, so that with QoS 1 an acknowledgement comes from the
//! subscriber.

use std::{
    collections::HashMap,
    io::{self, BufRead as _, BufReader, Read as _, Write as _},
    net::{Ipv4Addr, SocketAddr},
    process::Child,
};

use anyhow::{Context as _, bail};
use mio::{
    Events, Interest, Poll, Token,
    net::{TcpListener, TcpStream},
};
use tidegate_sys::streams::{Event, Streams, Then};
use tidegate_wire::mqtt::{
    Connack, FixedHeader, Packet, Publish, QoS, ReasonCode, Suback, Version,
};

const LISTENER: Token = Token(usize::MAX);
/// A bench has no more connections than that.
const CONNECTIONS_MAX: usize = 19_000;
/// Of the ring's pool.
const BUFFERS: u16 = 8192;
const BUFFER_BYTES: usize = 2048;

struct End<S> {
    socket: S,
    /// The other end of the pair, once it is known.
    other: Option<usize>,
}

/// How a relay waits, receives and sends.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, clap::ValueEnum)]
pub enum Engine {
    /// A wait for many sockets, and a read and a write for each message.
    Epoll,
    /// Requests to receive that stay, buffers of the kernel's choice, and one system call a turn for all that is sent.
    IoUring,
}

impl Engine {
    /// Both.
    pub const ALL: [Self; 2] = [Self::Epoll, Self::IoUring];

    /// As on the command line.
    pub fn name(self) -> &'static str {
        match self {
            Self::Epoll => "epoll",
            Self::IoUring => "io-uring",
        }
    }
}

/// Relays until its standard input ends; its address is the first line that it prints.
///
/// # Errors
/// The system refuses something, or a client sends what no load of a bench does.
pub fn relay(engine: Engine) -> anyhow::Result<()> {
    std::thread::spawn(|| {
        // The bench has ended, however it did.
        let ended = io::copy(&mut io::stdin().lock(), &mut io::sink());
        std::process::exit(i32::from(ended.is_err()));
    });
    match engine {
        Engine::Epoll => by_epoll(),
        Engine::IoUring => by_io_uring(),
    }
}

fn by_io_uring() -> anyhow::Result<()> {
    let listener = std::net::TcpListener::bind(SocketAddr::from((Ipv4Addr::LOCALHOST, 0)))?;
    let address = listener.local_addr()?;
    let mut streams = Streams::new(listener, BUFFERS, BUFFER_BYTES)?;
    println!("{address}");
    let mut ends: Vec<End<std::net::TcpStream>> = Vec::new();
    let mut subscribers: HashMap<String, usize> = HashMap::new();
    loop {
        streams.turn(|adder, event| match event {
            Event::Accepted(socket) => {
                if ends.len() == CONNECTIONS_MAX / 2 {
                    bail!("more than {} connections", CONNECTIONS_MAX / 2);
                }
                let own = std::net::TcpStream::from(socket.try_clone()?);
                own.set_nodelay(true)?;
                ends.push(End { socket: own, other: None });
                adder.add(socket);
                Ok(Then::Done)
            }
            Event::Received { stream, bytes } => {
                let at = stream as usize;
                match ends[at].other {
                    Some(other) => Ok(Then::SendTo(other as u32)),
                    None => {
                        introduce(&mut ends, &mut subscribers, at, bytes)?;
                        Ok(Then::Done)
                    }
                }
            }
            Event::Ended(_) => Ok(Then::Done),
        })?;
    }
}

fn by_epoll() -> anyhow::Result<()> {
    let mut poll = Poll::new()?;
    let mut listener = TcpListener::bind(SocketAddr::from((Ipv4Addr::LOCALHOST, 0)))?;
    poll.registry().register(&mut listener, LISTENER, Interest::READABLE)?;
    println!("{}", listener.local_addr()?);
    let mut ends: Vec<End<TcpStream>> = Vec::new();
    let mut subscribers: HashMap<String, usize> = HashMap::new();
    let mut events = Events::with_capacity(1024);
    let mut buffer = vec![0; 64 << 10];
    loop {
        poll.poll(&mut events, None)?;
        for event in &events {
            if event.token() == LISTENER {
                while let Ok((mut socket, _)) = listener.accept() {
                    if ends.len() == CONNECTIONS_MAX {
                        bail!("more than {CONNECTIONS_MAX} connections");
                    }
                    socket.set_nodelay(true)?;
                    poll.registry().register(&mut socket, Token(ends.len()), Interest::READABLE)?;
                    ends.push(End { socket, other: None });
                }
                continue;
            }
            let at = event.token().0;
            let count = match ends[at].socket.read(&mut buffer) {
                Ok(count) => count,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => continue,
                Err(_) => 0,
            };
            let read = &buffer[..count];
            match ends[at].other {
                _ if count == 0 => {}
                Some(other) => ends[other].socket.write_all(read)?,
                None => introduce(&mut ends, &mut subscribers, at, read)?,
            }
        }
    }
}

/// Answers the packets by which a client introduces itself, and sends its first message on.
fn introduce<S: io::Write>(
    ends: &mut [End<S>],
    subscribers: &mut HashMap<String, usize>,
    at: usize,
    mut read: &[u8],
) -> anyhow::Result<()> {
    let version = Version::V4;
    while let Some(header) = FixedHeader::decode(read, u32::MAX as usize)? {
        let packet_bytes = header.packet_bytes();
        let body = read.get(header.header_bytes..packet_bytes).context("a packet in one piece")?;
        if let Some(other) = ends[at].other {
            ends[other].socket.write_all(read)?;
            return Ok(());
        }
        let mut answer = Vec::new();
        match Packet::decode(version, header.first, body)? {
            Packet::Connect(_) => {
                let connack = Connack { reason: ReasonCode::SUCCESS, ..Connack::default() };
                Packet::Connack(Box::new(connack)).encode(version, &mut answer)?;
            }
            Packet::Subscribe(subscribe) => {
                let reasons = subscribe.filters.iter().map(|f| granted(f.maximum_qos)).collect();
                for filter in subscribe.filters {
                    subscribers.insert(filter.filter, at);
                }
                Packet::Suback(Suback {
                    packet_id: subscribe.packet_id,
                    reason_string: None,
                    user_properties: Vec::new(),
                    reasons,
                })
                .encode(version, &mut answer)?;
            }
            Packet::Publish(Publish { topic, .. }) => {
                let other = *subscribers.get(topic).context("a topic that is subscribed to")?;
                ends[at].other = Some(other);
                ends[other].other = Some(at);
                continue;
            }
            Packet::Pingreq => Packet::Pingresp.encode(version, &mut answer)?,
            Packet::Disconnect(_) => return Ok(()),
            other => bail!("{other:?} from a client that introduces itself"),
        }
        ends[at].socket.write_all(&answer)?;
        read = &read[packet_bytes..];
    }
    Ok(())
}

fn granted(qos: QoS) -> ReasonCode {
    match qos {
        QoS::AtMostOnce => ReasonCode::SUCCESS,
        QoS::AtLeastOnce => ReasonCode::GRANTED_QOS_1,
        QoS::ExactlyOnce => ReasonCode::GRANTED_QOS_2,
    }
}

/// The address that a relay prints.
///
/// # Errors
/// It printed none.
pub fn address_of(child: &mut Child) -> anyhow::Result<String> {
    let stdout = child.stdout.take().context("its output was asked for")?;
    let mut line = String::new();
    BufReader::new(stdout).read_line(&mut line).context("the relay's address")?;
    Ok(line.trim().to_owned())
}
