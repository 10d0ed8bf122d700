//! Files in memory that another process may read, and how they get there.
//!
//! The one who made the file writes it as a file and maps nothing, so that nothing the reader does can end this process; the reader
//! has a descriptor that is open for reading alone, so that it neither writes nor truncates by mistake what others read. That is no wall: a
//! process of the same user can open the file again for writing, below `/proc/self/fd`.

use std::{
    ffi::CString,
    fs::{File, OpenOptions},
    io,
    mem::{size_of, zeroed},
    os::fd::{AsRawFd as _, BorrowedFd, FromRawFd as _, OwnedFd},
    ptr,
};

/// A file in memory of `bytes` bytes of zeros: the same file open for writing, and open for reading alone.
///
/// Both descriptors are closed on exec. Memory is taken page by page as it is written.
///
/// # Errors
/// The kernel has no such files, or no descriptor is left, or `bytes` is more than a file may have.
pub fn memory_file(name: &str, bytes: u64) -> io::Result<(File, File)> {
    let name = CString::new(name)?;
    // SAFETY: the name is a string that ends with a zero byte and lives during the call.
    let descriptor = unsafe { libc::memfd_create(name.as_ptr(), libc::MFD_CLOEXEC) };
    if descriptor < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the call above made this descriptor, and nothing else owns it.
    let file = unsafe { File::from_raw_fd(descriptor) };
    file.set_len(bytes)?;
    let path = format!("/proc/self/fd/{}", file.as_raw_fd());
    let for_reading = OpenOptions::new().read(true).open(path)?;
    Ok((file, for_reading))
}

/// Writes `bytes` to a Unix stream socket, and passes `passed` along with the first of them (SCM_RIGHTS). Returns how many bytes were
/// written; the descriptor was passed if that is at least one.
///
/// # Errors
/// Those of `sendmsg`; `WouldBlock` on a socket that does not block and has no room. Nothing was passed then. `bytes` must not be empty.
pub fn send_with_descriptor(
    socket: BorrowedFd<'_>,
    bytes: &[u8],
    passed: BorrowedFd<'_>,
) -> io::Result<usize> {
    if bytes.is_empty() {
        return Err(io::Error::new(
            io::ErrorKind::InvalidInput,
            "a descriptor needs a byte to travel with",
        ));
    }
    // Words, for their alignment is that of the header; room for a header and a descriptor.
    let mut control = [0_usize; 8];
    let mut part = libc::iovec { iov_base: bytes.as_ptr().cast_mut().cast(), iov_len: bytes.len() };
    // SAFETY: a header of zeros is valid: it has no address, no parts and no control data.
    let mut header: libc::msghdr = unsafe { zeroed() };
    header.msg_iov = ptr::from_mut(&mut part);
    header.msg_iovlen = 1;
    header.msg_control = control.as_mut_ptr().cast();
    // SAFETY: both compute sizes alone.
    let (space, length) = unsafe {
        (
            libc::CMSG_SPACE(size_of::<libc::c_int>() as u32),
            libc::CMSG_LEN(size_of::<libc::c_int>() as u32),
        )
    };
    assert!(space as usize <= size_of_val(&control), "the control data has room for a descriptor");
    header.msg_controllen = space as _;
    // SAFETY: the header's control data is `control`, aligned, zeroed and large enough for one message with a descriptor, which is
    // asserted above, so that the first message lies in it.
    unsafe {
        let message = libc::CMSG_FIRSTHDR(&raw const header);
        (*message).cmsg_level = libc::SOL_SOCKET;
        (*message).cmsg_type = libc::SCM_RIGHTS;
        (*message).cmsg_len = length as _;
        ptr::write_unaligned(libc::CMSG_DATA(message).cast(), passed.as_raw_fd());
    }
    // SAFETY: the header names `bytes` and `control`, which outlive the call; `sendmsg` only reads them.
    let sent = unsafe { libc::sendmsg(socket.as_raw_fd(), &raw const header, libc::MSG_NOSIGNAL) };
    usize::try_from(sent).map_err(|_| io::Error::last_os_error())
}

/// Reads from a Unix stream socket into `bytes`, and takes the descriptor that came with them (SCM_RIGHTS), if one did; it is closed on exec.
/// Returns how many bytes were read, 0 at the end of the stream. Of several descriptors that come at once the kernel closes all but the first.
///
/// # Errors
/// Those of `recvmsg`: `Interrupted`, by a signal; `WouldBlock` on a socket that does not block and has no bytes. `bytes` must not be empty.
pub fn receive_with_descriptor(
    socket: BorrowedFd<'_>,
    bytes: &mut [u8],
) -> io::Result<(usize, Option<OwnedFd>)> {
    if bytes.is_empty() {
        return Err(io::Error::new(io::ErrorKind::InvalidInput, "a descriptor comes with a byte"));
    }
    // Words, for their alignment is that of the header; room for a header and a descriptor.
    let mut control = [0_usize; 8];
    let mut part = libc::iovec { iov_base: bytes.as_mut_ptr().cast(), iov_len: bytes.len() };
    // SAFETY: a header of zeros is valid: it has no address, no parts and no control data.
    let mut header: libc::msghdr = unsafe { zeroed() };
    header.msg_iov = ptr::from_mut(&mut part);
    header.msg_iovlen = 1;
    header.msg_control = control.as_mut_ptr().cast();
    // SAFETY: it computes a size alone.
    let length = unsafe { libc::CMSG_LEN(size_of::<libc::c_int>() as u32) };
    assert!(length as usize <= size_of_val(&control), "the control data has room for a descriptor");
    // The length without padding, in which a second descriptor would find room.
    header.msg_controllen = length as _;
    // SAFETY: the header names `bytes` and `control`, which are borrowed for the call; `recvmsg` writes no more of them than it says.
    let read =
        unsafe { libc::recvmsg(socket.as_raw_fd(), &raw mut header, libc::MSG_CMSG_CLOEXEC) };
    let read = usize::try_from(read).map_err(|_| io::Error::last_os_error())?;
    // SAFETY: the header is the one that the kernel has filled; the first message lies in `control`, or there is none.
    let message = unsafe { libc::CMSG_FIRSTHDR(&raw const header) };
    if message.is_null() {
        return Ok((read, None));
    }
    // SAFETY: it is not null, so it points into `control`, which is aligned for it and holds a whole header.
    let (level, kind, found) =
        unsafe { ((*message).cmsg_level, (*message).cmsg_type, (*message).cmsg_len) };
    if (level, kind) != (libc::SOL_SOCKET, libc::SCM_RIGHTS) || found < length as _ {
        return Ok((read, None));
    }
    // SAFETY: a message of that kind and length holds a descriptor, which the kernel has made for this process and nothing else owns.
    let descriptor = unsafe {
        let descriptor: libc::c_int = ptr::read_unaligned(libc::CMSG_DATA(message).cast());
        OwnedFd::from_raw_fd(descriptor)
    };
    Ok((read, Some(descriptor)))
}

#[cfg(test)]
mod tests {
    use std::{
        io::{Read as _, Write as _},
        os::{
            fd::AsFd as _,
            unix::{fs::FileExt as _, net::UnixStream},
        },
    };

    use super::*;

    #[test]
    #[cfg_attr(miri, ignore = "Miri knows no memfd_create")]
    fn the_reader_of_a_memory_file_reads_and_does_no_more() {
        let (file, reader) = memory_file("test", 4096).unwrap();
        file.write_all_at(b"pixels", 100).unwrap();
        let mut read = [0; 6];
        reader.read_exact_at(&mut read, 100).unwrap();
        assert_eq!(&read, b"pixels");
        assert_eq!(reader.metadata().unwrap().len(), 4096);
        assert!(reader.write_all_at(b"x", 0).is_err());
        assert!(reader.set_len(0).is_err(), "a reader that truncates would end its siblings");
        assert!(memory_file("a\0b", 1).is_err());
    }

    #[test]
    #[cfg_attr(miri, ignore = "Miri knows no sendmsg")]
    fn a_descriptor_travels_with_bytes_and_is_closed_with_them() {
        let (ours, mut theirs) = UnixStream::pair().unwrap();
        let (passed, mut other) = UnixStream::pair().unwrap();
        let none = send_with_descriptor(ours.as_fd(), b"", passed.as_fd());
        assert_eq!(none.unwrap_err().kind(), io::ErrorKind::InvalidInput);
        assert_eq!(send_with_descriptor(ours.as_fd(), b"with", passed.as_fd()).unwrap(), 4);
        drop(passed);
        // The copy on its way keeps the other end open.
        other.set_nonblocking(true).unwrap();
        assert_eq!(other.read(&mut [0; 1]).unwrap_err().kind(), io::ErrorKind::WouldBlock);
        // Bytes read without asking for descriptors: the kernel closes what travelled along.
        let mut bytes = [0; 4];
        theirs.read_exact(&mut bytes).unwrap();
        assert_eq!(&bytes, b"with");
        assert_eq!(other.read(&mut [0; 1]).unwrap(), 0);
    }

    #[test]
    #[cfg_attr(miri, ignore = "Miri knows no sendmsg")]
    fn a_descriptor_is_received_once_with_the_bytes_that_it_came_with() {
        let (ours, theirs) = UnixStream::pair().unwrap();
        let (file, reader) = memory_file("test", 4096).unwrap();
        file.write_all_at(b"pixels", 100).unwrap();
        (&ours).write_all(b"before").unwrap();
        send_with_descriptor(ours.as_fd(), b"with", reader.as_fd()).unwrap();
        let (mut received, mut descriptors) = (Vec::new(), Vec::new());
        while received.len() < 10 {
            let mut bytes = [0; 3];
            let (count, descriptor) = receive_with_descriptor(theirs.as_fd(), &mut bytes).unwrap();
            received.extend_from_slice(&bytes[..count]);
            descriptors.extend(descriptor);
        }
        assert_eq!(received, b"beforewith");
        let descriptor = descriptors.pop().expect("one came");
        assert!(descriptors.is_empty());
        let mut read = [0; 6];
        File::from(descriptor).read_exact_at(&mut read, 100).unwrap();
        assert_eq!(&read, b"pixels");
        drop(ours);
        assert_eq!(receive_with_descriptor(theirs.as_fd(), &mut [0; 1]).unwrap().0, 0);
        let none = receive_with_descriptor(theirs.as_fd(), &mut []);
        assert_eq!(none.unwrap_err().kind(), io::ErrorKind::InvalidInput);
    }
}
