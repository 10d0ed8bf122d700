//! The description of all paths of HTTP that a node serves, whichever crate they are of.

use axum::{
    http::header,
    response::{IntoResponse, Response},
};

/// OpenAPI 3.1. Tests hold every path and every answer against it.
pub const OPENAPI: &str = include_str!("openapi.json");

/// `GET /v1/openapi.json`.
pub async fn serve() -> Response {
    ([(header::CONTENT_TYPE, "application/json")], OPENAPI).into_response()
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use serde_json::Value;

    use super::*;

    /// The sources that have paths, and the texts before them.
    const SOURCES: [(&str, &str); 8] = [
        (include_str!("server/web.rs"), ".route(\""),
        (include_str!("../../tidegate-web/src/lib.rs"), ".route(\""),
        (include_str!("../../tidegate-web/src/page.rs"), ".route(\""),
        (include_str!("../../tidegate-web/src/page.rs"), "    File(\""),
        (include_str!("../../tidegate-vision/src/lib.rs"), ".route(\""),
        (include_str!("../../tidegate-vision/src/inference.rs"), ".route(\""),
        (include_str!("../../tidegate-vision/src/classic.rs"), ".route(\""),
        (include_str!("../../tidegate-vision/src/paper.rs"), "    (\""),
    ];

    #[test]
    fn every_path_that_is_served_is_described_and_no_other() {
        let mut served = BTreeSet::new();
        for (source, before) in SOURCES {
            let source = source.split("#[cfg(test)]\nmod tests {").next().unwrap();
            // A path stands on its own line where the whole does not fit.
            let source = source.replace("(\n            \"", "(\"").replace("(\n        \"", "(\"");
            let paths = source.split(before).skip(1).map(|rest| rest.split('"').next().unwrap());
            let paths: Vec<&str> = paths.filter(|path| path.starts_with('/')).collect();
            assert!(!paths.is_empty(), "{before} is before no path");
            for path in paths {
                match before {
                    // A question of the paper's server has three.
                    "    (\"" => served.extend([
                        format!("{path}/"),
                        format!("/ws{path}/"),
                        format!("/ws{path}"),
                    ]),
                    _ => served.extend([path.to_owned()]),
                }
            }
        }
        let description: Value = serde_json::from_str(OPENAPI).unwrap();
        let described = description["paths"].as_object().unwrap().keys().cloned().collect();
        assert_eq!(served, described);
        assert!(served.len() > 40, "{served:?}");
    }
}
