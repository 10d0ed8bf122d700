//! The numbers of a fabric and the sentences of its rule.

/// How many owners a bucket has, and how many of them a write needs.
#[derive(Clone, Copy, Debug)]
pub struct Rule {
    /// Owners of a bucket, where there are as many members.
    pub replicas: usize,
    /// Owners that have a write before it is acknowledged, the fewest that any write asks for. It survives one fewer that lose it.
    pub copies: usize,
    omitted: Option<Sentence>,
}

/// The sentences of the rule. Each is there since a run without it loses a record, brings a deleted one back, calls an answer complete
/// that is not, or never has a complete one again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sentence {
    /// An owner is in sync once it has the contents of a quorum of the owners of each earlier view, not of one of them.
    AsksQuorum,
    /// The quorum is of the owners of the *earlier* views, not of those of the view that is entered.
    AsksEarlierOwners,
    /// Contents count if they were read after their owner had entered the view: it acknowledges nothing in an earlier one any more.
    ReadsAfterFence,
    /// A quorum is a majority even where fewer owners would hold a copy of each record.
    QuorumIsMajority,
    /// An earlier view that another owner knows of counts as well: of a fork that is over, few know.
    LearnsHistory,
    /// A view is its records with their numbers, not the set of members that they come to.
    ViewIsNumbered,
    /// An owner that may have lost something counts for no view before that, and enters a view of its own.
    LossIsCounted,
    /// A process that begins has all of the one before it if a mark outside its folder says so, not because the machine still runs.
    KillIsShown,
    /// A process gives numbers to records under a start that is drawn by chance, not counted on its disk.
    StartIsChance,
    /// Contents that could be read in part alone have no clock but that of the records that are there.
    ClockIsRebuilt,
    /// An answer is merged by the clocks of its owners. The rows of one of them do not win over the clock of another.
    AnswerHasClocks,
    /// Where no quorum is left that lost nothing, all suffice, so that a site whose nodes all lost power comes back.
    AllSuffice,
    /// All are the members of the fabric, not just the owners in the earlier view: if those that lost something did so after they had
    /// entered a later view, the owners of that one are not among them.
    AllAreMembers,
    /// The copies of an acknowledged write were made in one view.
    CopiesOfOneView,
}

impl Rule {
    /// The whole rule.
    ///
    /// # Panics
    /// If `copies` is zero or more than `replicas`: such a write could never be acknowledged, or never be lost.
    pub fn new(replicas: usize, copies: usize) -> Self {
        assert!((1..=replicas).contains(&copies), "{copies} copies of {replicas}");
        Self { replicas, copies, omitted: None }
    }

    /// The rule without a sentence, for tests that show what the sentence is there for.
    #[must_use]
    pub fn without(self, sentence: Sentence) -> Self {
        Self { omitted: Some(sentence), ..self }
    }

    /// Whether the sentence is a part of the rule.
    pub fn has(self, sentence: Sentence) -> bool {
        self.omitted != Some(sentence)
    }

    /// How many of so many owners have, between them, each acknowledged record, and one in common with any other quorum.
    pub fn quorum(self, owners: usize) -> usize {
        let of_copies = (owners + 1).saturating_sub(self.copies);
        let majority = owners / 2 + 1;
        if self.has(Sentence::QuorumIsMajority) {
            of_copies.max(majority)
        } else {
            of_copies.max(1)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quorum_meets_each_record_and_each_quorum() {
        for (owners, copies, expected) in
            [(3, 1, 3), (3, 2, 2), (3, 3, 2), (5, 2, 4), (5, 3, 3), (5, 5, 3), (2, 3, 2), (1, 1, 1)]
        {
            let rule = Rule::new(owners.max(copies), copies);
            let quorum = rule.quorum(owners);
            assert_eq!(quorum, expected, "{owners} owners, {copies} copies");
            assert!(quorum + copies.min(owners) > owners && 2 * quorum > owners);
        }
        let alone = Rule::new(3, 3).without(Sentence::QuorumIsMajority);
        assert_eq!(alone.quorum(3), 1, "it has each record and meets no other");
    }
}
