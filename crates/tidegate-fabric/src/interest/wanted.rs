//! The filters that another member wants messages for.

use std::{collections::BTreeSet, sync::Arc};

use tidegate_message::{TopicError, check_topic_filter, split_shared};
use tidegate_wire::Interests;

use super::FILTERS_MAX;

/// Levels of a filter; as many as there can be.
const LEVELS_MAX: usize = u16::MAX as usize;

/// The filters that a member wants, as its records come: in each, those that are over come first.
#[derive(Debug, Default)]
pub struct Wanted {
    filters: BTreeSet<Arc<str>>,
}

/// The filters that a member wants from now on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WantedFilters {
    /// The member's number of them, to answer with once messages are sent for all.
    pub generation: u64,
    /// All of them, in order.
    pub filters: Arc<[Arc<str>]>,
}

/// Why the records of a member are not taken.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum WantedError {
    /// More filters than any member offers.
    #[error(
        "a member wants messages for more than {FILTERS_MAX} filters; members offer wider ones instead"
    )]
    TooMany,
    /// A text that is no filter.
    #[error("a member wants messages for {filter:?}, which is no filter")]
    Filter {
        /// The text.
        filter: String,
        /// Why not.
        #[source]
        source: TopicError,
    },
}

impl Wanted {
    /// Takes a record; all filters once the last part of a change has come.
    ///
    /// # Errors
    /// [`WantedError`]: the link is to be ended.
    pub fn handle(&mut self, record: Interests) -> Result<Option<WantedFilters>, WantedError> {
        let Interests { generation, is_first, more, added, removed } = record;
        if is_first {
            self.filters.clear();
        }
        for filter in removed {
            self.filters.remove(&*filter);
        }
        for filter in added {
            let checked = match split_shared(&filter) {
                Ok(Some(shared)) => check_topic_filter(shared.filter, LEVELS_MAX),
                Ok(None) => check_topic_filter(&filter, LEVELS_MAX),
                Err(source) => Err(source),
            };
            if let Err(source) = checked {
                return Err(WantedError::Filter { filter, source });
            }
            self.filters.insert(filter.into());
            if self.filters.len() > FILTERS_MAX {
                return Err(WantedError::TooMany);
            }
        }
        if more {
            return Ok(None);
        }
        Ok(Some(WantedFilters { generation, filters: self.filters.iter().cloned().collect() }))
    }
}
