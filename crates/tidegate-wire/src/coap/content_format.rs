//! Content formats (RFC 7252 section 12.3 and the registry it begins), and the media types that they stand for.

/// The number of a media type with its parameters.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct ContentFormat(pub u16);

impl ContentFormat {
    /// `text/plain;charset=utf-8`
    pub const TEXT: Self = Self(0);
    /// `application/link-format` (RFC 6690)
    pub const LINK_FORMAT: Self = Self(40);
    /// `application/octet-stream`
    pub const OCTET_STREAM: Self = Self(42);
    /// `application/json`
    pub const JSON: Self = Self(50);
    /// `application/cbor`
    pub const CBOR: Self = Self(60);
    /// `application/senml+json` (RFC 8428)
    pub const SENML_JSON: Self = Self(110);
    /// `application/senml+cbor` (RFC 8428)
    pub const SENML_CBOR: Self = Self(112);

    /// Its media type, for those above.
    pub fn media_type(self) -> Option<&'static str> {
        MEDIA_TYPES.iter().find(|(format, _)| *format == self).map(|(_, name)| *name)
    }

    /// The format of a media type, upper and lower case alike, where it is one of those above. Of parameters only `charset=utf-8`
    /// of a text is known.
    pub fn of_media_type(name: &str) -> Option<Self> {
        let name: String = name.chars().filter(|c| !matches!(c, ' ' | '\t' | '"')).collect();
        let name = name.to_ascii_lowercase();
        let name = if name == "text/plain" { MEDIA_TYPES[0].1 } else { &name };
        MEDIA_TYPES.iter().find(|(_, known)| *known == name).map(|(format, _)| *format)
    }
}

const MEDIA_TYPES: [(ContentFormat, &str); 7] = [
    (ContentFormat::TEXT, "text/plain;charset=utf-8"),
    (ContentFormat::LINK_FORMAT, "application/link-format"),
    (ContentFormat::OCTET_STREAM, "application/octet-stream"),
    (ContentFormat::JSON, "application/json"),
    (ContentFormat::CBOR, "application/cbor"),
    (ContentFormat::SENML_JSON, "application/senml+json"),
    (ContentFormat::SENML_CBOR, "application/senml+cbor"),
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn media_types_and_formats_name_each_other() {
        for (format, name) in MEDIA_TYPES {
            assert_eq!(format.media_type(), Some(name));
            assert_eq!(ContentFormat::of_media_type(name), Some(format));
        }
        for (name, expected) in [
            ("text/plain", Some(ContentFormat::TEXT)),
            ("Text/Plain; charset=\"UTF-8\"", Some(ContentFormat::TEXT)),
            ("text/plain; charset=latin1", None),
            ("APPLICATION/SENML+JSON", Some(ContentFormat::SENML_JSON)),
            ("application/jso", None),
            ("", None),
        ] {
            assert_eq!(ContentFormat::of_media_type(name), expected, "{name}");
        }
        assert_eq!(ContentFormat(11_542).media_type(), None);
    }
}
