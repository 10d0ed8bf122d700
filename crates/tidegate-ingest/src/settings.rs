//! Settings of a listener.

use std::{net::SocketAddr, num::NonZeroU32, sync::Arc, time::Duration};

use rustls::ServerConfig;
use rustls_pki_types::{CertificateDer, PrivateKeyDer};
use tidegate_bus::SessionConfig;
use tidegate_device::{MessageLimits, Template};
use tidegate_identity::pki::servers::{NotCertified, certified};
use tidegate_message::{
    Identity, TopicError,
    origins::Origins,
    words::{DatagramFormat, IngestKind},
};
use tidegate_process::tls;
use tidegate_sys::datagram::Method;

/// A listener other than MQTT.
#[derive(Clone, Debug, PartialEq)]
pub struct IngestSettings {
    /// Its name, unique in the node.
    pub name: Arc<str>,
    /// Its protocol.
    pub kind: IngestKind,
    /// Its address; port 0 takes a free one.
    pub listen: SocketAddr,
    /// The format of a datagram, of [`IngestKind::Udp`].
    pub format: DatagramFormat,
    /// Where what comes in goes that does not name its topic.
    pub topic: Template,
    /// Whether messages are retained.
    pub retain: bool,
    /// TLS, if it is spoken, of [`IngestKind::Http`] and [`IngestKind::WebSocket`].
    pub tls: Option<ServerTls>,
    /// How datagrams are received.
    pub method: Method,
    /// Bytes of datagrams that may wait in the kernel.
    pub receive_buffer_bytes: usize,
    /// Whether the kernel may join datagrams of one sender.
    pub joins: bool,
    /// The identity of every client without a proof; none where a proof is required.
    pub identity: Option<Identity>,
    /// The pages of other sites that may send, of [`IngestKind::Http`] and [`IngestKind::WebSocket`].
    pub origins: Origins,
    /// Longest payload of a message.
    pub message_bytes_max: usize,
    /// Longest body of a request, unpacked.
    pub body_bytes_max: usize,
    /// Connections at a time.
    pub connections_max: usize,
    /// Messages that are taken a second, and a second's worth at once; none for any.
    pub rate_max: Option<NonZeroU32>,
    /// Longest time that a request may take to arrive, and a connection may be silent.
    pub request_timeout: Duration,
    /// Most levels of a topic, and its most bytes.
    pub topic_max: (usize, usize),
    /// Queue and schedule of what waits for this listener to be sent.
    pub session: SessionConfig,
    /// The filter in the kernel for its datagrams.
    #[cfg(feature = "xdp")]
    pub xdp: Option<super::XdpSettings>,
}

/// How TLS is spoken at a listener. Two are the same if they show the same certificate.
#[derive(Clone, Debug)]
pub struct ServerTls {
    pub(super) config: Arc<ServerConfig>,
    certificate: Vec<u8>,
}

impl PartialEq for ServerTls {
    fn eq(&self, other: &Self) -> bool {
        self.certificate == other.certificate
    }
}

impl ServerTls {
    /// TLS 1.2 and 1.3, since devices live long, with that chain of certificates and its key; clients show no certificate.
    ///
    /// # Errors
    /// Certificate and key do not go together.
    pub fn new(
        chain: Vec<CertificateDer<'static>>,
        key: PrivateKeyDer<'static>,
    ) -> Result<Self, NotCertified> {
        let certificate = chain.iter().flat_map(|part| part.to_vec()).collect();
        let shown = certified(chain, key)?;
        let mut config =
            tls::server(tls::VERSIONS)?.with_no_client_auth().with_cert_resolver(shown);
        config.alpn_protocols = vec![b"http/1.1".to_vec()];
        Ok(Self { config: Arc::new(config), certificate })
    }
}

impl IngestSettings {
    /// Whether a message may have that topic, by its form.
    ///
    /// # Errors
    /// [`TopicError`].
    pub fn check_topic(&self, topic: &str) -> Result<(), TopicError> {
        self.limits().check_topic(topic)
    }

    /// Bounds on the form of its messages.
    pub(super) fn limits(&self) -> MessageLimits {
        let (topic_levels_max, topic_bytes_max) = self.topic_max;
        MessageLimits {
            payload_bytes_max: self.message_bytes_max,
            topic_levels_max,
            topic_bytes_max,
            topic_control_characters: self.session.topic_control_characters,
        }
    }

    /// Whether a topic is made of who sent a datagram.
    pub(super) fn names_sources(&self) -> bool {
        self.kind == IngestKind::Udp
            && self.format == DatagramFormat::Payload
            && self.topic.names_source()
    }

    /// Whether another one of this name can take its place without opening its socket again.
    pub(super) fn keeps_socket_of(&self, old: &Self) -> bool {
        let fixed = |it: &Self| {
            (it.kind, it.listen, it.method, it.receive_buffer_bytes, it.joins, it.session.clone())
        };
        let longest =
            self.kind != IngestKind::Udp || self.message_bytes_max == old.message_bytes_max;
        fixed(self) == fixed(old) && self.identity == old.identity && longest
    }
}
