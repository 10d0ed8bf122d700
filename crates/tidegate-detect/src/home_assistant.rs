//! Entities of Home Assistant: which there are, and their states, as retained messages.
//!
//! ```text
//!  PREFIX/sensor/ID/config          how many of a label are in the picture ◀── TOPIC/LABEL          "2"
//!  PREFIX/binary_sensor/ID/config   whether any is                        ◀── TOPIC/LABEL
//!  PREFIX/image/ID/config           the original of a detection           ◀── TOPIC/original       JPEG
//!                                   whether the counts are known          ◀── TOPIC/availability   "online", "offline"
//! ```
//!
//! A camera is unavailable from its begin to its first detection, and again at any silence: the camera or the detector is gone, or nothing
//! was looked at for a while, whatever the reason. Where the whole node is gone, what it retained expires, at the broker by the Message
//! Expiry Interval (MQTT 5, 3.3.2.3.3) and in Home Assistant by `expire_after`; so states are published again while they hold.
//!
//! Always true: a label is announced before its first state; a camera is available only after all of its labels have the counts of its
//! newest detection, those that an earlier start announced too; a camera that is no longer watched leaves no entity; sections, cameras and
//! labels with other names have other identifiers and topics.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use serde_json::{Value, json};
use tidegate_message::{CameraName, FrameRate, Instant};

use crate::{
    report::{Detection, Report},
    topic::{AVAILABILITY, ORIGINAL, level},
};

/// Labels of one camera that are announced: a model with more has classes that no one watches.
const LABELS_MAX: usize = 64;
/// Cameras that are not watched yet and whose labels of an earlier start are remembered.
const EARLIER_MAX: usize = 256;
/// The counts of a camera that was not looked at for so long are not known any more, unless fewer frames are asked for.
const SILENT_AFTER: Duration = Duration::from_secs(10);
/// So many frames that are asked for and not looked at are a silence.
const SILENT_FRAMES: u32 = 3;
/// A state is published again after that time.
const AGAIN_AFTER: Duration = Duration::from_secs(10);
/// A state is true for so long without being published again.
const EXPIRES_AFTER: Duration = Duration::from_secs(30);
const _: () = assert!(EXPIRES_AFTER.as_secs() >= 2 * AGAIN_AFTER.as_secs());

/// The key of an entity's owner in its discovery message.
const OWNER: &str = "tidegate";
const COUNT: &str = "sensor";
const PRESENCE: &str = "binary_sensor";

/// A retained message.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Retained {
    pub(crate) topic: String,
    /// Empty: what was retained there goes.
    pub(crate) payload: Vec<u8>,
    /// How long it is true if it is not published again; none: for good.
    pub(crate) expires_after: Option<Duration>,
}

impl Retained {
    fn new(topic: String, payload: impl Into<Vec<u8>>) -> Self {
        Self { topic, payload: payload.into(), expires_after: None }
    }

    /// A state, which holds for a while.
    fn state(topic: String, payload: impl Into<Vec<u8>>) -> Self {
        Self { expires_after: Some(EXPIRES_AFTER), ..Self::new(topic, payload) }
    }
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
    silent_after: Duration,
    cameras: BTreeMap<CameraName, Camera>,
    /// Labels that an earlier start announced, of cameras that are not watched yet.
    earlier: BTreeMap<CameraName, BTreeSet<String>>,
}

#[derive(Debug)]
struct Camera {
    topic: String,
    /// How many of each label there were last.
    counts: BTreeMap<String, usize>,
    /// The last look, if the counts are known.
    known: Option<Look>,
    /// The frame of the newest detection: its epoch and capture time.
    frame: Option<(u64, Instant)>,
}

#[derive(Clone, Copy, Debug)]
struct Look {
    at: Instant,
    /// When all states were published last.
    said_at: Instant,
}

impl HomeAssistant {
    /// Entities of that section below `prefix`; of each camera those of `labels` from the begin, others once they are found. `frame_rate` is
    /// that of the frames that are asked for, if not all are.
    pub(crate) fn new(
        prefix: String,
        node: Option<String>,
        detector: String,
        labels: Vec<String>,
        originals: bool,
        frame_rate: Option<FrameRate>,
    ) -> Self {
        let frames = frame_rate.map(|rate| rate.interval() * SILENT_FRAMES);
        let silent_after = SILENT_AFTER.max(frames.unwrap_or_default());
        let (cameras, earlier) = (BTreeMap::new(), BTreeMap::new());
        Self { prefix, node, detector, labels, originals, silent_after, cameras, earlier }
    }

    /// The topics at which an earlier start announced entities.
    pub(crate) fn announced(&self) -> String {
        format!("{}/{PRESENCE}/+/config", self.prefix)
    }

    /// The camera is watched from now on; its messages have that topic. Nothing is known of it yet.
    pub(crate) fn begin(&mut self, camera: &CameraName, topic: String) -> Vec<Retained> {
        let mut out = vec![availability(&topic, false)];
        if self.originals {
            let name = json!({ "name": "original", "image_topic": format!("{topic}/{ORIGINAL}"), "content_type": "image/jpeg" });
            out.push(self.config("image", camera, &topic, ORIGINAL, name));
        }
        let new = Camera { topic, counts: BTreeMap::new(), known: None, frame: None };
        self.cameras.insert(camera.clone(), new);
        let earlier = self.earlier.remove(camera).unwrap_or_default();
        for label in self.labels.clone().into_iter().chain(earlier) {
            out.extend(self.announce(camera, &label));
        }
        out
    }

    /// Takes an announcement that was retained: an entity of an earlier start of this section has a state that is no longer true.
    pub(crate) fn earlier(&mut self, topic: &str, payload: &[u8]) -> Vec<Retained> {
        let Some((camera, label)) = self.entity(topic, payload) else { return Vec::new() };
        if let Some(known) = self.cameras.get(&camera) {
            if known.counts.contains_key(&label) {
                return Vec::new();
            }
            // One that finds no room any more would keep its count for ever.
            if known.counts.len() >= LABELS_MAX {
                return cleared(self.topics_of(&camera, &known.topic, &label));
            }
            let mut out = self.announce(&camera, &label);
            if self.cameras.get(&camera).is_some_and(|known| known.known.is_some()) {
                out.extend(self.state(&camera, &label));
            }
            return out;
        }
        if self.earlier.len() < EARLIER_MAX || self.earlier.contains_key(&camera) {
            let labels = self.earlier.entry(camera).or_default();
            if labels.len() < LABELS_MAX {
                labels.insert(label);
            }
        }
        Vec::new()
    }

    /// The messages that follow from a report.
    pub(crate) fn report(
        &mut self,
        now: Instant,
        camera: &CameraName,
        report: &Report,
    ) -> Vec<Retained> {
        match report {
            Report::Detection(found) => self.detection(now, camera, found),
            // Of another frame than the one that was looked at, the counts are not known.
            Report::Unchanged { epoch, same_as, .. } => {
                match self
                    .cameras
                    .get(camera)
                    .is_some_and(|it| it.frame == Some((*epoch, *same_as)))
                {
                    true => self.looked(now, camera),
                    false => Vec::new(),
                }
            }
            Report::CameraOffline(_) | Report::NoFrames(_) | Report::DetectorFailed { .. } => {
                self.forget(camera)
            }
            _ => Vec::new(),
        }
    }

    /// The messages that follow from the time: of cameras that were not looked at, and of states that are to be said again.
    pub(crate) fn tick(&mut self, now: Instant) -> Vec<Retained> {
        let mut out = Vec::new();
        for camera in self.cameras.keys().cloned().collect::<Vec<_>>() {
            let known = self.cameras.get_mut(&camera).and_then(|known| known.known.as_mut());
            let Some(look) = known else { continue };
            if now.since(look.at) >= self.silent_after {
                out.extend(self.forget(&camera));
            } else if now.since(look.said_at) >= AGAIN_AFTER {
                look.said_at = now;
                out.extend(self.states(&camera));
            }
        }
        out
    }

    /// The camera is no longer watched.
    pub(crate) fn end(&mut self, camera: &CameraName) -> Vec<Retained> {
        let Some(Camera { topic, counts, .. }) = self.cameras.remove(camera) else {
            return Vec::new();
        };
        let mut topics: Vec<String> =
            counts.keys().flat_map(|label| self.topics_of(camera, &topic, label)).collect();
        if self.originals {
            topics.push(self.config_topic("image", camera, ORIGINAL));
            topics.push(format!("{topic}/{ORIGINAL}"));
        }
        topics.push(format!("{topic}/{AVAILABILITY}"));
        cleared(topics)
    }

    /// The section ends: its cameras are unavailable, or, for good, no longer there.
    pub(crate) fn leave(&mut self, for_good: bool) -> Vec<Retained> {
        let cameras: Vec<CameraName> = self.cameras.keys().cloned().collect();
        let left = |camera| match for_good {
            true => self.end(camera),
            false => self.forget(camera),
        };
        cameras.iter().flat_map(left).collect()
    }

    fn detection(&mut self, now: Instant, camera: &CameraName, found: &Detection) -> Vec<Retained> {
        let mut counts: BTreeMap<&str, usize> = BTreeMap::new();
        for found in &found.boxes {
            *counts.entry(&found.label).or_default() += 1;
        }
        let new: Vec<&str> = match self.cameras.get(camera) {
            Some(known) => {
                counts.keys().copied().filter(|it| !known.counts.contains_key(*it)).collect()
            }
            None => return Vec::new(),
        };
        let mut out: Vec<Retained> =
            new.into_iter().flat_map(|label| self.announce(camera, label)).collect();
        let known = self.cameras.get_mut(camera).expect("it was there");
        known.frame = Some((found.epoch, found.captured_at));
        let mut changed = Vec::new();
        for (label, count) in &mut known.counts {
            let there = counts.get(label.as_str()).copied().unwrap_or(0);
            if std::mem::replace(count, there) != there || known.known.is_none() {
                changed.push(label.clone());
            }
        }
        // All of them are said by a camera that becomes available.
        if known.known.is_some() {
            out.extend(changed.iter().filter_map(|label| self.state(camera, label)));
        }
        out.extend(self.looked(now, camera));
        out
    }

    /// The camera was looked at: its counts are known.
    fn looked(&mut self, now: Instant, camera: &CameraName) -> Vec<Retained> {
        let Some(known) = self.cameras.get_mut(camera) else { return Vec::new() };
        match &mut known.known {
            Some(look) => {
                look.at = now;
                Vec::new()
            }
            none => {
                *none = Some(Look { at: now, said_at: now });
                self.states(camera)
            }
        }
    }

    /// The counts of the camera are not known any more.
    fn forget(&mut self, camera: &CameraName) -> Vec<Retained> {
        let known = self.cameras.get_mut(camera);
        match known.and_then(|known| known.known.take().map(|_| &known.topic)) {
            Some(topic) => vec![availability(topic, false)],
            None => Vec::new(),
        }
    }

    /// All states of a camera whose counts are known: it is available once they are there.
    fn states(&self, camera: &CameraName) -> Vec<Retained> {
        let Some(known) = self.cameras.get(camera) else { return Vec::new() };
        let counts = known.counts.keys().filter_map(|label| self.state(camera, label));
        counts.chain([availability(&known.topic, true)]).collect()
    }

    fn state(&self, camera: &CameraName, label: &str) -> Option<Retained> {
        let known = self.cameras.get(camera)?;
        let count = known.counts.get(label)?.to_string();
        Some(Retained::state(format!("{}/{}", known.topic, level(label)), count))
    }

    /// The entities of a label that has none yet, if there is room.
    fn announce(&mut self, camera: &CameraName, label: &str) -> Vec<Retained> {
        let Some(known) = self.cameras.get_mut(camera) else { return Vec::new() };
        if known.counts.contains_key(label) || known.counts.len() >= LABELS_MAX {
            return Vec::new();
        }
        known.counts.insert(label.to_owned(), 0);
        let topic = known.topic.clone();
        let state = format!("{topic}/{}", level(label));
        let expire_after = EXPIRES_AFTER.as_secs();
        let count = json!({
            "name": format!("{label} count"), "state_topic": state, "expire_after": expire_after,
            "state_class": "measurement",
        });
        let presence = json!({
            "name": label, "state_topic": state, "expire_after": expire_after,
            "device_class": "occupancy",
            "value_template": "{{ 'ON' if value | int > 0 else 'OFF' }}",
        });
        let config = |component, own| self.config(component, camera, &topic, label, own);
        vec![config(COUNT, count), config(PRESENCE, presence)]
    }

    /// The camera and the label of an announcement, if it is one of this section.
    fn entity(&self, topic: &str, payload: &[u8]) -> Option<(CameraName, String)> {
        let owner = owner(payload)?;
        if owner.detector != self.detector || self.node.as_ref() != Some(&owner.node) {
            return None;
        }
        let config: Value = serde_json::from_slice(payload).ok()?;
        let camera: CameraName = config["device"]["name"].as_str()?.parse().ok()?;
        let label = config["name"].as_str()?.to_owned();
        (topic == self.config_topic(PRESENCE, &camera, &label)).then_some((camera, label))
    }

    /// All topics of a label.
    fn topics_of(&self, camera: &CameraName, topic: &str, label: &str) -> Vec<String> {
        vec![
            self.config_topic(COUNT, camera, label),
            self.config_topic(PRESENCE, camera, label),
            format!("{topic}/{}", level(label)),
        ]
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
        Retained::new(self.config_topic(component, camera, what), config.to_string())
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
    let topic = format!("{topic}/{AVAILABILITY}");
    match is_available {
        true => Retained::state(topic, "online"),
        false => Retained::new(topic, "offline"),
    }
}

/// Takes away what was retained there.
fn cleared(topics: Vec<String>) -> Vec<Retained> {
    topics.into_iter().map(|topic| Retained::new(topic, "")).collect()
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
    use tidegate_message::{FrameSize, Instant, Rect};

    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    fn detection(labels: &[&str]) -> Report {
        detection_at(0, labels)
    }

    fn detection_at(seconds: u64, labels: &[&str]) -> Report {
        let found = |label: &&str| tidegate_message::Detection {
            rect: Rect::new(0.0, 0.0, 9.0, 9.0).unwrap(),
            score: 1.0,
            label: (*label).into(),
        };
        let size = FrameSize { width: 64, height: 48 };
        Report::Detection(Box::new(Detection {
            captured_at: at(seconds),
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

    fn at(seconds: u64) -> Instant {
        Instant::EPOCH + Duration::from_secs(seconds)
    }

    fn entities(labels: &[&str], frame_rate: Option<FrameRate>) -> HomeAssistant {
        let (prefix, node) = ("homeassistant".to_owned(), Some("n-1".to_owned()));
        let labels = labels.iter().map(|label| (*label).to_owned()).collect();
        HomeAssistant::new(prefix, node, "people".to_owned(), labels, true, frame_rate)
    }

    fn said(out: &[Retained]) -> Vec<(&str, String)> {
        let text = |message: &Retained| match message.topic.ends_with("config") {
            true => if message.payload.is_empty() { "gone" } else { "new" }.to_owned(),
            false => String::from_utf8(message.payload.clone()).unwrap(),
        };
        out.iter().map(|message| (&*message.topic, text(message))).collect()
    }

    /// Topics below that of the camera, with their payloads.
    fn states(out: &[Retained]) -> Vec<(&str, &str)> {
        let state = |message: &'_ Retained| message.topic.starts_with("d/");
        let split = out.iter().filter(|message| state(message)).map(|message| {
            let topic = message.topic.strip_prefix("d/yard.1/").unwrap();
            (topic, std::str::from_utf8(&message.payload).unwrap())
        });
        split.collect()
    }

    #[test]
    fn entities_come_before_their_states_and_go_with_their_camera() {
        let camera: CameraName = "yard.1".parse().unwrap();
        let mut entities = entities(&["person"], None);
        let out = entities.begin(&camera, "d/yard.1".to_owned());
        let id = "tidegate_yard-2e-1_people";
        let of =
            |component: &str, what: &str| format!("homeassistant/{component}/{id}_{what}/config");
        let (image, sensor, binary) =
            (of("image", "original"), of("sensor", "person"), of("binary_sensor", "person"));
        // Nothing is known before the first detection.
        let expected = [
            ("d/yard.1/availability", "offline"),
            (&*image, "new"),
            (&*sensor, "new"),
            (&*binary, "new"),
        ];
        assert_eq!(said(&out), expected.map(|(topic, text)| (topic, text.to_owned())));
        let config: Value = serde_json::from_slice(&out[3].payload).unwrap();
        assert_eq!(config["state_topic"], "d/yard.1/person");
        assert_eq!(config["availability_topic"], "d/yard.1/availability");
        assert_eq!(config["expire_after"], 30);
        assert_eq!(config["unique_id"], format!("{id}_person_binary_sensor"));
        assert_eq!(config["device"]["name"], "yard.1");
        let expected = Owner { node: "n-1".to_owned(), detector: "people".to_owned() };
        assert_eq!(owner(&out[3].payload), Some(expected));
        assert_eq!((owner(b""), owner(b"{}"), owner(b"[1]")), (None, None, None));
        assert!(out.iter().all(|message| message.expires_after.is_none()));

        let found = detection(&["person", "person", "traffic light"]);
        let out = entities.report(at(0), &camera, &found);
        assert!(
            out[..2].iter().all(|message| message.topic.contains("traffic-20-light")),
            "{out:?}"
        );
        let expected = [("person", "2"), ("traffic%20light", "1"), ("availability", "online")];
        assert_eq!(states(&out), expected);
        assert!(out[2..].iter().all(|message| message.expires_after == Some(EXPIRES_AFTER)));
        let same = detection(&["person", "traffic light", "person"]);
        assert_eq!(entities.report(at(1), &camera, &same), []);
        let out = entities.report(at(2), &camera, &detection(&["person"]));
        assert_eq!(states(&out), [("person", "1"), ("traffic%20light", "0")]);

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
    fn counts_are_exact_or_unavailable() {
        let camera: CameraName = "yard.1".parse().unwrap();
        let all = [("person", "1"), ("availability", "online")];
        let away = [("availability", "offline")];
        let unchanged = |same_as: u64| {
            let (captured_at, same_as) = (at(same_as) + SECOND, at(same_as));
            Report::Unchanged { captured_at, epoch: 1, same_as }
        };
        let refused = Report::Refused { captured_at: at(20), error: "no image".into() };
        let fails = Report::DetectorFailed { error: "gone".into(), retry_after: SECOND };
        let mut entities = entities(&["person"], None);
        entities.begin(&camera, "d/yard.1".to_owned());
        // A frame that looks like one that was not looked at tells nothing, nor does a camera that is back.
        for report in [unchanged(0), Report::CameraOnline, refused.clone()] {
            assert_eq!(entities.report(at(0), &camera, &report), []);
        }
        assert_eq!(entities.tick(at(0)), []);
        for silence in
            [Report::CameraOffline("gone".into()), Report::NoFrames("dark".into()), fails]
        {
            let out = entities.report(at(20), &camera, &detection_at(19, &["person"]));
            assert_eq!(states(&out), all, "{silence:?}");
            assert_eq!(states(&entities.report(at(21), &camera, &silence)), away);
            assert_eq!(entities.report(at(21), &camera, &silence), []);
            assert_eq!(entities.report(at(21), &camera, &Report::CameraOnline), []);
        }
        // Nothing moved since the frame that was looked at: its counts hold.
        assert_eq!(entities.report(at(22), &camera, &unchanged(18)), []);
        assert_eq!(states(&entities.report(at(22), &camera, &unchanged(19))), all);
        assert_eq!(entities.tick(at(31)), []);
        assert_eq!(entities.report(at(31), &camera, &unchanged(19)), []);
        // They are said again while they hold, all of them.
        assert_eq!(states(&entities.tick(at(32))), all);
        // Nothing is looked at, whatever the reason: the bounds cannot be kept, frames are refused, the programs are busy.
        assert_eq!(entities.report(at(40), &camera, &refused), []);
        assert_eq!(entities.tick(at(40)), []);
        assert_eq!(states(&entities.tick(at(41))), away);
        assert_eq!(entities.tick(at(60)), []);
        let out = entities.report(at(61), &camera, &detection_at(60, &[]));
        assert_eq!(states(&out), [("person", "0"), ("availability", "online")]);
        assert_eq!(states(&entities.leave(false)), away);
    }

    #[test]
    fn a_section_that_asks_for_few_frames_is_silent_later() {
        let camera: CameraName = "yard.1".parse().unwrap();
        let rate = FrameRate::new(0.05).unwrap();
        let mut entities = entities(&[], Some(rate));
        entities.begin(&camera, "d/yard.1".to_owned());
        entities.report(at(0), &camera, &detection(&[]));
        assert_eq!(states(&entities.tick(at(59))), [("availability", "online")]);
        assert_eq!(states(&entities.tick(at(60))), [("availability", "offline")]);
    }

    #[test]
    fn labels_of_an_earlier_start_have_the_counts_of_this_one() {
        let [yard, hall]: [CameraName; 2] = ["yard.1", "hall"].map(|name| name.parse().unwrap());
        let mut before = entities(&[], None);
        let mut announced = Vec::new();
        for (camera, topic) in [(&yard, "d/yard.1"), (&hall, "d/hall")] {
            before.begin(camera, topic.to_owned());
            announced.extend(before.report(at(0), camera, &detection(&["dog", "dog", "cat"])));
        }
        announced.retain(|message| message.topic.contains("/binary_sensor/"));
        assert_eq!(announced.len(), 4);

        let mut now = entities(&[], None);
        now.begin(&yard, "d/yard.1".to_owned());
        // One comes before the first detection, one behind it; those of a camera that is not watched yet wait for it.
        for message in
            announced.iter().filter(|message| !message.topic.contains("yard-2e-1_people_dog"))
        {
            assert_eq!(states(&now.earlier(&message.topic, &message.payload)), []);
        }
        let out = now.report(at(0), &yard, &detection(&[]));
        assert_eq!(states(&out), [("cat", "0"), ("availability", "online")]);
        let dog = announced.iter().find(|it| it.topic.contains("yard-2e-1_people_dog")).unwrap();
        assert_eq!(states(&now.earlier(&dog.topic, &dog.payload)), [("dog", "0")]);
        assert_eq!(now.earlier(&dog.topic, &dog.payload), []);
        let out = now.begin(&hall, "d/hall".to_owned());
        assert_eq!(out.len(), 2 + 2 * 2, "{out:?}");
        assert_eq!(now.end(&yard).len(), 9, "they go with their camera");

        // Of another node, another section, another topic.
        let text = String::from_utf8(dog.payload.clone()).unwrap();
        for other in
            [text.replace("n-1", "n-2"), text.replace("\"people\"", "\"faces\""), "{}".into()]
        {
            assert_eq!(now.earlier(&dog.topic, other.as_bytes()), []);
        }
        assert_eq!(now.earlier(&dog.topic.replace("dog", "cow"), &dog.payload), []);
        assert!(now.earlier.is_empty());
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
                let mut entities = HomeAssistant::new(
                    "h".to_owned(),
                    None,
                    detector.to_owned(),
                    labels,
                    true,
                    None,
                );
                let topic = format!("d/{camera}/{detector}");
                let camera: CameraName = camera.parse().unwrap();
                let mut out = entities.begin(&camera, topic.clone());
                out.extend(entities.report(at(0), &camera, &detection(&[])));
                out.dedup_by(|one, other| one.topic == other.topic);
                let _first = out.remove(0);
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
        let mut entities = entities(&[], None);
        entities.begin(&camera, "t".to_owned());
        let labels: Vec<String> = (0..1000).map(|label| format!("class {label}")).collect();
        let labels: Vec<&str> = labels.iter().map(String::as_str).collect();
        let out = entities.report(at(0), &camera, &detection(&labels));
        assert_eq!(out.len(), 3 * LABELS_MAX + 1);
    }
}
