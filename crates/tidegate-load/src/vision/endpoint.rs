//! The meaning of a request's path, by the paper's server and by ours.

/// Operations of the persistent TCP protocol by the path that stands for them.
const OPCODES: [(&str, u32); 4] = [
    ("/detector/detect/", 1),
    ("/recognizer/predict/", 2),
    ("/openpose/detect/", 3),
    ("/object/detect/", 4),
];
/// Models by the path that stands for them.
const MODELS: [(&str, &str); 4] = [
    ("/detector/detect/", "face"),
    ("/recognizer/predict/", "recognize"),
    ("/openpose/detect/", "pose"),
    ("/object/detect/", "object"),
];

/// The operation of the persistent TCP protocol that a path stands for, or one that is written as a number.
pub(super) fn opcode(endpoint: &str) -> Option<u32> {
    let known = OPCODES.iter().find(|(path, _)| *path == endpoint).map(|(_, opcode)| *opcode);
    known.or_else(|| endpoint.parse().ok())
}

/// The model that a path stands for, or one that is named.
pub(super) fn model(endpoint: &str) -> Option<&str> {
    let of_path = MODELS.iter().find(|(path, _)| *path == endpoint).map(|(_, model)| *model);
    let named = endpoint.strip_prefix("/v1/detect/").unwrap_or(endpoint);
    of_path.or_else(|| Some(named).filter(|name| !name.is_empty() && !name.contains('/')))
}

/// The path of a WebSocket: those of the paper's server stand behind `/ws`, ours are the same as without a WebSocket.
pub(super) fn websocket_path(endpoint: &str) -> String {
    let is_whole = ["/v1/", "/ws/"].iter().any(|start| endpoint.starts_with(start));
    if is_whole { endpoint.to_owned() } else { format!("/ws{endpoint}") }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_and_operations_follow_the_endpoint() {
        for (endpoint, expected) in [
            ("/detector/detect/", Some("face")),
            ("/recognizer/predict/", Some("recognize")),
            ("/v1/detect/person", Some("person")),
            ("yolo", Some("yolo")),
            ("/v1/detect/", None),
            ("/test/", None),
            ("", None),
        ] {
            assert_eq!(model(endpoint), expected, "{endpoint}");
        }
        for (endpoint, path, expected) in [
            ("/detector/detect/", "/ws/detector/detect/", Some(1)),
            ("/object/detect/", "/ws/object/detect/", Some(4)),
            ("/ws/detector/detect/", "/ws/detector/detect/", None),
            ("/v1/detect/face", "/v1/detect/face", None),
            ("5", "/ws5", Some(5)),
        ] {
            assert_eq!(websocket_path(endpoint), path);
            assert_eq!(opcode(endpoint), expected, "{endpoint}");
        }
    }
}
