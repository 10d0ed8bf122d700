//! The elements of a JSON array, and the members of a JSON object, as they are written.
//!
//! Always true: each of them is UTF-8, as all of JSON is (RFC 8259 section 8.1).

use std::fmt;

use serde::de::{Deserializer as _, IgnoredAny, MapAccess, SeqAccess, Visitor};
use serde_json::value::RawValue;

/// Why there are no elements.
#[derive(Debug, thiserror::Error)]
pub enum ArrayError {
    /// The text is not JSON.
    #[error("the body is not JSON")]
    Json(#[from] serde_json::Error),
    /// The text is not UTF-8.
    #[error("the body is not UTF-8, which JSON is")]
    Utf8(#[from] std::str::Utf8Error),
    /// The text is another value of JSON.
    #[error("the body is not an array; write [ELEMENT, …], or leave out ?each")]
    NoArray,
    /// The text is another value of JSON.
    #[error("the text is not an object")]
    NoObject,
    /// There are too many.
    #[error("more than {max} elements")]
    TooMany {
        /// Most that there may be.
        max: usize,
    },
}

/// The elements of the array that `text` is, at most `max`, each as it is written, without blanks around it.
///
/// # Errors
/// [`ArrayError`].
pub fn elements(text: &[u8], max: usize) -> Result<Vec<&[u8]>, ArrayError> {
    parts(text, max, '[', ArrayError::NoArray)
}

/// The members of the object that `text` is, at most `max`: each name, unescaped, and its value as it is written, without blanks
/// around it; in their order, those of one name as often as they stand there.
///
/// # Errors
/// [`ArrayError`].
pub fn members(text: &[u8], max: usize) -> Result<Vec<(String, &[u8])>, ArrayError> {
    parts(text, max, '{', ArrayError::NoObject)
}

/// A text without the mark of the order of bytes that may stand before it.
pub fn without_mark(text: &[u8]) -> &[u8] {
    text.strip_prefix(b"\xef\xbb\xbf").unwrap_or(text)
}

/// The parts of a text that begins with `open`. It is read to its end, also where it has too many.
fn parts<'a, T>(
    text: &'a [u8],
    max: usize,
    open: char,
    missing: ArrayError,
) -> Result<Vec<T>, ArrayError>
where
    Parts<T>: Visitor<'a, Value = Parts<T>>,
{
    // The reader of JSON does not check the bytes that it skips, so that all of them are checked here first.
    let text = str::from_utf8(without_mark(text))?;
    if !text.trim_ascii_start().starts_with(open) {
        serde_json::from_str::<IgnoredAny>(text)?;
        return Err(missing);
    }
    let mut json = serde_json::Deserializer::from_str(text);
    let parts = json.deserialize_any(Parts { taken: Vec::new(), max, are_all: true })?;
    json.end()?;
    if parts.are_all { Ok(parts.taken) } else { Err(ArrayError::TooMany { max }) }
}

struct Parts<T> {
    taken: Vec<T>,
    max: usize,
    are_all: bool,
}

impl<T> Parts<T> {
    fn put(&mut self, part: T) {
        self.are_all &= self.taken.len() < self.max;
        if self.are_all {
            self.taken.push(part);
        }
    }
}

impl<'a> Visitor<'a> for Parts<&'a [u8]> {
    type Value = Self;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an array")
    }

    fn visit_seq<A: SeqAccess<'a>>(mut self, mut elements: A) -> Result<Self, A::Error> {
        while let Some(element) = elements.next_element::<&RawValue>()? {
            self.put(element.get().as_bytes());
        }
        Ok(self)
    }
}

impl<'a> Visitor<'a> for Parts<(String, &'a [u8])> {
    type Value = Self;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object")
    }

    fn visit_map<A: MapAccess<'a>>(mut self, mut members: A) -> Result<Self, A::Error> {
        while let Some((name, value)) = members.next_entry::<_, &RawValue>()? {
            self.put((name, value.get().as_bytes()));
        }
        Ok(self)
    }
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
        fn arrays_are_cut_where_their_elements_end(
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
