//! Programs that the kernel runs on packets as they come in (eBPF at XDP), by bpf(2) itself.
//!
//! ```text
//!  instructions ─▶ Program::load ─▶ attach ─▶ Attachment, to one network interface
//!                       │  ▲
//!                       │  └── judge: one packet, without an interface
//!                       └────▶ Counters ─▶ sums
//! ```
//!
//! The kernel's verifier checks every program, so that no instruction can harm this process or the kernel.
//!
//! Always true: nothing is pinned. A program leaves its interface when its [`Attachment`] is dropped, or when the process ends
//! in whatever way.

use std::{
    ffi::CString,
    fmt, io,
    os::fd::{AsRawFd as _, FromRawFd as _, OwnedFd},
};

/// Numbers of `enum bpf_cmd` (linux/bpf.h).
const MAP_CREATE: libc::c_int = 0;
const MAP_LOOKUP_ELEM: libc::c_int = 1;
const PROG_LOAD: libc::c_int = 5;
const PROG_TEST_RUN: libc::c_int = 10;
const LINK_CREATE: libc::c_int = 28;

const MAP_TYPE_PERCPU_ARRAY: u32 = 6;
const PROG_TYPE_XDP: u32 = 6;
const ATTACH_TYPE_XDP: u32 = 37;
/// Flags of `linux/if_link.h`.
const XDP_FLAGS_SKB_MODE: u32 = 1 << 1;
const XDP_FLAGS_DRV_MODE: u32 = 1 << 2;

/// Most processors of a Linux machine (the largest `CONFIG_NR_CPUS`): the kernel writes a value for each that there could be.
const PROCESSORS_MAX: usize = 8192;
/// Room for what the verifier says.
const LOG_BYTES: usize = 256 << 10;
/// Bytes of what it says that are kept: its end, where it says why.
const LOG_BYTES_KEPT: usize = 4 << 10;

/// Numbers that a program counts up, one for each processor.
#[derive(Debug)]
pub struct Counters {
    fd: OwnedFd,
    count: u32,
}

impl Counters {
    /// `count` of them, all 0.
    ///
    /// # Errors
    /// As the kernel says: `EPERM` without `CAP_BPF`, `EINVAL` for none.
    pub fn new(count: u32) -> io::Result<Self> {
        #[repr(C)]
        struct Attributes {
            map_type: u32,
            key_size: u32,
            value_size: u32,
            max_entries: u32,
            map_flags: u32,
        }
        let attributes = Attributes {
            map_type: MAP_TYPE_PERCPU_ARRAY,
            key_size: 4,
            value_size: 8,
            max_entries: count,
            map_flags: 0,
        };
        // SAFETY: MAP_CREATE reads its attributes, which hold no pointers.
        let fd = unsafe { bpf_fd(MAP_CREATE, attributes) }?;
        Ok(Self { fd, count })
    }

    /// The number by which instructions name them.
    pub fn descriptor(&self) -> i32 {
        self.fd.as_raw_fd()
    }

    /// The counts, summed over all processors.
    ///
    /// # Errors
    /// As the kernel says.
    pub fn sums(&self) -> io::Result<Vec<u64>> {
        #[repr(C)]
        struct Attributes {
            map_fd: u32,
            pad: u32,
            key: u64,
            value: u64,
            flags: u64,
        }
        let mut values = vec![0_u64; PROCESSORS_MAX];
        (0..self.count)
            .map(|key| {
                let attributes = Attributes {
                    map_fd: self.fd.as_raw_fd().cast_unsigned(),
                    pad: 0,
                    key: (&raw const key).expose_provenance() as u64,
                    value: values.as_mut_ptr().expose_provenance() as u64,
                    flags: 0,
                };
                // SAFETY: the kernel reads 4 bytes of the key, which `key` has, and writes 8 bytes for each processor that there
                // could be to `values`, which has room for as many as any kernel can have; both outlive the call.
                unsafe { bpf(MAP_LOOKUP_ELEM, attributes) }?;
                Ok(values.iter().sum())
            })
            .collect()
    }
}

/// A program that the kernel has found to be harmless and translated.
#[derive(Debug)]
pub struct Program {
    fd: OwnedFd,
}

/// A program's answer to a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Judged {
    /// Its return value: 1 is `XDP_DROP`, 2 is `XDP_PASS`.
    pub action: u32,
    /// How long one run took on average, in nanoseconds.
    pub nanos: u32,
}

impl Program {
    /// Loads a program for packets, by eight bytes an instruction in the machine's byte order. `name` is what the system's tools show: the first 15
    /// letters, digits, `_` and `.` of it.
    ///
    /// # Errors
    /// [`LoadError`], with what the verifier said.
    pub fn load(name: &str, instructions: &[u64]) -> Result<Self, LoadError> {
        #[repr(C)]
        struct Attributes {
            prog_type: u32,
            insn_cnt: u32,
            insns: u64,
            license: u64,
            log_level: u32,
            log_size: u32,
            log_buf: u64,
            kern_version: u32,
            prog_flags: u32,
            prog_name: [u8; 16],
            prog_ifindex: u32,
            expected_attach_type: u32,
        }
        let mut prog_name = [0; 16];
        let named =
            name.bytes().filter(|byte| byte.is_ascii_alphanumeric() || b"_.".contains(byte));
        for (to, from) in prog_name[..15].iter_mut().zip(named) {
            *to = from;
        }
        let attributes = |log: &mut [u8]| Attributes {
            prog_type: PROG_TYPE_XDP,
            insn_cnt: u32::try_from(instructions.len()).unwrap_or(u32::MAX),
            insns: instructions.as_ptr().expose_provenance() as u64,
            license: c"Apache-2.0".as_ptr().expose_provenance() as u64,
            log_level: u32::from(!log.is_empty()),
            log_size: log.len() as u32,
            log_buf: if log.is_empty() { 0 } else { log.as_mut_ptr().expose_provenance() as u64 },
            kern_version: 0,
            prog_flags: 0,
            prog_name,
            prog_ifindex: 0,
            expected_attach_type: ATTACH_TYPE_XDP,
        };
        // SAFETY: the kernel reads `insn_cnt` instructions and the licence up to its zero, both of which outlive the call; more
        // instructions than fit the number are more than it takes, which it says before it reads them.
        match unsafe { bpf_fd(PROG_LOAD, attributes(&mut [])) } {
            Ok(fd) => Ok(Self { fd }),
            Err(source) => {
                // Only who fails pays for the log.
                let mut log = vec![0; LOG_BYTES];
                // SAFETY: as above, and it writes at most `log_size` bytes to `log`, which outlives the call.
                match unsafe { bpf_fd(PROG_LOAD, attributes(&mut log)) } {
                    Ok(fd) => Ok(Self { fd }),
                    Err(_) => Err(LoadError { source, log: end_of(&log) }),
                }
            }
        }
    }

    /// Runs it on a packet, beginning with its Ethernet header, `repeat` times over and without any interface. Its counters count
    /// as usual.
    ///
    /// # Errors
    /// As the kernel says: `EINVAL` for packets below 14 bytes or over about 3500.
    pub fn judge(&self, packet: &[u8], repeat: u32) -> io::Result<Judged> {
        #[repr(C)]
        struct Attributes {
            prog_fd: u32,
            retval: u32,
            data_size_in: u32,
            data_size_out: u32,
            data_in: u64,
            data_out: u64,
            repeat: u32,
            duration: u32,
        }
        let mut attributes = Attributes {
            prog_fd: self.fd.as_raw_fd().cast_unsigned(),
            retval: 0,
            data_size_in: u32::try_from(packet.len()).unwrap_or(u32::MAX),
            data_size_out: 0,
            data_in: packet.as_ptr().expose_provenance() as u64,
            data_out: 0,
            repeat,
            duration: 0,
        };
        // SAFETY: the kernel reads `data_size_in` bytes of `packet`, which outlives the call, or none if there are more than it
        // takes; it gives no packet back, since it is given no place for it.
        unsafe { bpf_in_place(PROG_TEST_RUN, &mut attributes) }?;
        Ok(Judged { action: attributes.retval, nanos: attributes.duration })
    }

    /// Has it see every packet that comes in by the interface of this number, in the network namespace of the calling thread.
    ///
    /// # Errors
    /// As the kernel says: `EPERM` without `CAP_NET_ADMIN`, `ENODEV` without the interface, `EOPNOTSUPP` if its driver knows no such
    /// programs ([`Mode::Native`]), `EBUSY` or `EEXIST` if another one is there.
    pub fn attach(&self, interface: u32, mode: Mode) -> io::Result<Attachment> {
        match mode {
            Mode::Auto => self
                .attach(interface, Mode::Native)
                .or_else(|_| self.attach(interface, Mode::Generic)),
            Mode::Native => self.link(interface, XDP_FLAGS_DRV_MODE, mode),
            Mode::Generic => self.link(interface, XDP_FLAGS_SKB_MODE, mode),
        }
    }

    fn link(&self, interface: u32, flags: u32, mode: Mode) -> io::Result<Attachment> {
        #[repr(C)]
        struct Attributes {
            prog_fd: u32,
            target_ifindex: u32,
            attach_type: u32,
            flags: u32,
        }
        let attributes = Attributes {
            prog_fd: self.fd.as_raw_fd().cast_unsigned(),
            target_ifindex: interface,
            attach_type: ATTACH_TYPE_XDP,
            flags,
        };
        // SAFETY: LINK_CREATE reads its attributes, which hold no pointers.
        let fd = unsafe { bpf_fd(LINK_CREATE, attributes) }?;
        Ok(Attachment { _fd: fd, mode })
    }
}

/// A program at an interface, for as long as this is held.
#[derive(Debug)]
pub struct Attachment {
    _fd: OwnedFd,
    mode: Mode,
}

impl Attachment {
    /// Where it runs: [`Mode::Native`] or [`Mode::Generic`].
    pub fn mode(&self) -> Mode {
        self.mode
    }
}

/// Where a program runs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Mode {
    /// In the driver if that is possible, else in the kernel's stack.
    #[default]
    Auto,
    /// In the driver, before the kernel makes a buffer of its own for the packet.
    Native,
    /// At the begin of the kernel's stack, for every driver.
    Generic,
}

impl Mode {
    /// Each with its word.
    pub const WORDS: &[(&'static str, Self)] =
        &[("auto", Self::Auto), ("native", Self::Native), ("generic", Self::Generic)];

    /// Its word in configuration.
    pub fn word(self) -> &'static str {
        Self::WORDS.iter().find(|(_, mode)| *mode == self).expect("each has its word").0
    }
}

/// The number of a network interface, in the network namespace of the calling thread.
///
/// # Errors
/// `ENODEV` if there is none of that name.
pub fn interface_index(name: &str) -> io::Result<u32> {
    let name = CString::new(name).map_err(|_| io::Error::from_raw_os_error(libc::ENODEV))?;
    // SAFETY: the function reads a C string, which `name` is, and keeps no reference to it.
    match unsafe { libc::if_nametoindex(name.as_ptr()) } {
        0 => Err(io::Error::last_os_error()),
        index => Ok(index),
    }
}

/// Why a program was not loaded.
#[derive(Debug, thiserror::Error)]
#[error("the kernel refuses the program{said}", said = Said(log))]
pub struct LoadError {
    /// The kernel's error: `EPERM` without `CAP_BPF` (and `CAP_NET_ADMIN`), `EACCES` or `EINVAL` from its verifier.
    pub source: io::Error,
    /// The end of what the verifier said; empty if it did not come to it.
    pub log: String,
}

struct Said<'a>(&'a str);

impl fmt::Display for Said<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.0.is_empty() { Ok(()) } else { write!(f, ", its verifier says: {}", self.0) }
    }
}

/// The end of a text that ends with a zero.
fn end_of(log: &[u8]) -> String {
    let text = log.split(|byte| *byte == 0).next().unwrap_or_default().trim_ascii_end();
    String::from_utf8_lossy(&text[text.len().saturating_sub(LOG_BYTES_KEPT)..]).into_owned()
}

/// # Safety
/// Pointers in `attributes` must point to memory as the command needs it.
unsafe fn bpf<T>(command: libc::c_int, mut attributes: T) -> io::Result<i32> {
    // SAFETY: the caller's.
    unsafe { bpf_in_place(command, &mut attributes) }
}

/// # Safety
/// As of [`bpf`]; the command must be one that makes a descriptor.
unsafe fn bpf_fd<T>(command: libc::c_int, attributes: T) -> io::Result<OwnedFd> {
    // SAFETY: the caller's.
    let fd = unsafe { bpf(command, attributes) }?;
    // SAFETY: the kernel just made the descriptor, closed on exec, and nothing else owns it.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

/// # Safety
/// As of [`bpf`].
unsafe fn bpf_in_place<T>(command: libc::c_int, attributes: &mut T) -> io::Result<i32> {
    // SAFETY: the kernel reads and writes at most the attributes' own bytes, whose count it is given, and the caller answers
    // for what they point to.
    let result =
        unsafe { libc::syscall(libc::SYS_bpf, command, &raw mut *attributes, size_of::<T>()) };
    match i32::try_from(result) {
        Ok(result) if result >= 0 => Ok(result),
        _ => Err(io::Error::last_os_error()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// `r0 = 2; exit`: every packet passes.
    fn passes() -> [u64; 2] {
        [
            u64::from_ne_bytes([0xb7, 0, 0, 0, 2, 0, 0, 0]),
            u64::from_ne_bytes([0x95, 0, 0, 0, 0, 0, 0, 0]),
        ]
    }

    /// Whether programs may be loaded here; a word about it if not.
    fn may_load() -> bool {
        match Program::load("tidegate", &passes()) {
            Ok(_) => true,
            Err(error) => {
                println!("skipped: no programs at packets here: {}", error.source);
                false
            }
        }
    }

    #[test]
    fn a_program_judges_a_packet() {
        if may_load() && cfg!(target_endian = "little") {
            let program = Program::load("tidegate-x.y", &passes()).expect("it is harmless");
            assert_eq!(program.judge(&[0; 64], 1).expect("it runs").action, 2);
            assert!(program.judge(&[0; 4], 1).is_err(), "no Ethernet header");
        }
    }

    #[test]
    fn programs_that_the_verifier_refuses_are_reported_with_its_reason() {
        if may_load() {
            let no_result = [passes()[1]];
            let error = Program::load("tidegate", &no_result).expect_err("r0 holds nothing");
            assert!(error.log.contains("R0 !read_ok"), "{error}");
            assert!(error.to_string().contains("verifier says"), "{error}");
            assert!(Program::load("tidegate", &[]).is_err());
        }
    }

    #[test]
    fn counters_begin_at_zero() {
        if may_load() {
            let counters = Counters::new(3).expect("there is memory");
            assert_eq!(counters.sums().expect("they are read"), [0, 0, 0]);
            assert!(Counters::new(0).is_err());
        }
    }

    #[test]
    fn an_interface_that_is_not_there_has_no_number() {
        for name in ["", "no-such-device", "a\0b"] {
            assert_eq!(
                interface_index(name).unwrap_err().raw_os_error(),
                Some(libc::ENODEV),
                "{name:?}"
            );
        }
        if may_load() {
            let program = Program::load("tidegate", &passes()).expect("it is harmless");
            assert!(program.attach(0, Mode::Auto).is_err());
        }
    }

    #[test]
    fn modes_are_known_by_their_words() {
        for mode in [Mode::Auto, Mode::Native, Mode::Generic] {
            assert!(Mode::WORDS.contains(&(mode.word(), mode)), "{mode:?}");
        }
    }
}
