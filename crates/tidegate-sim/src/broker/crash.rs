//! The node ends without a word, and begins again with what its journals have.

use std::{collections::BTreeMap, mem, sync::Arc, time::Duration};

use rand::RngExt;
use tidegate_broker::{Broker, Shared};
use tidegate_journal::Recovered;
use tidegate_message::AllowAll;

use super::{
    operators::Operators,
    plan::Keeps,
    site::{Event, Site, Stage},
    tape::Tape,
};

/// Longest time from a record to its being durable.
const FLUSH: Duration = Duration::from_millis(10);

impl Site {
    /// The shards of a node, without sessions.
    pub(super) fn begin_shards(&mut self) {
        let now = self.agenda.now();
        let Self { plan, shared, seed, disk, .. } = self;
        let shards = (0..plan.shards).map(|shard| {
            let mut broker = Broker::new(shared.clone(), shard, *seed, now);
            if let Some(change) = plan.operators {
                broker.set_admission(Some(Box::new(Operators { change })));
            }
            broker.set_spill(disk.clone().map(|disk| disk as _));
            broker
        });
        self.shards = shards.collect();
    }

    /// Has them written down from here on.
    pub(super) fn keep(&mut self) {
        let Some(keeps) = self.plan.keeps else { return };
        self.tapes = (0..self.plan.shards).map(|_| Tape::new(keeps == Keeps::Disk)).collect();
        for (shard, tape) in self.shards.iter_mut().zip(&self.tapes) {
            shard.keep(Box::new(tape.clone()));
            shard.flush_journal().expect("tapes do not fail");
        }
        self.flushing = vec![false; self.plan.shards];
    }

    /// A journal has so much room and no more for a while, or has all again.
    pub(super) fn fill(&mut self) {
        let shard = self.random.random_range(0..self.tapes.len());
        let rooms = [None, None, Some(0), Some(300), Some(3_000), Some(20_000), Some(100_000)];
        let room = rooms[self.random.random_range(0..rooms.len())];
        self.tapes[shard].limit(room);
        self.note(
            self.clients.len(),
            "has room",
            [shard as u64, room.unwrap_or(usize::MAX) as u64],
        );
    }

    /// Records written become durable in a while.
    pub(super) fn flush_later(&mut self) {
        for shard in 0..self.tapes.len() {
            if let Some(end) = self.tapes[shard].waits().filter(|_| !self.flushing[shard]) {
                self.flushing[shard] = true;
                let time = self.time(FLUSH);
                self.agenda.after(time, Event::Flushed(shard, end));
            }
        }
    }

    pub(super) fn flushed(&mut self, shard: usize, end: usize) {
        self.flushing[shard] = false;
        self.tapes[shard].flushed(end);
        self.shards[shard].durable();
    }

    /// A client has come to its session. At times the node ends before all of what was written until then is durable: what an earlier
    /// connection left is sent again in that time.
    pub(super) fn may_crash_soon(&mut self) {
        if self.is_live
            && self.plan.keeps == Some(Keeps::Disk)
            && !self.plan.fills
            && self.random.random_ratio(1, 12)
        {
            let time = self.time(2 * FLUSH);
            self.agenda.after(time, Event::Crash);
        }
    }

    /// The node's process is killed, or its power goes.
    pub(super) fn crash(&mut self) {
        let loses_power = self.plan.keeps == Some(Keeps::Disk) && self.random.random();
        self.crashes += 1;
        self.unwritten += self.tapes.iter().map(Tape::failures).sum::<u64>();
        self.ends += 1;
        self.lossy_ends += 1;
        self.note(self.clients.len(), "crashes", [u64::from(loses_power), self.crashes]);
        for at in 0..self.links.len() {
            let link = &mut self.links[at];
            let stage = mem::replace(&mut link.stage, Stage::Closed);
            if stage == Stage::Closed {
                continue;
            }
            link.is_cut = true;
            (link.is_paused, link.is_full, link.is_blocked) = (false, false, false);
            link.up.cut(self.agenda.now(), &mut self.random);
            if loses_power {
                link.down.cut(self.agenda.now(), &mut self.random);
            } else {
                link.down.finish(self.agenda.now());
            }
            // The node has its will, and finds that its connection has ended.
            if let (Some(will), Stage::Open(..)) = (link.will.take(), stage) {
                self.oracle.sent(will);
            }
            self.part(at);
            let client = self.links[at].client;
            if self.current[client].is_none() {
                self.oracle.gone(client);
            }
            self.schedule(at);
        }
        self.by_key.iter_mut().for_each(BTreeMap::clear);
        self.agenda.retain(|event| !matches!(event, Event::Peers(..) | Event::Flushed(..)));
        self.batches = 0;
        if loses_power {
            for tape in &self.tapes {
                tape.lose_power(&mut self.random);
            }
        }
        self.oracle.crashed(loses_power);
        self.remember_counts();
        let recovered = Recovered::join(self.tapes.iter().map(Tape::replay).collect());
        // Where it had no room for whose a session is, nothing was promised to that.
        let may_lack = loses_power || self.plan.fills;
        assert!(may_lack || recovered.found.lost == 0, "{:?}", recovered.found);
        let config = self.plan.config.clone();
        let placement = self.placement.clone();
        self.shared = Shared::placed(
            config,
            self.plan.shards,
            Arc::new(AllowAll),
            self.agenda.now(),
            placement,
        );
        self.begin_shards();
        Broker::restore_all(&mut self.shards, self.agenda.now(), recovered);
        self.keep();
        self.peers_at.fill(self.agenda.now());
        self.restored_bytes = self.shared.budget().used();
    }

    /// A process takes its counts with it.
    fn remember_counts(&mut self) {
        self.counted = self.statistics();
        for session in self.shards.iter().flat_map(|shard| shard.sessions(usize::MAX)) {
            let client = self.clients.iter().position(|client| *client.name == *session.client_id);
            let client = client.expect("only clients have sessions");
            self.dropped[client] += session.dropped.total();
        }
    }
}
