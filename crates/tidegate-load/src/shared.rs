//! State that the workers of a run share, each at most a few words.

use std::{
    io,
    os::fd::OwnedFd,
    sync::atomic::{AtomicBool, AtomicI64, AtomicU64, Ordering},
};

use crate::{
    spec::{Pace, Spec},
    url::Endpoint,
};

/// State that the workers of a run share.
pub(crate) struct Shared<'a> {
    pub(crate) spec: &'a Spec,
    pub(crate) endpoint: &'a Endpoint,
    /// When sending begins; 0 until everybody is connected.
    pub(crate) start_at: AtomicI64,
    /// Nothing more is sent.
    pub(crate) stop: AtomicBool,
    /// The connections end.
    pub(crate) finish: AtomicBool,
    /// Which subscribers are there.
    pub(crate) subscribed: Vec<AtomicBool>,
    /// Whether any flow has a window.
    pub(crate) windows: bool,
    /// Messages received of each flow of each publisher, where flows have windows.
    credits: Vec<Credit>,
    pub(crate) workers: Vec<Board>,
}

/// On a cache line of its own, since publishers and subscribers may be in different threads.
#[derive(Debug, Default)]
#[repr(align(64))]
struct Credit(AtomicU64);

/// Notes of a worker to the others.
#[derive(Debug)]
#[repr(align(64))]
pub(crate) struct Board {
    pub(crate) wake: OwnedFd,
    /// Whether its publishers wait for receptions in other workers.
    pub(crate) waiting: AtomicBool,
    /// It will send nothing more.
    pub(crate) stopped: AtomicBool,
    pub(crate) connected: AtomicU64,
    pub(crate) sent: AtomicU64,
    pub(crate) due: AtomicU64,
    pub(crate) received: AtomicU64,
    pub(crate) received_once: AtomicU64,
    pub(crate) unacknowledged: AtomicU64,
    /// Connections with bytes that the socket did not take.
    pub(crate) unwritten: AtomicU64,
}

impl<'a> Shared<'a> {
    pub(crate) fn new(spec: &'a Spec, endpoint: &'a Endpoint, threads: usize) -> io::Result<Self> {
        let windows = spec.flows.iter().any(|flow| matches!(flow.pace, Pace::Window(_)));
        let credits = if windows { spec.publishers as usize * spec.flows.len() } else { 1 };
        let board = |_| {
            Ok(Board {
                wake: rustix::event::eventfd(0, rustix::event::EventfdFlags::NONBLOCK)?,
                waiting: AtomicBool::new(false),
                stopped: AtomicBool::new(false),
                connected: AtomicU64::new(0),
                sent: AtomicU64::new(0),
                due: AtomicU64::new(0),
                received: AtomicU64::new(0),
                received_once: AtomicU64::new(0),
                unacknowledged: AtomicU64::new(0),
                unwritten: AtomicU64::new(0),
            })
        };
        Ok(Self {
            spec,
            endpoint,
            start_at: AtomicI64::new(0),
            stop: AtomicBool::new(false),
            finish: AtomicBool::new(false),
            subscribed: (0..spec.subscribers).map(|_| AtomicBool::new(false)).collect(),
            windows,
            credits: (0..credits).map(|_| Credit::default()).collect(),
            workers: (0..threads).map(board).collect::<io::Result<_>>()?,
        })
    }

    #[inline]
    pub(crate) fn credit(&self, publisher: u32, flow: u32) -> &AtomicU64 {
        let flows = self.spec.flows.len();
        let index = if self.windows { publisher as usize * flows + flow as usize } else { 0 };
        &self.credits[index].0
    }

    pub(crate) fn sum(&self, field: impl Fn(&Board) -> &AtomicU64) -> u64 {
        self.workers.iter().map(|worker| field(worker).load(Ordering::Acquire)).sum()
    }

    pub(crate) fn wake_all(&self) {
        self.workers.iter().for_each(Board::wake);
    }
}

impl Board {
    pub(crate) fn wake(&self) {
        // It fails only when so many wakes are waiting that another changes nothing.
        let _ = rustix::io::write(&self.wake, &1_u64.to_ne_bytes());
    }
}
