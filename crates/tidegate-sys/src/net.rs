//! Socket options and addresses that neither std nor socket2 offers.

use std::{
    io,
    net::IpAddr,
    os::fd::{AsRawFd, BorrowedFd},
    time::Duration,
};

/// The addresses of this machine's interfaces that are up, those of loopback left out, each once.
///
/// # Errors
/// The operating system's.
pub fn own_addresses() -> io::Result<Vec<IpAddr>> {
    let mut first = std::ptr::null_mut();
    // SAFETY: the call writes one pointer to `first`, to a list that is freed below.
    if unsafe { libc::getifaddrs(&raw mut first) } != 0 {
        return Err(io::Error::last_os_error());
    }
    let mut found = Vec::new();
    let mut next = first;
    while !next.is_null() {
        // SAFETY: each entry of the list is valid until it is freed, and nothing changes it.
        let entry = unsafe { &*next };
        next = entry.ifa_next;
        let is_up = entry.ifa_flags & libc::IFF_UP as u32 != 0;
        let is_loopback = entry.ifa_flags & libc::IFF_LOOPBACK as u32 != 0;
        if entry.ifa_addr.is_null() || !is_up || is_loopback {
            continue;
        }
        // SAFETY: an address that is not null has a family, which says how it is to be read; it is read unaligned, whole.
        let address = unsafe {
            match i32::from(std::ptr::read_unaligned(&raw const (*entry.ifa_addr).sa_family)) {
                libc::AF_INET => {
                    let v4 = std::ptr::read_unaligned(entry.ifa_addr.cast::<libc::sockaddr_in>());
                    Some(IpAddr::from(v4.sin_addr.s_addr.to_ne_bytes()))
                }
                libc::AF_INET6 => {
                    let v6 = std::ptr::read_unaligned(entry.ifa_addr.cast::<libc::sockaddr_in6>());
                    Some(IpAddr::from(v6.sin6_addr.s6_addr))
                }
                _ => None,
            }
        };
        found.extend(address.filter(|address| !found.contains(address)));
    }
    // SAFETY: the list is ours, and no reference into it is left.
    unsafe { libc::freeifaddrs(first) };
    Ok(found)
}

/// The kernel's state of a TCP connection: the part of `struct tcp_info` (linux/tcp.h) that a sender needs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TcpInfo {
    /// Smoothed round-trip time.
    pub rtt: Duration,
    /// Shortest round-trip time of late.
    pub rtt_min: Duration,
    /// Bytes of one segment.
    pub segment_bytes: u32,
    /// Segments sent and not acknowledged.
    pub unacked: u32,
    /// Segments on the way: sent, not acknowledged, not known to have arrived behind a gap, not taken for lost.
    pub in_flight: u32,
    /// Segments that may be unacknowledged.
    pub window: u32,
    /// Segments retransmitted so far.
    pub retransmitted: u32,
    /// Bytes in the send buffer that were never sent.
    pub unsent_bytes: u32,
    /// Estimated delivery rate in bytes per second.
    pub delivery_rate: u64,
    /// How long there were bytes to send or to be acknowledged, since the connection began; this and the parts of it below
    /// are zero on kernels before 4.10.
    pub busy: Duration,
    /// How long of that the receiver's window was what held them back.
    pub receiver_limited: Duration,
    /// How long of that the send buffer was, in which no unsent byte was left.
    pub buffer_limited: Duration,
}

/// Bytes up to and with `tcpi_delivery_rate`; there since Linux 4.9.
const TCP_INFO_BYTES_MIN: usize = 168;
/// Bytes up to and with `tcpi_sndbuf_limited`; there since Linux 4.10.
const TCP_INFO_BYTES: usize = 192;

/// The kernel's state of the connection `socket`.
///
/// # Errors
/// The operating system's, if `socket` is no TCP socket; [`io::ErrorKind::Unsupported`] on kernels before 4.9.
pub fn tcp_info(socket: BorrowedFd<'_>) -> io::Result<TcpInfo> {
    let mut bytes = [0_u8; TCP_INFO_BYTES];
    let mut length = TCP_INFO_BYTES as libc::socklen_t;
    // SAFETY: the kernel writes at most `length` bytes, which is the size of `bytes`, and the new length.
    let result = unsafe {
        libc::getsockopt(
            socket.as_raw_fd(),
            libc::IPPROTO_TCP,
            libc::TCP_INFO,
            bytes.as_mut_ptr().cast(),
            &raw mut length,
        )
    };
    if result != 0 {
        return Err(io::Error::last_os_error());
    }
    if (length as usize) < TCP_INFO_BYTES_MIN {
        return Err(io::ErrorKind::Unsupported.into());
    }
    let word = |at: usize| u32::from_ne_bytes(bytes[at..at + 4].try_into().expect("four bytes"));
    let micros = |at| Duration::from_micros(u64::from(word(at)));
    let long = |at: usize| u64::from_ne_bytes(bytes[at..at + 8].try_into().expect("eight bytes"));
    Ok(TcpInfo {
        segment_bytes: word(16),
        unacked: word(24),
        // As the kernel counts it: those not acknowledged, less those that arrived out of order and those lost, and those of
        // the latter that were sent again.
        in_flight: (word(24) + word(36)).saturating_sub(word(28) + word(32)),
        rtt: micros(68),
        window: word(80),
        retransmitted: word(100),
        unsent_bytes: word(144),
        rtt_min: micros(148),
        delivery_rate: long(160),
        busy: Duration::from_micros(long(168)),
        receiver_limited: Duration::from_micros(long(176)),
        buffer_limited: Duration::from_micros(long(184)),
    })
}

#[cfg(test)]
mod tests {
    use std::{
        io::{Read, Write},
        net::{TcpListener, TcpStream, UdpSocket},
        os::fd::AsFd,
    };

    use super::*;

    #[test]
    fn own_addresses_are_those_that_can_be_bound() {
        let found = own_addresses().expect("the system knows");
        for address in found {
            assert!(!address.is_loopback());
            // Those of a link need its number, too.
            if address.is_ipv4() {
                std::net::UdpSocket::bind((address, 0)).expect("it is ours");
            }
        }
    }

    #[test]
    fn a_connection_that_carried_bytes_has_a_round_trip() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let mut near = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let (mut far, _) = listener.accept().unwrap();
        near.write_all(&[7; 1000]).unwrap();
        far.read_exact(&mut [0; 1000]).unwrap();
        far.write_all(b"x").unwrap();
        near.read_exact(&mut [0; 1]).unwrap();
        let info = tcp_info(near.as_fd()).unwrap();
        assert!(
            info.rtt > Duration::ZERO && info.window > 0 && info.segment_bytes > 500,
            "{info:?}"
        );
        assert_eq!(info.unsent_bytes, 0);
    }

    #[test]
    fn a_receiver_that_does_not_read_is_what_holds_back() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let mut near = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let (_far, _) = listener.accept().unwrap();
        near.set_nonblocking(true).unwrap();
        // Full when nothing more goes for some ticks of the kernel's clock.
        let begin = std::time::Instant::now();
        let info = loop {
            while near.write(&[7; 1 << 16]).is_ok() {}
            let info = tcp_info(near.as_fd()).unwrap();
            if info.receiver_limited >= Duration::from_millis(100) {
                break info;
            }
            assert!(begin.elapsed() < Duration::from_secs(20), "{info:?}");
            std::thread::yield_now();
        };
        assert!(info.busy >= info.receiver_limited && info.unsent_bytes > 0, "{info:?}");
        assert!(info.buffer_limited < info.receiver_limited, "{info:?}");
    }

    #[test]
    fn other_sockets_are_refused() {
        let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
        assert!(tcp_info(socket.as_fd()).is_err());
    }
}
