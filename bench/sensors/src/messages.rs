//! Messages that lie in memory: made up, or of RIoTBench's sample files.

use std::{fs, path::Path};

use anyhow::Context as _;
use bench_comprex::{ComprexDecoder, ComprexError};
use tidegate_compress::{Decoded, Message};
use tidegate_load::sensors::{Form, Generator, Workload};

/// Messages one after the other, each its topic and its payload.
#[derive(Clone, Debug, Default)]
pub struct Messages {
    bytes: Vec<u8>,
    /// Where each topic and each payload ends.
    ends: Vec<(u32, u32)>,
}

/// The form that rows of a file are sent in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FileForm {
    /// Each row's SenML.
    SenMl,
    /// The time and the values of each row, with commas between them.
    Csv,
}

/// A row of SenML as CSV: its time and its values in their order.
fn csv(time: &str, senml: &str) -> anyhow::Result<String> {
    let row: serde_json::Value = serde_json::from_str(senml).context("a row holds JSON")?;
    let entries = row["e"].as_array().context("a row has entries")?;
    let mut csv = time.to_owned();
    for entry in entries {
        let value = entry["v"].as_str().or(entry["sv"].as_str());
        csv.push(',');
        csv.push_str(value.context("an entry has a value")?);
    }
    Ok(csv)
}

impl Messages {
    /// `count` messages of `devices` devices.
    pub fn made_up(workload: Workload, devices: u64, count: u64, seed: u64, form: Form) -> Self {
        let mut generator = Generator::new(workload, devices, seed).with_form(form);
        let mut messages = Self::default();
        let (mut topic, mut payload) = (Vec::new(), Vec::new());
        for _ in 0..count {
            topic.clear();
            payload.clear();
            generator.next(&mut topic, &mut payload);
            messages.push(&topic, &payload);
        }
        messages
    }

    /// The rows of one of RIoTBench's files, `time,{"e":[…],"bt":…}`: as they are, or as CSV of the time and the values. The first text
    /// field of a row, which names the device, is its topic as well.
    ///
    /// # Errors
    /// The file cannot be read, or is another.
    pub fn of_file(path: &Path, form: FileForm) -> anyhow::Result<Self> {
        let text =
            fs::read_to_string(path).with_context(|| format!("reading {}", path.display()))?;
        let mut messages = Self::default();
        for line in text.lines() {
            let (time, senml) = line.split_once(',').context("a row has a time and a message")?;
            let device = senml.split_once("\"sv\":\"").and_then(|(_, rest)| rest.split_once('"'));
            let topic = format!("riotbench/{}", device.context("a row names its device")?.0);
            match form {
                FileForm::SenMl => messages.push(topic.as_bytes(), senml.as_bytes()),
                FileForm::Csv => messages.push(topic.as_bytes(), csv(time, senml)?.as_bytes()),
            }
        }
        Ok(messages)
    }

    /// Appends a message.
    pub fn push(&mut self, topic: &[u8], payload: &[u8]) {
        self.bytes.extend_from_slice(topic);
        let topic_end = self.bytes.len() as u32;
        self.bytes.extend_from_slice(payload);
        self.ends.push((topic_end, self.bytes.len() as u32));
    }

    /// Appends what a decoder gives, in one piece: messages without attributes.
    pub fn append(&mut self, decoded: &Decoded) {
        let mut start = self.bytes.len();
        self.bytes.extend_from_slice(decoded.bytes());
        self.ends.extend(decoded.iter().map(|message| {
            debug_assert!(message.attributes.is_empty());
            let topic_end = start + message.topic.len();
            start = topic_end + message.payload.len();
            (topic_end as u32, start as u32)
        }));
    }

    /// Appends what comprex's decoder puts together, right where it is to stay.
    ///
    /// # Errors
    /// The decoder's; messages before the damage are there.
    pub fn append_decoded(
        &mut self,
        decoder: &mut ComprexDecoder,
        batch: &[u8],
    ) -> Result<(), ComprexError> {
        let Self { bytes, ends } = self;
        let mut start = bytes.len();
        decoder.decode_into(batch, bytes, |topic_len, _, end| {
            ends.push(((start + topic_len) as u32, end as u32));
            start = end;
        })
    }

    /// Forgets all, and keeps the room.
    pub fn clear(&mut self) {
        self.bytes.clear();
        self.ends.clear();
    }

    /// One of them.
    ///
    /// # Panics
    /// There are not so many.
    pub fn message(&self, index: usize) -> Message<'_> {
        let start = index.checked_sub(1).map_or(0, |before| self.ends[before].1 as usize);
        let (topic_end, end) = (self.ends[index].0 as usize, self.ends[index].1 as usize);
        Message {
            topic: &self.bytes[start..topic_end],
            attributes: &[],
            payload: &self.bytes[topic_end..end],
        }
    }

    /// How many there are.
    pub fn len(&self) -> usize {
        self.ends.len()
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.ends.is_empty()
    }

    /// Bytes of all topics and payloads.
    pub fn bytes(&self) -> usize {
        self.bytes.len()
    }

    /// All of them, in order.
    pub fn iter(&self) -> impl Iterator<Item = Message<'_>> {
        let mut start = 0;
        self.ends.iter().map(move |&(topic_end, end)| {
            let message = Message {
                topic: &self.bytes[start..topic_end as usize],
                attributes: &[],
                payload: &self.bytes[topic_end as usize..end as usize],
            };
            start = end as usize;
            message
        })
    }
}
