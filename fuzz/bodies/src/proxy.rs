//! A load balancer's header before a connection.

use tidegate_wire::proxy::{HEADER_BYTES_MAX, Header, ProxyProtocol};

/// A header of the PROXY protocol and what follows it: however much has come, what is found is the same, within its bound, and
/// nothing is waited for beyond that.
pub fn proxy_header(data: &[u8]) {
    for accepted in [ProxyProtocol::V1, ProxyProtocol::V2, ProxyProtocol::Any] {
        let whole = Header::decode(data, accepted);
        let first = (0..=data.len())
            .map(|length| Header::decode(&data[..length], accepted))
            .find(|found| !matches!(found, Ok(None)))
            .unwrap_or(Ok(None));
        match (&whole, &first) {
            (Ok(None), Ok(None)) => assert!(data.len() < HEADER_BYTES_MAX),
            (Ok(Some(one)), Ok(Some(other))) => {
                assert_eq!(one, other);
                assert!(one.bytes <= data.len().min(HEADER_BYTES_MAX));
            }
            (Err(_), Err(_)) => {}
            _ => panic!("{whole:?} of all, {first:?} of the first"),
        }
    }
}
