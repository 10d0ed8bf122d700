//! Many datagrams by `recvmmsg`.

use std::{
    io,
    mem::zeroed,
    os::fd::{AsRawFd as _, BorrowedFd},
    time::Duration,
};

use super::{
    Datagram,
    message::{CONTROL_BYTES, NAME_BYTES, Sink, address, is_of_others, segment_bytes},
    readable,
};

/// Datagrams of one call.
const COUNT: usize = 64;

/// Room for what one call receives.
#[derive(Debug)]
pub(super) struct Batch {
    buffer_bytes: usize,
    /// `COUNT` of them, one after another; likewise below.
    payloads: Vec<u8>,
    names: Vec<u8>,
    controls: Vec<u8>,
}

impl Batch {
    pub(super) fn new(buffer_bytes: usize) -> Self {
        Self {
            buffer_bytes,
            payloads: vec![0; COUNT * buffer_bytes],
            names: vec![0; COUNT * NAME_BYTES],
            controls: vec![0; COUNT * CONTROL_BYTES],
        }
    }

    pub(super) fn receive<T: FnMut(Datagram<'_>) -> bool>(
        &mut self,
        socket: BorrowedFd<'_>,
        wait: Duration,
        mut sink: Sink<'_, T>,
    ) -> io::Result<()> {
        // SAFETY: both are plain data for which all zeros is a value.
        let (mut headers, mut slices): ([libc::mmsghdr; COUNT], [libc::iovec; COUNT]) =
            unsafe { (zeroed(), zeroed()) };
        let buffers = self.payloads.chunks_exact_mut(self.buffer_bytes);
        let names = self.names.chunks_exact_mut(NAME_BYTES);
        let controls = self.controls.chunks_exact_mut(CONTROL_BYTES);
        let parts = headers.iter_mut().zip(&mut slices).zip(buffers).zip(names).zip(controls);
        for ((((header, slice), buffer), name), control) in parts {
            *slice = libc::iovec { iov_base: buffer.as_mut_ptr().cast(), iov_len: buffer.len() };
            header.msg_hdr.msg_iov = slice;
            header.msg_hdr.msg_iovlen = 1;
            header.msg_hdr.msg_name = name.as_mut_ptr().cast();
            header.msg_hdr.msg_namelen = NAME_BYTES as libc::socklen_t;
            header.msg_hdr.msg_control = control.as_mut_ptr().cast();
            header.msg_hdr.msg_controllen = CONTROL_BYTES as _;
        }
        let mut has_waited = false;
        let count = loop {
            // SAFETY: each of the `COUNT` headers points to a name, a control buffer and one slice of a payload buffer that
            // are as long as it says and are used by nothing else until this call returns; there is no timeout.
            let received = unsafe {
                libc::recvmmsg(
                    socket.as_raw_fd(),
                    headers.as_mut_ptr(),
                    COUNT as libc::c_uint,
                    libc::MSG_DONTWAIT as _,
                    std::ptr::null_mut(),
                )
            };
            match usize::try_from(received) {
                Ok(count) => break count,
                Err(_) => match io::Error::last_os_error() {
                    error if error.kind() == io::ErrorKind::WouldBlock => {
                        if has_waited || !readable(socket, wait)? {
                            return Ok(());
                        }
                        has_waited = true;
                    }
                    error if is_of_others(&error) => {}
                    error => return Err(error),
                },
            }
        };
        for (at, header) in headers[..count].iter().enumerate() {
            let bytes = (header.msg_len as usize).min(self.buffer_bytes);
            let payload = &self.payloads[at * self.buffer_bytes..][..bytes];
            let name = &self.names[at * NAME_BYTES..][..NAME_BYTES];
            let control_bytes = header.msg_hdr.msg_controllen.min(CONTROL_BYTES);
            let control = &self.controls[at * CONTROL_BYTES..][..control_bytes];
            let is_cut = header.msg_hdr.msg_flags & libc::MSG_TRUNC != 0;
            let Some(source) = address(name) else { continue };
            // All that the kernel gave must be given on: it is nowhere else any more.
            let _ = sink.give(Some(source), payload, segment_bytes(control), is_cut);
        }
        Ok(())
    }
}
