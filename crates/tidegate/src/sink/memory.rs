//! A ring in memory as a destination: for tests and benches. It claims no durability at all.

use std::{
    collections::VecDeque,
    sync::{Arc, Mutex, PoisonError},
};

use async_trait::async_trait;

use super::{Batch, Destination, Record, Refusal, Trouble};

/// The newest messages, up to a bound. Clones are the same ring.
#[derive(Clone, Debug)]
pub struct Ring {
    records: Arc<Mutex<VecDeque<Record>>>,
    capacity: usize,
}

/// Two are the same if they are one, or if nobody could tell them apart when they are begun.
impl PartialEq for Ring {
    fn eq(&self, other: &Self) -> bool {
        self.capacity == other.capacity
    }
}

impl Ring {
    /// A ring of at most `capacity` messages.
    pub fn new(capacity: usize) -> Self {
        Self { records: Arc::default(), capacity }
    }

    /// What it holds, the oldest first; it holds nothing then.
    pub fn take(&self) -> Vec<Record> {
        self.records.lock().unwrap_or_else(PoisonError::into_inner).drain(..).collect()
    }

    /// Messages that it holds.
    pub fn len(&self) -> usize {
        self.records.lock().unwrap_or_else(PoisonError::into_inner).len()
    }

    /// Whether it holds none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

#[async_trait]
impl Destination for Ring {
    async fn deliver(&mut self, batch: &Batch) -> Result<Vec<Refusal>, Trouble> {
        let mut records = self.records.lock().unwrap_or_else(PoisonError::into_inner);
        for record in batch.records() {
            if records.len() == self.capacity {
                records.pop_front();
            }
            records.push_back(record.clone());
        }
        Ok(Vec::new())
    }
}
