//! Exchanges that this side began: messages of QoS 1 and 2, and requests. They share packet identifiers (section 2.2.1).
//!
//! Always true: an identifier names one exchange at a time, and comes again after all others that are free; no more messages are
//! open than the window, unless a resumed session brought them.

use std::{collections::VecDeque, num::NonZeroU16};

use super::super::{PacketId, QoS, ReasonCode};

/// How far an exchange is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Stage {
    /// PUBLISH was sent.
    Published(QoS),
    /// PUBREC came, with that reason.
    Released(ReasonCode),
    /// SUBSCRIBE was sent.
    Subscribing,
    /// UNSUBSCRIBE was sent.
    Unsubscribing,
}

impl Stage {
    fn is_message(self) -> bool {
        matches!(self, Self::Published(_) | Self::Released(_))
    }
}

/// A packet of an exchange that is sent again.
#[derive(Debug)]
pub(super) enum Resend<'a> {
    /// PUBREL.
    Release,
    /// PUBLISH, encoded.
    Message(QoS, &'a [u8]),
}

#[derive(Debug)]
pub(super) struct Exchanges<T> {
    /// Whether the first identifier is the last of all.
    from_the_end: bool,
    /// By identifier, in the order in which they are taken.
    open: Vec<Option<(Stage, T)>>,
    /// Messages that may have to be sent again, by identifier, each with its place in the order.
    kept: Vec<Option<(u64, Box<[u8]>)>>,
    /// Identifiers that were used and are free.
    free: VecDeque<PacketId>,
    ids_max: usize,
    inflight_max: usize,
    /// The part of `inflight_max` that the server takes.
    window: usize,
    messages: usize,
    requests: usize,
    /// Messages that were ever kept.
    numbered: u64,
    /// Messages of earlier connections that were not sent on this one.
    resends: VecDeque<PacketId>,
}

impl<T> Exchanges<T> {
    pub(super) fn new(inflight_max: NonZeroU16, from_the_end: bool) -> Self {
        let inflight_max = usize::from(inflight_max.get());
        Self {
            from_the_end,
            open: Vec::new(),
            kept: Vec::new(),
            free: VecDeque::new(),
            ids_max: (2 * inflight_max).min(usize::from(u16::MAX)),
            inflight_max,
            window: inflight_max,
            messages: 0,
            requests: 0,
            numbered: 0,
            resends: VecDeque::new(),
        }
    }

    /// The place of an identifier.
    #[inline]
    fn place(&self, id: PacketId) -> usize {
        usize::from(if self.from_the_end { u16::MAX - id.get() } else { id.get() - 1 })
    }

    /// The identifier of a place.
    #[inline]
    fn id(&self, place: usize) -> PacketId {
        let place = u16::try_from(place).expect("no more places than identifiers");
        let id = if self.from_the_end { u16::MAX - place } else { place + 1 };
        PacketId::new(id).expect("places end before the last identifier")
    }

    #[inline]
    pub(super) fn room(&self) -> usize {
        let ids = self.ids_max - self.messages - self.requests;
        self.window.saturating_sub(self.messages).min(ids)
    }

    pub(super) fn request_room(&self) -> usize {
        let ids = self.ids_max - self.messages - self.requests;
        self.inflight_max.saturating_sub(self.requests).min(ids)
    }

    #[inline]
    pub(super) fn messages(&self) -> usize {
        self.messages
    }

    pub(super) fn tokens(&self) -> impl Iterator<Item = &T> {
        self.open.iter().flatten().map(|(_, token)| token)
    }

    pub(super) fn token(&self, id: PacketId) -> Option<&T> {
        let open = self.open.get(self.place(id))?;
        open.as_ref().map(|(_, token)| token)
    }

    /// An identifier for a new exchange; none if there is no room.
    #[inline]
    pub(super) fn begin(&mut self, stage: Stage, token: T) -> Option<PacketId> {
        let (room, count) = match stage.is_message() {
            true => (self.room(), &mut self.messages),
            false => (self.request_room(), &mut self.requests),
        };
        if room == 0 {
            return None;
        }
        *count += 1;
        if self.open.len() < self.ids_max {
            self.open.push(Some((stage, token)));
            return Some(self.id(self.open.len() - 1));
        }
        let id = self.free.pop_front().expect("an identifier is free where there is room");
        let at = self.place(id);
        self.open[at] = Some((stage, token));
        Some(id)
    }

    #[inline]
    pub(super) fn stage(&self, id: PacketId) -> Option<Stage> {
        let open = self.open.get(self.place(id))?;
        open.as_ref().map(|(stage, _)| *stage)
    }

    /// Keeps the packet of a message, until it is acknowledged.
    pub(super) fn keep(&mut self, id: PacketId, packet: Box<[u8]>) {
        let at = self.place(id);
        if self.kept.len() <= at {
            self.kept.resize(at + 1, None);
        }
        self.kept[at] = Some((self.numbered, packet));
        self.numbered += 1;
    }

    /// The server has the message.
    pub(super) fn release(&mut self, id: PacketId, reason: ReasonCode) {
        let at = self.place(id);
        if let Some((stage, _)) = &mut self.open[at] {
            *stage = Stage::Released(reason);
        }
        if let Some(Some((_, packet))) = self.kept.get_mut(at) {
            *packet = Box::default();
        }
    }

    /// The exchange is over.
    #[inline]
    pub(super) fn finish(&mut self, id: PacketId) -> Option<T> {
        let at = self.place(id);
        let (stage, token) = self.open.get_mut(at)?.take()?;
        if let Some(kept) = self.kept.get_mut(at) {
            *kept = None;
        }
        match stage.is_message() {
            true => self.messages -= 1,
            false => self.requests -= 1,
        }
        self.free.push_back(id);
        Some(token)
    }

    /// The connection has ended: requests are over, messages wait for the next.
    pub(super) fn end(&mut self) {
        self.resends.clear();
        for at in 0..self.open.len() {
            let id = self.id(at);
            if self.stage(id).is_some_and(|stage| !stage.is_message()) {
                self.finish(id);
            }
        }
    }

    pub(super) fn clear(&mut self) {
        self.open.clear();
        self.kept.clear();
        self.free.clear();
        self.resends.clear();
        self.messages = 0;
        self.requests = 0;
    }

    /// A connection begins: what is open is to be sent again, in its order.
    pub(super) fn resume(&mut self, receive_maximum: usize) {
        self.window = self.inflight_max.min(receive_maximum);
        let kept = self.kept.iter().enumerate();
        let mut order: Vec<(u64, PacketId)> =
            kept.filter_map(|(at, kept)| Some((kept.as_ref()?.0, self.id(at)))).collect();
        order.sort_unstable();
        self.resends = order.into_iter().map(|(_, id)| id).collect();
    }

    #[inline]
    pub(super) fn is_resending(&self) -> bool {
        !self.resends.is_empty()
    }

    /// The packet that is sent again next; none if the server takes no more for now.
    pub(super) fn next_resend(&mut self) -> Option<(PacketId, Resend<'_>)> {
        loop {
            let id = *self.resends.front()?;
            let stage = self.stage(id);
            let sent = self.messages.saturating_sub(self.resends.len());
            if matches!(stage, Some(Stage::Published(_))) && sent >= self.window {
                return None;
            }
            self.resends.pop_front();
            let at = self.place(id);
            let kept = self.kept.get(at);
            match (stage, kept) {
                (Some(Stage::Released(_)), _) => return Some((id, Resend::Release)),
                (Some(Stage::Published(qos)), Some(Some(_))) => {
                    let (_, packet) = self.kept[at].as_ref()?;
                    return Some((id, Resend::Message(qos, packet)));
                }
                _ => {} // acknowledged without having been sent again
            }
        }
    }
}
