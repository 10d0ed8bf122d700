//! How messages pass between this node and each other member: between both at once, or by way of a relay.
//!
//! A member that names a relay is a *leaf* of it. The relay alone exchanges messages with it, and counts it among its own clients; so
//! messages of two leaves of two relays pass both. A relay has no relay itself, or messages would pass any number of nodes, and in a ring.

use tidegate_wire::NodeId;

use super::{Members, Presence};

/// How messages pass between this node and another member.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Passage {
    /// In one hop, as between any two members without a relay.
    Direct,
    /// In one hop: the other one is a leaf of this node, which relays for it.
    Leaf,
    /// In one hop: the other one relays for this node.
    Relay,
    /// By way of others.
    Apart,
}

/// Why the member that is named as the relay of this node relays nothing.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RelayError {
    /// It is this node.
    #[error("this node is called {name} itself: name another member")]
    Myself {
        /// The name.
        name: String,
    },
    /// No member has that name.
    #[error(
        "no member is known that is called {name}: messages wait until there is one (`tidegate fabric members` lists all)"
    )]
    Unknown {
        /// The name.
        name: String,
    },
    /// The member of that name has left, or a person had it forgotten.
    #[error(
        "member {name} has left or is forgotten: start it again, or name another one; messages wait until then"
    )]
    Over {
        /// The name.
        name: String,
    },
    /// Several members have that name.
    #[error("{count} members are called {name}: give all but one another name and certificate")]
    Several {
        /// The name.
        name: String,
        /// How many.
        count: usize,
    },
    /// It has a relay itself.
    #[error(
        "member {name} has {via} for a relay itself, and messages pass one relay at most: name a member that has none"
    )]
    Behind {
        /// The name.
        name: String,
        /// The relay of that member.
        via: String,
    },
}

impl Members {
    /// The member that relays for this node; none if this node names none.
    ///
    /// # Errors
    /// [`RelayError`]: this node exchanges no messages.
    pub fn relay(&self) -> Result<Option<NodeId>, RelayError> {
        let name = self.settings.own.via.clone();
        if name.is_empty() {
            return Ok(None);
        }
        if name == self.settings.name {
            return Err(RelayError::Myself { name });
        }
        let is_over = |presence: Presence| matches!(presence, Presence::Left | Presence::Forgotten);
        let named = self.members().filter(|member| member.record.name == name);
        let (over, there): (Vec<_>, Vec<_>) = named.partition(|member| is_over(member.presence));
        match there[..] {
            [] if over.is_empty() => Err(RelayError::Unknown { name }),
            [] => Err(RelayError::Over { name }),
            [relay] if relay.record.via.is_empty() => Ok(Some(relay.record.node)),
            [relay] => Err(RelayError::Behind { name, via: relay.record.via.clone() }),
            _ => Err(RelayError::Several { name, count: there.len() }),
        }
    }

    /// How messages pass between this node and each other member that is known, in the order of their keys.
    pub fn passages(&self) -> impl Iterator<Item = (NodeId, Passage)> {
        let relay = self.relay();
        let others = self.members().filter(|member| !member.is_me);
        others.map(move |member| {
            let (node, via) = (member.record.node, &*member.record.via);
            let passage = match relay {
                Ok(None) if via.is_empty() => Passage::Direct,
                Ok(None) if via == self.settings.name => Passage::Leaf,
                Ok(Some(relay)) if relay == node => Passage::Relay,
                _ => Passage::Apart,
            };
            (node, passage)
        })
    }

    /// Leaves that name this node, which has a relay itself and so relays for none.
    pub fn leaves_in_vain(&self) -> impl Iterator<Item = NodeId> {
        let is_leaf = !self.settings.own.via.is_empty();
        let others = self.members().filter(move |member| is_leaf && !member.is_me);
        let name_me = others
            .filter(|member| !member.presence.is_gone() && member.record.via == self.settings.name);
        name_me.map(|member| member.record.node)
    }
}
