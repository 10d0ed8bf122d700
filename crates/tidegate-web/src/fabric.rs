//! The fabric that the node is a member of, for its administrators.

use std::sync::Arc;

use axum::{
    Extension, Json,
    extract::{Path, Query, rejection::QueryRejection},
};
use serde::Deserialize;
use serde_json::{Value, json};
use tidegate_api::{Left, MEMBERS_MAX, MEMBERS_USUAL, MembersPage, Sought, json::fabric as said};
use tidegate_rpc::{Admin, Failure, Identity};

type Administered = Extension<Arc<dyn Admin>>;
type Caller = Extension<Arc<Identity>>;

pub(crate) async fn status(
    Extension(admin): Administered,
    Extension(identity): Caller,
) -> Result<Json<Value>, Failure> {
    let status = admin.fabric(&identity)?.status().await?;
    Ok(Json(said::status(&status)))
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Page {
    /// Those behind this identity.
    #[serde(default)]
    after: String,
    /// At most so many.
    limit: Option<usize>,
}

pub(crate) async fn members(
    Extension(admin): Administered,
    Extension(identity): Caller,
    page: Result<Query<Page>, QueryRejection>,
) -> Result<Json<Value>, Failure> {
    let Query(Page { after, limit }) = page.map_err(|rejection| {
        let text = "the query may have `after`, an identity, and `limit`, a number";
        Failure::invalid(format!("{text}: {}", rejection.body_text()))
    })?;
    let limit = limit.unwrap_or(MEMBERS_USUAL);
    if !(1..=MEMBERS_MAX).contains(&limit) {
        let text = format!(
            "limit={limit} is outside 1 to {MEMBERS_MAX}; ask for fewer members, and with `after` for those behind them"
        );
        return Err(Failure::invalid(text));
    }
    let members = admin.fabric(&identity)?.members(MembersPage { after, limit }).await?;
    let members: Vec<Value> = members.iter().map(said::member).collect();
    Ok(Json(json!({ "members": members })))
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Subject {
    topic: Option<String>,
    camera: Option<String>,
    position: Option<String>,
}

pub(crate) async fn locate(
    Extension(admin): Administered,
    Extension(identity): Caller,
    subject: Result<Query<Subject>, QueryRejection>,
) -> Result<Json<Value>, Failure> {
    let Query(Subject { topic, camera, position }) = subject.map_err(|rejection| {
        let text = "the query has one of `topic`, `camera` and `position`, a latitude and a longitude in degrees with a comma between them";
        Failure::invalid(format!("{text}: {}", rejection.body_text()))
    })?;
    let fabric = admin.fabric(&identity)?;
    let sought = Sought::read(topic.as_deref(), camera.as_deref(), position.as_deref())?;
    let members = fabric.locate(&sought).await?;
    let members: Vec<Value> = members.iter().map(said::located).collect();
    Ok(Json(json!({ "members": members })))
}

pub(crate) async fn forget(
    Extension(admin): Administered,
    Extension(identity): Caller,
    Path(member): Path<String>,
) -> Result<Json<Value>, Failure> {
    let member = admin.fabric(&identity)?.forget(&member).await?;
    Ok(Json(json!({ "id": member.id, "name": member.name })))
}

pub(crate) async fn leave(
    Extension(admin): Administered,
    Extension(identity): Caller,
) -> Result<Json<Value>, Failure> {
    let Left { unsent, unsent_to } = admin.fabric(&identity)?.leave().await?;
    Ok(Json(json!({ "unsent": unsent, "unsent_to": unsent_to })))
}
