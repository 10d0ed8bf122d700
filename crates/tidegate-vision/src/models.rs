//! `/v1/models`: the models that there are, loaded, unloaded and taught over HTTP.

use axum::{
    body::Body,
    extract::{Path, Request, State},
    http::{Response, StatusCode},
};
use serde_json::json;
use tidegate_identity::{access::Identity, auth::audit::Outcome};
use tidegate_message::{Action, Target};

use crate::{
    FRONT, ModelInfo, Vision,
    answer::milliseconds,
    body::Form,
    caller,
    refused::{Refused, json_answer},
};

/// `GET /v1/models`: those that the caller may have look at images, or administer.
pub(crate) async fn list(
    State(vision): State<Vision>,
    request: Request,
) -> Result<Response<Body>, Refused> {
    let identity = caller(&request)?;
    vision.0.access.still_holds(&identity).map_err(Refused::Denied)?;
    let found = vision.0.detector.models().await?;
    let shown = |model: &&ModelInfo| {
        let of = |action| vision.allows(&identity, action, &model.name);
        of(Action::Detect) || of(Action::Admin)
    };
    let models: Vec<_> = found.models.iter().filter(shown).map(model_json).collect();
    let answer = json!({
        "detector": found.detector,
        "models": models,
        "workers": {
            "ready": found.ready,
            "waiting": found.waiting,
            "service_ms": found.service.map(milliseconds),
        },
    });
    Ok(json_answer(StatusCode::OK, &answer))
}

fn model_json(model: &ModelInfo) -> serde_json::Value {
    let is_loaded = model.is_loaded && model.failed.is_none();
    json!({ "name": model.name, "kind": model.kind, "loaded": is_loaded, "failed": model.failed })
}

/// `PUT /v1/models/NAME`: loads `NAME.onnx` from the folder of models.
pub(crate) async fn load(
    State(vision): State<Vision>,
    Path(name): Path<String>,
    request: Request,
) -> Result<Response<Body>, Refused> {
    let identity = caller(&request)?;
    vision.may(&identity, Action::Admin, &name)?;
    let loaded = vision.0.detector.load(&name).await;
    tell(&vision, &identity, "load model", &name, &loaded);
    loaded?;
    let model = ModelInfo { name, is_loaded: true, ..ModelInfo::default() };
    Ok(json_answer(StatusCode::OK, &model_json(&model)))
}

/// `DELETE /v1/models/NAME`: unloads a model.
pub(crate) async fn unload(
    State(vision): State<Vision>,
    Path(name): Path<String>,
    request: Request,
) -> Result<StatusCode, Refused> {
    let identity = caller(&request)?;
    vision.may(&identity, Action::Admin, &name)?;
    let unloaded = vision.0.detector.unload(&name).await;
    tell(&vision, &identity, "unload model", &name, &unloaded);
    unloaded?;
    Ok(StatusCode::NO_CONTENT)
}

/// `POST /v1/models/NAME/subjects/SUBJECT`: teaches whose face is in an image.
pub(crate) async fn teach(
    State(vision): State<Vision>,
    Path((model, subject)): Path<(String, String)>,
    request: Request,
) -> Result<Response<Body>, Refused> {
    let identity = caller(&request)?;
    vision.may(&identity, Action::Admin, &model)?;
    let form = Form::of(request.headers())?;
    let receiver = &vision.0.receiver;
    let received = receiver.receive(identity.key, form, request.into_body()).await?;
    let (image, _charge) = received.image()?;
    vision.0.inspector.look(&image).await?;
    let taught = vision.0.detector.train(identity.key, &model, &subject, image).await;
    tell(&vision, &identity, "teach model", &model, &taught);
    let images = taught?;
    Ok(json_answer(
        StatusCode::OK,
        &json!({ "model": model, "subject": subject, "images": images }),
    ))
}

/// Writes an act of administration down.
pub(crate) fn tell<T, E: std::error::Error>(
    vision: &Vision,
    identity: &Identity,
    what: &str,
    name: &str,
    result: &Result<T, E>,
) {
    let (outcome, rule) = match result {
        Ok(_) => (Outcome::Done, String::new()),
        Err(error) => (Outcome::Failed, tidegate_message::error_chain(error)),
    };
    vision.0.access.tell(FRONT, identity, outcome, what, Target::Model(name), &rule);
}
