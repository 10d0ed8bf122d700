//! Mapped files that are cut or unreadable do not end the process.
//!
//! Touching a page of a mapped file that the file no longer has, or that its disk cannot read, raises SIGBUS, which ends the
//! process. Maps that are [guarded](guard) are put into a table; for an address in one of them the handler lays a page of zeros
//! over the place, marks the map as damaged and lets the program continue. Data read there then fails its checksum, and data
//! written there is lost, which [`Guard::is_damaged`] reports. systemd's journal does the same (sigbus.c).
//!
//! Always true: the handler calls nothing but mmap and touches nothing but the table; a fault outside of all guarded maps goes
//! where it went before.

use std::{
    io, ptr,
    sync::{
        Once,
        atomic::{AtomicBool, AtomicPtr, AtomicUsize, Ordering},
    },
};

/// The most maps that are guarded at once. A table of fixed size is what a signal handler can read.
const GUARDED_MAX: usize = 16 << 10;

struct Row {
    taken: AtomicBool,
    start: AtomicUsize,
    /// 0 while the row guards nothing.
    len: AtomicUsize,
    damaged: AtomicBool,
}

static TABLE: [Row; GUARDED_MAX] = [const {
    Row {
        taken: AtomicBool::new(false),
        start: AtomicUsize::new(0),
        len: AtomicUsize::new(0),
        damaged: AtomicBool::new(false),
    }
}; GUARDED_MAX];

/// Rows at and above this were never taken.
static ROWS_USED: AtomicUsize = AtomicUsize::new(0);

/// The former handler of the signal; null if that was the kernel's default.
static BEFORE: AtomicPtr<libc::sigaction> = AtomicPtr::new(ptr::null_mut());

/// One guarded map. Dropping it ends the guard, which is to happen before the map goes.
pub(crate) struct Guard(usize);

impl Guard {
    /// Whether a page of the map was replaced by zeros.
    pub(crate) fn is_damaged(&self) -> bool {
        TABLE[self.0].damaged.load(Ordering::Relaxed)
    }
}

impl Drop for Guard {
    fn drop(&mut self) {
        let row = &TABLE[self.0];
        row.len.store(0, Ordering::SeqCst);
        row.taken.store(false, Ordering::Release);
    }
}

/// Guards the `len` bytes mapped at `start`.
///
/// # Errors
/// As many maps as fit the table are guarded already, or the handler could not be installed.
pub(crate) fn guard(start: *const u8, len: usize) -> io::Result<Guard> {
    install()?;
    let free = |row: &Row| {
        row.taken.compare_exchange(false, true, Ordering::Acquire, Ordering::Relaxed).is_ok()
    };
    let number = TABLE.iter().position(free).ok_or_else(|| {
        io::Error::new(io::ErrorKind::OutOfMemory, "too many files are mapped at once")
    })?;
    let row = &TABLE[number];
    row.damaged.store(false, Ordering::Relaxed);
    row.start.store(start.addr(), Ordering::Relaxed);
    row.len.store(len, Ordering::SeqCst);
    ROWS_USED.fetch_max(number + 1, Ordering::SeqCst);
    Ok(Guard(number))
}

/// Installs the handler once for the process.
fn install() -> io::Result<()> {
    static ONCE: Once = Once::new();
    static INSTALLED: AtomicBool = AtomicBool::new(false);
    ONCE.call_once(|| {
        // SAFETY: all zeros is a valid sigaction: the default handler, no flags, an empty mask.
        let mut before: libc::sigaction = unsafe { std::mem::zeroed() };
        // SAFETY: as above.
        let mut ours: libc::sigaction = unsafe { std::mem::zeroed() };
        let handler: extern "C" fn(libc::c_int, *mut libc::siginfo_t, *mut libc::c_void) = on_fault;
        ours.sa_sigaction = handler as usize;
        ours.sa_flags = libc::SA_SIGINFO | libc::SA_ONSTACK;
        // SAFETY: both structures are valid for the length of the call, and the handler has the signature that SA_SIGINFO asks
        // for and does only what a handler may do.
        let rc = unsafe { libc::sigaction(libc::SIGBUS, &raw const ours, &raw mut before) };
        if rc == 0 {
            if before.sa_sigaction != libc::SIG_DFL {
                // It is read by the handler for as long as the process lives.
                BEFORE.store(Box::into_raw(Box::new(before)), Ordering::Release);
            }
            INSTALLED.store(true, Ordering::Release);
        }
    });
    match INSTALLED.load(Ordering::Acquire) {
        true => Ok(()),
        false => Err(io::Error::other("the handler of SIGBUS could not be installed")),
    }
}

extern "C" fn on_fault(
    signal: libc::c_int,
    info: *mut libc::siginfo_t,
    context: *mut libc::c_void,
) {
    // SAFETY: the kernel passes a valid siginfo to a handler with SA_SIGINFO; SIGBUS has an address.
    let address = unsafe { (*info).si_addr() }.addr();
    let rows = ROWS_USED.load(Ordering::SeqCst);
    for row in &TABLE[..rows] {
        let (start, len) = (row.start.load(Ordering::Relaxed), row.len.load(Ordering::SeqCst));
        if address < start || address - start >= len {
            continue;
        }
        if cover(address) {
            row.damaged.store(true, Ordering::SeqCst);
            return;
        }
    }
    let before = BEFORE.load(Ordering::Acquire);
    // SAFETY: not null, it points to a structure that is never freed, which the kernel gave as valid.
    if let Some(before) = unsafe { before.as_ref() } {
        if before.sa_flags & libc::SA_SIGINFO != 0 && before.sa_sigaction != libc::SIG_IGN {
            // SAFETY: with SA_SIGINFO the field holds a handler of this signature, and the arguments are the kernel's own.
            let handler: extern "C" fn(libc::c_int, *mut libc::siginfo_t, *mut libc::c_void) =
                unsafe { std::mem::transmute(before.sa_sigaction) };
            return handler(signal, info, context);
        }
        // SAFETY: the structure is a valid one; the fault repeats and meets it.
        unsafe { libc::sigaction(libc::SIGBUS, before, ptr::null_mut()) };
        return;
    }
    // SAFETY: all zeros is the default handler. The fault repeats and ends the process as if this handler were not there.
    unsafe {
        let default: libc::sigaction = std::mem::zeroed();
        libc::sigaction(libc::SIGBUS, &raw const default, ptr::null_mut());
    }
}

/// Lays a page of zeros over the page of `address`.
fn cover(address: usize) -> bool {
    let page = crate::memory::page_bytes();
    let start = address & !(page - 1);
    // SAFETY: the page lies in a guarded map, which is mapped for as long as its row has a length, so nothing else is replaced.
    // Memory there was mapped for reading and writing before and is so after; its bytes were out of reach.
    let mapped = unsafe {
        libc::mmap(
            ptr::with_exposed_provenance_mut(start),
            page,
            libc::PROT_READ | libc::PROT_WRITE,
            libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_FIXED,
            -1,
            0,
        )
    };
    mapped != libc::MAP_FAILED
}
