//! An answer of several owners, and whether it is complete.

use std::collections::BTreeMap;

use crate::{
    contents::{Contents, Dot},
    rule::{Rule, Sentence},
    view::{Bucket, MemberId, View},
};

/// The replies of a bucket's owners to one question, in one view.
#[derive(Clone, Debug)]
pub struct Gathering<R> {
    owners: Vec<MemberId>,
    replies: BTreeMap<MemberId, Contents<R>>,
}

impl<R: Clone> Gathering<R> {
    /// No replies yet. A reply in another view does not belong to it.
    pub fn new(rule: Rule, view: &View, bucket: Bucket) -> Self {
        Self { owners: view.owners(bucket, rule.replicas), replies: BTreeMap::new() }
    }

    /// The owners that have not replied.
    pub fn missing(&self) -> impl Iterator<Item = MemberId> {
        self.owners.iter().copied().filter(|owner| !self.replies.contains_key(owner))
    }

    /// An owner that is in sync in the view, and was after the question was asked, has these contents.
    pub fn receive(&mut self, from: MemberId, contents: Contents<R>) {
        if self.owners.contains(&from) {
            self.replies.insert(from, contents);
        }
    }

    /// Whether the records are all that had been acknowledged when the question was asked, and none whose delete had been.
    pub fn is_complete(&self, rule: Rule) -> bool {
        self.replies.len() >= rule.quorum(self.owners.len())
    }

    /// The records of those that have replied.
    pub fn records(&self, rule: Rule) -> BTreeMap<Dot, R> {
        let mut replies = self.replies.values();
        let Some(mut all) = replies.next().cloned() else { return BTreeMap::new() };
        if !rule.has(Sentence::AnswerHasClocks) {
            return self.replies.values().flat_map(|reply| reply.records().clone()).collect();
        }
        replies.for_each(|reply| all.merge(reply));
        all.records().clone()
    }
}
