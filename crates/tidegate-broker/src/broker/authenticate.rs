//! Authentication on an open connection (MQTT 5, section 4.12.1).
//!
//! ```text
//!  AUTH 0x19 ─▶ Output::Auth ─▶ shell ─┬▶ Challenge ─▶ AUTH 0x18 ─▶ client ─▶ AUTH 0x18 ─▶ Output::Auth ─▶ shell …
//!                                      ├▶ Accept ────▶ AUTH 0x00
//!                                      └▶ Refuse ────▶ DISCONNECT
//! ```
//!
//! Always true: client and shell speak in turn; until the shell has accepted, all other packets flow on under the identity
//! that was shown before; a connection never changes its user.

use tidegate_message::Identity;
use tidegate_wire::mqtt::{Auth, Packet, ReasonCode, Version};

use super::{Broker, ConnectionKey, Output, publish::Fault};
use crate::{connection::Authentication, slab::Key};

/// The shell's answer to [`Output::Auth`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum AuthAnswer {
    /// The client is to answer this; another [`Output::Auth`] brings what it says.
    Challenge(Vec<u8>),
    /// The client has shown again who it is: the same user, though maybe of other groups.
    Accept {
        /// Its identity; the client name in it does not matter.
        identity: Identity,
        /// The last of the exchange, for the client.
        data: Option<Vec<u8>>,
    },
    /// The connection ends for this reason (MQTT-4.12.1-2).
    Refuse(ReasonCode),
}

impl Broker {
    /// A client's AUTH.
    pub(super) fn received_auth(&mut self, key: Key, auth: Auth) -> Result<(), Fault> {
        let connection = self.connections.get_mut(key).expect("it is being received from");
        let fault = |text| Err(Fault::new(ReasonCode::PROTOCOL_ERROR, text));
        let method = &connection.authentication_method;
        if method.is_none() || auth.method != *method {
            // MQTT-4.12.1-1, MQTT-4.12.0-7
            return fault("AUTH must name the authentication method of CONNECT");
        }
        match (auth.reason, connection.authentication) {
            (ReasonCode::REAUTHENTICATE, Authentication::Done)
            | (ReasonCode::CONTINUE_AUTHENTICATION, Authentication::Challenged) => {}
            (ReasonCode::REAUTHENTICATE, _) => {
                return fault("another authentication is under way");
            }
            (ReasonCode::CONTINUE_AUTHENTICATION, _) => {
                return fault("AUTH answers no challenge");
            }
            // Section 3.15.2.1
            _ => return fault("only a server may say that an authentication succeeded"),
        }
        connection.authentication = Authentication::Asked;
        self.outputs.push_back(Output::Auth(key, Box::new(auth)));
        Ok(())
    }

    /// The answer to a step of an authentication that was handed out as [`Output::Auth`]; nothing happens if its connection
    /// ended meanwhile.
    pub fn authenticated(&mut self, key: ConnectionKey, answer: AuthAnswer) {
        let Some(connection) = self.connections.get_mut(key) else { return };
        let session = connection.session.and_then(|key| self.sessions.get_mut(key));
        let is_asked = connection.authentication == Authentication::Asked;
        let Some(session) = session.filter(|_| is_asked && !connection.is_closing) else { return };
        let (reason, data) = match answer {
            AuthAnswer::Challenge(data) => {
                connection.authentication = Authentication::Challenged;
                (ReasonCode::CONTINUE_AUTHENTICATION, Some(data))
            }
            AuthAnswer::Accept { identity, .. } if !session.is_of(&identity) => {
                let text = "another user was authenticated than the one of this connection";
                return self.disconnect(key, ReasonCode::NOT_AUTHORIZED, Some(text));
            }
            AuthAnswer::Accept { mut identity, data } => {
                connection.authentication = Authentication::Done;
                identity.client = session.identity.client.clone();
                if session.set_identity(identity) {
                    // Routes remember what it was allowed before.
                    self.shared.count_change();
                }
                (ReasonCode::SUCCESS, data)
            }
            AuthAnswer::Refuse(reason) => return self.disconnect(key, reason, None),
        };
        let method = connection.authentication_method.clone();
        let auth = Auth { reason, method, data, ..Auth::default() };
        let packet_bytes_max = connection.packet_bytes_max as usize;
        let mut packet = Vec::new();
        // Its data may repeat what the client sent, at any length.
        if Packet::Auth(auth).encode(Version::V5, &mut packet).is_err()
            || packet.len() > packet_bytes_max
        {
            // MQTT-3.1.2-24
            let text = "an AUTH would exceed the largest packet that the client takes";
            return self.disconnect(key, ReasonCode::PACKET_TOO_LARGE, Some(text));
        }
        self.answer(key, |_, out| out.extend_from_slice(&packet));
    }
}
