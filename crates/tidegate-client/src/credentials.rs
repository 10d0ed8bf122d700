//! Who a client is, and whom it trusts.

use std::{fmt, fs, path::Path};

use tidegate_message::Code;
use tonic::transport::{Certificate, ClientTlsConfig, Identity};

use crate::error::ApiError;

/// A client's certificate and key, and the authority that its servers are signed by; all PEM.
///
/// `tidegate init` makes all three.
#[derive(Clone)]
pub struct Credentials {
    authority: Vec<u8>,
    certificate: Vec<u8>,
    key: Vec<u8>,
    server_name: Option<String>,
}

impl Credentials {
    /// Credentials from PEM texts.
    pub fn from_pem(
        authority: impl Into<Vec<u8>>,
        certificate: impl Into<Vec<u8>>,
        key: impl Into<Vec<u8>>,
    ) -> Self {
        Self {
            authority: authority.into(),
            certificate: certificate.into(),
            key: key.into(),
            server_name: None,
        }
    }

    /// Credentials from PEM files: the authority's certificate, the client's certificate and its key.
    ///
    /// # Errors
    /// [`Code::CONFIG_INVALID`] naming the file that cannot be read.
    pub fn load(
        authority: impl AsRef<Path>,
        certificate: impl AsRef<Path>,
        key: impl AsRef<Path>,
    ) -> Result<Self, ApiError> {
        let read = |what: &str, path: &Path| {
            fs::read(path).map_err(|error| {
                let message = format!("{what} {} cannot be read", path.display());
                ApiError::new(Code::CONFIG_INVALID, message).caused_by(error)
            })
        };
        Ok(Self::from_pem(
            read("authority certificate", authority.as_ref())?,
            read("client certificate", certificate.as_ref())?,
            read("client key", key.as_ref())?,
        ))
    }

    /// The name that the server's certificate must carry, where it is not the host of the endpoint.
    #[must_use]
    pub fn server_name(mut self, name: impl Into<String>) -> Self {
        self.server_name = Some(name.into());
        self
    }

    pub(crate) fn tls(&self) -> ClientTlsConfig {
        let tls = ClientTlsConfig::new()
            .ca_certificate(Certificate::from_pem(&self.authority))
            .identity(Identity::from_pem(&self.certificate, &self.key));
        match &self.server_name {
            Some(name) => tls.domain_name(name),
            None => tls,
        }
    }
}

/// Shows no key.
impl fmt::Debug for Credentials {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Credentials")
            .field("server_name", &self.server_name)
            .finish_non_exhaustive()
    }
}
