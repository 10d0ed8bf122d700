//! The rules of MQTT topics: which text is a topic name, which a filter, and which filter matches
//! which name (MQTT 5.0, sections 4.7 and 4.8.2).
//!
//! A topic is made of levels with a `/` between them: `a/b` has two, `/` has two empty ones. In a
//! filter the level `+` stands for any one level, and a last level `#` for any number of levels,
//! none included. Two texts are the same topic only if their bytes are equal (MQTT-4.7.3-4).

/// Most bytes that a topic name or filter has, as MQTT counts them (MQTT-4.7.3-3).
const TOPIC_BYTES_MAX: usize = 65_535;

/// How a shared subscription's text begins (MQTT-4.8.2-1).
const SHARE_PREFIX: &str = "$share/";

/// Checks that `name` is a topic to publish to, with at most `levels_max` levels.
///
/// # Errors
///
/// [`TopicError::Empty`], [`TopicError::TooLong`], [`TopicError::Null`], [`TopicError::Wildcard`]
/// or [`TopicError::TooManyLevels`], the first that applies.
pub fn check_topic_name(name: &str, levels_max: usize) -> Result<(), TopicError> {
    check_text(name)?;
    if let Some(wildcard) = name.chars().find(|c| matches!(c, '+' | '#')) {
        return Err(TopicError::Wildcard { wildcard });
    }
    check_levels(name, levels_max)
}

/// Checks that `filter` is a topic filter, with at most `levels_max` levels.
///
/// A text that begins with `$share/` is held to the rules of every filter only; [`split_shared`]
/// knows the others. Check the part that it returns with this function.
///
/// # Errors
///
/// [`TopicError::Empty`], [`TopicError::TooLong`], [`TopicError::Null`],
/// [`TopicError::MisplacedHash`], [`TopicError::MisplacedPlus`] or [`TopicError::TooManyLevels`],
/// the first that applies.
pub fn check_topic_filter(filter: &str, levels_max: usize) -> Result<(), TopicError> {
    check_text(filter)?;
    let mut levels = filter.split('/').peekable();
    while let Some(level) = levels.next() {
        if level.contains('#') && (level != "#" || levels.peek().is_some()) {
            return Err(TopicError::MisplacedHash);
        }
        if level.contains('+') && level != "+" {
            return Err(TopicError::MisplacedPlus);
        }
    }
    check_levels(filter, levels_max)
}

/// Checks that a topic name or filter has none of the characters that MQTT lets a receiver refuse (MQTT-1.5.4, the disallowed
/// Unicode code points): control characters U+0001 to U+001F and U+007F to U+009F, and non-characters such as U+FFFF.
///
/// libmosquitto ends its connection when one reaches it, so that a retained message with such a topic locks its users out.
///
/// # Errors
///
/// [`TopicError::Character`] for the first of them.
pub fn check_topic_characters(text: &str) -> Result<(), TopicError> {
    let is_disallowed = |c: &char| {
        let code = u32::from(*c);
        c.is_control() || code & 0xfffe == 0xfffe || (0xfdd0..=0xfdef).contains(&code)
    };
    match text.chars().find(is_disallowed) {
        Some(character) => Err(TopicError::Character { character }),
        None => Ok(()),
    }
}

/// Splits the text of a shared subscription, `$share/GROUP/FILTER`, into its two parts.
///
/// Returns `None` for a text that does not begin with `$share/`: an ordinary filter, unchecked.
/// The filter part of a shared one is checked, its number of levels aside.
///
/// # Errors
///
/// [`TopicError::ShareGroup`] and [`TopicError::ShareFilter`] for a missing or bad part, or what
/// [`check_topic_filter`] says of the filter part.
pub fn split_shared(text: &str) -> Result<Option<Shared<'_>>, TopicError> {
    let Some(rest) = text.strip_prefix(SHARE_PREFIX) else { return Ok(None) };
    check_text(text)?;
    let (group, filter) = match rest.split_once('/') {
        Some((group, filter)) => (group, filter),
        None => (rest, ""),
    };
    if group.is_empty() || group.contains(['+', '#']) {
        return Err(TopicError::ShareGroup);
    }
    if filter.is_empty() {
        return Err(TopicError::ShareFilter);
    }
    check_topic_filter(filter, usize::MAX)?;
    Ok(Some(Shared { group, filter }))
}

/// A shared subscription: one member of the group gets each message that the filter matches.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Shared<'a> {
    /// Name of the group (MQTT calls it ShareName): at least one character, no `/`, `+` or `#`.
    pub group: &'a str,
    /// Valid topic filter, with any number of levels.
    pub filter: &'a str,
}

/// Whether `filter` matches `topic`.
///
/// Both are valid; for others the answer means nothing. The filter is not a shared one: split that
/// first. A filter that begins with a wildcard matches no topic that begins with `$`
/// (MQTT-4.7.2-1). `#` also covers its parent level: `a/#` matches `a`.
///
/// ```
/// assert!(tidegate_message::topic_matches("site/+/temperature", "site/7/temperature"));
/// assert!(!tidegate_message::topic_matches("#", "$SYS/broker/uptime"));
/// ```
pub fn topic_matches(filter: &str, topic: &str) -> bool {
    if topic.starts_with('$') && filter.starts_with(['+', '#']) {
        return false;
    }
    let mut levels = topic.split('/');
    for wanted in filter.split('/') {
        if wanted == "#" {
            return true;
        }
        match levels.next() {
            Some(level) if wanted == "+" || wanted == level => {}
            _ => return false,
        }
    }
    levels.next().is_none()
}

/// The rules that names and filters share.
fn check_text(text: &str) -> Result<(), TopicError> {
    if text.is_empty() {
        return Err(TopicError::Empty);
    }
    if text.len() > TOPIC_BYTES_MAX {
        return Err(TopicError::TooLong { bytes: text.len(), limit: TOPIC_BYTES_MAX });
    }
    if text.contains('\0') {
        return Err(TopicError::Null);
    }
    Ok(())
}

fn check_levels(text: &str, limit: usize) -> Result<(), TopicError> {
    let levels = 1 + text.bytes().filter(|&byte| byte == b'/').count();
    if levels > limit {
        return Err(TopicError::TooManyLevels { levels, limit });
    }
    Ok(())
}

impl TopicError {
    /// Whether the text is a topic and only beyond what this server takes; else it is none for anybody.
    pub fn is_limit(&self) -> bool {
        matches!(self, Self::TooLong { .. } | Self::TooManyLevels { .. })
    }
}

/// Why a text is no topic name, or no topic filter.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TopicError {
    /// No characters at all (MQTT-4.7.3-1).
    #[error("a topic has at least one character, this one is empty")]
    Empty,
    /// More bytes than MQTT can count (MQTT-4.7.3-3).
    #[error("a topic has at most {limit} bytes, this one has {bytes}; shorten its levels")]
    TooLong {
        /// Bytes it has.
        bytes: usize,
        /// Bytes it may have.
        limit: usize,
    },
    /// The character U+0000 (MQTT-4.7.3-2).
    #[error("a topic does not contain the character U+0000; leave it out")]
    Null,
    /// A control character or one that is no character, where the server refuses them (MQTT 5, 1.5.4).
    #[error(
        "a topic has no control character here, this one has {character:?}; leave it out, or set \
         mqtt.topic_control_characters to true"
    )]
    Character {
        /// The first one.
        character: char,
    },
    /// A wildcard in a topic name (MQTT-4.7.0-1).
    #[error("a topic name does not contain {wildcard:?}; only a filter may, so publish without it")]
    Wildcard {
        /// The first one: `+` or `#`.
        wildcard: char,
    },
    /// A `#` that is not the whole last level (MQTT-4.7.1-1).
    #[error("'#' stands alone as the last level of a filter, such as in \"a/b/#\"")]
    MisplacedHash,
    /// A `+` that is not a whole level (MQTT-4.7.1-2).
    #[error("'+' stands alone as one level of a filter, such as in \"a/+/c\"")]
    MisplacedPlus,
    /// More levels than this broker allows.
    #[error("a topic has at most {limit} levels here, this one has {levels}; join some of them")]
    TooManyLevels {
        /// Levels it has.
        levels: usize,
        /// Levels it may have.
        limit: usize,
    },
    /// A shared subscription without a group, or with a wildcard in it (MQTT-4.8.2-1, 4.8.2-2).
    #[error(
        "a shared subscription is written $share/GROUP/FILTER; its group has at least one \
         character and neither '+' nor '#'"
    )]
    ShareGroup,
    /// A shared subscription without a filter (MQTT-4.8.2-2).
    #[error("a shared subscription is written $share/GROUP/FILTER; its filter is missing")]
    ShareFilter,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_checked() {
        for (name, expected) in [
            ("a", Ok(())),
            ("/", Ok(())),                  // two empty levels, 4.7.1.1
            ("a//b", Ok(())),               // an empty level is a level
            ("a b/\u{fc}", Ok(())),         // 4.7.3: spaces and any other character
            ("$SYS/up", Ok(())),            // who may publish there is the broker's to say
            ("", Err(TopicError::Empty)),   // MQTT-4.7.3-1
            ("a\0", Err(TopicError::Null)), // MQTT-4.7.3-2
            ("a/+", Err(TopicError::Wildcard { wildcard: '+' })), // MQTT-4.7.0-1
            ("a#", Err(TopicError::Wildcard { wildcard: '#' })),
            ("a/b/c/d", Ok(())),
            ("a/b/c/d/", Err(TopicError::TooManyLevels { levels: 5, limit: 4 })),
        ] {
            assert_eq!(check_topic_name(name, 4), expected, "{name:?}");
        }
    }

    #[test]
    fn characters_are_those_that_mosquitto_takes() {
        let bad = |character| Err(TopicError::Character { character });
        for (text, expected) in [
            ("a b/\u{fc}/\u{1f321}", Ok(())),
            ("\u{20}\u{7e}\u{a0}\u{fdcf}\u{fdf0}\u{fffd}\u{10000}", Ok(())),
            ("a\u{1}", bad('\u{1}')),
            ("a\n", bad('\n')),
            ("\t", bad('\t')),
            ("\u{1f}", bad('\u{1f}')),
            ("\u{7f}", bad('\u{7f}')),
            ("\u{80}", bad('\u{80}')),
            ("\u{9f}", bad('\u{9f}')),
            ("\u{fdd0}", bad('\u{fdd0}')),
            ("\u{fdef}", bad('\u{fdef}')),
            ("\u{fffe}", bad('\u{fffe}')),
            ("\u{ffff}", bad('\u{ffff}')),
            ("\u{1fffe}", bad('\u{1fffe}')),
            ("\u{10ffff}", bad('\u{10ffff}')),
        ] {
            assert_eq!(check_topic_characters(text), expected, "{text:?}");
        }
    }

    #[test]
    fn filters_are_checked() {
        for (filter, expected) in [
            ("#", Ok(())),
            ("+", Ok(())),
            ("+/+", Ok(())),
            ("/+", Ok(())),
            ("a/+/#", Ok(())),
            ("+/a/#", Ok(())),
            ("a/b/c/#", Ok(())),
            ("", Err(TopicError::Empty)),
            ("a\0", Err(TopicError::Null)),
            ("a#", Err(TopicError::MisplacedHash)), // MQTT-4.7.1-1
            ("a/b#", Err(TopicError::MisplacedHash)),
            ("a/#/b", Err(TopicError::MisplacedHash)),
            ("#/", Err(TopicError::MisplacedHash)),
            ("##", Err(TopicError::MisplacedHash)),
            ("a+", Err(TopicError::MisplacedPlus)), // MQTT-4.7.1-2
            ("++", Err(TopicError::MisplacedPlus)),
            ("a/+b/c", Err(TopicError::MisplacedPlus)),
            ("+/+/+/+/#", Err(TopicError::TooManyLevels { levels: 5, limit: 4 })),
        ] {
            assert_eq!(check_topic_filter(filter, 4), expected, "{filter:?}");
        }
    }

    #[test]
    fn the_longest_topic_has_65535_bytes() {
        let longest = "x".repeat(65_535); // MQTT-4.7.3-3
        assert_eq!(check_topic_name(&longest, 1), Ok(()));
        assert_eq!(check_topic_filter(&longest, 1), Ok(()));
        let too_long = Err(TopicError::TooLong { bytes: 65_536, limit: 65_535 });
        assert_eq!(check_topic_name(&format!("{longest}x"), 1), too_long);
        assert_eq!(check_topic_filter(&format!("{longest}x"), 1), too_long);
    }

    #[test]
    fn shared_subscriptions_are_split() {
        for (text, expected) in [
            ("a/b", Ok(None)),
            ("$share", Ok(None)), // an ordinary topic: no separator follows
            ("$shared/g/a", Ok(None)),
            ("$share/g/a/+", Ok(Some(("g", "a/+")))),
            ("$share/g//a", Ok(Some(("g", "/a")))), // 4.8.2: the filter is `/a`
            ("$share/g/#", Ok(Some(("g", "#")))),
            ("$share/", Err(TopicError::ShareGroup)), // MQTT-4.8.2-1
            ("$share//a", Err(TopicError::ShareGroup)),
            ("$share/g+/a", Err(TopicError::ShareGroup)), // MQTT-4.8.2-2
            ("$share/#", Err(TopicError::ShareGroup)),
            ("$share/x", Err(TopicError::ShareFilter)),
            ("$share/x/", Err(TopicError::ShareFilter)),
            ("$share/x/a#", Err(TopicError::MisplacedHash)),
            ("$share/x\0/a", Err(TopicError::Null)),
        ] {
            let parts = split_shared(text).map(|shared| shared.map(|s| (s.group, s.filter)));
            assert_eq!(parts, expected, "{text:?}");
        }
    }

    #[test]
    fn filters_match_topics() {
        for (filter, topic, expected) in [
            ("a/b", "a/b", true),
            ("a/b", "A/b", false), // 4.7.3: case matters
            ("a", "/a", false),
            ("a/", "a", false),
            ("a", "a/", false),
            ("sport/tennis/player1/#", "sport/tennis/player1", true), // 4.7.1.2, from here
            ("sport/tennis/player1/#", "sport/tennis/player1/ranking", true),
            ("sport/tennis/player1/#", "sport/tennis/player1/score/wimbledon", true),
            ("sport/#", "sport", true),
            ("sport/#", "sports", false),
            ("#", "a/b/c", true),
            ("#", "/", true),
            ("sport/tennis/+", "sport/tennis/player1", true), // 4.7.1.3, from here
            ("sport/tennis/+", "sport/tennis/player1/ranking", false),
            ("sport/+", "sport", false),
            ("sport/+", "sport/", true),
            ("+/+", "/finance", true),
            ("/+", "/finance", true),
            ("+", "/finance", false),
            ("+/#", "a", true),
            ("a/+/#", "a", false),   // `#` covers its own parent only
            ("#", "$SYS/up", false), // MQTT-4.7.2-1, from here
            ("+/monitor/clients", "$SYS/monitor/clients", false),
            ("$SYS/#", "$SYS/up", true),
            ("$SYS/+", "$SYS/up", true),
            ("a/+", "a/$b", true), // only the first level counts
        ] {
            assert_eq!(topic_matches(filter, topic), expected, "{filter} against {topic}");
        }
    }
}
