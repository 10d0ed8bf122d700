//! A client's identity, and the authorities that it trusts.

use std::{fmt, fs, path::Path};

use base64::{Engine as _, engine::general_purpose::STANDARD};
use tidegate_api::BEHALF_METADATA;
use tidegate_message::Code;
use tonic::{
    Request, Status,
    metadata::{Ascii, Binary, MetadataValue},
    service::Interceptor,
    transport::{Certificate, ClientTlsConfig, Identity},
};
use zeroize::Zeroizing;

use crate::ApiError;

/// A client's proof of identity, and the authority that signed its servers' certificates.
///
/// A certificate with its key, which `tidegate init` makes, or a token, or a user name with its password; a proof that is
/// sent with each call counts before the certificate.
#[derive(Clone)]
pub struct Credentials {
    authority: Vec<u8>,
    certificate: Option<(Vec<u8>, Zeroizing<Vec<u8>>)>,
    authorization: Option<MetadataValue<Ascii>>,
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
            certificate: Some((certificate.into(), key.into().into())),
            ..Self::from_authority(authority)
        }
    }

    /// The authority to trust, from its PEM text, and no proof of identity yet.
    pub fn from_authority(authority: impl Into<Vec<u8>>) -> Self {
        Self {
            authority: authority.into(),
            certificate: None,
            authorization: None,
            server_name: None,
        }
    }

    /// Shows a token (a JWT) with each call.
    ///
    /// # Errors
    /// [`Code::CONFIG_INVALID`] if it holds what no header may.
    pub fn token(self, token: &str) -> Result<Self, ApiError> {
        self.authorized(&Zeroizing::new(format!("Bearer {token}")))
    }

    /// Shows a user name and its password with each call.
    ///
    /// # Errors
    /// [`Code::CONFIG_INVALID`] if there is a `:` in the user name.
    pub fn password(self, user: &str, password: &[u8]) -> Result<Self, ApiError> {
        if user.contains(':') {
            let message = format!("{user:?} cannot be a user name here: it has a `:`");
            return Err(ApiError::new(Code::CONFIG_INVALID, message));
        }
        let pair = Zeroizing::new([user.as_bytes(), b":", password].concat());
        self.authorized(&Zeroizing::new(format!("Basic {}", STANDARD.encode(&*pair))))
    }

    fn authorized(mut self, text: &str) -> Result<Self, ApiError> {
        let value = MetadataValue::try_from(text).map_err(|_| {
            let message = "the token holds characters that no token has";
            ApiError::new(Code::CONFIG_INVALID, message)
        });
        let mut value: MetadataValue<Ascii> = value?;
        // Not in logs, nor in what HTTP/2 keeps to repeat.
        value.set_sensitive(true);
        self.authorization = Some(value);
        Ok(self)
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

    /// The credentials that each call carries.
    pub(crate) fn shown(&self) -> Shown {
        Shown { authorization: self.authorization.clone(), behalf: None }
    }

    pub(crate) fn tls(&self) -> ClientTlsConfig {
        let tls = ClientTlsConfig::new().ca_certificate(Certificate::from_pem(&self.authority));
        let tls = match &self.certificate {
            Some((certificate, key)) => tls.identity(Identity::from_pem(certificate, &**key)),
            None => tls,
        };
        match &self.server_name {
            Some(name) => tls.domain_name(name),
            None => tls,
        }
    }
}

/// Puts into each call what proves who makes it, and for whom.
#[derive(Clone, Default)]
pub(crate) struct Shown {
    authorization: Option<MetadataValue<Ascii>>,
    behalf: Option<MetadataValue<Binary>>,
}

impl Shown {
    /// Names the caller on whose behalf a member asks.
    pub(crate) fn on_behalf(named: &[u8]) -> Self {
        Self { authorization: None, behalf: Some(MetadataValue::from_bytes(named)) }
    }
}

impl Interceptor for Shown {
    fn call(&mut self, mut request: Request<()>) -> Result<Request<()>, Status> {
        if let Some(value) = &self.authorization {
            request.metadata_mut().insert("authorization", value.clone());
        }
        if let Some(value) = &self.behalf {
            request.metadata_mut().insert_bin(BEHALF_METADATA, value.clone());
        }
        Ok(request)
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
