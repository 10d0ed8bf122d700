//! Ingest without MQTT: datagrams, HTTP, CoAP and WebSocket, whose messages become messages like all others.
//!
//! ```text
//!  UDP ───────────▶ a thread: topic by a template ─▶ HandOver ── QoS 0, bundles ─┐
//!  CoAP ──▶ state machine ─┐                                                    ├─▶ shard of the broker ─▶ flows, sessions, journal
//!  HTTP ──▶ lines, JSON ───┼─▶ Publisher ── QoS 1, the bus ─────────────────────┘
//!  WebSocket ──▶ objects ──┘       ▲
//!                                  └── PUBACK ◀── then the sender is answered
//! ```
//!
//! A listener is a client of this node's broker, as a bridge is: its messages are authorized, looked at by flows, routed and kept
//! like any other message. Each has a thread, so that none holds up another.
//!
//! Always true: a sender is acknowledged only after the broker has accepted its message; each message that is not accepted is
//! counted under its reason; no sender makes a listener hold more than its bounds.

mod coap;
mod counters;
mod hand_over;
mod http;
mod message;
mod publisher;
mod refused;
mod senders;
mod settings;
mod udp;
mod websocket;
#[cfg(feature = "xdp")]
mod xdp;

use std::{
    io,
    net::{SocketAddr, TcpListener, UdpSocket},
    sync::{Arc, PoisonError, RwLock},
    thread::{self, JoinHandle},
    time::Duration,
};

use tidegate_auth::limits::{Limits, Meter};
use tokio_util::sync::CancellationToken;

use self::counters::Counters;
#[cfg(feature = "xdp")]
pub use self::xdp::XdpSettings;
pub use self::{
    counters::IngestReport,
    settings::{IngestSettings, ServerTls},
};
use tidegate_bus::Bus;
pub use tidegate_device::{NoTag, Place, Template, TemplateError};
use tidegate_identity::access::Access;
pub use tidegate_message::words::{DatagramFormat, IngestKind};
use tidegate_process::{
    health::{Health, Pulse},
    pages::Pages,
};
use tidegate_wire::mqtt::path::Stamps;

/// A listener's loop comes round at least so often, or it hangs.
const PULSE: Duration = Duration::from_secs(20);

/// A running listener; it stops when dropped.
#[derive(Debug)]
pub struct Ingest {
    context: Arc<Context>,
    address: SocketAddr,
    stop: CancellationToken,
    thread: Option<JoinHandle<()>>,
}

/// Why a listener cannot run.
#[derive(Debug, thiserror::Error)]
pub enum IngestError {
    /// Its address cannot be listened on.
    #[error("cannot listen on {address}; free it or set `listen` in [ingest.{name}]")]
    Listen {
        /// Its name.
        name: Arc<str>,
        /// Its address.
        address: SocketAddr,
        /// The system's error.
        source: io::Error,
    },
    /// Datagrams cannot be received by the configured method.
    #[error("ingest.{name} cannot receive by {method}; receive = \"auto\" takes what there is")]
    Receive {
        /// Its name.
        name: Arc<str>,
        /// The method.
        method: &'static str,
        /// The system's error.
        source: io::Error,
    },
    /// The system gives no threads or descriptors.
    #[error("the thread of ingest.{name} cannot be started")]
    Start {
        /// Its name.
        name: Arc<str>,
        /// The system's error.
        source: io::Error,
    },
}

/// State shared by all parts of a listener.
#[derive(Debug)]
struct Context {
    live: RwLock<Arc<Live>>,
    counters: Counters,
    access: Access,
    bus: Bus,
    /// The node's name among those that a message passed, and the value that carries it.
    node: Arc<str>,
    stamps: Stamps,
    #[cfg(feature = "xdp")]
    filter: xdp::Slot,
}

/// The settings that are exchanged while a listener runs.
#[derive(Debug)]
struct Live {
    settings: IngestSettings,
    /// Of all its senders together.
    meter: Meter,
    /// The pages whose requests count.
    pages: Pages,
}

impl Live {
    fn new(settings: IngestSettings) -> Self {
        let messages_per_second = settings.rate_max.map(|rate| u64::from(rate.get()));
        let meter = Meter::new(Limits { messages_per_second, ..Limits::NONE });
        let front = format!("ingest {}", settings.name);
        let pages = Pages::new(&front, settings.origins.clone(), settings.tls.is_some());
        Self { settings, meter, pages }
    }
}

impl Context {
    /// The settings for messages that come in now.
    fn live(&self) -> Arc<Live> {
        self.live.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Each count with its name.
    fn counts(&self) -> Vec<(&'static str, u64)> {
        #[cfg_attr(
            not(feature = "xdp"),
            expect(unused_mut, reason = "a filter has counts of its own")
        )]
        let mut counts = self.counters.report().named();
        #[cfg(feature = "xdp")]
        counts.extend(self.filter.counts());
        counts
    }
}

impl Ingest {
    /// Listens, and hands what comes in to `bus`; the thread is a pulse of `health`. `node` is this node's name among those that a
    /// message passed.
    ///
    /// # Errors
    /// [`IngestError`].
    pub fn start(
        settings: IngestSettings,
        node: Arc<str>,
        bus: &Bus,
        access: Access,
        health: &Health,
    ) -> Result<Self, IngestError> {
        let (name, kind) = (settings.name.clone(), settings.kind);
        let listen = settings.listen;
        let failed = |source| IngestError::Listen { name: name.clone(), address: listen, source };
        let context = Arc::new(Context {
            live: RwLock::new(Arc::new(Live::new(settings))),
            counters: Counters::default(),
            access,
            bus: bus.clone(),
            stamps: Stamps::new(&node),
            node,
            #[cfg(feature = "xdp")]
            filter: xdp::Slot::default(),
        });
        let stop = CancellationToken::new();
        let pulse = health.pulse(format!("ingest {name}"), PULSE);
        let parts = (context.clone(), stop.clone(), pulse);
        let (address, thread) = match kind {
            IngestKind::Udp => {
                let socket = UdpSocket::bind(listen).map_err(failed)?;
                let address = socket.local_addr().map_err(failed)?;
                (address, udp::start(parts, socket)?)
            }
            IngestKind::Http | IngestKind::WebSocket => {
                let listener = TcpListener::bind(listen).map_err(failed)?;
                let address = listener.local_addr().map_err(failed)?;
                (address, http::start(parts, listener)?)
            }
            IngestKind::Coap => {
                let socket = UdpSocket::bind(listen).map_err(failed)?;
                let address = socket.local_addr().map_err(failed)?;
                (address, coap::start(parts, socket)?)
            }
        };
        let told = Arc::downgrade(&context);
        bus.tell_in_sys(format!("ingest/{name}"), move || {
            told.upgrade().map(|context| context.counts())
        });
        tracing::info!(ingest = %name, kind = kind.word(), %address, "ingest served");
        #[cfg(feature = "xdp")]
        context.filter.exchange(&context.live().settings, address);
        Ok(Self { context, address, stop, thread: Some(thread) })
    }

    /// Uses `new` from now on; false if its socket would have to be opened again, and then nothing has changed.
    pub fn exchange(&self, new: IngestSettings) -> bool {
        let mut live = self.context.live.write().unwrap_or_else(PoisonError::into_inner);
        let keeps = new.keeps_socket_of(&live.settings);
        if keeps && new != live.settings {
            *live = Arc::new(Live::new(new));
        }
        // The kernel may take its time; the receiver must not wait for it.
        drop(live);
        #[cfg(feature = "xdp")]
        if keeps {
            self.context.filter.exchange(&self.context.live().settings, self.address);
        }
        keeps
    }

    /// Where it listens.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// The counts so far.
    pub fn report(&self) -> IngestReport {
        self.context.counters.report()
    }
}

impl Drop for Ingest {
    fn drop(&mut self) {
        self.stop.cancel();
        if let Some(thread) = self.thread.take()
            && thread.join().is_err()
        {
            tracing::error!("the thread of an ingest listener panicked");
        }
    }
}

type Parts = (Arc<Context>, CancellationToken, Pulse);

/// A thread of the listener's name.
fn spawn(
    name: &Arc<str>,
    work: impl FnOnce() + Send + 'static,
) -> Result<JoinHandle<()>, IngestError> {
    // The kernel keeps fifteen characters of it.
    let thread = thread::Builder::new().name(format!("in-{name}"));
    thread.spawn(work).map_err(|source| IngestError::Start { name: name.clone(), source })
}
