//! The parts around a datagram: its sender, the kernel's control messages, options of its socket.

use std::{
    io,
    mem::size_of,
    net::{Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV4, SocketAddrV6},
    os::fd::{AsRawFd as _, BorrowedFd},
};

use super::Datagram;

/// Room for one control message that holds a number.
pub(super) const CONTROL_BYTES: usize = align(size_of::<libc::cmsghdr>()) + align(4);
/// Room for the address of either family.
pub(super) const NAME_BYTES: usize = size_of::<libc::sockaddr_in6>();

/// Takes what was received apart and counts it.
pub(super) struct Sink<'a, T> {
    pub(super) bytes_max: usize,
    pub(super) count: &'a mut usize,
    pub(super) take: &'a mut T,
}

impl<T: FnMut(Datagram<'_>) -> bool> Sink<'_, T> {
    /// Gives out what one buffer holds: one datagram, or several of `segment` bytes each but the last. Whether more is wanted.
    pub(super) fn give(
        &mut self,
        source: Option<SocketAddr>,
        bytes: &[u8],
        segment: Option<usize>,
        is_cut: bool,
    ) -> bool {
        let Some(segment) = segment.filter(|segment| (1..bytes.len()).contains(segment)) else {
            return self.give_one(source, bytes, is_cut);
        };
        let mut goes_on = true;
        // All of them, since the buffer goes back.
        for bytes in bytes.chunks(segment) {
            goes_on &= self.give_one(source, bytes, is_cut && bytes.len() < segment);
        }
        goes_on
    }

    #[inline]
    fn give_one(&mut self, source: Option<SocketAddr>, bytes: &[u8], is_cut: bool) -> bool {
        *self.count += 1;
        let is_cut = is_cut || bytes.len() > self.bytes_max;
        (self.take)(Datagram { source, bytes: &bytes[..bytes.len().min(self.bytes_max)], is_cut })
    }
}

/// The address in a `sockaddr` of IPv4 or IPv6; none for any other.
pub(super) fn address(name: &[u8]) -> Option<SocketAddr> {
    let array = |at: usize| name.get(at..at + 4)?.try_into().ok();
    let family = u16::from_ne_bytes(name.get(..2)?.try_into().ok()?);
    let port = u16::from_be_bytes(name.get(2..4)?.try_into().ok()?);
    match i32::from(family) {
        libc::AF_INET => {
            let ip: [u8; 4] = array(4)?;
            Some(SocketAddrV4::new(Ipv4Addr::from(ip), port).into())
        }
        libc::AF_INET6 => {
            let ip: [u8; 16] = name.get(8..24)?.try_into().ok()?;
            let (flow, scope) = (u32::from_ne_bytes(array(4)?), u32::from_ne_bytes(array(24)?));
            Some(SocketAddrV6::new(Ipv6Addr::from(ip), port, flow, scope).into())
        }
        _ => None,
    }
}

/// The length of each of the datagrams that the kernel joined, as it says in a control message.
pub(super) fn segment_bytes(mut control: &[u8]) -> Option<usize> {
    const WORD: usize = size_of::<usize>();
    const HEADER: usize = align(size_of::<libc::cmsghdr>());
    let int = |bytes: &[u8], at: usize| {
        Some(i32::from_ne_bytes(bytes.get(at..at + 4)?.try_into().expect("four bytes")))
    };
    while let Some(length) = control.get(..WORD) {
        let length = usize::from_ne_bytes(length.try_into().expect("a word"));
        if length < HEADER {
            return None;
        }
        let is_it = (int(control, WORD), int(control, WORD + 4))
            == (Some(libc::SOL_UDP), Some(libc::UDP_GRO));
        if is_it {
            return usize::try_from(int(control, HEADER)?).ok();
        }
        control = control.get(align(length)..)?;
    }
    None
}

/// To the alignment of control messages.
const fn align(bytes: usize) -> usize {
    bytes.next_multiple_of(size_of::<usize>())
}

/// Whether an error tells of a datagram that was sent before and says nothing of those to come, or of a signal.
pub(super) fn is_of_others(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        io::ErrorKind::ConnectionRefused
            | io::ErrorKind::HostUnreachable
            | io::ErrorKind::NetworkUnreachable
            | io::ErrorKind::Interrupted
    )
}

pub(super) fn set_joins(socket: BorrowedFd<'_>, joins: bool) -> io::Result<()> {
    match set_int(socket, libc::SOL_UDP, libc::UDP_GRO, i32::from(joins)) {
        // Kernels before 5.0 do not join.
        Err(error) if !joins && error.raw_os_error() == Some(libc::ENOPROTOOPT) => Ok(()),
        other => other,
    }
}

pub(super) fn set_receive_buffer(socket: BorrowedFd<'_>, bytes: usize) -> io::Result<usize> {
    let asked = i32::try_from(bytes).unwrap_or(i32::MAX);
    // Beyond the system-wide limit, where this process may.
    if set_int(socket, libc::SOL_SOCKET, libc::SO_RCVBUFFORCE, asked).is_err() {
        set_int(socket, libc::SOL_SOCKET, libc::SO_RCVBUF, asked)?;
    }
    let mut words = [0_u32; 1];
    read_words(socket, libc::SO_RCVBUF, &mut words)?;
    Ok(words[0] as usize)
}

/// The place of the drops among what the kernel tells of a socket's memory (`SK_MEMINFO_DROPS`, linux/sock_diag.h).
const MEMINFO_DROPS: usize = 8;

pub(super) fn dropped(socket: BorrowedFd<'_>) -> io::Result<u32> {
    let mut words = [0_u32; MEMINFO_DROPS + 1];
    let count = read_words(socket, libc::SO_MEMINFO, &mut words)?;
    if count <= MEMINFO_DROPS {
        return Err(io::ErrorKind::Unsupported.into());
    }
    Ok(words[MEMINFO_DROPS])
}

/// Reads an option of `SOL_SOCKET` that is one number or several; returns how many it has.
fn read_words(socket: BorrowedFd<'_>, name: libc::c_int, words: &mut [u32]) -> io::Result<usize> {
    let mut length = libc::socklen_t::try_from(size_of_val(words)).expect("some words");
    // SAFETY: the kernel writes at most `length` bytes, which is the size of `words`, and the new length.
    let result = unsafe {
        libc::getsockopt(
            socket.as_raw_fd(),
            libc::SOL_SOCKET,
            name,
            words.as_mut_ptr().cast(),
            &raw mut length,
        )
    };
    if result == 0 {
        Ok(length as usize / size_of::<u32>())
    } else {
        Err(io::Error::last_os_error())
    }
}

pub(super) fn set_int(
    socket: BorrowedFd<'_>,
    level: libc::c_int,
    name: libc::c_int,
    value: i32,
) -> io::Result<()> {
    let length = size_of::<i32>() as libc::socklen_t;
    // SAFETY: the kernel reads `length` bytes, which is the size of `value`, during this call only.
    let result = unsafe {
        libc::setsockopt(socket.as_raw_fd(), level, name, (&raw const value).cast(), length)
    };
    if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}
