//! `[node]`.

use std::{
    net::{Ipv4Addr, SocketAddr},
    path::PathBuf,
};

use tidegate_message::CameraName;

use super::name;

section! {
    /// `[node]`: this program.
    NodeSection: fixed {
        /// Name of the node: its certificate is `NAME.pem` in `data_dir/pki`. Default `edge`.
        name: CameraName = name("edge"),
        /// Folder for certificates and state; a relative path begins at the folder of the file that names it, as all in it do. Default
        /// `tidegate-data` next to the configuration file, without one in the current folder.
        data_dir: PathBuf = "tidegate-data".into(),
        /// Where applications connect (gRPC). Default `127.0.0.1:7080`; `0.0.0.0:7080` opens it to the
        /// network, where a client needs a certificate all the same.
        api_listen: SocketAddr = (Ipv4Addr::LOCALHOST, 7080).into(),
        /// Where other machines redeem invitations (`tidegate invite`), over TLS; only a node that has the authority's key can.
        /// Default none.
        enrol_listen: Option<SocketAddr> = None,
        /// Where `/healthz` and `/readyz` are answered (HTTP, without authentication): 200 while the node is alive, and while it
        /// is ready; else 503; with the problems as JSON. Default none.
        health_listen: Option<SocketAddr> = None,
    }
}
