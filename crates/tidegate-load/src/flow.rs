//! One publisher's messages: when the next may leave, and its bytes.

use std::sync::Arc;

use tidegate_wire::mqtt::{PacketId, PublishHead, QoS, Version, client::Client};

use crate::{
    layout,
    packet::Stamp,
    spec::{Flow, Pace, Spec},
};

/// A publisher's flows.
#[derive(Debug)]
pub(crate) struct Publisher {
    pub(crate) flows: Vec<Outgoing>,
    pub(crate) number: u32,
    /// How often each message is to be received.
    pub(crate) copies: u32,
}

/// One flow of one publisher.
#[derive(Debug)]
pub(crate) struct Outgoing {
    /// Fixed header, topic, packet identifier and properties.
    head: Vec<u8>,
    qos: QoS,
    /// Where the identifier stands in `head`; none with QoS 0.
    id_at: Option<usize>,
    /// Bytes that follow the stamp; shared by all publishers.
    filler: Arc<[u8]>,
    number: u32,
    pace: Clocked,
    /// Messages so far.
    pub(crate) sent: u64,
    /// Receptions that the window stopped waiting for.
    forgiven: u64,
    /// Whether a window that has room is being used up.
    filling: bool,
    /// Messages that had been received when the window was last looked at.
    received_before: u64,
}

#[derive(Clone, Copy, Debug)]
enum Clocked {
    /// Message `n` is due at `first + n * period`.
    Timed {
        first: i64,
        period_nanos: f64,
        due: i64,
    },
    Window(u64),
}

impl Publisher {
    /// `fillers` holds what follows the stamp, for each flow.
    pub(crate) fn new(spec: &Spec, number: u32, fillers: &[Arc<[u8]>]) -> Self {
        let flows = fillers.iter().enumerate().map(|(flow, filler)| {
            let (head, id_at) = head(spec, number, flow);
            let pace = match spec.flows[flow].pace {
                Pace::Rate(per_second) => Clocked::Timed {
                    first: 0,
                    period_nanos: 1e9 * f64::from(spec.publishers) / per_second,
                    due: i64::MAX,
                },
                Pace::Every(period) => Clocked::Timed {
                    first: 0,
                    period_nanos: period.as_nanos() as f64,
                    due: i64::MAX,
                },
                Pace::Window(messages) => Clocked::Window(u64::from(messages)),
            };
            Outgoing {
                head,
                qos: spec.flows[flow].qos,
                id_at,
                filler: Arc::clone(filler),
                number: number << 8 | flow as u32,
                pace,
                sent: 0,
                forgiven: 0,
                filling: true,
                received_before: 0,
            }
        });
        Self { flows: flows.collect(), number, copies: 0 }
    }

    /// Sending begins at `now`; publishers spread over a period, so that they do not all send at once.
    pub(crate) fn start(&mut self, now: i64, publishers: u32, copies: u32) {
        self.copies = copies;
        let share = f64::from(self.number) / f64::from(publishers);
        for flow in &mut self.flows {
            if let Clocked::Timed { first, period_nanos, due } = &mut flow.pace {
                *first = now + (*period_nanos * share) as i64;
                *due = *first;
            }
        }
    }

    /// When the next timed message is due.
    pub(crate) fn due(&self) -> Option<i64> {
        let due = |flow: &Outgoing| match flow.pace {
            Clocked::Timed { due, .. } => Some(due),
            Clocked::Window(_) => None,
        };
        self.flows.iter().filter_map(due).min()
    }

    /// Whether a window has room. `received` tells what was received of a publisher's flow.
    pub(crate) fn may_fill(
        &mut self,
        client: &Client<u8>,
        received: impl Fn(u32, usize) -> u64,
    ) -> bool {
        let (number, copies) = (self.number, self.copies);
        let mut flows = self.flows.iter_mut().enumerate();
        client.room() > 0
            && flows.any(|(index, flow)| flow.window_room(copies, || received(number, index)) > 0)
    }

    /// Appends what may leave at `now` to `out`, until that holds `bytes_max` or more. `client` has the exchanges, `received` tells
    /// what was received of a flow, `wrote` is told of each message. Returns whether more may leave.
    pub(crate) fn fill(
        &mut self,
        now: i64,
        (out, bytes_max): (&mut Vec<u8>, usize),
        client: &mut Client<u8>,
        received: impl Fn(usize) -> u64,
        mut wrote: impl FnMut(usize),
    ) -> bool {
        loop {
            let mut earliest: Option<(i64, usize)> = None;
            for index in 0..self.flows.len() {
                let room = self.flows[index].window_room(self.copies, || received(index));
                for _ in 0..room {
                    if out.len() >= bytes_max {
                        return true;
                    }
                    if !self.write(index, now, client, out) {
                        return false; // the next acknowledgement goes on
                    }
                    wrote(index);
                }
                if let Clocked::Timed { due, .. } = self.flows[index].pace
                    && due <= now
                    && earliest.is_none_or(|(other, _)| due < other)
                {
                    earliest = Some((due, index));
                }
            }
            let Some((due, index)) = earliest else { return false };
            if out.len() >= bytes_max {
                return true;
            }
            if !self.write(index, due, client, out) {
                return false;
            }
            wrote(index);
            let flow = &mut self.flows[index];
            if let Clocked::Timed { first, period_nanos, due } = &mut flow.pace {
                *due = *first + (flow.sent as f64 * *period_nanos) as i64;
            }
        }
    }

    /// Appends one message; false without a free identifier.
    #[inline]
    fn write(
        &mut self,
        index: usize,
        sent_at: i64,
        client: &mut Client<u8>,
        out: &mut Vec<u8>,
    ) -> bool {
        let flow = &mut self.flows[index];
        let at = out.len();
        if let Some(id_at) = flow.id_at {
            let Some(id) = client.begin(flow.qos, index as u8) else { return false };
            out.extend_from_slice(&flow.head);
            out[at + id_at..at + id_at + 2].copy_from_slice(&id.get().to_be_bytes());
        } else {
            out.extend_from_slice(&flow.head);
        }
        let stamp = Stamp { sent_at, flow: flow.number, sequence: flow.sent as u32 };
        out.extend_from_slice(&stamp.bytes());
        out.extend_from_slice(&flow.filler);
        flow.sent += 1;
        true
    }
}

impl Outgoing {
    /// Messages that the window has room for; none for a timed flow.
    #[inline]
    fn window_room(&mut self, copies: u32, received: impl Fn() -> u64) -> u64 {
        let Clocked::Window(window) = self.pace else { return 0 };
        if copies == 0 {
            return u64::MAX; // nobody receives: TCP is the only limit
        }
        let copies = u64::from(copies);
        let outstanding = (self.sent * copies).saturating_sub(received() + self.forgiven);
        let room = window.saturating_sub(outstanding.div_ceil(copies));
        // Half a window at a time: a publisher that answers each reception with one message would make the broker read, and this
        // generator write, single messages.
        self.filling = room > 0 && (self.filling || room * 2 >= window);
        if self.filling { room } else { 0 }
    }

    /// To be asked once a second: whether the window is used up and nothing was received since. Outstanding messages then count
    /// as lost on the way, so that a broker that sheds does not stop its load.
    pub(crate) fn forgive(&mut self, copies: u32, received: u64) -> bool {
        let Clocked::Window(_) = self.pace else { return false };
        let outstanding = (self.sent * u64::from(copies)).saturating_sub(received + self.forgiven);
        let stands = outstanding > 0 && received == self.received_before && !self.filling;
        self.received_before = received;
        if stands {
            self.forgiven += outstanding;
        }
        stands
    }
}

/// Head of a PUBLISH and where its packet identifier stands.
fn head(spec: &Spec, publisher: u32, flow: usize) -> (Vec<u8>, Option<usize>) {
    let Flow { qos, payload_bytes, .. } = spec.flows[flow];
    let has_id = qos != QoS::AtMostOnce;
    let mut head = Vec::new();
    let publish = PublishHead {
        dup: false,
        qos,
        retain: false,
        topic: &layout::topic(spec, publisher, flow),
        packet_id: has_id.then_some(PacketId::MIN),
        topic_alias: None,
        message_expiry: None,
        subscription_ids: &[],
        forwarded: &[],
        payload_bytes: payload_bytes as usize,
    };
    publish.encode(spec.version, &mut head);
    let property_bytes = usize::from(spec.version == Version::V5); // the length of none
    let id_at = has_id.then(|| head.len() - property_bytes - 2);
    (head, id_at)
}
