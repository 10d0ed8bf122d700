//! The elements of an XML text and their content, as much of it as answers of cameras need.
//!
//! Always true: any text is read to its end, and nothing in it is fetched or replaced but the five entities of XML and characters by number.

use std::borrow::Cow;

/// A part of a text.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Part<'a> {
    /// An element begins; its name without the prefix of its namespace.
    Open(&'a str),
    /// Text in it.
    Text(Cow<'a, str>),
    /// It ends.
    Close(&'a str),
}

/// The parts of a text.
pub(super) fn parts(text: &str) -> impl Iterator<Item = Part<'_>> {
    let mut rest = text;
    // An element without content ends as it begins.
    let mut closes = None;
    std::iter::from_fn(move || {
        if let Some(name) = closes.take() {
            return Some(Part::Close(name));
        }
        loop {
            if rest.is_empty() {
                return None;
            }
            let Some(tag) = rest.strip_prefix('<') else {
                let end = rest.find('<').unwrap_or(rest.len());
                let (content, behind) = rest.split_at(end);
                rest = behind;
                if content.trim().is_empty() {
                    continue;
                }
                return Some(Part::Text(replaced(content)));
            };
            if let Some(content) = tag.strip_prefix("![CDATA[") {
                let (content, behind) = content.split_once("]]>").unwrap_or((content, ""));
                rest = behind;
                return Some(Part::Text(content.into()));
            }
            if let Some(comment) = tag.strip_prefix("!--") {
                rest = comment.split_once("-->").map_or("", |(_, behind)| behind);
                continue;
            }
            let (inside, behind) = tag.split_once('>').unwrap_or((tag, ""));
            rest = behind;
            if inside.starts_with(['?', '!']) {
                continue;
            }
            if let Some(name) = inside.strip_prefix('/') {
                return Some(Part::Close(local(name)));
            }
            let name = local(inside);
            if inside.ends_with('/') {
                closes = Some(name);
            }
            return Some(Part::Open(name));
        }
    })
}

/// The name at the begin of a tag, without its prefix.
fn local(tag: &str) -> &str {
    let name = tag.split([' ', '\t', '\r', '\n', '/']).next().unwrap_or_default();
    name.rsplit_once(':').map_or(name, |(_, local)| local)
}

/// Text with entities as the characters that they stand for; one that is not known stays.
fn replaced(text: &str) -> Cow<'_, str> {
    if !text.contains('&') {
        return text.into();
    }
    let mut out = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(at) = rest.find('&') {
        out.push_str(&rest[..at]);
        let entity = &rest[at + 1..];
        let found =
            entity.split_once(';').and_then(|(name, behind)| Some((entity_of(name)?, behind)));
        rest = match found {
            Some((character, behind)) => {
                out.push(character);
                behind
            }
            None => {
                out.push('&');
                entity
            }
        };
    }
    out.push_str(rest);
    out.into()
}

fn entity_of(name: &str) -> Option<char> {
    Some(match name {
        "amp" => '&',
        "lt" => '<',
        "gt" => '>',
        "quot" => '"',
        "apos" => '\'',
        _ => {
            let number = name.strip_prefix('#')?;
            let number = match number.strip_prefix(['x', 'X']) {
                Some(hex) => u32::from_str_radix(hex, 16).ok()?,
                None => number.parse().ok()?,
            };
            char::from_u32(number)?
        }
    })
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn elements_and_their_text_are_read() {
        let text = "<?xml version='1.0'?><!DOCTYPE a [<!ENTITY b 'c'>]><!-- <no> --><s:a x=\"1\">\n one &amp; &#x74;&#119;o &b;<b/><![CDATA[<3>]]></s:a >";
        let found: Vec<Part<'_>> = parts(text).collect();
        // An entity that a text declares is none to us; the end of its declaration is text.
        let open = found.iter().position(|part| *part == Part::Open("a")).expect("it is there");
        assert_eq!(
            found[open..],
            [
                Part::Open("a"),
                Part::Text("\n one & two &b;".into()),
                Part::Open("b"),
                Part::Close("b"),
                Part::Text("<3>".into()),
                Part::Close("a"),
            ]
        );
        for broken in ["<", "<a", "</", "a<b", "<!--", "<![CDATA[", "&", "&#xffffffff;", "<a/", ">"]
        {
            assert!(parts(broken).count() < 4, "{broken}");
        }
    }

    proptest! {
        #[test]
        fn any_text_is_read_to_its_end(text in "[<>/!&;#x\\[\\]a: -]{0,200}") {
            prop_assert!(parts(&text).count() <= 2 * text.len() + 1);
        }
    }
}
