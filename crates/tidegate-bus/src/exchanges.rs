//! Numbers of published messages, and which of them were answered.

use std::{collections::VecDeque, ops::Range};

use tidegate_wire::mqtt::PacketId;

use crate::BusError;

/// Packet identifiers that there are: those of messages go round. Fewer messages may be open.
pub(crate) const IDS: u64 = u16::MAX as u64;

/// How far the messages of one connection were answered.
#[derive(Debug)]
pub(crate) struct Exchanges {
    /// Whether an answer stands for all messages before the one that it names as well.
    is_through: bool,
    begun: u64,
    /// Of the first message that is not answered.
    first: u64,
    /// Which ones are, from the first on; empty if answers stand for many.
    answered: VecDeque<bool>,
}

impl Exchanges {
    pub(crate) fn new(is_through: bool) -> Self {
        Self { is_through, begun: 0, first: 0, answered: VecDeque::new() }
    }

    /// The identifier by which the next message is answered.
    pub(crate) fn begin(&mut self) -> PacketId {
        let id = self.begun % IDS + 1;
        self.begun += 1;
        debug_assert!(self.open() < IDS, "an identifier is in use twice");
        if !self.is_through {
            self.answered.push_back(false);
        }
        PacketId::new(id as u16).expect("at least 1")
    }

    /// Messages that were ever begun.
    pub(crate) fn begun(&self) -> u64 {
        self.begun
    }

    /// Messages that were answered with all before them.
    pub(crate) fn first(&self) -> u64 {
        self.first
    }

    /// Messages from the first on that is not answered.
    pub(crate) fn open(&self) -> u64 {
        self.begun - self.first
    }

    /// An answer came; the numbers of the messages that it is for. Where one stands for many, it may say nothing new.
    ///
    /// # Errors
    /// [`BusError::Stray`].
    pub(crate) fn end(&mut self, id: PacketId) -> Result<Range<u64>, BusError> {
        let newly = (u64::from(id.get()) + IDS - self.first % IDS) % IDS;
        if newly > self.open() {
            return Err(BusError::Stray(id));
        }
        if self.is_through {
            let first = self.first;
            self.first += newly;
            return Ok(first..self.first);
        }
        let place = newly.checked_sub(1).ok_or(BusError::Stray(id))?;
        let number = self.first + place;
        let answered = &mut self.answered[place as usize];
        if std::mem::replace(answered, true) {
            return Err(BusError::Stray(id));
        }
        while self.answered.pop_front_if(|answered| *answered).is_some() {
            self.first += 1;
        }
        Ok(number..number + 1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn id(number: u16) -> PacketId {
        PacketId::new(number).expect("not zero")
    }

    #[test]
    fn an_answer_stands_for_all_before_it() {
        let mut exchanges = Exchanges::new(true);
        assert_eq!(exchanges.end(id(1)), Err(BusError::Stray(id(1))));
        let mut last = id(1);
        // More than once around.
        for round in 1..=7_u64 {
            for _ in 0..20_000 {
                last = exchanges.begin();
            }
            assert_eq!((exchanges.begun(), exchanges.open()), (round * 20_000, 20_000));
            let middle = (u64::from(last.get()) + IDS - 5_000 - 1) % IDS + 1;
            let first = (round - 1) * 20_000;
            assert_eq!(exchanges.end(id(middle as u16)), Ok(first..first + 15_000));
            assert_eq!(exchanges.open(), 5_000);
            exchanges.end(last).expect("it was published");
            // Again says nothing new.
            assert!(exchanges.end(last).expect("it was published").is_empty());
            assert_eq!((exchanges.first(), exchanges.open()), (round * 20_000, 0));
        }
        let next = id(last.get() % u16::MAX + 1);
        assert_eq!(exchanges.end(next), Err(BusError::Stray(next)));
        for _ in 1..IDS {
            last = exchanges.begin();
        }
        exchanges.end(last).expect("it was published");
        assert_eq!(exchanges.open(), 0);
    }

    #[test]
    fn answers_to_single_messages_come_in_any_order_and_once() {
        let mut exchanges = Exchanges::new(false);
        // More than once around.
        for round in 0..30_000_u64 {
            let ids: Vec<_> = (0..3).map(|_| exchanges.begin()).collect();
            let first = round * 3;
            assert_eq!(exchanges.end(ids[1]), Ok(first + 1..first + 2));
            assert_eq!((exchanges.first(), exchanges.open()), (first, 3));
            assert_eq!(exchanges.end(ids[1]), Err(BusError::Stray(ids[1])));
            assert_eq!(exchanges.end(ids[0]), Ok(first..first + 1));
            assert_eq!((exchanges.first(), exchanges.open()), (first + 2, 1));
            assert_eq!(exchanges.end(ids[2]), Ok(first + 2..first + 3));
            assert_eq!(exchanges.end(ids[2]), Err(BusError::Stray(ids[2])));
        }
    }
}
