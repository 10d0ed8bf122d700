//! The elements of a JSON array, and the members of a JSON object, as they are written.
//!
//! Always true: each of them is UTF-8, as all of JSON is (RFC 8259 section 8.1).

use serde::de::IgnoredAny;

/// Why there are no elements.
#[derive(Debug, thiserror::Error)]
pub(in crate::ingest) enum ArrayError {
    #[error("the body is no JSON")]
    Json(#[from] serde_json::Error),
    #[error("the body is not UTF-8, which JSON is")]
    Utf8(#[from] std::str::Utf8Error),
    #[error("the body is no array; write [ELEMENT, …], or leave out ?each")]
    NoArray,
    #[error("the text is no object")]
    NoObject,
    #[error("more than {max} elements")]
    TooMany { max: usize },
}

/// The elements of the array that `text` is, at most `max`, each as it is written, without blanks around it.
///
/// # Errors
/// [`ArrayError`].
pub(in crate::ingest) fn elements(text: &[u8], max: usize) -> Result<Vec<&[u8]>, ArrayError> {
    let text = without_mark(text);
    // From here on brackets and quotes are known to be where they belong.
    read(text)?;
    let inside = text.trim_ascii().strip_prefix(b"[").and_then(|text| text.strip_suffix(b"]"));
    parts(inside.ok_or(ArrayError::NoArray)?, max)
}

/// The members of the object that `text` is, at most `max`: each name, unescaped, and its value as it is written, without blanks
/// around it; in their order, those of one name as often as they stand there.
///
/// # Errors
/// [`ArrayError`].
pub(in crate::ingest) fn members(
    text: &[u8],
    max: usize,
) -> Result<Vec<(String, &[u8])>, ArrayError> {
    let text = without_mark(text);
    read(text)?;
    let inside = text.trim_ascii().strip_prefix(b"{").and_then(|text| text.strip_suffix(b"}"));
    let parts = parts(inside.ok_or(ArrayError::NoObject)?, max)?;
    parts.into_iter().map(member).collect()
}

/// Whether it is JSON. Texts that are skipped are not looked at by the reader, so that their bytes are looked at before.
fn read(text: &[u8]) -> Result<(), ArrayError> {
    serde_json::from_str::<IgnoredAny>(str::from_utf8(text)?)?;
    Ok(())
}

/// A text without the mark of the order of bytes that may stand before it.
pub(in crate::ingest) fn without_mark(text: &[u8]) -> &[u8] {
    text.strip_prefix(b"\xef\xbb\xbf").unwrap_or(text)
}

fn member(text: &[u8]) -> Result<(String, &[u8]), ArrayError> {
    let colon = name_end(text);
    let name = serde_json::from_slice(&text[..colon])?;
    Ok((name, text[colon + 1..].trim_ascii()))
}

/// Where the colon stands behind the text that a member begins with.
fn name_end(member: &[u8]) -> usize {
    let mut is_escaped = false;
    let closes = member.iter().skip(1).position(|byte| {
        let closes = *byte == b'"' && !is_escaped;
        is_escaped = *byte == b'\\' && !is_escaped;
        closes
    });
    let behind = closes.map_or(member.len(), |at| at + 2);
    let colon = member[behind..].iter().position(|byte| *byte == b':');
    behind + colon.expect("what was read as an object has a colon behind each name")
}

/// What commas part, of a text that was read.
fn parts(inside: &[u8], max: usize) -> Result<Vec<&[u8]>, ArrayError> {
    let mut elements = Vec::new();
    let (mut depth, mut start) = (0_usize, 0);
    let (mut in_text, mut is_escaped) = (false, false);
    for (at, byte) in inside.iter().enumerate() {
        if in_text {
            match byte {
                _ if is_escaped => is_escaped = false,
                b'\\' => is_escaped = true,
                b'"' => in_text = false,
                _ => {}
            }
            continue;
        }
        match byte {
            b'"' => in_text = true,
            b'[' | b'{' => depth += 1,
            b']' | b'}' => depth = depth.saturating_sub(1),
            b',' if depth == 0 => {
                if elements.len() >= max {
                    return Err(ArrayError::TooMany { max });
                }
                elements.push(inside[start..at].trim_ascii());
                start = at + 1;
            }
            _ => {}
        }
    }
    let last = inside[start..].trim_ascii();
    if !last.is_empty() {
        if elements.len() >= max {
            return Err(ArrayError::TooMany { max });
        }
        elements.push(last);
    }
    Ok(elements)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn elements_are_as_they_are_written() {
        for (text, expected) in [
            ("[]", vec![]),
            (" [ 1.10 ,\n007e0x ]", vec!["!"]),
            ("[1.10, {\"a\": [1,2]} ]", vec!["1.10", "{\"a\": [1,2]}"]),
            (r#"["a,\"]", [[],[]], null]"#, vec![r#""a,\"]""#, "[[],[]]", "null"]),
            ("{}", vec!["!"]),
            ("[1", vec!["!"]),
            ("", vec!["!"]),
        ] {
            let got = elements(text.as_bytes(), 100);
            let got = got.map_or(vec!["!"], |all| {
                all.into_iter().map(|element| str::from_utf8(element).unwrap()).collect()
            });
            assert_eq!(got, expected, "{text}");
        }
        assert_eq!(elements(b"[1, [2, 2], 3]", 3).unwrap().len(), 3);
        for text in ["[1, [2, 2], 3, 4]", "[1, 2, 3, 4, 5]"] {
            let error = elements(text.as_bytes(), 3).unwrap_err();
            assert!(matches!(error, ArrayError::TooMany { max: 3 }), "{text}: {error}");
        }
    }

    #[test]
    fn members_are_as_they_are_written() {
        for (text, expected) in [
            ("{}", vec![]),
            (r#"{"a":1.10 , "b" : {"c": [1 ,2]}}"#, vec![("a", "1.10"), ("b", r#"{"c": [1 ,2]}"#)]),
            (
                r#" {"a\"\u0062:,":"x,:}","":327267367867168100000} "#,
                vec![("a\"b:,", r#""x,:}""#), ("", "327267367867168100000")],
            ),
            (r#"{"\\":1,"a":1,"a":2}"#, vec![("\\", "1"), ("a", "1"), ("a", "2")]),
        ] {
            let got = members(text.as_bytes(), 100).unwrap();
            let got: Vec<_> =
                got.iter().map(|(name, value)| (&**name, str::from_utf8(value).unwrap())).collect();
            assert_eq!(got, expected, "{text}");
        }
        assert!(matches!(members(b"[]", 9), Err(ArrayError::NoObject)));
        assert!(matches!(members(b"{\"a\":}", 9), Err(ArrayError::Json(_))));
    }

    #[test]
    fn a_text_that_is_not_utf_8_is_no_json_wherever_that_stands() {
        for text in [
            &b"[\"\xff\"]"[..],
            b"[{\"vs\":\"a\xc3\"}]",
            b"[{\"\xff\":1}]",
            b"[[\"\xed\xa0\x80\"]]",
        ] {
            assert!(matches!(elements(text, 9), Err(ArrayError::Utf8(_))), "{text:?}");
        }
        for text in [&b"{\"a\":\"\xff\"}"[..], b"{\"a\":[\"\xff\"]}", b"{\"\xff\":1}"] {
            assert!(matches!(members(text, 9), Err(ArrayError::Utf8(_))), "{text:?}");
        }
    }

    proptest::proptest! {
        #[test]
        fn what_reads_as_an_array_is_cut_where_its_elements_end(
            parts in proptest::collection::vec(r#"(\[|\]|\{|\}|,|:|"[a,\[\]]{0,3}"|"\\\\"|"\\""|1\.10|null| |\n){1}"#, 0..12),
        ) {
            let text = format!("[{}]", parts.concat());
            let read = serde_json::from_str::<Vec<serde_json::Value>>(&text);
            match (read, elements(text.as_bytes(), 100)) {
                (Ok(values), Ok(elements)) => {
                    let again = elements.iter().map(|element| serde_json::from_slice(element));
                    assert_eq!(again.collect::<Result<Vec<serde_json::Value>, _>>().unwrap(), values);
                }
                (Err(_), Err(_)) => {}
                (read, elements) => panic!("{text}: {read:?}, {elements:?}"),
            }
        }
    }
}
