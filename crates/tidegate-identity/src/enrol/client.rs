//! The side of the machine that joins.

use std::{
    io,
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use async_recursion::async_recursion as boxed;
use base64::{Engine as _, prelude::BASE64_URL_SAFE_NO_PAD as BASE64};
use tokio::{
    io::{AsyncBufReadExt as _, AsyncReadExt as _, AsyncWriteExt as _, BufReader},
    net::TcpStream,
};
use tokio_rustls::TlsConnector;

use super::{Answer, LINE_BYTES_MAX, PROTOCOL, Question, Token, proof_of};
use crate::pki::{self, NewKey, PkiError};

const JOIN_TIMEOUT: Duration = Duration::from_secs(15);

/// The result of joining.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Joined {
    /// The kind of the certificate's owner: `node`, `camera` or `application`.
    pub kind: String,
    /// Its name.
    pub name: String,
    /// Its certificate; the key and the authority are next to it.
    pub certificate: PathBuf,
}

/// Why a machine could not join.
#[derive(Debug, thiserror::Error)]
pub enum JoinError {
    /// There is no answer, or not one of a node.
    #[error(
        "the node at {address} cannot be reached to join; is its node.enrol_listen set, and the address reachable from here?"
    )]
    Unreachable {
        /// Where it was tried.
        address: String,
        /// Why.
        source: io::Error,
    },
    /// The node does not accept the invitation.
    #[error("the node at {address} refuses: {why}")]
    Refused {
        /// Its address.
        address: String,
        /// Its message.
        why: String,
    },
    /// The answer is none, or not for the key that was shown.
    #[error("the answer of {address} is not one to this invitation: {why}")]
    Answer {
        /// Its address.
        address: String,
        /// The problem.
        why: String,
    },
    /// Files cannot be made.
    #[error(transparent)]
    Pki(#[from] PkiError),
}

/// Redeems `token`: makes a key here, has it certified, and writes certificate, key and authority to `pki_dir`.
///
/// # Errors
/// [`JoinError`]. If files cannot be written after the invitation was redeemed, it takes another one.
#[boxed]
pub async fn join(token: &Token, pki_dir: &Path) -> Result<Joined, JoinError> {
    // Before the invitation is spent.
    pki::is_writable(pki_dir)?;
    let address = token.address.clone();
    let key = NewKey::generate()?;
    let proof = key.sign(&proof_of(&token.id, &token.secret))?;
    let question = Question {
        id: BASE64.encode(token.id),
        secret: BASE64.encode(token.secret),
        public_key: BASE64.encode(key.public()),
        proof: BASE64.encode(proof),
    };
    let asked = tokio::time::timeout(JOIN_TIMEOUT, ask(token, &question)).await;
    let unreachable = |source| JoinError::Unreachable { address: address.clone(), source };
    let line = asked
        .map_err(|_| unreachable(io::Error::from(io::ErrorKind::TimedOut)))?
        .map_err(unreachable)?;
    let malformed = |why: String| JoinError::Answer { address: address.clone(), why };
    match serde_json::from_str(&line).map_err(|error| malformed(error.to_string()))? {
        Answer::Refused { why } => Err(JoinError::Refused { address, why }),
        Answer::Welcome { kind, name, certificate, authority } => {
            if pki::fingerprint(authority.as_bytes()) != Some(token.authority) {
                return Err(malformed("its authority is another one".to_owned()));
            }
            let certificate = pki::write_joined(pki_dir, &name, &certificate, &key, &authority)?;
            Ok(Joined { kind, name, certificate })
        }
    }
}

async fn ask(token: &Token, question: &Question) -> io::Result<String> {
    let socket = TcpStream::connect(&token.address).await?;
    let tls = pki::pinned_client_tls(token.authority, PROTOCOL).map_err(io::Error::other)?;
    let name = pki::NODE_SERVER_NAME.try_into().expect("it is a name");
    let mut stream = BufReader::new(TlsConnector::from(Arc::new(tls)).connect(name, socket).await?);
    let mut text = serde_json::to_vec(question)?;
    text.push(b'\n');
    stream.write_all(&text).await?;
    stream.flush().await?;
    let mut line = String::new();
    (&mut stream).take(LINE_BYTES_MAX).read_line(&mut line).await?;
    if line.is_empty() {
        return Err(io::Error::from(io::ErrorKind::UnexpectedEof));
    }
    Ok(line)
}
