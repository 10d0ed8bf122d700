//! A UDP relay with a bottleneck: rate, queue and seeded loss.

use std::{
    collections::VecDeque,
    net::SocketAddr,
    sync::{
        Arc, Mutex,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use rand::{RngExt, SeedableRng, rngs::SmallRng};
use tokio::{
    net::UdpSocket,
    task::JoinSet,
    time::{Instant, sleep_until},
};

/// Timers are rounded up to a millisecond; what exceeds this is another process that runs.
const LATE: Duration = Duration::from_millis(4);

/// The effect of the relay on packets on their way to the server. The way back is only delayed.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Bottleneck {
    pub(crate) bytes_per_second: u64,
    pub(crate) queue_bytes: usize,
    /// Part of the packets that is dropped at random, before the queue.
    pub(crate) loss: f64,
    /// Each way.
    pub(crate) delay: Duration,
    pub(crate) seed: u64,
}

pub(crate) struct Relay {
    pub(crate) address: SocketAddr,
    rate: Arc<AtomicU64>,
    late_nanos: Arc<AtomicU64>,
    tasks: JoinSet<()>,
    /// Open as long as the relay, so that silence is not answered with "port unreachable".
    _sockets: [Arc<UdpSocket>; 2],
}

impl Relay {
    pub(crate) async fn start(server: SocketAddr, bottleneck: Bottleneck) -> Self {
        let near = Arc::new(UdpSocket::bind("127.0.0.1:0").await.unwrap());
        let far = Arc::new(UdpSocket::bind("127.0.0.1:0").await.unwrap());
        for socket in [&near, &far] {
            let options = socket2::SockRef::from(&**socket);
            options.set_recv_buffer_size(4 << 20).unwrap();
        }
        far.connect(server).await.unwrap();
        let address = near.local_addr().unwrap();
        let rate = Arc::new(AtomicU64::new(bottleneck.bytes_per_second));
        let client = Arc::new(Mutex::new(None));
        let free = Bottleneck { loss: 0.0, queue_bytes: usize::MAX, ..bottleneck };
        let unlimited = Arc::new(AtomicU64::new(u64::MAX));
        let sockets = [near.clone(), far.clone()];
        let mut tasks = JoinSet::new();
        let late_nanos = Arc::new(AtomicU64::new(0));
        let late = late_nanos.clone();
        let there =
            carry(near.clone(), far.clone(), client.clone(), bottleneck, rate.clone(), late);
        tasks.spawn(there);
        tasks.spawn(carry(far, near, client, free, unlimited, late_nanos.clone()));
        Self { address, rate, late_nanos, tasks, _sockets: sockets }
    }

    /// Time for which packets lay here beyond what the bottleneck asks for, because this process was not run.
    pub(crate) fn late(&self) -> Duration {
        Duration::from_nanos(self.late_nanos.load(Ordering::Relaxed))
    }

    /// From here on nothing comes through in either direction, and neither end is notified.
    pub(crate) fn fall_silent(&mut self) {
        self.tasks.abort_all();
    }

    pub(crate) fn set_rate(&self, bytes_per_second: u64) {
        self.rate.store(bytes_per_second, Ordering::Relaxed);
    }
}

/// Moves packets from one socket to the other. The near socket is not connected: it learns its client.
async fn carry(
    from: Arc<UdpSocket>,
    to: Arc<UdpSocket>,
    client: Arc<Mutex<Option<SocketAddr>>>,
    bottleneck: Bottleneck,
    rate: Arc<AtomicU64>,
    late_nanos: Arc<AtomicU64>,
) {
    let mut random = SmallRng::seed_from_u64(bottleneck.seed);
    let mut queue: VecDeque<Vec<u8>> = VecDeque::new();
    let mut queued = 0;
    let mut flying: VecDeque<(Instant, Vec<u8>)> = VecDeque::new();
    let mut busy_until = Instant::now();
    let mut buffer = vec![0; 65536];
    loop {
        let now = Instant::now();
        while queue.front().is_some() && busy_until <= now {
            let packet = queue.pop_front().unwrap();
            queued -= packet.len();
            let rate = rate.load(Ordering::Relaxed) as f64;
            busy_until += Duration::from_secs_f64(packet.len() as f64 / rate);
            flying.push_back((busy_until + bottleneck.delay, packet));
        }
        while flying.front().is_some_and(|&(at, _)| at <= now) {
            let (_, packet) = flying.pop_front().unwrap();
            let sent = match to.peer_addr() {
                Ok(_) => to.send(&packet).await,
                Err(_) => {
                    let client = client.lock().unwrap().expect("it sent the first packet");
                    to.send_to(&packet, client).await
                }
            };
            drop(sent); // a closed socket at the end of a test
        }
        let wake_at = [queue.front().map(|_| busy_until), flying.front().map(|&(at, _)| at)];
        let wake_at = wake_at.into_iter().flatten().min();
        tokio::select! {
            received = from.recv_from(&mut buffer) => {
                let Ok((bytes, sender)) = received else { continue };
                if from.peer_addr().is_err() {
                    *client.lock().unwrap() = Some(sender);
                }
                if random.random_bool(bottleneck.loss) || queued + bytes > bottleneck.queue_bytes {
                    continue;
                }
                if queue.is_empty() {
                    busy_until = busy_until.max(Instant::now());
                }
                queued += bytes;
                queue.push_back(buffer[..bytes].to_vec());
            }
            () = sleep_until(wake_at.unwrap_or(now)), if wake_at.is_some() => {}
        }
        let late = wake_at.map_or(Duration::ZERO, |wake_at| wake_at.elapsed());
        if late > LATE {
            late_nanos.fetch_add(late.as_nanos() as u64, Ordering::Relaxed);
        }
    }
}
