//! The shell of the simulated brokers: reads, writes, opens and closes.

use std::{io::IoSlice, num::NonZeroU16, sync::Arc};

use tidegate_broker::{
    CONTROL_BYTES_MAX, ConnectRequest, ConnectionKey, Output, SLICES_MAX, WRITE_BYTES_MAX,
};
use tidegate_message::{Identity, Instant};
use tidegate_wire::mqtt::{Connect, FixedHeader, Packet, Publish, ReasonCode, Version};

use super::site::{Event, LINGER, Link, Site, Stage, Way};

/// Writes to one connection before the others have their turn.
const WRITES_MAX: usize = 16;
/// Answers that wait for a client before it is not read from.
const ANSWER_BYTES_MAX: usize = 64 << 10;

impl Site {
    /// Moves one direction of a connection, and lets who reads there read.
    pub(super) fn step(&mut self, at: usize, way: Way) {
        let link = &mut self.links[at];
        if link.scheduled[way as usize].is_some_and(|at| at <= self.agenda.now()) {
            link.scheduled[way as usize] = None;
        }
        match way {
            Way::Up => {
                link.up.step(self.agenda.now(), &link.path, &mut self.random);
                self.read(at);
            }
            Way::Down => {
                link.down.step(self.agenda.now(), &link.path, &mut self.random);
                if let Stage::Open(shard, key) = link.stage
                    && link.is_blocked
                    && link.down.is_writable()
                {
                    link.is_blocked = false;
                    self.shards[shard].writable(key);
                }
                self.hear(at);
            }
        }
        self.schedule(at);
    }

    // ---- reading

    fn read(&mut self, at: usize) {
        let link = &mut self.links[at];
        match link.stage {
            Stage::Closed => return link.up.unread.clear(),
            Stage::Opening => {
                link.input.append(&mut link.up.unread);
                self.open(at);
            }
            Stage::Open(shard, key) => {
                let broker = &mut self.shards[shard];
                link.is_full = broker.answer_bytes(key) > ANSWER_BYTES_MAX;
                if link.is_paused || link.is_full {
                    return;
                }
                link.input.append(&mut link.up.unread);
                let taken = broker.receive(self.agenda.now(), key, &link.input);
                link.input.drain(..taken);
                assert!(link.input.len() <= CONTROL_BYTES_MAX, "{} bytes left", link.input.len());
            }
        }
        let link = &self.links[at];
        if link.up.is_over(self.agenda.now()) && link.up.unread.is_empty() {
            self.drop_link(at);
        }
    }

    /// Looks for the CONNECT.
    fn open(&mut self, at: usize) {
        let link = &mut self.links[at];
        let header = FixedHeader::decode(&link.input, usize::MAX).expect("our clients' bytes");
        let Some(header) = header.filter(|header| header.packet_bytes() <= link.input.len()) else {
            return;
        };
        let packet: Vec<u8> = link.input.drain(..header.packet_bytes()).collect();
        let connect =
            Connect::decode(&packet[header.header_bytes..]).expect("our clients' CONNECT");
        let client = link.client;
        link.is_clean = connect.clean_start;
        link.is_kept = match connect.version {
            Version::V5 => connect.properties.session_expiry.unwrap_or(0) > 0,
            Version::V3 | Version::V4 => !connect.clean_start,
        };
        // A session that is taken over may have a will.
        let is_former = |former: &usize| self.links[*former].client == client;
        let former = (0..at).rev().filter(is_former).find(|former| self.is_open(*former));
        let will = former.and_then(|former| self.publishes_will(former));
        let shard = self.shared.shard_of(&connect.client_id);
        let request = ConnectRequest {
            identity: Identity::anonymous(&connect.client_id),
            connect,
            config: Arc::new(self.plan.clients[client].session.clone()),
            authentication_data: None,
        };
        match self.shards[shard].connect(self.agenda.now(), request) {
            Ok(key) => {
                self.published_will(will);
                self.links[at].stage = Stage::Open(shard, key);
                self.by_key[shard].insert(key, at);
                self.current[client] = Some(at);
                self.oracle.comes(client);
                self.may_crash_soon();
                // CONNACK tells whose session it is, even if the connection has ended already.
                self.flush(at, shard, key);
                self.read(at);
            }
            Err(refused) => {
                assert_eq!(refused.reason, ReasonCode::QUOTA_EXCEEDED);
                let link = &mut self.links[at];
                link.down.write(&refused.connack);
                link.down.finish(self.agenda.now());
                link.stage = Stage::Closed;
            }
        }
    }

    /// The client reads.
    fn hear(&mut self, at: usize) {
        let link = &mut self.links[at];
        let client = link.client;
        if self.clients[client].link != Some(at) {
            return link.down.unread.clear();
        }
        if self.clients[client].deaf_until > self.agenda.now() {
            return;
        }
        let bytes = std::mem::take(&mut link.down.unread);
        if !bytes.is_empty() {
            let since = self.agenda.now().since(super::site::BEGIN);
            let Self { clients, oracle, trail, random, .. } = self;
            clients[client].receive(self.agenda.now(), since, &bytes, oracle, trail, random);
            self.speak(client);
        }
        if self.links[at].down.is_over(self.agenda.now()) {
            self.note(client, "is disconnected", [at as u64, 0]);
            self.links[at].up.finish(self.agenda.now());
            let within = if self.is_live { 3_000 } else { 10 };
            self.leave_link(client, std::time::Duration::from_millis(within));
        }
    }

    // ---- writing

    /// Lets each connection that has something write it; whether anything moved.
    pub(super) fn flush_all(&mut self, shard: usize) -> bool {
        let mut moved = false;
        for _ in 0..self.shards[shard].dirty_count() {
            let Some(key) = self.shards[shard].poll_dirty() else { break };
            moved = true;
            let at = self.by_key[shard][&key];
            self.flush(at, shard, key);
            self.end_if_flushed(at);
            if self.links[at].is_full {
                self.read(at);
            }
        }
        while let Some(output) = self.shards[shard].poll_output() {
            moved = true;
            self.handle_output(shard, output);
        }
        for other in 0..self.shards.len() {
            let mut batch = Vec::new();
            if self.shards[shard].poll_peers(other, &mut batch) {
                moved = true;
                let time = self.time(self.plan.peers_delay_max);
                let last = &mut self.peers_at[shard * self.plan.shards + other];
                *last = (*last).max(self.agenda.now() + time);
                let at = *last;
                self.batches += 1;
                self.agenda.at(at, Event::Peers(other, batch));
            }
        }
        moved
    }

    fn flush(&mut self, at: usize, shard: usize, key: ConnectionKey) {
        for _ in 0..WRITES_MAX {
            let (broker, link) = (&mut self.shards[shard], &mut self.links[at]);
            if broker.wants_link(self.agenda.now(), key) {
                broker.set_link(self.agenda.now(), key, link.down.state(&link.path));
            }
            let mut slices = [IoSlice::new(&[]); SLICES_MAX];
            let count = broker.transmit(self.agenda.now(), key, &mut slices);
            if count == 0 {
                return self.schedule(at);
            }
            let offered: usize = slices[..count].iter().map(|slice| slice.len()).sum();
            assert!(offered <= WRITE_BYTES_MAX && slices[..count].iter().all(|s| !s.is_empty()));
            let mut written = 0;
            for slice in &slices[..count] {
                let part = link.down.write(slice);
                link.written.extend_from_slice(&slice[..part]);
                written += part;
                if part < slice.len() {
                    break;
                }
            }
            link.is_blocked = written < offered;
            broker.transmitted(self.agenda.now(), key, written, link.is_blocked);
            self.look(at);
            if self.links[at].is_blocked {
                return self.schedule(at);
            }
        }
        self.shards[shard].writable(key);
        self.schedule(at);
    }

    /// Tells the oracle what the broker wrote.
    fn look(&mut self, at: usize) {
        let mut written = std::mem::take(&mut self.links[at].written);
        let mut rest = &written[..];
        while let Some(header) = FixedHeader::decode(rest, usize::MAX).expect("a header") {
            let Some(packet) = rest.get(..header.packet_bytes()) else { break };
            rest = &rest[header.packet_bytes()..];
            let link = &mut self.links[at];
            let body = &packet[header.header_bytes..];
            match Packet::decode(link.version, header.first, body).expect("it decodes") {
                Packet::Connack(connack) => {
                    let is_present = connack.session_present;
                    let (is_kept, is_clean) = (link.is_kept, link.is_clean);
                    self.oracle.connected(link.client, is_present, is_kept, is_clean);
                }
                Packet::Publish(publish) => {
                    let alias = publish.properties.topic_alias.map(NonZeroU16::get);
                    let mut topic = publish.topic.to_owned();
                    if let Some(alias) = alias {
                        if topic.is_empty() {
                            topic = link.aliases[&alias].clone();
                        } else {
                            link.aliases.insert(alias, topic.clone());
                        }
                    }
                    let client = link.client;
                    let is_current = self.current[client] == Some(at);
                    let publish = Publish { topic: &topic, ..publish };
                    self.oracle.wrote(client, &publish, is_current);
                }
                _ => {}
            }
        }
        let used = written.len() - rest.len();
        written.drain(..used);
        self.links[at].written = written;
    }

    // ---- ends

    fn handle_output(&mut self, shard: usize, output: Output) {
        let (Output::Close(key)
        | Output::Pause(key)
        | Output::Resume(key)
        | Output::Auth(key, _)
        | Output::Denied(key, _)
        | Output::Subscribed(key, ..)) = &output
        else {
            panic!("no word of clients is asked for")
        };
        let Some(&at) = self.by_key[shard].get(key) else { return };
        match output {
            Output::Close(key) => {
                self.note(self.links[at].client, "is closed", [at as u64, 0]);
                self.links[at].is_ending = true;
                if self.links[at].is_left {
                    // The goodbye, which parts it from its session at once.
                    let will = self.publishes_will(at);
                    self.published_will(will);
                }
                self.part(at);
                self.agenda.after(LINGER, Event::Linger(at));
                self.flush(at, shard, key);
                self.end_if_flushed(at);
            }
            Output::Pause(_) => self.links[at].is_paused = true,
            Output::Resume(_) => {
                self.links[at].is_paused = false;
                self.read(at);
                self.schedule(at);
            }
            Output::Auth(..) => panic!("our clients show nothing"),
            Output::Denied(..) => {}
            Output::Subscribed(..) => panic!("no SUBACK is held"),
            Output::Client(..) => unreachable!("looked at above"),
        }
    }

    fn end_if_flushed(&mut self, at: usize) {
        if let Stage::Open(shard, key) = self.links[at].stage
            && self.links[at].is_ending
            && self.shards[shard].is_flushed(key)
        {
            self.drop_link(at);
        }
    }

    pub(super) fn is_open(&self, at: usize) -> bool {
        matches!(self.links[at].stage, Stage::Open(..))
    }

    /// The session has this connection no more.
    pub(super) fn part(&mut self, at: usize) {
        let client = self.links[at].client;
        if self.current[client] == Some(at) {
            self.current[client] = None;
            self.oracle.parted(client, self.plan.clients[client].is_lasting());
        }
    }

    /// Ends a connection at once; bytes written still leave.
    pub(super) fn drop_link(&mut self, at: usize) {
        let stage = std::mem::replace(&mut self.links[at].stage, Stage::Closed);
        if let Stage::Open(shard, key) = stage {
            self.ends += 1;
            let is_flushed = self.shards[shard].is_flushed(key) && !self.links[at].is_ending;
            self.lossy_ends += u64::from(!is_flushed);
            let will = self.publishes_will(at);
            self.shards[shard].closed(self.agenda.now(), key);
            self.published_will(will);
            self.by_key[shard].remove(&key);
            self.part(at);
            let client = self.links[at].client;
            if self.current[client].is_none() {
                self.oracle.gone(client);
            }
        }
        self.links[at].down.finish(self.agenda.now());
        self.schedule(at);
    }

    /// A connection ends: its will, if it has one that may be published now or later, and whether it surely is now.
    fn publishes_will(&mut self, at: usize) -> Option<(u64, bool)> {
        let link = &mut self.links[at];
        let said = std::mem::take(&mut link.said_goodbye);
        let will = link.will.take()?;
        let client = link.client;
        // The connection may have ended by the goodbye, or by an error before it came.
        let is_sure = link.up.is_over(self.agenda.now())
            && link.up.is_empty()
            && !link.is_cut
            && self.plan.clients[client].keep_alive == 0
            && self.oracle.loses_nothing(client);
        if said && is_sure {
            return None;
        }
        self.oracle.sent(will);
        let is_delayed = link.version == Version::V5 && self.plan.clients[client].will != Some(0);
        Some((will, !said && !is_delayed))
    }

    fn published_will(&mut self, will: Option<(u64, bool)>) {
        if let Some((will, true)) = will {
            self.oracle.accepted(will, ReasonCode::SUCCESS);
        }
    }
}

impl Link {
    /// When to move a direction, if ever by itself.
    pub(super) fn next(&self, way: Way, now: Instant, is_heard: bool) -> Option<Instant> {
        let (pipe, is_noticed) = match way {
            Way::Up => (&self.up, self.stage == Stage::Closed),
            Way::Down => (&self.down, !is_heard),
        };
        let over =
            (!is_noticed && !self.is_paused && !self.is_full && pipe.is_over(now)).then_some(now);
        pipe.next(now, &self.path).or(over)
    }
}
