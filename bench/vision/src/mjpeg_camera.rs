//! A network camera that shows a stream of JPEG images by HTTP, to as many clients as come.

use std::{
    io::{BufRead as _, BufReader, Write as _},
    net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    thread::{self, JoinHandle},
    time::{Duration, Instant},
};

use anyhow::Context as _;

/// For a client that takes nothing.
const PATIENCE: Duration = Duration::from_secs(10);

/// The camera; it ends when dropped.
#[derive(Debug)]
pub struct MjpegCamera {
    address: SocketAddr,
    shared: Arc<Shared>,
    accepting: Option<JoinHandle<()>>,
}

#[derive(Debug)]
struct Shared {
    images: Vec<Vec<u8>>,
    period: Duration,
    stop: AtomicBool,
}

impl MjpegCamera {
    /// Shows `images`, at least one, in turn, one each `period`, on a port of loopback.
    ///
    /// # Errors
    /// There is no port.
    pub fn start(images: Vec<Vec<u8>>, period: Duration) -> anyhow::Result<Self> {
        let listener =
            TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).context("a port for a camera")?;
        let address = listener.local_addr().context("a port for a camera")?;
        let shared = Arc::new(Shared { images, period, stop: AtomicBool::new(false) });
        let serving = shared.clone();
        let accepting = thread::spawn(move || {
            let mut clients: Vec<JoinHandle<()>> = Vec::new();
            while let Ok((socket, _)) = listener.accept() {
                if serving.stop.load(Ordering::Acquire) {
                    break;
                }
                clients.retain(|client| !client.is_finished());
                let serving = serving.clone();
                // A client that leaves ends its thread; that is no failure of the camera.
                let client = thread::Builder::new().stack_size(128 << 10);
                clients.extend(client.spawn(move || drop(serving.serve(socket))));
            }
            for client in clients {
                drop(client.join());
            }
        });
        Ok(Self { address, shared, accepting: Some(accepting) })
    }

    /// Where its pictures are.
    #[must_use]
    pub fn url(&self) -> String {
        format!("http://{}/video.mjpg", self.address)
    }
}

impl Drop for MjpegCamera {
    fn drop(&mut self) {
        self.shared.stop.store(true, Ordering::Release);
        // Wakes the thread that accepts.
        drop(TcpStream::connect(self.address));
        if let Some(accepting) = self.accepting.take() {
            drop(accepting.join());
        }
    }
}

impl Shared {
    fn serve(&self, mut socket: TcpStream) -> std::io::Result<()> {
        socket.set_nodelay(true)?;
        socket.set_read_timeout(Some(PATIENCE))?;
        socket.set_write_timeout(Some(PATIENCE))?;
        let mut request = BufReader::new(socket.try_clone()?);
        let mut line = String::new();
        while request.read_line(&mut line)? > 2 {
            line.clear();
        }
        let head =
            "HTTP/1.1 200 OK\r\nContent-Type: multipart/x-mixed-replace; boundary=next\r\n\r\n";
        socket.write_all(head.as_bytes())?;
        let began = Instant::now();
        for number in 0_u32.. {
            let image = &self.images[number as usize % self.images.len()];
            let length = image.len();
            let part =
                format!("--next\r\nContent-Type: image/jpeg\r\nContent-Length: {length}\r\n\r\n");
            socket.write_all(part.as_bytes())?;
            socket.write_all(image)?;
            socket.write_all(b"\r\n")?;
            let due = began + self.period * (number + 1);
            thread::sleep(due.saturating_duration_since(Instant::now()));
            if self.stop.load(Ordering::Acquire) {
                break;
            }
        }
        Ok(())
    }
}
