//! Paths and queries of requests: texts with percent signs (RFC 3986, section 2.1).

/// The value of a parameter of a query, decoded; the first of its name.
pub fn parameter(query: Option<&str>, name: &str) -> Option<String> {
    let mut parts = query?.split('&').map(|part| part.split_once('=').unwrap_or((part, "")));
    let (_, value) = parts.find(|(found, _)| *found == name)?;
    decode(&value.replace('+', " "))
}

/// The text that percent signs stand for; none if that is not UTF-8.
pub fn decode(text: &str) -> Option<String> {
    let mut out = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let Some((&byte, after)) = rest.split_first() {
        rest = after;
        if byte != b'%' {
            out.push(byte);
            continue;
        }
        let (digits, after) = rest.split_at_checked(2)?;
        let digits = str::from_utf8(digits).ok().filter(|text| !text.starts_with('+'))?;
        out.push(u8::from_str_radix(digits, 16).ok()?);
        rest = after;
    }
    String::from_utf8(out).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn queries_and_paths_are_decoded() {
        let query = Some("db=x&precision=ms&u=%C3%A4+b&flag");
        for (name, expected) in
            [("precision", Some("ms")), ("u", Some("ä b")), ("flag", Some("")), ("none", None)]
        {
            assert_eq!(parameter(query, name).as_deref(), expected, "{name}");
        }
        for (text, expected) in
            [("a%2Fb", Some("a/b")), ("%", None), ("%+1", None), ("%zz", None), ("%ff", None)]
        {
            assert_eq!(decode(text).as_deref(), expected, "{text}");
        }
    }
}
