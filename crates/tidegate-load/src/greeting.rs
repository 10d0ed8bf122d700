//! CONNECT, SUBSCRIBE and their answers, as far as a load needs them.

use tidegate_wire::mqtt::{ReasonCode, Version};

use crate::{
    layout::{self, Role},
    packet::Malformed,
    spec::Spec,
};

/// Appends CONNECT: a clean session, no will.
pub(crate) fn connect(spec: &Spec, role: Role, out: &mut Vec<u8>) {
    let flags =
        0x02 | u8::from(spec.username.is_some()) << 7 | u8::from(spec.password.is_some()) << 6;
    let mut body = Vec::with_capacity(64);
    text(if spec.version == Version::V3 { "MQIsdp" } else { "MQTT" }, &mut body);
    body.extend_from_slice(&[spec.version.level(), flags]);
    body.extend_from_slice(&spec.keep_alive.to_be_bytes());
    if spec.version == Version::V5 {
        body.push(0);
    }
    text(&role.client_id(&spec.client_prefix), &mut body);
    for field in [&spec.username, &spec.password].into_iter().flatten() {
        text(field, &mut body);
    }
    packet(0x10, &body, out);
}

/// Appends SUBSCRIBE with packet identifier 1.
pub(crate) fn subscribe(spec: &Spec, role: Role, out: &mut Vec<u8>) {
    let mut body = vec![0, 1];
    if spec.version == Version::V5 {
        body.push(0);
    }
    for filter in layout::filters(spec, role) {
        text(&filter, &mut body);
        body.push(spec.subscribe_qos as u8);
    }
    packet(0x82, &body, out);
}

/// What CONNACK says to a load.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Welcome {
    /// Receive Maximum; 65535 where the broker has none.
    pub(crate) receive_maximum: u16,
}

/// The body of CONNACK.
///
/// # Errors
/// The broker's reason, or that the bytes are no CONNACK.
pub(crate) fn connack(
    version: Version,
    body: &[u8],
) -> Result<Result<Welcome, ReasonCode>, Malformed> {
    let [_, code, ref rest @ ..] = *body else { return Err(Malformed) };
    if code != 0 {
        return Ok(Err(if version == Version::V5 { ReasonCode(code) } else { return_code(code) }));
    }
    let receive_maximum = if version == Version::V5 { receive_maximum(rest)? } else { u16::MAX };
    Ok(Ok(Welcome { receive_maximum }))
}

/// The reason of a return code before MQTT 5 (MQTT 3.1.1, section 3.2.2.3).
fn return_code(code: u8) -> ReasonCode {
    match code {
        1 => ReasonCode::UNSUPPORTED_PROTOCOL_VERSION,
        2 => ReasonCode::CLIENT_IDENTIFIER_NOT_VALID,
        3 => ReasonCode::SERVER_UNAVAILABLE,
        4 => ReasonCode::BAD_USER_NAME_OR_PASSWORD,
        5 => ReasonCode::NOT_AUTHORIZED,
        _ => ReasonCode::UNSPECIFIED_ERROR,
    }
}

/// The first reason of SUBACK that is a failure.
pub(crate) fn refused(version: Version, body: &[u8]) -> Result<Option<ReasonCode>, Malformed> {
    let mut rest = body.get(2..).ok_or(Malformed)?;
    if version == Version::V5 {
        let bytes = usize::from(*rest.first().ok_or(Malformed)?);
        rest = match bytes {
            // A broker that explains itself at length has its reasons last all the same, but where is not worth finding out.
            0x80.. => &rest[rest.len() - 1..],
            bytes => rest.get(1 + bytes..).ok_or(Malformed)?,
        };
    }
    Ok(rest.iter().map(|&code| ReasonCode(code)).find(|reason| reason.is_failure()))
}

/// Receive Maximum among the properties of CONNACK.
fn receive_maximum(properties: &[u8]) -> Result<u16, Malformed> {
    let mut rest = properties;
    while let [byte, tail @ ..] = rest {
        rest = tail;
        if *byte < 0x80 {
            break; // the properties' length, whose end is the packet's
        }
    }
    while let [name, tail @ ..] = rest {
        let text = |at: usize| {
            let length = tail.get(at..at + 2).ok_or(Malformed)?;
            Ok(at + 2 + usize::from(u16::from_be_bytes([length[0], length[1]])))
        };
        let value_bytes = match name {
            0x21 => {
                let value = tail.get(..2).ok_or(Malformed)?;
                return Ok(u16::from_be_bytes([value[0], value[1]]));
            }
            0x24 | 0x25 | 0x28..=0x2A => 1,
            0x13 | 0x22 => 2,
            0x11 | 0x27 => 4,
            0x26 => text(text(0)?)?,
            0x12 | 0x15 | 0x16 | 0x1A | 0x1C | 0x1F => text(0)?,
            _ => return Err(Malformed),
        };
        rest = tail.get(value_bytes..).ok_or(Malformed)?;
    }
    Ok(u16::MAX)
}

fn text(text: &str, out: &mut Vec<u8>) {
    out.extend_from_slice(&(text.len() as u16).to_be_bytes());
    out.extend_from_slice(text.as_bytes());
}

fn packet(first: u8, body: &[u8], out: &mut Vec<u8>) {
    out.push(first);
    let mut left = body.len();
    while left > 0x7F {
        out.push((left & 0x7F) as u8 | 0x80);
        left >>= 7;
    }
    out.push(left as u8);
    out.extend_from_slice(body);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn connack_says_reason_and_receive_maximum() {
        let welcome = |receive_maximum| Ok(Ok(Welcome { receive_maximum }));
        for (version, body, expected) in [
            (Version::V4, &[0, 0][..], welcome(65535)),
            (Version::V4, &[0, 5], Ok(Err(ReasonCode::NOT_AUTHORIZED))),
            (Version::V5, &[0, 0x86, 0], Ok(Err(ReasonCode::BAD_USER_NAME_OR_PASSWORD))),
            (Version::V5, &[0, 0, 0], welcome(65535)),
            (Version::V5, &[0, 0, 6, 0x22, 0, 10, 0x21, 0, 20], welcome(20)),
            (Version::V5, &[0, 0, 8, 0x12, 0, 2, b'i', b'd', 0x21, 1, 0], welcome(256)),
            (Version::V5, &[0, 0, 2, 0x21, 1], Err(Malformed)),
            (Version::V5, &[0], Err(Malformed)),
        ] {
            assert_eq!(connack(version, body), expected, "{body:?}");
        }
    }

    #[test]
    fn suback_says_what_was_refused() {
        for (version, body, expected) in [
            (Version::V4, &[0, 1, 0, 2][..], Ok(None)),
            (Version::V4, &[0, 1, 0, 0x80], Ok(Some(ReasonCode::UNSPECIFIED_ERROR))),
            (Version::V5, &[0, 1, 0, 0x87], Ok(Some(ReasonCode::NOT_AUTHORIZED))),
            (Version::V5, &[0, 1], Err(Malformed)),
        ] {
            assert_eq!(refused(version, body), expected, "{body:?}");
        }
    }
}
