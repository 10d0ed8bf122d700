//! The folder or object store that files go to.

use std::{fs, sync::Arc};

use async_trait::async_trait;
use bytes::Bytes;
use http_body_util::{BodyExt as _, Full};
use object_store::{
    ClientOptions, ObjectStore, RetryConfig,
    aws::AmazonS3Builder,
    client::{
        HttpClient as StoreClient, HttpConnector, HttpError as StoreError, HttpErrorKind,
        HttpRequest, HttpResponse, HttpService,
    },
    local::LocalFileSystem,
};
use rustls::ClientConfig;
use tidegate_process::http::{self, HttpClient, HttpError};

use super::{Place, S3Place};
use crate::{HTTP_ANSWER_BYTES_MAX, SinkError};

/// The store, and what stands before the names of files.
///
/// # Errors
/// The folder cannot be made, or the store not be configured.
pub(super) fn open(place: &Place) -> Result<(Arc<dyn ObjectStore>, String), SinkError> {
    match place {
        Place::Folder(folder) => {
            let failed = |source: Box<dyn std::error::Error + Send + Sync>| {
                let problem = format!("the folder {} cannot be used", folder.display());
                SinkError::Destination { problem, source: Some(source) }
            };
            fs::create_dir_all(folder).map_err(|error| failed(error.into()))?;
            let store = LocalFileSystem::new_with_prefix(folder)
                .map_err(|error| failed(error.into()))?
                .with_fsync(true);
            Ok((Arc::new(store), String::new()))
        }
        Place::S3(place) => Ok((Arc::new(s3(place)?), place.prefix.clone())),
    }
}

/// Whether the place can be opened, without making a folder.
pub(super) fn look(place: &Place) -> Result<(), SinkError> {
    match place {
        Place::Folder(folder) => {
            let there = folder.ancestors().find(|path| path.exists());
            if there.is_some_and(|path| !path.is_dir()) {
                let problem = format!(
                    "the folder {} cannot be used: there is a file in its place",
                    folder.display()
                );
                return Err(SinkError::Destination { problem, source: None });
            }
            Ok(())
        }
        Place::S3(place) => s3(place).map(drop),
    }
}

/// Connects to a store that is elsewhere, and leaves again.
pub(super) async fn reach(place: &Place) -> Result<(), String> {
    let Place::S3(place) = place else { return Ok(()) };
    let amazon = || format!("https://s3.{}.amazonaws.com", place.region);
    let endpoint = place.endpoint.clone().unwrap_or_else(amazon);
    let wrong = || format!("{endpoint:?} is not an address");
    let url: hyper::Uri = endpoint.parse().map_err(|_| wrong())?;
    let (is_tls, host, port) = http::target(&url).map_err(|error| error.to_string())?;
    tidegate_process::reach::server(&host, port, is_tls.then(|| place.tls.clone())).await
}

fn s3(place: &S3Place) -> Result<object_store::aws::AmazonS3, SinkError> {
    let mut builder = AmazonS3Builder::new()
        .with_bucket_name(&place.bucket)
        .with_region(&place.region)
        // The sink tries again by itself, and says why.
        .with_retry(RetryConfig { max_retries: 0, ..RetryConfig::default() })
        .with_http_connector(Connector(place.tls.clone()));
    if let Some(endpoint) = &place.endpoint {
        builder = builder.with_endpoint(endpoint).with_allow_http(endpoint.starts_with("http://"));
    }
    builder = match &place.keys {
        None => builder.with_skip_signature(true),
        Some((access, secret)) => builder
            .with_access_key_id(access)
            .with_secret_access_key(String::from_utf8_lossy(secret)),
    };
    builder.build().map_err(|error| SinkError::Destination {
        problem: format!("the bucket {} cannot be used", place.bucket),
        source: Some(error.into()),
    })
}

/// Has the store go by the one HTTP client and the one TLS of this program.
#[derive(Debug)]
struct Connector(Arc<ClientConfig>);

impl HttpConnector for Connector {
    fn connect(&self, _: &ClientOptions) -> object_store::Result<StoreClient> {
        Ok(StoreClient::new(Service(HttpClient::new(self.0.clone(), HTTP_ANSWER_BYTES_MAX))))
    }
}

#[derive(Debug)]
struct Service(HttpClient);

#[async_trait]
impl HttpService for Service {
    async fn call(&self, request: HttpRequest) -> Result<HttpResponse, StoreError> {
        let (head, body) = request.into_parts();
        let body: Bytes = body.collect().await?.to_bytes();
        let answered = self.0.send(hyper::Request::from_parts(head, Full::new(body))).await;
        let (head, body) = answered.map_err(failed)?.into_parts();
        Ok(HttpResponse::from_parts(head, body.into()))
    }
}

fn failed(error: HttpError) -> StoreError {
    let kind = match &error {
        HttpError::Connect { .. } => HttpErrorKind::Connect,
        HttpError::Exchange { .. } => HttpErrorKind::Interrupted,
        HttpError::Answer { .. } => HttpErrorKind::Decode,
        HttpError::Address { .. } => HttpErrorKind::Unknown,
    };
    StoreError::new(kind, error)
}
