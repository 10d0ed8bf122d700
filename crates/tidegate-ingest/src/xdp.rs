//! A filter in the kernel, before datagrams come in.
//!
//! ```text
//!  network interface ─▶ XDP: tidegate-xdp's program ─▶ the kernel's stack ─▶ socket ─▶ Receiver
//!                                └─ dropped, counted
//! ```
//!
//! Always true: a listener never depends on its filter. A filter that the kernel refuses is reported, and all datagrams come in; an
//! unusual packet passes, and is judged by the listener.

use std::{
    io,
    net::SocketAddr,
    sync::{Mutex, MutexGuard, PoisonError},
};

use tidegate_sys::bpf::{Attachment, Counters, LoadError, Mode, Program, interface_index};
use tidegate_xdp::{
    COUNTERS, Combine, Condition, Destination, Field, Filter, FilterError, FilterSpec, Verdict,
};

use super::IngestSettings;

/// The filter in the kernel for a listener's datagrams.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct XdpSettings {
    /// The network interface that they come in by.
    pub interface: String,
    /// Where the program runs.
    pub mode: Mode,
    /// Bytes of a payload; none for what the fields need.
    pub payload_bytes: Option<u16>,
    /// The fields.
    pub fields: Vec<Field>,
    /// How the conditions go together.
    pub combine: Combine,
    /// The conditions for a datagram to be kept.
    pub conditions: Vec<Condition>,
}

impl XdpSettings {
    /// The filter of what comes to that address.
    ///
    /// # Errors
    /// [`FilterError`].
    pub fn filter(&self, address: SocketAddr) -> Result<Filter, FilterError> {
        let spec = FilterSpec {
            port: address.port(),
            destination: Destination::of(address.ip()),
            payload_bytes: self.payload_bytes,
            fields: self.fields.clone(),
            combine: self.combine,
            conditions: self.conditions.clone(),
        };
        spec.compile()
    }
}

/// Where a listener has its filter, or none.
#[derive(Debug, Default)]
pub(super) struct Slot {
    held: Mutex<Held>,
}

#[derive(Debug, Default)]
struct Held {
    running: Option<Running>,
    /// The counts of filters before the one that runs.
    before: [u64; COUNTERS as usize],
    /// Whether there was ever one, so that its counts are published.
    is_told: bool,
}

/// A filter that the kernel has.
#[derive(Debug)]
struct Running {
    settings: XdpSettings,
    counters: Counters,
    attachment: Attachment,
}

impl Slot {
    /// Has the kernel filter as `settings` say what comes to `address`. Where it cannot, that is said, and nothing is filtered.
    pub(super) fn exchange(&self, settings: &IngestSettings, address: SocketAddr) {
        let mut held = self.held();
        let wanted = settings.xdp.as_ref();
        if held.running.as_ref().map(|running| &running.settings) == wanted {
            return;
        }
        let name = &settings.name;
        // An interface has one program at a time; packets between the two pass.
        if let Some(running) = held.running.take() {
            let counted = running.sums();
            held.before = total(held.before, counted);
            tracing::info!(ingest = %name, interface = %running.settings.interface, "the filter was removed from the kernel");
        }
        let Some(wanted) = wanted else { return };
        held.is_told = true;
        match Running::start(wanted, address) {
            Ok(running) => {
                let mode = running.attachment.mode().word();
                tracing::info!(ingest = %name, interface = %wanted.interface, mode, "datagrams are filtered in the kernel");
                held.running = Some(running);
            }
            Err(error) => {
                let error = tidegate_message::error_chain(&error);
                tracing::warn!(ingest = %name, interface = %wanted.interface, %error,
                    "no filter runs in the kernel: all datagrams reach the node");
            }
        }
    }

    /// Each count with its name; nothing where there never was to be a filter.
    pub(super) fn counts(&self) -> Vec<(&'static str, u64)> {
        let held = self.held();
        if !held.is_told {
            return Vec::new();
        }
        let counted = held.running.as_ref().map_or([0; COUNTERS as usize], Running::sums);
        let counted = total(held.before, counted);
        let names = ["xdp_kept", "xdp_dropped", "xdp_unusual"];
        names.into_iter().zip(Verdict::ALL.map(|verdict| counted[verdict.counter()])).collect()
    }

    fn held(&self) -> MutexGuard<'_, Held> {
        self.held.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Running {
    fn start(settings: &XdpSettings, address: SocketAddr) -> Result<Self, XdpError> {
        let filter = settings.filter(address)?;
        let name = &settings.interface;
        let counters = Counters::new(COUNTERS).map_err(XdpError::of_counters)?;
        let program = Program::load("tidegate_xdp", &filter.instructions(counters.descriptor()));
        let program = program.map_err(XdpError::of_program)?;
        let index = interface_index(name)
            .map_err(|source| XdpError::Interface { name: name.clone(), source })?;
        let attachment = program.attach(index, settings.mode).map_err(|source| {
            let (name, mode) = (name.clone(), settings.mode.word());
            match is_denied(&source) {
                true => XdpError::Denied { source },
                false => XdpError::Attach { name, mode, source },
            }
        })?;
        Ok(Self { settings: settings.clone(), counters, attachment })
    }

    fn sums(&self) -> [u64; COUNTERS as usize] {
        let sums = self.counters.sums().ok();
        sums.and_then(|sums| sums.try_into().ok()).unwrap_or_default()
    }
}

fn total<const N: usize>(one: [u64; N], other: [u64; N]) -> [u64; N] {
    std::array::from_fn(|index| one[index] + other[index])
}

/// Why the kernel has no filter.
#[derive(Debug, thiserror::Error)]
enum XdpError {
    #[error("loading an XDP filter needs root, or CAP_BPF and CAP_NET_ADMIN")]
    Denied { source: io::Error },
    #[error("there is no room for its counters")]
    Counters { source: io::Error },
    #[error(transparent)]
    Load(LoadError),
    #[error("there is no network interface {name:?}")]
    Interface { name: String, source: io::Error },
    #[error(
        "{name:?} accepts no program in mode {mode}; it may have another one, or its driver may not support that mode"
    )]
    Attach { name: String, mode: &'static str, source: io::Error },
    #[error(transparent)]
    Filter(#[from] FilterError),
}

impl XdpError {
    fn of_counters(source: io::Error) -> Self {
        if is_denied(&source) { Self::Denied { source } } else { Self::Counters { source } }
    }

    fn of_program(error: LoadError) -> Self {
        // The verifier says that something is denied as well, but with its reasons.
        match is_denied(&error.source) && error.log.is_empty() {
            true => Self::Denied { source: error.source },
            false => Self::Load(error),
        }
    }
}

fn is_denied(error: &io::Error) -> bool {
    error.kind() == io::ErrorKind::PermissionDenied
}
