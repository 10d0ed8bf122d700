//! Texts from elsewhere where people read them: without letters that begin a line, steer a terminal, or turn the order of others.

use std::{borrow::Cow, fmt::Write as _};

/// Whether a letter is to be escaped: a control character (C0, DEL and C1), the end of a line or paragraph, or one that changes the
/// direction of what follows.
pub const fn steers(letter: char) -> bool {
    matches!(
        letter,
        '\0'..='\u{1f}'
            | '\u{7f}'..='\u{9f}'
            | '\u{200e}' | '\u{200f}'
            | '\u{2028}'..='\u{202e}'
            | '\u{2066}'..='\u{2069}'
    )
}

/// The text with such letters as Rust writes them: `\n`, `\u{1b}`.
pub fn text(text: &str) -> Cow<'_, str> {
    if !text.contains(steers) {
        return Cow::Borrowed(text);
    }
    let mut escaped = String::with_capacity(text.len() + 16);
    for letter in text.chars() {
        match letter {
            '\n' | '\r' | '\t' => escaped.extend(letter.escape_default()),
            _ if steers(letter) => escaped.extend(letter.escape_unicode()),
            _ => escaped.push(letter),
        }
    }
    Cow::Owned(escaped)
}

/// JSON with such letters as JSON writes them, `\u001b`: outside of its texts there are none.
pub fn json(json: &str) -> Cow<'_, str> {
    if !json.contains(steers) {
        return Cow::Borrowed(json);
    }
    let mut escaped = String::with_capacity(json.len() + 16);
    for letter in json.chars() {
        if steers(letter) {
            // None of them is beyond the first plane.
            let _ = write!(escaped, "\\u{:04x}", u32::from(letter));
        } else {
            escaped.push(letter);
        }
    }
    Cow::Owned(escaped)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn control_characters_are_escaped_and_all_else_is_unchanged() {
        for (raw, expected) in [
            ("", ""),
            ("plain é 漢 \\n \"x\"", "plain é 漢 \\n \"x\""),
            ("a\nb", "a\\nb"),
            ("a\r\tb", "a\\r\\tb"),
            ("\u{1b}[31mred", "\\u{1b}[31mred"),
            ("\0\u{7f}\u{9b}", "\\u{0}\\u{7f}\\u{9b}"),
            ("\u{202e}txt\u{2066}\u{2028}", "\\u{202e}txt\\u{2066}\\u{2028}"),
        ] {
            assert_eq!(text(raw), expected);
            let encoded = serde_json::to_string(raw).unwrap();
            let json = json(&encoded);
            assert!(!json.contains(steers), "{json:?}");
            assert_eq!(serde_json::from_str::<String>(&json).unwrap(), raw);
        }
    }
}
