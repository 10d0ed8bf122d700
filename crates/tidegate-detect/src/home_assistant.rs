//! Entities of Home Assistant: which there are, and their states, as retained messages.
//!
//! ```text
//!  PREFIX/sensor/ID/config          how many of a label are in the picture ◀── TOPIC/LABEL          "2"
//!  PREFIX/binary_sensor/ID/config   whether any is                        ◀── TOPIC/LABEL
//!  PREFIX/image/ID/config           the original of a detection           ◀── TOPIC/original       JPEG
//!                                   whether the camera is watched         ◀── TOPIC/availability   "online", "offline"
//! ```
//!
//! Always true: a label is announced before its first state; a state is published when it changes; a camera that is no longer watched
//! leaves no entity; sections, cameras and labels with other names have other identifiers and topics.

use std::collections::BTreeMap;

use serde_json::{Value, json};
use tidegate_message::CameraName;

use crate::{
    report::{Detection, Report},
    topic::{AVAILABILITY, ORIGINAL, level},
};

/// Labels of one camera that are announced: a model with more has classes that no one watches.
const LABELS_MAX: usize = 64;

/// The key of an entity's owner in its discovery message.
const OWNER: &str = "tidegate";

/// A retained message.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Retained {
    pub(crate) topic: String,
    /// Empty: what was retained there goes.
    pub(crate) payload: Vec<u8>,
}

/// The entities of one section.
#[derive(Debug)]
pub(crate) struct HomeAssistant {
    prefix: String,
    /// The node that announces them, if its name stays.
    node: Option<String>,
    detector: String,
    /// Labels that each camera has from the begin.
    labels: Vec<String>,
    originals: bool,
    cameras: BTreeMap<CameraName, Camera>,
}

#[derive(Debug)]
struct Camera {
    topic: String,
    /// How many of each label there were last.
    counts: BTreeMap<String, usize>,
    is_available: bool,
}

impl HomeAssistant {
    /// Entities of that section below `prefix`; of each camera those of `labels` from the begin, others once they are found.
    pub(crate) fn new(
        prefix: String,
        node: Option<String>,
        detector: String,
        labels: Vec<String>,
        originals: bool,
    ) -> Self {
        Self { prefix, node, detector, labels, originals, cameras: BTreeMap::new() }
    }

    /// The camera is watched from now on; its messages have that topic.
    pub(crate) fn begin(&mut self, camera: &CameraName, topic: String) -> Vec<Retained> {
        let mut out = Vec::new();
        if self.originals {
            let name = json!({ "name": "original", "image_topic": format!("{topic}/{ORIGINAL}"), "content_type": "image/jpeg" });
            out.push(self.config("image", camera, &topic, ORIGINAL, name));
        }
        let new = Camera { topic, counts: BTreeMap::new(), is_available: true };
        let topic = new.topic.clone();
        self.cameras.insert(camera.clone(), new);
        for label in self.labels.clone() {
            out.extend(self.count(camera, &label, 0));
        }
        out.push(availability(&topic, true));
        out
    }

    /// The messages that follow from a report.
    pub(crate) fn report(&mut self, camera: &CameraName, report: &Report) -> Vec<Retained> {
        match report {
            Report::Detection(found) => self.detection(camera, found),
            Report::CameraOffline(_) | Report::NoFrames(_) | Report::DetectorFailed { .. } => {
                self.available(camera, false)
            }
            Report::CameraOnline | Report::Unchanged { .. } => self.available(camera, true),
            _ => Vec::new(),
        }
    }

    /// The camera is no longer watched.
    pub(crate) fn end(&mut self, camera: &CameraName) -> Vec<Retained> {
        let Some(Camera { topic, counts, .. }) = self.cameras.remove(camera) else {
            return Vec::new();
        };
        let mut topics: Vec<String> = Vec::new();
        for label in counts.keys() {
            topics.push(self.config_topic("sensor", camera, label));
            topics.push(self.config_topic("binary_sensor", camera, label));
            topics.push(format!("{topic}/{}", level(label)));
        }
        if self.originals {
            topics.push(self.config_topic("image", camera, ORIGINAL));
            topics.push(format!("{topic}/{ORIGINAL}"));
        }
        topics.push(format!("{topic}/{AVAILABILITY}"));
        topics.into_iter().map(|topic| Retained { topic, payload: Vec::new() }).collect()
    }

    /// The section ends: its cameras are unavailable, or, for good, no longer there.
    pub(crate) fn leave(&mut self, for_good: bool) -> Vec<Retained> {
        let cameras: Vec<CameraName> = self.cameras.keys().cloned().collect();
        let left = |camera| match for_good {
            true => self.end(camera),
            false => self.available(camera, false),
        };
        cameras.iter().flat_map(left).collect()
    }

    fn detection(&mut self, camera: &CameraName, found: &Detection) -> Vec<Retained> {
        let mut out = self.available(camera, true);
        let mut counts: BTreeMap<&str, usize> = BTreeMap::new();
        for found in &found.boxes {
            *counts.entry(&found.label).or_default() += 1;
        }
        let Some(known) = self.cameras.get(camera) else { return out };
        let gone: Vec<String> = known
            .counts
            .iter()
            .filter(|(label, count)| **count > 0 && !counts.contains_key(label.as_str()))
            .map(|(label, _)| label.clone())
            .collect();
        for (label, count) in counts {
            out.extend(self.count(camera, label, count));
        }
        for label in gone {
            out.extend(self.count(camera, &label, 0));
        }
        out
    }

    /// The state of a label, and its entities if it is new.
    fn count(&mut self, camera: &CameraName, label: &str, count: usize) -> Vec<Retained> {
        let Some(known) = self.cameras.get(camera) else { return Vec::new() };
        let before = known.counts.get(label).copied();
        if before == Some(count) || (before.is_none() && known.counts.len() >= LABELS_MAX) {
            return Vec::new();
        }
        let topic = known.topic.clone();
        let state = format!("{topic}/{}", level(label));
        let mut out = Vec::new();
        if before.is_none() {
            let sensor = json!({
                "name": format!("{label} count"), "state_topic": state, "state_class": "measurement",
            });
            let binary = json!({
                "name": label, "state_topic": state, "device_class": "occupancy",
                "value_template": "{{ 'ON' if value | int > 0 else 'OFF' }}",
            });
            out.push(self.config("sensor", camera, &topic, label, sensor));
            out.push(self.config("binary_sensor", camera, &topic, label, binary));
        }
        out.push(Retained { topic: state, payload: count.to_string().into_bytes() });
        if let Some(known) = self.cameras.get_mut(camera) {
            known.counts.insert(label.to_owned(), count);
        }
        out
    }

    fn available(&mut self, camera: &CameraName, is_available: bool) -> Vec<Retained> {
        match self.cameras.get_mut(camera) {
            Some(known) if known.is_available != is_available => {
                known.is_available = is_available;
                vec![availability(&known.topic, is_available)]
            }
            _ => Vec::new(),
        }
    }

    fn config(
        &self,
        component: &str,
        camera: &CameraName,
        topic: &str,
        what: &str,
        own: Value,
    ) -> Retained {
        let mut config = own;
        config["unique_id"] = format!("{}_{component}", self.id(camera, what)).into();
        config["availability_topic"] = format!("{topic}/{AVAILABILITY}").into();
        config["device"] = json!({
            "identifiers": [format!("tidegate_{}", word(camera.as_str()))],
            "name": camera.as_str(),
            "manufacturer": "Tidegate",
        });
        config["origin"] = json!({ "name": "Tidegate", "sw_version": env!("CARGO_PKG_VERSION") });
        if let Some(node) = &self.node {
            // Home Assistant passes over keys that it does not know.
            config[OWNER] = json!({ "node": node, "detector": self.detector });
        }
        let topic = self.config_topic(component, camera, what);
        Retained { topic, payload: config.to_string().into_bytes() }
    }

    fn config_topic(&self, component: &str, camera: &CameraName, what: &str) -> String {
        format!("{}/{component}/{}/config", self.prefix, self.id(camera, what))
    }

    fn id(&self, camera: &CameraName, what: &str) -> String {
        let [camera, detector, what] = [camera.as_str(), &self.detector, what].map(word);
        format!("tidegate_{camera}_{detector}_{what}")
    }
}

/// The node and the detector that announced an entity.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Owner {
    pub(crate) node: String,
    pub(crate) detector: String,
}

/// The owner of the entity of a discovery message; none if it is not one of ours.
pub(crate) fn owner(payload: &[u8]) -> Option<Owner> {
    let config: Value = serde_json::from_slice(payload).ok()?;
    let text = |key: &str| config[OWNER][key].as_str().map(str::to_owned);
    Some(Owner { node: text("node")?, detector: text("detector")? })
}

fn availability(topic: &str, is_available: bool) -> Retained {
    let payload = if is_available { "online" } else { "offline" };
    Retained { topic: format!("{topic}/{AVAILABILITY}"), payload: payload.into() }
}

/// A name as a part of an identifier, which has letters, digits, `_` and `-`. Letters and digits stand for themselves, others are a number
/// between two `-`, and `_` is between parts alone: no two lists of names are one identifier.
fn word(text: &str) -> String {
    let mut word = String::new();
    for c in text.chars() {
        match c {
            'a'..='z' | 'A'..='Z' | '0'..='9' => word.push(c),
            c => word.push_str(&format!("-{:x}-", u32::from(c))),
        }
    }
    word
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use tidegate_api::Stages;
    use tidegate_frame::score;
    use tidegate_message::{FrameSize, Instant};

    use super::*;

    fn detection(labels: &[&str]) -> Report {
        let found = |label: &&str| score::Detection {
            rect: score::Rect::new(0.0, 0.0, 9.0, 9.0).unwrap(),
            score: 1.0,
            label: (*label).into(),
        };
        let size = FrameSize { width: 64, height: 48 };
        Report::Detection(Box::new(Detection {
            captured_at: Instant::EPOCH,
            epoch: 1,
            frame: size,
            source: size,
            knobs: "original".into(),
            accuracy: 1.0,
            boxes: labels.iter().map(found).collect(),
            classes: Vec::new(),
            poses: Vec::new(),
            stages: Stages::default(),
            wait: Duration::ZERO,
            decode: Duration::ZERO,
            infer: Duration::ZERO,
            bound: Duration::ZERO,
            accuracy_kept: true,
            measured_until: tokio::time::Instant::now(),
            kept: true,
            skipped: 0,
        }))
    }

    fn said(out: &[Retained]) -> Vec<(&str, String)> {
        let text = |message: &Retained| match message.topic.ends_with("config") {
            true => if message.payload.is_empty() { "gone" } else { "new" }.to_owned(),
            false => String::from_utf8(message.payload.clone()).unwrap(),
        };
        out.iter().map(|message| (&*message.topic, text(message))).collect()
    }

    #[test]
    fn entities_come_before_their_states_and_go_with_their_camera() {
        let camera: CameraName = "yard.1".parse().unwrap();
        let (prefix, labels) = ("homeassistant".to_owned(), vec!["person".to_owned()]);
        let mut entities =
            HomeAssistant::new(prefix, Some("n-1".into()), "people".to_owned(), labels, true);
        let out = entities.begin(&camera, "d/yard.1".to_owned());
        let id = "tidegate_yard-2e-1_people";
        let of =
            |component: &str, what: &str| format!("homeassistant/{component}/{id}_{what}/config");
        let (image, sensor, binary) =
            (of("image", "original"), of("sensor", "person"), of("binary_sensor", "person"));
        let expected = [
            (&*image, "new"),
            (&*sensor, "new"),
            (&*binary, "new"),
            ("d/yard.1/person", "0"),
            ("d/yard.1/availability", "online"),
        ];
        assert_eq!(said(&out), expected.map(|(topic, text)| (topic, text.to_owned())));
        let config: Value = serde_json::from_slice(&out[2].payload).unwrap();
        assert_eq!(config["state_topic"], "d/yard.1/person");
        assert_eq!(config["availability_topic"], "d/yard.1/availability");
        assert_eq!(config["unique_id"], format!("{id}_person_binary_sensor"));
        assert_eq!(config["device"]["name"], "yard.1");
        let expected = Owner { node: "n-1".to_owned(), detector: "people".to_owned() };
        assert_eq!(owner(&out[2].payload), Some(expected));
        assert_eq!((owner(b""), owner(b"{}"), owner(b"[1]")), (None, None, None));

        let out = entities.report(&camera, &detection(&["person", "person", "traffic light"]));
        let said_now = said(&out);
        assert_eq!(said_now[0], ("d/yard.1/person", "2".to_owned()));
        assert_eq!(said_now.last().unwrap(), &("d/yard.1/traffic%20light", "1".to_owned()));
        assert_eq!(said_now.len(), 4, "two entities and two states");
        assert_eq!(
            entities.report(&camera, &detection(&["person", "traffic light", "person"])),
            []
        );
        let out = entities.report(&camera, &detection(&["person"]));
        let expected = [("d/yard.1/person", "1"), ("d/yard.1/traffic%20light", "0")];
        assert_eq!(said(&out), expected.map(|(topic, text)| (topic, text.to_owned())));

        let out = entities.report(&camera, &Report::CameraOffline("gone".into()));
        assert_eq!(said(&out), [("d/yard.1/availability", "offline".to_owned())]);
        assert_eq!(entities.report(&camera, &Report::CameraOffline("gone".into())), []);
        let out = entities.report(&camera, &detection(&["person"]));
        assert_eq!(said(&out), [("d/yard.1/availability", "online".to_owned())]);

        let out = entities.end(&camera);
        assert_eq!(
            out.len(),
            9,
            "four entities of two labels, their states, the picture and its entity, availability"
        );
        assert!(out.iter().all(|message| message.payload.is_empty()), "{out:?}");
        assert_eq!(entities.end(&camera), []);
    }

    #[test]
    fn no_two_labels_of_cameras_and_sections_have_one_identifier_or_topic() {
        let cameras = ["a", "b", "a_b", "a_b_c", "a-b", "a.b", "a_2e_b", "a-2e-b", "a-", "a_", "A"];
        let labels =
            ["c", "b_c", "original", "availability", "traffic light", "traffic_light", "a%20b", ""];
        let mut seen = std::collections::BTreeSet::new();
        let mut count = 0;
        for camera in cameras {
            for detector in cameras {
                let labels = labels.map(str::to_owned).to_vec();
                let mut entities =
                    HomeAssistant::new("h".to_owned(), None, detector.to_owned(), labels, true);
                let topic = format!("d/{camera}/{detector}");
                let out = entities.begin(&camera.parse().unwrap(), topic.clone());
                for message in out {
                    let config = serde_json::from_slice::<Value>(&message.payload).ok();
                    let id =
                        config.and_then(|config| config["unique_id"].as_str().map(str::to_owned));
                    assert!(id.is_none_or(|id| seen.insert(id)), "{}", message.topic);
                    assert!(seen.insert(message.topic.clone()), "{}", message.topic);
                    count += 1;
                }
                assert!(seen.insert(format!("{topic}/original")));
            }
        }
        // An image, availability, and two entities and a state of each label.
        assert_eq!(count, cameras.len() * cameras.len() * (2 + 3 * labels.len()));
    }

    #[test]
    fn a_model_of_a_thousand_classes_does_not_fill_the_list() {
        let camera: CameraName = "a".parse().unwrap();
        let mut entities =
            HomeAssistant::new("h".to_owned(), None, "d".to_owned(), Vec::new(), false);
        entities.begin(&camera, "t".to_owned());
        let labels: Vec<String> = (0..1000).map(|label| format!("class {label}")).collect();
        let labels: Vec<&str> = labels.iter().map(String::as_str).collect();
        let out = entities.report(&camera, &detection(&labels));
        assert_eq!(out.len(), 3 * LABELS_MAX);
    }
}
