//! The connections of a bridge to both brokers, from the look-up of an address to CONNACK.

use std::{
    io,
    net::{SocketAddr, ToSocketAddrs as _},
    num::NonZeroU16,
    sync::Arc,
};

use mio::{Events, Interest, net::TcpStream};
use rustls_pki_types::ServerName;
use tidegate_broker::WRITE_BYTES_MAX;
use tidegate_message::{Identity, IdentityKind};
use tidegate_process::clock;
use tidegate_wire::mqtt::{
    Connect, ConnectProperties, QoS, RetainHandling, Version, Will, client::Event,
};

use super::{
    RemoteTls,
    line::Line,
    relay::Side,
    runtime::{Broken, Mode, REMOTE, Runtime},
};
use crate::transport::Transport;

impl Runtime {
    /// The connection to this node's broker, with its subscriptions.
    pub(super) fn connect_local(
        &mut self,
        receive_maximum: u16,
        retained: RetainHandling,
        qos_max: QoS,
    ) -> Result<Line, Broken> {
        let settings = &self.settings;
        let name = format!("bridge {}", settings.name);
        let identity = Identity::new(IdentityKind::Internal, &name, &self.local_id);
        let socket = self.connector.open(&name, identity, settings.session.clone());
        let socket = socket.and_then(|socket| socket.set_nonblocking(true).map(|()| socket));
        let socket = socket.map_err(|error| Broken::Io(Side::Local, error))?;
        let mut line = self.line(TcpStream::from_std(socket), None, Side::Local)?;
        let connect = Connect {
            clean_start: false,
            keep_alive: 0,
            will: Some(Will {
                topic: self.state_topic(),
                payload: b"0".to_vec(),
                qos: QoS::AtLeastOnce,
                retain: true,
                delay: 0,
                message_expiry: None,
                forwarded: Vec::new(),
            }),
            properties: ConnectProperties {
                session_expiry: Some(u32::MAX),
                receive_maximum: NonZeroU16::new(receive_maximum),
                ..ConnectProperties::default()
            },
            ..Connect::new(Version::V5, self.local_id.clone())
        };
        let session_present = self.greet(&mut line, Side::Local, &connect)?;
        self.is_new[Side::Local as usize] |= !session_present;
        if session_present {
            self.unsubscribe_former()?;
        }
        self.subscribe(Side::Local, retained, qos_max.min(self.settings.qos))?;
        Ok(line)
    }

    /// Gives up subscriptions of the session here that an earlier configuration asked for. Messages that wait by them still come.
    fn unsubscribe_former(&mut self) -> Result<(), Broken> {
        let had = self.local_filters()?;
        let wanted = self.relay.way(Side::Local).topics.filters();
        let former = had.iter().filter(|had| !wanted.iter().any(|wanted| **wanted == ***had));
        let former: Vec<String> = former.map(|filter| filter.to_string()).collect();
        if former.is_empty() {
            return Ok(());
        }
        let asked = self.relay.local.client.unsubscribe(former, ());
        asked.map(drop).map_err(|error| Broken::Subscribe(Side::Local, error))
    }

    /// The connection to the remote, without subscriptions, and whether the remote had the session.
    pub(super) fn connect_remote(&mut self) -> Result<(Line, bool), Broken> {
        let mode = self.modes[self.mode];
        let version = if mode == Mode::V5 { Version::V5 } else { Version::V4 };
        let settings = &self.settings;
        let echoes = mode == Mode::V4 || (mode == Mode::Bridge && !settings.bridge_aware);
        if echoes && let Some(overlap) = settings.overlap() {
            // Another version may be taken the next time.
            self.mode = 0;
            return Err(Broken::Overlap(overlap));
        }
        let tls = match &settings.tls {
            None => None,
            Some(RemoteTls { config, .. }) => {
                let name = ServerName::try_from(settings.host.clone())
                    .map_err(|_| Broken::ServerName(settings.host.clone()))?;
                Some((config.clone(), name))
            }
        };
        let connect = Connect {
            bridge: mode == Mode::Bridge,
            clean_start: false,
            keep_alive: settings.keep_alive,
            username: settings.username.clone(),
            password: settings.password.as_deref().map(<[u8]>::to_vec),
            // Left out before MQTT 5.
            properties: ConnectProperties {
                session_expiry: Some(u32::MAX),
                receive_maximum: NonZeroU16::new(settings.receive_maximum),
                ..ConnectProperties::default()
            },
            ..Connect::new(version, settings.client_id.clone())
        };
        let socket = self.dial().inspect_err(|_| self.mode = 0)?;
        let mut line = self.line(socket, tls, Side::Remote)?;
        let greeted = self.greet(&mut line, Side::Remote, &connect);
        if greeted.as_ref().is_err_and(Broken::is_for_version) {
            self.mode = (self.mode + 1) % self.modes.len();
        }
        Ok((line, greeted?))
    }

    fn dial(&mut self) -> Result<TcpStream, Broken> {
        let peer = format!("{}:{}", self.settings.host, self.settings.port);
        let addresses = (&*self.settings.host, self.settings.port).to_socket_addrs();
        let addresses = addresses.map_err(|error| Broken::Resolve(peer.clone(), error))?;
        let mut last = io::Error::from(io::ErrorKind::NotFound);
        for address in addresses {
            match self.dial_one(address) {
                Ok(Some(socket)) => return Ok(socket),
                Ok(None) => return Err(Broken::Stopped),
                Err(error) => last = error,
            }
        }
        Err(Broken::Connect(peer, last))
    }

    /// None if the bridge is to stop.
    fn dial_one(&mut self, address: SocketAddr) -> io::Result<Option<TcpStream>> {
        let mut socket = TcpStream::connect(address)?;
        let registry = self.poll.registry();
        registry.register(&mut socket, REMOTE, Interest::WRITABLE)?;
        let deadline = clock::now() + self.settings.connect_timeout;
        let mut events = Events::with_capacity(8);
        loop {
            if self.is_stopped() {
                return Ok(None);
            }
            let left = deadline.since(clock::now());
            if left.is_zero() {
                return Err(io::ErrorKind::TimedOut.into());
            }
            match self.poll.poll(&mut events, Some(left)) {
                Err(error) if error.kind() != io::ErrorKind::Interrupted => return Err(error),
                _ => {}
            }
            if let Some(error) = socket.take_error()? {
                return Err(error);
            }
            match socket.peer_addr() {
                Ok(_) => break,
                Err(error) if error.kind() == io::ErrorKind::NotConnected => {}
                Err(error) => return Err(error),
            }
        }
        self.poll.registry().deregister(&mut socket)?;
        let options = socket2::SockRef::from(&socket);
        options.set_tcp_nodelay(true)?;
        options.set_tcp_notsent_lowat(WRITE_BYTES_MAX as u32)?;
        Ok(Some(socket))
    }

    fn line(
        &self,
        socket: TcpStream,
        tls: Option<(Arc<rustls::ClientConfig>, ServerName<'static>)>,
        side: Side,
    ) -> Result<Line, Broken> {
        let transport = Transport::client(socket, tls).map_err(Broken::Tls)?;
        Line::new(&self.poll, side.token(), transport).map_err(|error| Broken::Io(side, error))
    }

    /// Sends CONNECT and waits for CONNACK: whether the broker had the session.
    fn greet(&mut self, line: &mut Line, side: Side, connect: &Connect) -> Result<bool, Broken> {
        let deadline = clock::now() + self.settings.connect_timeout;
        let end = self.relay.end(side);
        end.reset();
        let begun = end.client.connect(clock::now(), connect);
        begun.map_err(|error| Broken::Encode(side, error))?;
        loop {
            self.flush(line, side)?;
            let is_more = self.read(line, side)?;
            let end = self.relay.end(side);
            let mut rest = &end.input[..];
            let event = end.client.receive(&mut rest);
            let event = event.map_err(|error| Broken::NoSession(side, error))?;
            let used = end.input.len() - rest.len();
            if let Some(Event::Connected { connack, .. }) = event {
                end.input.drain(..used);
                return Ok(connack.session_present);
            }
            if !is_more {
                self.wait(line, deadline, side)?;
            }
        }
    }
}
