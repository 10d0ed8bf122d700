//! The clients of a node, for a service that finds those that connect at another node, too.

use std::sync::Arc;

use tidegate_broker::{ClientChange, ClientState};
use tidegate_message::Instant;
use tokio::sync::{Notify, mpsc};

use crate::{Bus, Host};

/// Changes that a service has not taken: it is told that it missed some where there are more.
const UNTAKEN_MAX: usize = 4096;

/// All clients of a node.
#[derive(Clone, Debug, Default)]
pub struct ClientList {
    /// Each once, in no order.
    pub clients: Vec<ClientState>,
    /// By shard, the last change that is among them.
    numbers: Vec<(usize, u64)>,
}

impl FromIterator<(usize, (u64, Vec<ClientState>))> for ClientList {
    /// Of what each shard says: its number, that of its last change, and its clients.
    fn from_iter<T: IntoIterator<Item = (usize, (u64, Vec<ClientState>))>>(shards: T) -> Self {
        let mut list = Self::default();
        for (shard, (number, clients)) in shards {
            list.clients.extend(clients);
            list.numbers.push((shard, number));
        }
        list
    }
}

/// Where a broker tells of clients that come and go.
#[derive(Clone, Debug)]
pub struct ClientWatcher {
    changes: mpsc::Sender<(usize, u64, ClientChange)>,
    missed: Arc<Notify>,
}

impl ClientWatcher {
    /// Tells of a change of that shard, of that number. One for which there is no room is missed, and the service learns so.
    pub fn tell(&self, shard: usize, number: u64, change: ClientChange) {
        if self.changes.try_send((shard, number, change)).is_err() {
            self.missed.notify_one();
        }
    }

    /// Whether the service is gone.
    pub fn is_gone(&self) -> bool {
        self.changes.is_closed()
    }
}

/// The clients that come and go. Dropped, it is told of none any more.
#[derive(Debug)]
pub struct ClientWatch {
    host: Arc<dyn Host>,
    changes: mpsc::Receiver<(usize, u64, ClientChange)>,
    missed: Arc<Notify>,
    /// By shard, the last change that was in a list.
    numbers: Vec<(usize, u64)>,
}

/// Something that a [`ClientWatch`] sees.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Watched {
    /// A change of the clients.
    Change(ClientChange),
    /// Some were missed: [`Bus::clients`] has all, and goes to [`ClientWatch::listed`].
    Missed,
}

impl Bus {
    /// Tells of clients that come and go from now on, those that belong to this node alone aside: parts, and clients with an identifier that
    /// this node gave them. One service can be told; a later one takes its place.
    pub fn watch_clients(&self) -> ClientWatch {
        let (sender, changes) = mpsc::channel(UNTAKEN_MAX);
        let missed = Arc::new(Notify::new());
        self.host.watch(ClientWatcher { changes: sender, missed: missed.clone() });
        ClientWatch { host: self.host.clone(), changes, missed, numbers: Vec::new() }
    }

    /// All clients that have a session; none once the broker has ended.
    pub async fn clients(&self) -> ClientList {
        self.host.clients().await
    }

    /// A newer connection of a client is at another node: the one here that began then ends, and its session with it where `ends_session`.
    pub fn taken_over(&self, client_id: &str, began: Instant, ends_session: bool) {
        self.host.taken_over(client_id, began, ends_session);
    }
}

impl ClientWatch {
    /// The next change; none once the broker has ended, or another service watches.
    ///
    /// # Cancel safety
    /// Nothing is lost.
    pub async fn next(&mut self) -> Option<Watched> {
        loop {
            let (shard, number, change) = tokio::select! {
                () = self.missed.notified() => return Some(Watched::Missed),
                change = self.changes.recv() => change?,
            };
            let listed = self.numbers.iter().find(|(of, _)| *of == shard);
            if listed.is_none_or(|(_, last)| *last < number) {
                return Some(Watched::Change(change));
            }
        }
    }

    /// Changes that are in that list are not told any more. None may be taken between the asking for the list and this.
    pub fn listed(&mut self, list: &ClientList) {
        self.numbers.clone_from(&list.numbers);
    }
}

impl Drop for ClientWatch {
    fn drop(&mut self) {
        self.changes.close();
        self.host.end_watch();
    }
}
