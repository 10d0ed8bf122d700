//! Patterns of topics: topic filters in which `%c` and `%u` may stand for the names of who asks.
//!
//! - `+` and `#` at the begin do not match topics that begin with `$`, as in MQTT; nor does a name that is put in for `%c`
//!   or `%u` there.
//! - A client identifier or user name that is empty fits no pattern. One that holds `+`, `#` or `/` fits no allowing
//!   pattern, and a denying pattern then denies all from the level of the name on, so that a strange name is no way
//!   around it.

use std::sync::Arc;

use tidegate_message::Identity;

/// Longest filter of a pattern, in bytes: MQTT's longest topic.
const FILTER_BYTES_MAX: usize = 65_535;

/// A topic filter, with or without names to put in.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Pattern {
    levels: Arc<[Level]>,
}

/// Values for `%c` and `%u`.
#[derive(Clone, Copy)]
pub(crate) struct Names<'a> {
    pub(crate) client: &'a str,
    pub(crate) user: &'a str,
}

impl<'a> Names<'a> {
    pub(crate) fn of(identity: &'a Identity) -> Self {
        Self { client: &identity.client, user: &identity.name }
    }
}

/// One level of a pattern.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Level {
    One,
    All,
    Literal(Box<str>),
    Mixed(Vec<Piece>),
}

/// A part of a level with `%c` or `%u` in it.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Piece {
    Text(Box<str>),
    Client,
    User,
}

impl Pattern {
    /// The pattern that is written so.
    ///
    /// # Errors
    /// [`NoFilter`] if it is no topic filter.
    pub(crate) fn parse(filter: &str) -> Result<Self, NoFilter> {
        Ok(Self { levels: levels(filter)? })
    }

    pub(crate) fn matches(&self, topic: &str, names: Names<'_>) -> bool {
        if self.leads_wild() && topic.starts_with('$') {
            return false;
        }
        let mut words = topic.split('/');
        for level in &*self.levels {
            match (level, words.next()) {
                (Level::All, _) => return true,
                (level, Some(word)) if level.is(word, names) => {}
                _ => return false,
            }
        }
        words.next().is_none()
    }

    /// Whether some topic matches both the pattern and `filter`.
    pub(crate) fn overlaps(&self, filter: &str, names: Names<'_>) -> bool {
        if (self.leads_wild() && filter.starts_with('$'))
            || (self.leads_dollar() && filter.starts_with(['+', '#']))
        {
            return false;
        }
        let mut words = filter.split('/');
        for level in &*self.levels {
            match (level, words.next()) {
                (Level::All, _) => return true,
                // The rest of the rule must be something that can be: a pattern may have a name that cannot.
                (_, Some("#")) => return self.can_match(names),
                (level, Some("+")) if level.can_be(names) => {}
                (level, Some(word)) if level.is(word, names) => {}
                _ => return false,
            }
        }
        matches!(words.next(), None | Some("#"))
    }

    /// Whether every topic that matches `filter` matches the pattern.
    pub(crate) fn covers(&self, filter: &str, names: Names<'_>) -> bool {
        if self.leads_wild() && filter.starts_with('$') {
            return false;
        }
        let mut words = filter.split('/');
        for level in &*self.levels {
            match (level, words.next()) {
                (Level::All, _) => return true,
                (_, Some("#")) | (Level::Literal(_) | Level::Mixed(_), Some("+")) => return false,
                (level, Some(word)) if level.is(word, names) => {}
                _ => return false,
            }
        }
        words.next().is_none()
    }

    /// As [`matches`](Self::matches), and wider where a name is strange.
    pub(crate) fn denies(&self, topic: &str, names: Names<'_>) -> bool {
        match self.strange_from(names) {
            Some(level) => self.wider(level).matches(topic, names),
            None => self.matches(topic, names),
        }
    }

    /// As [`covers`](Self::covers), and wider where a name is strange.
    pub(crate) fn denies_all(&self, filter: &str, names: Names<'_>) -> bool {
        match self.strange_from(names) {
            Some(level) => self.wider(level).covers(filter, names),
            None => self.covers(filter, names),
        }
    }

    /// First level whose name is given and cannot stand in one level of a topic.
    fn strange_from(&self, names: Names<'_>) -> Option<usize> {
        let strange = |piece: &Piece| {
            piece.name(names).is_some_and(|name| !name.is_empty() && !is_plain(name))
        };
        self.levels
            .iter()
            .position(|level| matches!(level, Level::Mixed(pieces) if pieces.iter().any(strange)))
    }

    /// The rule with `#` from `level` on.
    fn wider(&self, level: usize) -> Self {
        let kept = self.levels[..level].iter().cloned().chain([Level::All]);
        Self { levels: kept.collect() }
    }

    /// Whether the names can stand in it.
    fn can_match(&self, names: Names<'_>) -> bool {
        self.levels.iter().all(|level| level.can_be(names))
    }

    fn leads_wild(&self) -> bool {
        match &self.levels[0] {
            Level::One | Level::All => true,
            Level::Literal(_) => false,
            Level::Mixed(pieces) => !matches!(pieces[0], Piece::Text(_)),
        }
    }

    fn leads_dollar(&self) -> bool {
        match &self.levels[0] {
            Level::One | Level::All => false,
            Level::Literal(text) => text.starts_with('$'),
            Level::Mixed(pieces) => {
                matches!(&pieces[0], Piece::Text(text) if text.starts_with('$'))
            }
        }
    }
}

impl Level {
    /// Whether it is exactly the level `word` of a topic, or `+` and any one level.
    fn is(&self, word: &str, names: Names<'_>) -> bool {
        match self {
            Self::One => true,
            Self::All => false,
            Self::Literal(text) => **text == *word,
            Self::Mixed(pieces) => {
                let mut rest = Some(word);
                for piece in pieces {
                    rest = match piece.name(names) {
                        Some(name) if !is_plain(name) => None,
                        Some(name) => rest.and_then(|rest| rest.strip_prefix(name)),
                        None => rest.and_then(|rest| rest.strip_prefix(piece.text())),
                    };
                }
                rest == Some("")
            }
        }
    }

    /// Whether there is a level that it matches.
    fn can_be(&self, names: Names<'_>) -> bool {
        match self {
            Self::Mixed(pieces) => {
                pieces.iter().filter_map(|piece| piece.name(names)).all(is_plain)
            }
            Self::One | Self::All | Self::Literal(_) => true,
        }
    }
}

impl Piece {
    fn name<'a>(&self, names: Names<'a>) -> Option<&'a str> {
        match self {
            Self::Text(_) => None,
            Self::Client => Some(names.client),
            Self::User => Some(names.user),
        }
    }

    fn text(&self) -> &str {
        if let Self::Text(text) = self { text } else { "" }
    }
}

/// Whether a name can be put into a pattern without meaning more than itself.
fn is_plain(name: &str) -> bool {
    !name.is_empty() && !name.contains(['+', '#', '/'])
}

/// The filter of a shared subscription, or of another one; none if it is no filter.
pub(crate) fn without_share(filter: &str) -> Option<&str> {
    let filter = match filter.strip_prefix("$share/") {
        Some(shared) => shared.split_once('/')?.1,
        None => filter,
    };
    (!filter.is_empty()).then_some(filter)
}

fn levels(filter: &str) -> Result<Arc<[Level]>, NoFilter> {
    let bad = || NoFilter { filter: filter.to_owned() };
    if filter.is_empty() || filter.len() > FILTER_BYTES_MAX || filter.chars().any(char::is_control)
    {
        return Err(bad());
    }
    let count = filter.split('/').count();
    let level = |(number, word): (usize, &str)| match word {
        "+" => Ok(Level::One),
        "#" if number + 1 == count => Ok(Level::All),
        _ if word.contains(['+', '#']) => Err(bad()),
        _ if word.contains("%c") || word.contains("%u") => Ok(Level::Mixed(pieces(word))),
        _ => Ok(Level::Literal(word.into())),
    };
    filter.split('/').enumerate().map(level).collect()
}

fn pieces(word: &str) -> Vec<Piece> {
    let mut pieces = Vec::new();
    let mut rest = word;
    while let Some(at) = [rest.find("%c"), rest.find("%u")].into_iter().flatten().min() {
        if at > 0 {
            pieces.push(Piece::Text(rest[..at].into()));
        }
        pieces.push(if rest[at..].starts_with("%c") { Piece::Client } else { Piece::User });
        rest = &rest[at + 2..];
    }
    if !rest.is_empty() {
        pieces.push(Piece::Text(rest.into()));
    }
    pieces
}

/// A text that is no topic filter.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{filter:?} is not a topic filter; + stands alone between slashes, # alone and last")]
pub(crate) struct NoFilter {
    /// The text.
    pub filter: String,
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn word() -> impl Strategy<Value = &'static str> {
        prop::sample::select(vec!["a", "b", "$s", "", "+"])
    }

    fn filter() -> impl Strategy<Value = String> {
        (prop::collection::vec(word(), 0..4), any::<bool>())
            .prop_map(|(mut words, all)| {
                if all {
                    words.push("#");
                }
                words.join("/")
            })
            .prop_filter("the empty text is no filter", |filter| !filter.is_empty())
    }

    /// Every topic of up to five levels of those that filters are made of.
    fn topics() -> Vec<String> {
        let mut topics: Vec<String> = Vec::new();
        let mut last = vec![String::new()];
        for _ in 0..5 {
            last = last
                .iter()
                .flat_map(|topic| ["a", "b", "$s", ""].map(|word| format!("{topic}/{word}")))
                .collect();
            topics.extend(last.iter().map(|topic| topic[1..].to_owned()));
        }
        topics
    }

    fn pattern(filter: &str) -> Pattern {
        Pattern::parse(filter).unwrap()
    }

    proptest! {
        #[test]
        fn overlap_and_coverage_are_those_of_the_topics(one in filter(), other in filter()) {
            let names = Names { client: "a", user: "b" };
            let (rule, subscription) = (pattern(&one), pattern(&other));
            let of_other: Vec<_> =
                topics().into_iter().filter(|topic| subscription.matches(topic, names)).collect();
            let common = of_other.iter().filter(|topic| rule.matches(topic, names)).count();
            prop_assert_eq!(rule.overlaps(&other, names), common > 0, "{} {}", one, other);
            // Coverage errs on the side of checking each message.
            if rule.covers(&other, names) {
                prop_assert_eq!(common, of_other.len(), "{} {}", one, other);
            }
        }
    }
}
