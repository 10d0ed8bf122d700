//! Shares of identities: charges for their memory, and the consequences of a share that is used up.

use std::sync::Arc;

use super::{Broker, ConnectionKey};
use crate::{
    accounts::Account,
    budget::{Charge, PartialCharge},
    config::Overflow,
    connection::PassedOver,
    message::{Message, MessageRef},
    queue::Queued,
    session::Session,
    session_state::SessionState,
    shared::Shared,
    slab::Key,
};

/// Free part of a share, relative to all memory, before sessions that have been away for long give way to others.
const FREE_PART: u64 = 16;

impl Broker {
    /// Takes bytes from the node's budget and from a share of it.
    pub(super) fn charge_in(
        &mut self,
        account: Option<&Arc<Account>>,
        bytes: u64,
    ) -> Option<Charge> {
        if let Some(account) = account
            && !self.shared.share_allows(account, false, bytes)
        {
            self.shared.note_over_share(account);
            return None;
        }
        self.charge(bytes).map(|charge| charge.of(account))
    }

    /// Holds a message without subscribers, such as a will.
    pub(super) fn hold_in(
        &mut self,
        account: Option<&Arc<Account>>,
        message: &MessageRef<'_>,
    ) -> Option<Arc<Message>> {
        let charge = self.charge_in(account, message.charge_bytes())?;
        Some(message.hold_charged(charge))
    }

    /// Takes bytes from the node's budget for what the caller keeps of packets of a connection that are not whole, from the half
    /// of it that all such packets may take, and from the share of its identity; none if there is no room. They are given back
    /// when the charge is dropped.
    pub fn charge_partial(&mut self, key: ConnectionKey, bytes: u64) -> Option<PartialCharge> {
        self.charge_more(key, 0, bytes).ok()
    }

    /// The same for a packet that holds `own` bytes already. One packet may use the whole allowance for packets, if it is the
    /// only one of its identity: a packet of the announced maximum size must be possible.
    ///
    /// # Errors
    /// There is no room for it, or its identity has its share.
    pub(super) fn charge_more(
        &mut self,
        key: ConnectionKey,
        own: u64,
        bytes: u64,
    ) -> Result<PartialCharge, PassedOver> {
        let account = self.conversation_ref(key).and_then(|it| it.session.account.clone());
        let shared = self.shared.clone();
        let half = shared.receiving();
        if bytes > half.limit() {
            return Err(PassedOver::NoRoom); // There never is, so no other identity is to blame.
        }
        if let Some(account) = &account
            && !shared.partial_share_allows(account, own, bytes)
        {
            shared.note_over_share(account);
            return Err(PassedOver::OverShare);
        }
        let half = half.charge(bytes).ok_or(PassedOver::NoRoom)?;
        let charge = self.charge(bytes).ok_or(PassedOver::NoRoom)?;
        Ok(PartialCharge::new(charge, half, account.as_ref()))
    }

    /// Has a session count in the share of whose it is now.
    pub(super) fn set_account(&mut self, key: Key) {
        let Some(session) = self.sessions.get_mut(key) else { return };
        let account = self.shared.account_of(&session.identity);
        if session.account.as_ref().map(Arc::as_ptr) != account.as_ref().map(Arc::as_ptr) {
            let is_left = session.is_left_behind;
            session.set_left_behind(false);
            session.filter_charge =
                session.filter_charge.take().map(|charge| charge.of_nobody().of(account.as_ref()));
            session.account = account;
            session.set_left_behind(is_left);
        }
        session.count_in_share();
    }
}

impl SessionState {
    /// Whether `bytes` more are not to wait for it, since its identity has its share: where they could be neither dropped nor sent
    /// to disk.
    #[cold]
    pub(super) fn is_over_share(
        &self,
        shared: &Shared,
        exception: Option<Overflow>,
        bytes: u64,
    ) -> bool {
        let account = self.account.read().expect("no panic while it is set");
        let Some(account) = &*account else { return false };
        self.overflow(exception).is_firm()
            && is_bounded(shared, account, bytes)
            && !shared.share_allows(account, self.is_connected(), bytes)
    }

    /// Counts that something was refused to its identity, since that has its share.
    #[cold]
    pub(super) fn note_over_share(&self, shared: &Shared) {
        if let Some(account) = &*self.account.read().expect("no panic while it is set") {
            shared.note_over_share(account);
        }
    }
}

impl Session {
    /// Whether its identity has its share, so that a message of `bytes` is not to wait for it. They are charged already.
    pub(super) fn is_over_share(&self, shared: &Shared, queued: &Queued, bytes: u64) -> bool {
        if !shared.may_be_over_share(bytes) || !queued.overflow.is_firm() || self.is_idle {
            return false;
        }
        let account = self.account.as_ref().filter(|_| self.is_kept());
        account.is_some_and(|account| {
            is_bounded(shared, account, bytes)
                && !shared.share_holds(account, self.connection.is_some(), bytes)
        })
    }

    /// Whether its identity has its share, so that a message that is kept for nobody is not to hold memory until the client has read
    /// it.
    #[cold]
    pub(super) fn is_over_share_as_it_leaves(&self, shared: &Shared, queued: &Queued) -> bool {
        let bytes = queued.begun().charged();
        let Some(account) = self.account.as_ref().filter(|_| shared.may_be_over_share(bytes))
        else {
            return false;
        };
        let is_over =
            is_bounded(shared, account, bytes) && !shared.share_holds(account, true, bytes);
        if is_over {
            shared.note_over_share(account);
        }
        is_over
    }

    /// Whether its identity has its share, or nearly, and some of that waits here.
    pub(crate) fn holds_share(&self, shared: &Shared) -> bool {
        let bytes = shared.budget().limit() / FREE_PART;
        let account = self.account.as_ref().filter(|_| self.queue.firm_bytes() > 0);
        shared.may_be_over_share(bytes)
            && account.is_some_and(|account| !shared.share_allows(account, false, bytes))
    }

    /// Has what waits for it count in the share of its identity, if it is neither given up for others who need memory nor ends with
    /// its connection.
    pub(crate) fn count_in_share(&mut self) {
        let account = self.account.clone().filter(|_| self.is_kept());
        *self.state.account.write().expect("no panic while it is set") = account.clone();
        self.inflight.set_account(account.clone(), self.connection.is_some());
        self.queue.set_account(account.filter(|_| !self.is_idle));
        self.queue.set_disk_account(self.account.clone());
    }

    /// Its connection has ended, or a new one has come.
    pub(crate) fn set_left_behind(&mut self, is_left: bool) {
        if self.is_left_behind != is_left {
            self.is_left_behind = is_left;
            if let Some(account) = &self.account {
                if is_left { account.add_session() } else { account.subtract_session() }
            }
        }
    }
}

/// Whether a message of `bytes` has to be within its share. One alone may be larger, or it could never be sent; and there is no room
/// for one that is larger than all memory.
fn is_bounded(shared: &Shared, account: &Account, bytes: u64) -> bool {
    account.bytes() > 0 && bytes <= shared.budget().limit()
}
