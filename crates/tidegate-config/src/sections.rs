//! The sections: one file for each, where each key has its type, its default and its bounds.

mod auth;
mod camera;
mod detect;
mod fabric;
mod flow;
mod frames;
mod ingest;
mod link;
mod log;
mod log_camera;
mod mez_pi;
mod mqtt;
mod mqtt_bridge;
mod mqtt_listener;
mod mqtt_topic;
mod mqtt_user;
mod node;
mod privacy;
mod sink;
mod timer;
mod uplink;
mod vision;
mod web;
mod workers;

use std::{
    collections::BTreeMap,
    fmt,
    path::{Path, PathBuf},
    time::Duration,
};

use tidegate_message::CameraName;

pub use self::{
    auth::AuthSection,
    camera::CameraSection,
    detect::DetectSection,
    fabric::FabricSection,
    flow::FlowSection,
    frames::FramesSection,
    ingest::IngestSection,
    link::LinkSection,
    log::{ENTRY_META_BYTES_MAX, LogSection},
    log_camera::LogCameraSection,
    mez_pi::MezPiSection,
    mqtt::MqttSection,
    mqtt_bridge::MqttBridgeSection,
    mqtt_listener::MqttListenerSection,
    mqtt_topic::MqttTopicSection,
    mqtt_user::MqttUserSection,
    node::NodeSection,
    privacy::PrivacySection,
    sink::SinkSection,
    timer::TimerSection,
    uplink::UplinkSection,
    vision::VisionSection,
    web::WebSection,
    workers::{IMAGE_BYTES_MOST, WorkersSection},
};
pub use self::{
    frames::FRAME_BYTES_MOST,
    log::MQTT_BYTES_MIN,
    mqtt::{ID_PREFIX_BOUND, PACKET_BYTES_LEAST, PACKET_BYTES_MAX, is_id_prefix},
};
use super::{
    ConfigError, Origin, Origins,
    layers::Setting,
    table::{Broken, Difference, Section, differ, different, explain, part, put},
};

config! {
    node: NodeSection,
    frames: FramesSection,
    mez_pi: MezPiSection,
    log: LogSection,
    privacy: PrivacySection,
    workers: WorkersSection,
    link: LinkSection,
    fabric: FabricSection,
    auth: AuthSection,
    mqtt: MqttSection,
    vision: VisionSection,
    web: WebSection,
    ;
    "camera" in cameras: CameraSection,
    "detect" in detectors: DetectSection,
    "log.camera" in log_cameras: LogCameraSection,
    "mqtt.listener" in mqtt_listeners: MqttListenerSection with "main"; fixed,
    "mqtt.bridge" in mqtt_bridges: MqttBridgeSection,
    "uplink" in uplinks: UplinkSection,
    "ingest" in ingest: IngestSection; fixed,
    "mqtt.user" in mqtt_users: MqttUserSection,
    "mqtt.topic" in mqtt_topics: MqttTopicSection,
    "flow" in flows: FlowSection,
    "sink" in sinks: SinkSection,
    "timer" in timers: TimerSection,
}

impl Config {
    /// A path that is a part of the setting `name`: relative ones begin at the folder of the file that names it, those of a variable
    /// or flag where the program runs.
    pub fn path_of(&self, name: &str, path: &Path) -> PathBuf {
        match self.origins.of(name) {
            Some(Origin::File { path: file, .. }) => {
                file.parent().map_or_else(|| path.to_owned(), |folder| folder.join(path))
            }
            _ => path.to_owned(),
        }
    }
}

fn name(word: &'static str) -> CameraName {
    word.parse().expect("defaults are names")
}

const fn millis(count: u64) -> Duration {
    Duration::from_millis(count)
}

const fn seconds(count: u64) -> Duration {
    Duration::from_secs(count)
}
