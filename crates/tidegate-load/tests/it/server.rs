//! Servers of a test's own, over every transport. TLS is that of rustls, WebSocket that of tungstenite: neither has a line in
//! common with what is tested.

use std::{
    io::{Read, Write},
    net::{SocketAddr, TcpListener, TcpStream},
    sync::{Arc, Mutex},
    thread::{self, JoinHandle},
};

use rustls::{ClientConfig, RootCertStore, ServerConfig, ServerConnection, StreamOwned};
use rustls_pki_types::{PrivateKeyDer, PrivatePkcs8KeyDer};
use tungstenite::{
    Message, WebSocket,
    handshake::server::{ErrorResponse, Request, Response},
    protocol::frame::{
        Frame,
        coding::{Data, OpCode},
    },
};

/// How a server is reached.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Transport {
    Tcp,
    Tls,
    WebSocket,
    SecureWebSocket,
}

impl Transport {
    pub(crate) const ALL: [Self; 4] =
        [Self::Tcp, Self::Tls, Self::WebSocket, Self::SecureWebSocket];

    pub(crate) fn is_tls(self) -> bool {
        matches!(self, Self::Tls | Self::SecureWebSocket)
    }

    pub(crate) fn is_websocket(self) -> bool {
        matches!(self, Self::WebSocket | Self::SecureWebSocket)
    }

    pub(crate) fn url(self, address: SocketAddr) -> String {
        let scheme = match self {
            Self::Tcp => "mqtt",
            Self::Tls => "mqtts",
            Self::WebSocket => "ws",
            Self::SecureWebSocket => "wss",
        };
        format!("{scheme}://{address}")
    }
}

/// A certificate that vouches for itself, and its key.
pub(crate) struct Certificate {
    made: rcgen::CertifiedKey<rcgen::KeyPair>,
}

impl Certificate {
    pub(crate) fn of(name: &str) -> Self {
        let mut params = rcgen::CertificateParams::new([name.to_owned()])
            .expect("the name can stand in a certificate");
        // An issuer is looked for by this name.
        params.distinguished_name.push(rcgen::DnType::CommonName, name);
        let signing_key = rcgen::KeyPair::generate().expect("ring makes keys");
        let cert = params.self_signed(&signing_key).expect("the key signs");
        Self { made: rcgen::CertifiedKey { cert, signing_key } }
    }

    pub(crate) fn pem(&self) -> String {
        self.made.cert.pem()
    }

    pub(crate) fn server(&self) -> Arc<ServerConfig> {
        let key = PrivatePkcs8KeyDer::from(self.made.signing_key.serialize_der());
        let config = ServerConfig::builder_with_provider(provider())
            .with_safe_default_protocol_versions()
            .expect("ring has them")
            .with_no_client_auth()
            .with_single_cert(vec![self.made.cert.der().clone()], PrivateKeyDer::from(key));
        Arc::new(config.expect("they belong together"))
    }

    /// A client that trusts this alone.
    pub(crate) fn client(&self) -> Arc<ClientConfig> {
        let mut roots = RootCertStore::empty();
        roots.add(self.made.cert.der().clone()).expect("it is a certificate");
        let config = ClientConfig::builder_with_provider(provider())
            .with_safe_default_protocol_versions()
            .expect("ring has them")
            .with_root_certificates(roots);
        Arc::new(config.with_no_client_auth())
    }
}

fn provider() -> Arc<rustls::crypto::CryptoProvider> {
    Arc::new(rustls::crypto::ring::default_provider())
}

/// The server's end of a connection, whatever carries MQTT's bytes.
pub(crate) trait Channel: Send {
    /// The next bytes, cut as they came; none at the end.
    fn receive(&mut self) -> Option<Vec<u8>>;

    /// Sends `bytes` in as many records or frames as it takes for none to be longer than `bytes_max`; false if the client is gone.
    fn send(&mut self, bytes: &[u8], bytes_max: usize) -> bool;

    /// Ends as the protocol has it.
    fn close(&mut self);
}

struct Stream<S>(S);

trait Socket: Read + Write + Send {
    fn end(&mut self);
}

impl Socket for TcpStream {
    fn end(&mut self) {}
}

impl Socket for StreamOwned<ServerConnection, TcpStream> {
    fn end(&mut self) {
        self.conn.send_close_notify();
        let _ = self.flush(); // the client may be gone
    }
}

impl<S: Socket> Channel for Stream<S> {
    fn receive(&mut self) -> Option<Vec<u8>> {
        let mut buffer = vec![0; 256 << 10];
        let bytes = self.0.read(&mut buffer).unwrap_or(0);
        buffer.truncate(bytes);
        (bytes > 0).then_some(buffer)
    }

    fn send(&mut self, bytes: &[u8], bytes_max: usize) -> bool {
        let mut pieces = bytes.chunks(bytes_max);
        pieces.all(|piece| self.0.write_all(piece).and_then(|()| self.0.flush()).is_ok())
    }

    fn close(&mut self) {
        self.0.end();
    }
}

impl<S: Socket> Channel for WebSocket<S> {
    fn receive(&mut self) -> Option<Vec<u8>> {
        loop {
            match self.read().ok()? {
                Message::Binary(bytes) => return Some(bytes.to_vec()),
                Message::Pong(payload) => assert_eq!(payload, b"between"[..]),
                Message::Close(_) => {}
                other => panic!("MQTT travels in binary frames, not in {other:?}"),
            }
        }
    }

    /// In whole messages and in fragments of one, by turns, with a ping amid the fragments.
    fn send(&mut self, bytes: &[u8], bytes_max: usize) -> bool {
        bytes.chunks(4 * bytes_max).enumerate().all(|(turn, bytes)| {
            let mut pieces: Vec<_> = bytes
                .chunks(bytes_max)
                .enumerate()
                .map(|(index, piece)| {
                    let last = turn % 2 == 0 || (index + 1) * bytes_max >= bytes.len();
                    let first = turn % 2 == 0 || index == 0;
                    let kind = if first { Data::Binary } else { Data::Continue };
                    Message::Frame(Frame::message(piece.to_vec(), OpCode::Data(kind), last))
                })
                .collect();
            if pieces.len() > 1 {
                pieces.insert(1, Message::Ping(b"between"[..].into()));
            }
            pieces.into_iter().all(|piece| WebSocket::send(self, piece).is_ok())
        })
    }

    fn close(&mut self) {
        // The client may be gone.
        let _ = WebSocket::close(self, None);
        let _ = self.flush();
        self.get_mut().end();
    }
}

/// A server for one connection.
pub(crate) struct Server {
    pub(crate) address: SocketAddr,
    thread: JoinHandle<()>,
}

impl Server {
    /// Does `work` with what connects, below every transport.
    pub(crate) fn raw(work: impl FnOnce(TcpStream) + Send + 'static) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
        let address = listener.local_addr().expect("a listener has an address");
        let thread = thread::spawn(move || work(listener.accept().expect("a client").0));
        Self { address, thread }
    }

    /// Does `work` with what connects.
    pub(crate) fn start(
        transport: Transport,
        certificate: &Certificate,
        work: impl FnOnce(&mut dyn Channel) + Send + 'static,
    ) -> Self {
        let tls = certificate.server();
        Self::raw(move |socket| {
            if let Some(mut channel) = open(transport, tls, socket) {
                work(&mut *channel);
            }
        })
    }

    /// Waits for its end, and fails if it failed.
    pub(crate) fn join(self) {
        self.thread.join().expect("the client behaved as the test expects");
    }
}

/// None if the client does not go through with it.
fn open(
    transport: Transport,
    tls: Arc<ServerConfig>,
    socket: TcpStream,
) -> Option<Box<dyn Channel>> {
    socket.set_nodelay(true).ok()?;
    let encrypted = || {
        let connection = ServerConnection::new(tls).expect("it has a certificate");
        StreamOwned::new(connection, socket.try_clone().expect("a descriptor"))
    };
    Some(match transport {
        Transport::Tcp => Box::new(Stream(socket)),
        Transport::Tls => Box::new(Stream(encrypted())),
        Transport::WebSocket => Box::new(tungstenite::accept_hdr(socket, agree).ok()?),
        Transport::SecureWebSocket => Box::new(tungstenite::accept_hdr(encrypted(), agree).ok()?),
    })
}

/// Agrees to the subprotocol [MQTT-6.0.0-3].
#[expect(clippy::result_large_err, reason = "tungstenite's callback has this type")]
fn agree(request: &Request, mut response: Response) -> Result<Response, ErrorResponse> {
    assert_eq!(request.uri().path(), "/mqtt");
    let mqtt = request.headers().get("sec-websocket-protocol").expect("one is offered").clone();
    assert_eq!(mqtt, "mqtt");
    response.headers_mut().insert("sec-websocket-protocol", mqtt);
    Ok(response)
}

/// A relay as that of [`crate::relay`], but over every transport. Its threads end with their connections, its listener with the
/// process.
pub(crate) fn relay(transport: Transport, certificate: &Certificate) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
    let address = listener.local_addr().expect("a listener has an address");
    let subscribers = Arc::new(Mutex::new(Vec::new()));
    let tls = certificate.server();
    thread::spawn(move || {
        for socket in listener.incoming().map_while(Result::ok) {
            let (subscribers, tls) = (Arc::clone(&subscribers), Arc::clone(&tls));
            thread::spawn(move || {
                open(transport, tls, socket).and_then(|channel| pass_on(channel, &subscribers))
            });
        }
    });
    address
}

/// Bytes of one record or frame: packets lie across them.
const RELAYED_BYTES_MAX: usize = 5000;

fn pass_on(
    mut channel: Box<dyn Channel>,
    subscribers: &Mutex<Vec<Box<dyn Channel>>>,
) -> Option<()> {
    channel.receive()?; // CONNECT
    channel.send(&[0x20, 2, 0, 0], usize::MAX / 4).then_some(())?;
    // The first packet tells who this is: later reads begin in the middle of one.
    let mut bytes = channel.receive()?;
    if bytes[0] == 0x82 {
        // Nothing is passed on between its SUBACK and its place among the subscribers.
        let mut subscribers = subscribers.lock().ok()?;
        channel.send(&[0x90, 3, bytes[2], bytes[3], 0], usize::MAX / 4).then_some(())?;
        subscribers.push(channel);
        return None; // it says nothing more that matters
    }
    while bytes != [0xE0, 0] {
        let mut subscribers = subscribers.lock().ok()?;
        subscribers.retain_mut(|channel| channel.send(&bytes, RELAYED_BYTES_MAX));
        drop(subscribers);
        bytes = channel.receive()?;
    }
    None
}
