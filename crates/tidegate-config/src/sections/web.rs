//! `[web]`.

use std::net::SocketAddr;

/// A name for the rights of the callers of a listener without a login.
fn is_user(identity: &str) -> bool {
    identity.strip_prefix("user:").is_some_and(|name| !name.is_empty())
}

section! {
    /// `[web]`: the page and pictures without TLS and without a login.
    WebSection: fixed {
        /// A listener without TLS, such as `127.0.0.1:7081`, for the page, pictures and state over HTTP/1.1 and WebSocket: every client has
        /// the rights of `plain_identity`. Default none.
        plain: Option<SocketAddr> = None
            => "with web.plain_identity, whose rights its clients have"
                if |it, _| it.plain.is_none() || it.plain_identity.is_some(),
        /// The identity whose rights every client of `plain` has: `user:` and the name of a user. Default none.
        plain_identity: Option<String> = None
            => "`user:` and a name, such as user:wall"
                if |it, _| it.plain_identity.as_deref().is_none_or(is_user),
        /// Names under which browsers may ask `plain`, separated by commas, beside its addresses and `localhost`, such as `edge.example`:
        /// the name of another site may be made to lead to it. Default none.
        plain_hosts: Option<String> = None,
        /// Connections of `plain` at a time, WebSockets with them; half of them at most from one address. Default 1024.
        plain_connections_max: u32 = 1024
            => "from 2 to 65536" if |it, _| (2..=65_536).contains(&it.plain_connections_max),
    }
}
