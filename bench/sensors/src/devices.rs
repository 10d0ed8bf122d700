//! Devices behind one gateway: messages of one connection at an even pace, several packets a write, as a gateway has them.

use std::{
    io::{Read as _, Write as _},
    net::{SocketAddr, TcpStream},
    num::NonZeroU16,
    sync::atomic::{AtomicU64, Ordering::Relaxed},
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context as _, ensure};
use tidegate_load::sensors::{Generator, Workload};
use tidegate_wire::mqtt::{
    AckKind, Connect, ConnectProperties, FixedHeader, Packet, PublishHead, QoS, ReasonCode,
    Version, encode_ack,
};

/// Longest time without an answer.
const PATIENCE: Duration = Duration::from_secs(30);
/// How often it writes.
const TICK: Duration = Duration::from_millis(1);
/// Messages without an acknowledgement: identifiers end at 65,535.
const UNACKNOWLEDGED_MAX: u64 = 30_000;

/// The published load.
#[derive(Clone, Copy, Debug)]
pub struct Load {
    /// Of which application.
    pub workload: Workload,
    /// Devices, each with a topic.
    pub devices: u64,
    /// Seed of the generator.
    pub seed: u64,
    /// Quality of service.
    pub qos: QoS,
    /// Messages per second.
    pub rate: f64,
    /// For how long.
    pub time: Duration,
}

/// A connection to a broker with MQTT 3.1.1, which all speak.
fn connect(address: SocketAddr, client_id: &str) -> anyhow::Result<TcpStream> {
    let mut stream =
        TcpStream::connect(address).with_context(|| format!("connecting to {address}"))?;
    stream.set_nodelay(true)?;
    stream.set_read_timeout(Some(PATIENCE))?;
    let connect = Connect {
        version: Version::V4,
        bridge: false,
        clean_start: true,
        keep_alive: 0,
        client_id: client_id.to_owned(),
        will: None,
        username: None,
        password: None,
        properties: ConnectProperties::default(),
    };
    let mut bytes = Vec::new();
    Packet::Connect(Box::new(connect)).encode(Version::V4, &mut bytes)?;
    stream.write_all(&bytes)?;
    let mut connack = [0; 4];
    stream.read_exact(&mut connack).context("waiting for CONNACK")?;
    ensure!(connack[0] == 0x20 && connack[3] == 0, "{address} refuses a client: {connack:?}");
    Ok(stream)
}

/// Publishes a load to a broker and returns how many messages it was, once all of QoS 1 are acknowledged. `each` sees every message.
///
/// # Errors
/// The broker goes, or does not answer.
pub fn publish(
    address: SocketAddr,
    load: &Load,
    mut each: impl FnMut(&[u8], &[u8]),
) -> anyhow::Result<u64> {
    let mut stream = connect(address, "bench-devices")?;
    let acknowledged = AtomicU64::new(0);
    let is_over = AtomicU64::new(u64::MAX);
    let mut reading = stream.try_clone()?;
    thread::scope(|scope| {
        let reader = scope.spawn(|| -> anyhow::Result<()> {
            if load.qos == QoS::AtMostOnce {
                return Ok(());
            }
            let mut bytes = vec![0; 64 << 10];
            // All packets are PUBACKs of four bytes.
            let mut read = 0_u64;
            while acknowledged.load(Relaxed) < is_over.load(Relaxed) {
                let count = reading.read(&mut bytes).context("waiting for PUBACK")?;
                ensure!(count > 0, "the broker closed the connection");
                read += count as u64;
                acknowledged.store(read / 4, Relaxed);
            }
            Ok(())
        });
        let mut generator = Generator::new(load.workload, load.devices, load.seed);
        let (mut topic, mut payload, mut out) = (Vec::new(), Vec::new(), Vec::new());
        let began = Instant::now();
        let mut sent = 0_u64;
        let total = (load.rate * load.time.as_secs_f64()) as u64;
        let written: anyhow::Result<()> = loop {
            let due = ((began.elapsed().as_secs_f64() * load.rate) as u64).min(total);
            while sent < due
                && (load.qos == QoS::AtMostOnce
                    || sent - acknowledged.load(Relaxed) < UNACKNOWLEDGED_MAX)
            {
                topic.clear();
                payload.clear();
                generator.next(&mut topic, &mut payload);
                each(&topic, &payload);
                let id = (load.qos != QoS::AtMostOnce)
                    .then(|| NonZeroU16::new((sent % 65_535) as u16 + 1))
                    .flatten();
                let name = std::str::from_utf8(&topic).context("topics are ASCII")?;
                PublishHead {
                    dup: false,
                    qos: load.qos,
                    retain: false,
                    topic: name,
                    packet_id: id,
                    topic_alias: None,
                    message_expiry: None,
                    subscription_ids: &[],
                    forwarded: &[],
                    payload_bytes: payload.len(),
                }
                .encode(Version::V4, &mut out);
                out.extend_from_slice(&payload);
                sent += 1;
                if out.len() >= 64 << 10 {
                    break;
                }
            }
            if out.is_empty() {
                if sent == total {
                    break Ok(());
                }
                if reader.is_finished() && load.qos != QoS::AtMostOnce {
                    break Ok(());
                }
                thread::sleep(TICK);
                continue;
            }
            if let Err(error) = stream.write_all(&out) {
                break Err(error).context("publishing");
            }
            out.clear();
        };
        if written.is_ok() && load.qos != QoS::AtMostOnce {
            is_over.store(sent, Relaxed);
            let began = Instant::now();
            while !reader.is_finished() && began.elapsed() < PATIENCE {
                if acknowledged.load(Relaxed) >= sent {
                    // It may still wait for more than there is.
                    stream.shutdown(std::net::Shutdown::Both)?;
                    break;
                }
                thread::sleep(TICK);
            }
        }
        let read = reader.join().map_err(|_| anyhow::anyhow!("the reader panicked"))?;
        written?;
        if acknowledged.load(Relaxed) < sent && load.qos != QoS::AtMostOnce {
            read?;
        }
        ensure!(sent == total, "only {sent} of {total} messages were taken in time");
        Ok(sent)
    })
}

/// Subscribes to everything at a broker, acknowledges and counts.
#[derive(Debug)]
pub struct Counter {
    stream: TcpStream,
    input: Vec<u8>,
}

impl Counter {
    /// Subscribes.
    ///
    /// # Errors
    /// The broker does not let it.
    pub fn subscribe(address: SocketAddr, qos: QoS) -> anyhow::Result<Self> {
        let mut stream = connect(address, "bench-counter")?;
        stream.write_all(&[0x82, 6, 0, 1, 0, 1, b'#', qos as u8])?;
        let mut suback = [0; 5];
        stream.read_exact(&mut suback).context("waiting for SUBACK")?;
        ensure!(suback[0] == 0x90 && suback[4] < 0x80, "{address} refuses a subscription");
        Ok(Self { stream, input: Vec::new() })
    }

    /// Reads until `count` messages have come, or none for a while. Returns how many came.
    ///
    /// # Errors
    /// The broker closes the connection, or sends bytes that are not a packet.
    pub fn count(&mut self, count: &AtomicU64, until: &AtomicU64) -> anyhow::Result<()> {
        let mut bytes = vec![0; 256 << 10];
        let mut out = Vec::new();
        self.stream.set_read_timeout(Some(Duration::from_millis(100)))?;
        let mut quiet = Instant::now();
        while count.load(Relaxed) < until.load(Relaxed) && quiet.elapsed() < PATIENCE {
            match self.stream.read(&mut bytes) {
                Ok(0) => anyhow::bail!("the broker closed the connection"),
                Ok(read) => self.input.extend_from_slice(&bytes[..read]),
                Err(error)
                    if matches!(
                        error.kind(),
                        std::io::ErrorKind::WouldBlock | std::io::ErrorKind::TimedOut
                    ) =>
                {
                    continue;
                }
                Err(error) => return Err(error).context("waiting for messages"),
            }
            quiet = Instant::now();
            let mut used = 0;
            while let Some(header) = FixedHeader::decode(&self.input[used..], 1 << 20)?
                && self.input.len() >= used + header.packet_bytes()
            {
                let body = &self.input[used + header.header_bytes..used + header.packet_bytes()];
                if let Packet::Publish(publish) = Packet::decode(Version::V4, header.first, body)? {
                    if let Some(id) = publish.packet_id {
                        encode_ack(Version::V4, AckKind::Puback, id, ReasonCode::SUCCESS, &mut out);
                    }
                    count.fetch_add(1, Relaxed);
                }
                used += header.packet_bytes();
            }
            self.input.drain(..used);
            self.stream.write_all(&out)?;
            out.clear();
        }
        Ok(())
    }
}
