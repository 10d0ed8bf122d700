//! Names in clients' certificates.
//!
//! Always true: a certificate of this site names the same identity here as at the API and at links, by its URI; a URI in a
//! certificate of another authority is ignored, since only the site's authority names its nodes.

use rustls_pki_types::CertificateDer;
use tidegate_identity::{
    access,
    pki::{
        self, PeerIdentity,
        der::{OBJECT_IDENTIFIER, SEQUENCE, SET, element},
        fields::Fields,
    },
};
use tidegate_message::IdentityKind;

/// The identity that a verified certificate names: by its URI if one of the authorities `site` made it, else a
/// certificate's owner by its common name; none if it has no name that can be read.
pub fn named(
    certificate: &CertificateDer<'_>,
    site: &[CertificateDer<'_>],
) -> Option<(IdentityKind, String)> {
    // Few have a URI of ours, so that a signature is not checked for each who comes.
    if let Ok(peer) = PeerIdentity::of_chain(std::slice::from_ref(certificate))
        && site.iter().any(|authority| pki::is_made_by(certificate, authority))
    {
        return Some((access::kind_of(peer.kind), peer.name));
    }
    Some((IdentityKind::Certificate, common_name(certificate)?))
}

/// The first common name of a certificate's subject; none if it has none that can be read.
///
/// Letters of two and four bytes (BMPString, UniversalString) are not read: their bytes, taken for UTF-8, may be another's
/// name. Nor is a name with control characters, which no user has either.
pub fn common_name(certificate: &CertificateDer<'_>) -> Option<String> {
    name_of(Fields::of(certificate)?.subject)
}

/// The first common name of a sequence of sets of (object identifier, text) pairs (RFC 5280 section 4.1.2.4), in DER with
/// short and long lengths.
fn name_of(mut subject: &[u8]) -> Option<String> {
    while let Some((SET, mut pairs, rest)) = element(subject) {
        subject = rest;
        while let Some((SEQUENCE, pair, rest)) = element(pairs) {
            pairs = rest;
            let (tag, identifier, value) = element(pair)?;
            if tag == OBJECT_IDENTIFIER && identifier == COMMON_NAME {
                let (tag, text, _) = element(value)?;
                return text_of(tag, text).map(str::to_owned);
            }
        }
    }
    None
}

const UTF8_STRING: u8 = 0x0c;
const PRINTABLE_STRING: u8 = 0x13;
const TELETEX_STRING: u8 = 0x14;
const IA5_STRING: u8 = 0x16;
const COMMON_NAME: [u8; 3] = [0x55, 0x04, 0x03];

fn text_of(tag: u8, text: &[u8]) -> Option<&str> {
    let text = str::from_utf8(text).ok()?;
    let is_of_kind = match tag {
        UTF8_STRING => true,
        PRINTABLE_STRING | TELETEX_STRING | IA5_STRING => text.is_ascii(),
        _ => false,
    };
    (is_of_kind && !text.is_empty() && !text.contains(char::is_control)).then_some(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn first_common_name_is_read_or_none() {
        let long = [&b"\x31\x81\x8e\x30\x81\x8b\x06\x03\x55\x04\x03\x0c\x81\x83"[..], &[b'a'; 131]];
        let long_name = "a".repeat(131);
        for (subject, expected) in [
            (&b"\x31\x0b\x30\x09\x06\x03\x55\x04\x03\x0c\x02ab"[..], Some("ab")),
            (b"\x31\x0b\x30\x09\x06\x03\x55\x04\x03\x13\x02ab", Some("ab")),
            (b"\x31\x0b\x30\x09\x06\x03\x55\x04\x03\x0c\x02\xc3\xa9", Some("\u{e9}")),
            (b"\x31\x0b\x30\x09\x06\x03\x55\x04\x03\x13\x02\xc3\xa9", None), // not of its kind
            // Two letters of UTF-16, whose bytes are those of four others.
            (b"\x31\x0d\x30\x0b\x06\x03\x55\x04\x03\x1e\x04abcd", None),
            (b"\x31\x0b\x30\x09\x06\x03\x55\x04\x03\x0c\x02a\x00", None),
            (b"\x31\x09\x30\x07\x06\x03\x55\x04\x03\x0c\x00", None),
            // An organization, in a set of its own and in one with the name.
            (
                b"\x31\x0a\x30\x08\x06\x03\x55\x04\x0a\x0c\x01o\x31\x0a\x30\x08\x06\x03\x55\x04\x03\x0c\x01n",
                Some("n"),
            ),
            (
                b"\x31\x14\x30\x08\x06\x03\x55\x04\x0a\x0c\x01o\x30\x08\x06\x03\x55\x04\x03\x0c\x01n",
                Some("n"),
            ),
            (&long.concat(), Some(&*long_name)),
            (b"\x31\x0b\x30\x09\x06\x03\x55\x04\x03\x0c\x03ab", None), // longer than its pair
            (b"\x31\x0b\x30\x09\x06\x03\x55\x04\x03\x0c\x84ab", None),
            (b"", None),
        ] {
            assert_eq!(name_of(subject).as_deref(), expected, "{subject:02x?}");
        }
    }
}
