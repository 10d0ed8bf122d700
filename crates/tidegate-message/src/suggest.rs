//! The known word that an unknown one was probably meant to be.

/// The candidate that `word` is most like, if it is like one enough to be meant: a third of its letters may be other ones.
pub fn nearest<'a>(word: &str, candidates: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    let word = word.to_lowercase();
    let most = (word.chars().count() / 3).clamp(1, 3);
    candidates
        .into_iter()
        .map(|candidate| (distance(&word, &candidate.to_lowercase()), candidate))
        .filter(|(distance, _)| *distance <= most)
        .min_by_key(|(distance, _)| *distance)
        .map(|(_, candidate)| candidate)
}

/// Letters that are missing, too many, others or exchanged with the next (Damerau and Levenshtein, restricted).
fn distance(one: &str, other: &str) -> usize {
    let (one, other): (Vec<char>, Vec<char>) = (one.chars().collect(), other.chars().collect());
    let mut rows = [vec![0; other.len() + 1], (0..=other.len()).collect(), Vec::new()];
    for (i, a) in one.iter().enumerate() {
        let mut row = vec![i + 1];
        for (j, b) in other.iter().enumerate() {
            let mut least =
                (rows[1][j] + usize::from(a != b)).min(rows[1][j + 1] + 1).min(row[j] + 1);
            if i > 0 && j > 0 && *a == other[j - 1] && one[i - 1] == *b {
                least = least.min(rows[0][j - 1] + 1);
            }
            row.push(least);
        }
        rows[2] = row;
        rows.rotate_left(1);
    }
    rows[1][other.len()]
}

/// A text that offers words to choose from, with the one that was probably meant before them. `found` is what was written; none if
/// the text quotes it.
pub fn suggested(text: &str, found: Option<&str>) -> String {
    // Messages of serde about files of flows have another form.
    for (start, end) in [("choose ", ";"), ("expected one of ", ";"), ("expected ", ";")] {
        let Some(at) = text.find(start) else { continue };
        let offered = &text[at + start.len()..];
        let offered = offered.split(end).next().unwrap_or_default();
        let words = offered.trim_start_matches("one of: ").split([' ', ',']);
        let words = words
            .map(|word| word.trim_matches(['`', '"', '\'']).trim_end_matches(".NAME"))
            .filter(|word| !word.is_empty() && *word != "or");
        let quoted = || {
            let before = &text[..at];
            let between = |quote| before.rsplit(quote).nth(1);
            let section = || before.rsplit_once('[')?.1.split(']').next();
            between('"').or_else(|| between('`')).or_else(section)
        };
        let Some(found) = found.or_else(quoted) else { return text.to_owned() };
        return match nearest(found, words) {
            Some(word) if word != found && !text.contains("did you mean") => {
                format!("{}did you mean {word:?}? {}", &text[..at], &text[at..])
            }
            _ => text.to_owned(),
        };
    }
    text.to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_probably_meant_is_offered_and_nothing_far_fetched() {
        let words = ["listen", "protocol", "certificate", "key", "tls"];
        for (word, expected) in [
            ("lisen", Some("listen")),
            ("lsiten", Some("listen")),
            ("Listen", Some("listen")),
            ("certifcate", Some("certificate")),
            ("protokol", Some("protocol")),
            ("kay", Some("key")),
            ("xyz", None),
            ("", None),
            ("port", None),
        ] {
            assert_eq!(nearest(word, words), expected, "{word}");
        }
        assert_eq!((distance("ab", "ba"), distance("", "abc"), distance("abc", "abc")), (1, 3, 0));
    }

    #[test]
    fn a_text_that_offers_words_says_which_was_meant() {
        for (text, found, expected) in [
            (
                "choose one of: auto quic tcp",
                Some("qiuc"),
                "did you mean \"quic\"? choose one of: auto quic tcp",
            ),
            ("choose one of: auto quic tcp", Some("udp"), "choose one of: auto quic tcp"),
            (
                "compression is \"zsdt\"; choose zstd, snappy or none",
                None,
                "compression is \"zsdt\"; did you mean \"zstd\"? choose zstd, snappy or none",
            ),
            (
                "f.toml:2: unknown field `topic`, expected one of `topics`, `parse`",
                None,
                "f.toml:2: unknown field `topic`, did you mean \"topics\"? expected one of `topics`, `parse`",
            ),
            (
                "there is no section [usr]; choose one of: role.NAME user.NAME",
                None,
                "there is no section [usr]; did you mean \"user\"? choose one of: role.NAME user.NAME",
            ),
            ("a number is needed", Some("x"), "a number is needed"),
        ] {
            assert_eq!(suggested(text, found), expected);
        }
    }
}
