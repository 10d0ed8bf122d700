//! Retained messages that the subscriptions of one session are still owed.

use std::{
    collections::{HashMap, VecDeque},
    sync::Arc,
};

use tidegate_message::{Action, Authorize, Identity, Instant, Target};
use tidegate_topics::Cursor;
use tidegate_wire::mqtt::QoS;

use crate::{message::Message, retained::Kept, subscription::SubscriptionOptions};

/// Retained messages that a new subscription is still owed.
#[derive(Debug)]
pub(crate) struct RetainedScan {
    /// The subscription's own text, where it is not shared.
    pub(crate) filter: Arc<str>,
    pub(crate) cursor: Option<Cursor>,
    pub(crate) options: SubscriptionOptions,
    pub(crate) since: Instant,
    /// The generation of the routes from which on they lead to the subscription.
    pub(crate) routed_from: u64,
    /// [`Session::missed`](crate::session::Session::missed) when it was asked for.
    pub(crate) missed: u64,
    /// Whether the cursor has come to the end.
    pub(crate) is_done: bool,
    /// Found, and not yet in the queue.
    pub(crate) found: VecDeque<FoundRetained>,
}

impl RetainedScan {
    /// One that has looked at nothing yet.
    pub(crate) fn new(
        filter: &Arc<str>,
        options: SubscriptionOptions,
        since: Instant,
        routed_from: u64,
        missed: u64,
    ) -> Self {
        Self {
            filter: filter.clone(),
            cursor: None,
            options,
            since,
            routed_from,
            missed,
            is_done: false,
            found: VecDeque::new(),
        }
    }

    /// Whether the subscription is still owed that message, which is retained now.
    pub(crate) fn owes(&self, kept: &Kept, client_id: &Arc<str>, reached: Reached) -> bool {
        let is_own = kept.client.as_ref() == Some(client_id);
        // Each member sends its own retained messages to each other one.
        let is_of_peers = reached.is_peer && kept.message.is_from_peer;
        // That there is no value any more is news to other nodes alone.
        let is_mark = kept.is_mark() && !reached.is_peer && !reached.is_leaf;
        // The client identifiers of all sessions of one node have its key as their third level.
        let owner = |client: &str| client.split('/').nth(2).map(str::to_owned);
        let is_of_leaf = reached.is_leaf
            && kept.client.as_deref().is_some_and(|by| owner(by) == owner(client_id));
        let is_back = is_of_peers || is_of_leaf;
        let is_own = self.options.no_local && is_own;
        !(is_mark || is_own || is_back || self.had(kept, reached))
    }

    /// Whether the message went to the subscription when it was published, which was later, and was not dropped on the way as far as is
    /// known: rather one comes twice than not at all.
    fn had(&self, kept: &Kept, reached: Reached) -> bool {
        let qos = kept.message.qos.min(self.options.qos);
        // One of QoS 0 went nowhere while the session had no connection.
        let connected_from = if qos > QoS::AtMostOnce { 0 } else { reached.connected_from };
        kept.routed_by >= self.routed_from.max(connected_from)
            && kept.allowed_by == Some(reached.rules)
            && self.missed == reached.missed
    }
}

/// Where a session stands now, as far as that says which messages reached it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Reached {
    /// The generation of the rules: others may have denied it a message that these allow.
    pub(crate) rules: u64,
    /// [`Session::missed`](crate::session::Session::missed).
    pub(crate) missed: u64,
    /// [`RetainedScans::connected_from`].
    pub(crate) connected_from: u64,
    /// Whether it is a peer session.
    pub(crate) is_peer: bool,
    /// Whether it is of a leaf.
    pub(crate) is_leaf: bool,
}

/// A retained message that a subscription is owed, and by whose right it was published.
#[derive(Clone, Debug)]
pub(crate) struct FoundRetained {
    pub(crate) message: Arc<Message>,
    source: Option<Arc<Identity>>,
    allowed_by: Option<u64>,
}

impl FoundRetained {
    pub(crate) fn of(kept: &Kept) -> Self {
        let Kept { message, source, allowed_by, .. } = kept;
        Self { message: message.clone(), source: source.clone(), allowed_by: *allowed_by }
    }

    /// Whether its publisher may still publish it.
    pub(crate) fn is_still_allowed(&self, authorize: &dyn Authorize) -> bool {
        let Some(source) = &self.source else { return true };
        let topic = Target::Topic(&self.message.topic);
        self.allowed_by == Some(authorize.generation())
            || authorize.still_allows(source, Action::Publish, topic)
    }
}

/// Scans in the order in which they were asked for, one for each filter. Each call but the rare compaction takes the same time however
/// many there are, since one packet of a client may name a hundred thousand filters.
#[derive(Debug, Default)]
pub(crate) struct RetainedScans {
    /// Names of scans, and of some that are gone; a name may be here twice.
    order: VecDeque<Arc<str>>,
    scans: HashMap<Arc<str>, RetainedScan>,
    /// The generation of the routes from which on messages of QoS 0 reach the connection that its session has, or had last.
    pub(crate) connected_from: u64,
    /// [`Session::missed_of_peer`](crate::session::Session::missed_of_peer) when a peer was owed all the last time.
    pub(crate) made_up: u64,
}

impl RetainedScans {
    pub(crate) fn is_empty(&self) -> bool {
        self.scans.is_empty()
    }

    /// Begins a scan. One of the same filter that has not ended begins again, at its place.
    pub(crate) fn begin(&mut self, scan: RetainedScan) {
        let filter = scan.filter.clone();
        if self.scans.insert(filter.clone(), scan).is_none() {
            self.order.push_back(filter);
            self.compact();
        }
    }

    /// Ends the scan of a filter, if there is one.
    pub(crate) fn end(&mut self, filter: &str) {
        if self.scans.remove(filter).is_some() && self.scans.is_empty() {
            self.order = VecDeque::new();
        }
    }

    /// Has all scans send all that is retained, also where it seems to have reached the session when it was published.
    pub(crate) fn send_all(&mut self) {
        self.scans.values_mut().for_each(|scan| scan.routed_from = u64::MAX);
    }

    /// Takes the scan that is next.
    pub(crate) fn pop(&mut self) -> Option<RetainedScan> {
        loop {
            let filter = self.order.pop_front()?;
            if let Some(scan) = self.scans.remove(&filter) {
                return Some(scan);
            }
        }
    }

    /// Puts back the scan that was taken last.
    pub(crate) fn put_back(&mut self, scan: RetainedScan) {
        self.order.push_front(scan.filter.clone());
        self.scans.insert(scan.filter.clone(), scan);
    }

    /// Names of ended scans are taken out once they are more than half.
    fn compact(&mut self) {
        if self.order.len() <= 2 * self.scans.len() + 16 {
            return;
        }
        let mut seen = std::collections::HashSet::with_capacity(self.scans.len());
        self.order.retain(|filter| self.scans.contains_key(filter) && seen.insert(filter.clone()));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn scan(filter: &str, id: u32) -> RetainedScan {
        let options = SubscriptionOptions {
            qos: QoS::AtMostOnce,
            no_local: false,
            retain_as_published: false,
            is_written: false,
            id,
        };
        RetainedScan::new(&filter.into(), options, Instant::default(), 0, 0)
    }

    #[test]
    fn a_filter_has_one_scan_at_its_first_place_with_its_last_options() {
        let mut scans = RetainedScans::default();
        for (filter, id) in [("a", 1), ("b", 2), ("a", 3), ("c", 4)] {
            scans.begin(scan(filter, id));
        }
        scans.end("b");
        let first = scans.pop().unwrap();
        assert_eq!((&*first.filter, first.options.id), ("a", 3));
        scans.put_back(first);
        let left: Vec<String> =
            std::iter::from_fn(|| scans.pop()).map(|scan| scan.filter.to_string()).collect();
        assert_eq!(left, ["a", "c"]);
        assert!(scans.is_empty());
    }

    #[test]
    fn who_subscribes_and_unsubscribes_for_ever_leaves_nothing_behind() {
        let mut scans = RetainedScans::default();
        scans.begin(scan("stays", 0));
        for i in 0..10_000 {
            let filter = format!("f/{}", i % 3);
            scans.begin(scan(&filter, 0));
            scans.end(&filter);
        }
        assert!(scans.order.len() <= 32, "{} names of one scan", scans.order.len());
        assert_eq!(&*scans.pop().unwrap().filter, "stays");
        assert!(scans.pop().is_none());
    }
}
