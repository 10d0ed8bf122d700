//! Bytes that a node may hold for payloads.

use std::sync::{
    Arc,
    atomic::{AtomicU64, Ordering},
};

use crate::accounts::Account;

/// A hard bound on bytes, shared by all shards of a node.
///
/// Always true: the sum of all live [`Charge`]s is at most the limit, or what a restart brought back if that is more. Beyond it goes
/// only what the disk calls for: a place for each message there, and one message for each subscriber whose messages come back; and what
/// was in flight of bundles when a connection ended, until it is acknowledged.
#[derive(Clone, Debug)]
pub struct Budget {
    state: Arc<State>,
}

#[derive(Debug)]
struct State {
    limit: u64,
    used: AtomicU64,
    peak: AtomicU64,
    refused: AtomicU64,
    messages: AtomicU64,
}

/// Bytes taken from a budget; given back when dropped.
#[derive(Debug)]
pub struct Charge {
    bytes: u64,
    is_of_message: bool,
    state: Arc<State>,
    /// The account that they also count in.
    account: Option<Arc<Account>>,
}

impl Budget {
    /// A budget of `limit` bytes.
    pub fn new(limit: u64) -> Self {
        let state = State {
            limit,
            used: AtomicU64::new(0),
            peak: AtomicU64::new(0),
            refused: AtomicU64::new(0),
            messages: AtomicU64::new(0),
        };
        Self { state: Arc::new(state) }
    }

    /// Takes `bytes`, or nothing if that would exceed the limit, which is counted.
    pub fn charge(&self, bytes: u64) -> Option<Charge> {
        let state = &self.state;
        let taken = state.used.fetch_update(Ordering::AcqRel, Ordering::Acquire, |used| {
            used.checked_add(bytes).filter(|sum| *sum <= state.limit)
        });
        match taken {
            Ok(before) => {
                state.peak.fetch_max(before + bytes, Ordering::Relaxed);
                Some(Charge { bytes, is_of_message: false, state: state.clone(), account: None })
            }
            Err(_) => {
                state.refused.fetch_add(1, Ordering::Relaxed);
                None
            }
        }
    }

    /// Takes `bytes`, whether or not there is room.
    pub(crate) fn charge_beyond(&self, bytes: u64) -> Charge {
        let state = &self.state;
        let before = state.used.fetch_add(bytes, Ordering::AcqRel);
        state.peak.fetch_max(before + bytes, Ordering::Relaxed);
        Charge { bytes, is_of_message: false, state: state.clone(), account: None }
    }

    /// The limit in bytes.
    pub fn limit(&self) -> u64 {
        self.state.limit
    }

    /// Bytes held now.
    pub fn used(&self) -> u64 {
        self.state.used.load(Ordering::Acquire)
    }

    /// Most bytes held at any time.
    pub fn peak(&self) -> u64 {
        self.state.peak.load(Ordering::Relaxed)
    }

    /// How often a charge was refused.
    pub fn refused(&self) -> u64 {
        self.state.refused.load(Ordering::Relaxed)
    }

    /// Messages held now, each once however many wait for it; those aside that are held in a bundle.
    pub fn messages(&self) -> u64 {
        self.state.messages.load(Ordering::Relaxed)
    }
}

impl Charge {
    /// Takes over what another one of the same budget and account holds.
    pub(crate) fn absorb(&mut self, mut other: Self) {
        debug_assert!(Arc::ptr_eq(&self.state, &other.state), "of the same budget");
        debug_assert!(
            self.account.as_ref().map(Arc::as_ptr) == other.account.as_ref().map(Arc::as_ptr),
            "of the same account"
        );
        self.bytes += std::mem::take(&mut other.bytes);
    }

    /// Gives back what it holds beyond `bytes`.
    pub(crate) fn shrink_to(&mut self, bytes: u64) {
        let beyond = self.bytes.saturating_sub(bytes);
        self.bytes -= beyond;
        self.state.used.fetch_sub(beyond, Ordering::AcqRel);
        if let Some(account) = &self.account {
            account.subtract(beyond);
        }
    }

    /// The same bytes, which count in the share of `account` as well from now on.
    pub(crate) fn of(mut self, account: Option<&Arc<Account>>) -> Self {
        if let Some(account) = account {
            account.add(self.bytes);
            self.account = Some(account.clone());
        }
        self
    }

    /// The same bytes, which count in no share any more.
    pub(crate) fn of_nobody(mut self) -> Self {
        if let Some(account) = self.account.take() {
            account.subtract(self.bytes);
        }
        self
    }

    /// Gives back all that it holds.
    pub(crate) fn give_back(&mut self) {
        let bytes = std::mem::take(&mut self.bytes);
        self.state.used.fetch_sub(bytes, Ordering::AcqRel);
        if let Some(account) = self.account.take() {
            account.subtract(bytes);
        }
        if std::mem::take(&mut self.is_of_message) {
            self.state.messages.fetch_sub(1, Ordering::Relaxed);
        }
    }

    /// How many bytes.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// The charge of a message, which counts as long as it is held.
    pub(crate) fn of_message(mut self) -> Self {
        if !self.is_of_message {
            self.is_of_message = true;
            self.state.messages.fetch_add(1, Ordering::Relaxed);
        }
        self
    }
}

/// Bytes of a packet that has not come whole, taken from a node's budget and from the half of it that all such packets may
/// take; given back when dropped.
#[derive(Debug)]
pub struct PartialCharge {
    charge: Charge,
    half: HalfCharge,
}

/// Of the half that packets may take which have not come whole.
#[derive(Debug)]
struct HalfCharge {
    charge: Charge,
    account: Option<Arc<Account>>,
}

impl PartialCharge {
    pub(crate) fn new(charge: Charge, half: Charge, account: Option<&Arc<Account>>) -> Self {
        if let Some(account) = account {
            account.add_partial(half.bytes);
        }
        let half = HalfCharge { charge: half, account: account.cloned() };
        Self { charge: charge.of(account), half }
    }

    /// Takes over what another one of the same packet holds: more of it has come.
    pub(crate) fn absorb(&mut self, more: Self) {
        let Self { charge, mut half } = more;
        self.charge.absorb(charge);
        self.half.charge.bytes += std::mem::take(&mut half.charge.bytes);
    }

    /// How many bytes.
    pub fn bytes(&self) -> u64 {
        self.charge.bytes()
    }

    /// The charge of the packet that has come whole.
    pub(crate) fn whole(self) -> Charge {
        self.charge.of_nobody()
    }
}

impl Drop for HalfCharge {
    fn drop(&mut self) {
        if let Some(account) = &self.account {
            account.subtract_partial(self.charge.bytes);
        }
    }
}

impl Drop for Charge {
    fn drop(&mut self) {
        self.give_back();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_sum_of_charges_stays_within_the_limit() {
        let budget = Budget::new(100);
        let first = budget.charge(60).unwrap();
        assert!(budget.charge(41).is_none());
        let second = budget.charge(40).unwrap();
        drop(first);
        assert_eq!((budget.used(), budget.peak(), budget.refused()), (40, 100, 1));
        assert!(budget.charge(u64::MAX).is_none());
        let message = second.of_message();
        assert_eq!(budget.messages(), 1);
        drop(message);
        assert_eq!((budget.used(), budget.messages()), (0, 0));
    }
}
