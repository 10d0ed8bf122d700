//! Messages by way of encoder, decoder and corrections.

use std::collections::{BTreeMap, HashMap};

use proptest::prelude::*;
use tidegate_load::sensors::{Form, Generator, Workload};

use super::{
    encode::{put_full, put_parts, regions},
    *,
};
use crate::varint;

/// The messages of each topic, in order.
type Topics = BTreeMap<Vec<u8>, Vec<Vec<u8>>>;

/// Messages of each topic in order, by way of encoder and decoder, and what the encoder counted.
fn through(
    config: ComprexConfig,
    messages: &[(Vec<u8>, Vec<u8>)],
) -> (Topics, ComprexCounts, usize) {
    let (mut encoder, mut decoder) = (ComprexEncoder::new(config), ComprexDecoder::new());
    let mut came = BTreeMap::new();
    let mut wire = 0;
    let mut take = |encoder: &mut ComprexEncoder, batch: Option<Vec<u8>>| {
        let mut put = |topic: &[u8], number: u64, payload: &[u8]| {
            let topic: &mut Vec<Vec<u8>> = came.entry(topic.to_vec()).or_default();
            let number = number as usize;
            if topic.len() <= number {
                assert_eq!(topic.len(), number, "no message is missing");
                topic.push(Vec::new());
            }
            topic[number] = payload.to_vec();
        };
        let Some(batch) = batch else { return };
        decoder.decode(&batch, &mut put).unwrap();
        // A correction overtakes no batch whose messages it corrects: it is sent after them.
        let critical = encoder.take_critical();
        wire += batch.len() + critical.len();
        decoder.correct(&critical, &mut put).unwrap();
    };
    for (topic, payload) in messages {
        let batch = encoder.push(topic, payload).unwrap();
        // The last message stays in the encoder, and with it what it corrects in the batch that is not out yet.
        let rest = batch.is_some().then(|| encoder.finish());
        take(&mut encoder, batch);
        take(&mut encoder, rest);
    }
    let rest = encoder.finish();
    encoder.settle();
    take(&mut encoder, Some(rest));
    (came, encoder.counts(), wire)
}

fn by_topic(messages: &[(Vec<u8>, Vec<u8>)]) -> Topics {
    let mut topics: BTreeMap<_, Vec<_>> = BTreeMap::new();
    for (topic, payload) in messages {
        topics.entry(topic.clone()).or_default().push(payload.clone());
    }
    topics
}

fn workload(kind: Workload, form: Form, count: usize) -> Vec<(Vec<u8>, Vec<u8>)> {
    let mut generator = Generator::new(kind, 50, 1).with_form(form);
    (0..count)
        .map(|_| {
            let (mut topic, mut payload) = (Vec::new(), Vec::new());
            generator.next(&mut topic, &mut payload);
            (topic, payload)
        })
        .collect()
}

#[test]
fn with_as_much_stored_as_is_let_pass_nothing_is_lost() {
    for kind in Workload::ALL {
        for form in [Form::Fixed, Form::Natural] {
            let messages = workload(kind, form, 10_000);
            for max in [0, 1, 10, 30] {
                let config =
                    ComprexConfig { max_n: max, max_store: max, ..ComprexConfig::default() };
                let (came, counts, _) = through(config, &messages);
                assert_eq!(counts.lost, 0);
                assert!(came == by_topic(&messages), "{kind} {form:?}, n {max}: {counts:?}");
            }
        }
    }
}

#[test]
fn messages_passed_and_not_stored_are_counted_as_lost() {
    let messages = workload(Workload::City, Form::Fixed, 20_000);
    let config = ComprexConfig { max_n: 60, max_store: 2, ..ComprexConfig::default() };
    let (came, counts, _) = through(config, &messages);
    let sent = by_topic(&messages);
    let wrong = sent
        .iter()
        .flat_map(|(topic, payloads)| payloads.iter().zip(&came[topic]))
        .filter(|(sent, came)| sent != came)
        .count() as u64;
    assert!(wrong > 0);
    assert_eq!(wrong, counts.lost, "{counts:?}");
    let before = ComprexConfig { max_n: 2, ..config };
    assert_eq!(through(before, &messages).1.lost, 0);
}

#[test]
fn fixed_layouts_shrink_and_the_fewer_comparisons_the_larger_n() {
    let messages = workload(Workload::Grid, Form::Fixed, 20_000);
    let bytes: usize = messages.iter().map(|(topic, payload)| topic.len() + payload.len()).sum();
    let mut comparisons = u64::MAX;
    for max in [0, 5, 20] {
        let config = ComprexConfig { max_n: max, max_store: max, ..ComprexConfig::default() };
        let (_, counts, wire) = through(config, &messages);
        assert!(wire * 3 < bytes * 2, "{wire} of {bytes}");
        assert!(counts.comparisons < comparisons, "{counts:?}");
        comparisons = counts.comparisons;
    }
}

#[test]
fn a_topic_without_static_bytes_is_compared_less_and_in_the_end_never() {
    let messages: Vec<_> = (0..3000u32)
        .map(|n| {
            (
                b"noise".to_vec(),
                [n as u8, (n >> 1) as u8 ^ n as u8].map(|b| b.wrapping_mul(77)).to_vec(),
            )
        })
        .collect();
    let half = |count: usize| through(ComprexConfig::default(), &messages[..count]).1.comparisons;
    assert!(half(1500) < 60, "{}", half(1500));
    assert_eq!(half(3000), half(1500), "no comparison in the second half");
}

#[test]
fn bytes_that_once_changed_stay_dynamic() {
    // Each new digit shows a static byte to be none, and none of the others to be static.
    let messages: Vec<_> =
        (0..3000_u32).map(|n| (b"count".to_vec(), format!("count={n:06}").into_bytes())).collect();
    let config = ComprexConfig { max_n: 0, ..ComprexConfig::default() };
    let (came, counts, _) = through(config, &messages);
    assert_eq!(came, by_topic(&messages));
    // Five that teach, and one for each digit but the last.
    assert_eq!((counts.full, counts.corrected), (8, 0), "{counts:?}");
}

#[test]
fn one_odd_message_does_not_spoil_its_topic() {
    let steady = |n: usize| {
        (b"t".to_vec(), format!("{}{:02}{}", "a".repeat(40), n * 7 % 100, "b".repeat(58)).into())
    };
    for max in [0, 10, 30] {
        let config = ComprexConfig { max_n: max, max_store: max, ..ComprexConfig::default() };
        let mut messages: Vec<_> = (0..200).map(steady).collect();
        messages.push((b"t".to_vec(), ["X".repeat(99).as_bytes(), b"b"].concat()));
        messages.extend((0..4000).map(steady));
        let (came, counts, with_odd) = through(config, &messages);
        assert_eq!(came, by_topic(&messages));
        // Key, mask and the two digits; nothing more is in full or sent again.
        messages.extend((0..1000).map(steady));
        let (came, after, wire) = through(config, &messages);
        assert_eq!(came, by_topic(&messages));
        assert_eq!((wire - with_odd, after.full), (8 * 1000, counts.full), "n {max}");
    }
}

#[test]
fn a_topic_is_learned_from_the_beginning_after_a_change_if_so_configured() {
    let messages: Vec<_> =
        (0..3000_u32).map(|n| (b"count".to_vec(), format!("count={n:06}").into_bytes())).collect();
    let config = ComprexConfig { max_n: 0, forgets: true, ..ComprexConfig::default() };
    let (came, counts, _) = through(config, &messages);
    assert_eq!(came, by_topic(&messages));
    // Five that teach, and for each new tens digit the message that shows it and four more.
    assert_eq!(counts.full, 5 * 300, "{counts:?}");
    for kind in Workload::ALL {
        let messages = workload(kind, Form::Fixed, 5000);
        let config = ComprexConfig { forgets: true, ..ComprexConfig::default() };
        assert!(through(config, &messages).0 == by_topic(&messages), "{kind}");
    }
}

#[test]
fn a_topic_whose_length_has_changed_is_learned_from_the_beginning() {
    let text = |n: u8, len: usize| (b"text".to_vec(), [vec![b'x'; len], vec![n]].concat());
    let mut messages: Vec<_> = (0..20).map(|n| text(n, 5)).collect();
    messages.extend((0..20).map(|n| text(n, 6)));
    let (came, counts, _) = through(ComprexConfig::default(), &messages);
    assert_eq!(came, by_topic(&messages));
    assert_eq!((counts.full, counts.compressed), (10, 30), "{counts:?}");
}

#[test]
fn a_log_gets_what_was_pushed() {
    for kind in Workload::ALL {
        let messages = workload(kind, Form::Fixed, 3000);
        // Each is compared, so that nothing is left to corrections.
        let config = ComprexConfig { max_n: 0, ..ComprexConfig::default() };
        let mut encoder = ComprexEncoder::new(config);
        let mut batches: Vec<_> = messages
            .iter()
            .filter_map(|(topic, payload)| encoder.push(topic, payload).unwrap())
            .collect();
        batches.push(encoder.finish());
        assert!(encoder.take_critical().is_empty());
        let mut decoder = ComprexDecoder::new();
        let (mut log, mut spans) = (b"before".to_vec(), Vec::new());
        for batch in &batches {
            let put = |topic_len, number, end| spans.push((topic_len, number, end));
            decoder.decode_into(batch, &mut log, put).unwrap();
        }
        assert_eq!(&log[..6], b"before");
        let mut numbers: HashMap<&[u8], u64> = HashMap::new();
        let mut begin = 6;
        assert_eq!(spans.len(), messages.len());
        for ((topic, payload), (topic_len, number, end)) in messages.iter().zip(spans) {
            assert_eq!(&log[begin..begin + topic_len], topic, "{kind}");
            assert_eq!(&log[begin + topic_len..end], payload, "{kind}");
            let expected = numbers.entry(topic).or_default();
            assert_eq!(number, *expected, "{kind}");
            *expected += 1;
            begin = end;
        }
        assert_eq!(begin, log.len());
    }
}

#[test]
fn truncated_batches_leave_a_log_with_whole_messages() {
    let messages: Vec<_> = (0..7_u8)
        .map(|n| (b"a".to_vec(), [&[n, 9, n, n][..], &[n; 12], &[9], &[n; 30], &[9]].concat()))
        .collect();
    let mut encoder = ComprexEncoder::new(ComprexConfig::default());
    for (topic, payload) in &messages {
        encoder.push(topic, payload).unwrap();
    }
    let batch = encoder.finish();
    for len in 0..=batch.len() {
        let (mut log, mut end_of_last, mut count) = (Vec::new(), 0, 0);
        let result = ComprexDecoder::new().decode_into(&batch[..len], &mut log, |_, _, end| {
            (end_of_last, count) = (end, count + 1);
        });
        assert_eq!(log.len(), end_of_last, "{len}");
        let expected: Vec<u8> = messages[..count]
            .iter()
            .flat_map(|(topic, payload)| [topic.as_slice(), payload].concat())
            .collect();
        assert_eq!(log, expected, "{len}");
        assert!(result.is_ok() || len < batch.len());
    }
}

#[test]
fn two_topics_with_one_key_are_told_apart() {
    let (one, other) = collision();
    assert_eq!(key(&one), key(&other));
    let mut messages = Vec::new();
    for n in 0..50u8 {
        messages.push((one.clone(), vec![1, 1, n]));
        messages.push((other.clone(), vec![2, 2, n]));
    }
    let (came, counts, _) = through(ComprexConfig::default(), &messages);
    assert_eq!(came, by_topic(&messages));
    assert_eq!(counts.collisions, 1);
}

/// Two topics with one key, by a search for a birthday.
fn collision() -> (Vec<u8>, Vec<u8>) {
    let mut seen = HashMap::new();
    for number in 0u32.. {
        let topic = format!("sensor/{number}").into_bytes();
        if let Some(before) = seen.insert(key(&topic), topic.clone()) {
            return (before, topic);
        }
    }
    unreachable!("of 2^32 keys two are alike")
}

#[test]
fn topics_beyond_the_limit_are_refused_by_name() {
    let mut encoder = ComprexEncoder::new(ComprexConfig::default());
    for topic in [b"a", b"b", b"a", b"c"] {
        encoder.push(topic, b"1").unwrap();
    }
    let batch = encoder.finish();
    let mut came = 0;
    let mut decoder = ComprexDecoder::with_config(ComprexDecoderConfig { topics_max: 2 });
    let error = decoder.decode(&batch, |_, _, _| came += 1).unwrap_err();
    assert_eq!(error, ComprexError::Topics { max: 2 });
    assert_eq!(error.to_string(), "more than 2 topics, the most that are taken");
    assert_eq!((came, decoder.topics()), (4, 2));
}

#[test]
fn topics_beyond_the_encoders_limit_come_out_and_cost_no_state() {
    let config = ComprexConfig { topics_max: 2, ..ComprexConfig::default() };
    let mut encoder = ComprexEncoder::new(config);
    let mut decoder = ComprexDecoder::with_config(ComprexDecoderConfig { topics_max: 2 });
    let (mut sent, mut came) = (Vec::new(), Vec::new());
    for round in 0..20_u64 {
        for topic in [b"a", b"b", b"c", b"d"] {
            let payload = [1, 2, 3, round as u8];
            encoder.push(topic, &payload).unwrap();
            let number = if topic[0] <= b'b' { round } else { 0 };
            sent.push((topic.to_vec(), number, payload.to_vec()));
        }
        let batch = encoder.finish();
        let put = |topic: &[u8], number, payload: &[u8]| {
            came.push((topic.to_vec(), number, payload.to_vec()));
        };
        decoder.decode(&batch, put).unwrap();
    }
    assert_eq!(came, sent);
    assert_eq!(decoder.topics(), 2);
    // Fifteen of each of the two that are kept, and more of none.
    assert_eq!((encoder.counts().compressed, encoder.counts().full), (30, 50));
}

#[test]
fn a_topic_whose_length_keeps_changing_is_compared_less_and_in_the_end_never() {
    let messages: Vec<_> =
        (0..4000_usize).map(|n| (b"text".to_vec(), vec![b'x'; 1 + (n % 2) * 3])).collect();
    let comparisons = |count: usize| {
        let (came, counts, _) = through(ComprexConfig::default(), &messages[..count]);
        assert_eq!(came, by_topic(&messages[..count]));
        (counts.comparisons, counts.compressed)
    };
    assert_eq!(comparisons(2000), (0, 0), "none is of the length of the one before");
    // Once given up, it stays in full even where its length no longer changes.
    let mut steady = messages.clone();
    steady.extend((0..100).map(|_| (b"text".to_vec(), b"steady".to_vec())));
    assert_eq!(through(ComprexConfig::default(), &steady).1.compressed, 0);
}

#[test]
fn nothing_is_allocated_for_a_message_once_all_topics_are_learned() {
    let messages = workload(Workload::Grid, Form::Fixed, 4000);
    let mut encoder = ComprexEncoder::new(ComprexConfig::default());
    let batches: Vec<_> = messages
        .iter()
        .filter_map(|(topic, payload)| encoder.push(topic, payload).unwrap())
        .collect();
    let (warm, measured) = batches.split_at(batches.len() / 2);
    let mut decoder = ComprexDecoder::new();
    for batch in warm {
        decoder.decode(batch, |_, _, _| {}).unwrap();
    }
    let count = allocation_counter::measure(|| {
        for batch in measured {
            decoder.decode(batch, |_, _, _| {}).unwrap();
        }
    });
    assert_eq!(count.count_total, 0, "{count:?}");
}

#[test]
fn regions_are_joined_until_a_mask_has_a_bit_for_each() {
    let dynamic: Vec<bool> = (0..100).map(|at| at % 3 == 0).collect();
    let regions = regions(&dynamic);
    assert_eq!(regions.len(), REGIONS_MAX);
    for (at, _) in dynamic.iter().enumerate().filter(|(_, dynamic)| **dynamic) {
        assert!(regions.iter().any(|(begin, end)| (*begin as usize..*end as usize).contains(&at)));
    }
}

/// A record as a peer may make it.
#[derive(Clone, Debug)]
enum Record {
    Full { is_kept: bool, topic: usize, number: u64, payload: Vec<u8> },
    Regions { topic: usize, count: u8, bounds: Vec<u64> },
    Next { topic: usize, mask: u16, seed: u8 },
}

/// No two have one key. The last is never sent in full.
const TOPICS: [&[u8]; 4] = [b"a", b"", b"topic/of/some/length", b"d"];

fn record() -> impl Strategy<Value = Record> {
    let number = prop_oneof![8 => 0..200u64, 1 => Just(u64::MAX)];
    let payload = proptest::collection::vec(any::<u8>(), 0..60);
    let full = (prop::bool::weighted(0.8), 0..3usize, number, payload).prop_map(
        |(is_kept, topic, number, payload)| Record::Full { is_kept, topic, number, payload },
    );
    // In order, most of them within the payload; and any.
    let some = proptest::collection::btree_set(0..40u64, 0..36).prop_map(Vec::from_iter);
    let any_bounds = proptest::collection::vec(prop_oneof![0..70u64, any::<u64>()], 0..8);
    let regions = (0..3usize, prop_oneof![9 => some, 1 => any_bounds], 0..20u8).prop_map(
        |(topic, mut bounds, odd)| {
            bounds.truncate(bounds.len() / 2 * 2);
            let count = (bounds.len() / 2) as u8 + u8::from(odd == 19);
            if odd < 4 {
                bounds = bounds.chunks(2).rev().flatten().copied().collect();
            }
            Record::Regions { topic, count, bounds }
        },
    );
    let topic = prop_oneof![20 => 0..3usize, 1 => Just(3)];
    let mask = prop_oneof![4 => 0..8u16, 2 => 0..256u16, 1 => any::<u16>()];
    let next = (topic, mask, any::<u8>()).prop_map(|(topic, mask, seed)| Record::Next {
        topic,
        mask,
        seed,
    });
    prop_oneof![3 => full, 3 => regions, 6 => next]
}

/// The expected behaviour of a decoder on records, in as few words as possible.
#[derive(Clone, Default)]
struct Model {
    known: HashMap<usize, Last>,
    came: Vec<(Vec<u8>, u64, Vec<u8>)>,
    batch: Vec<u8>,
}

#[derive(Clone)]
struct Last {
    number: u64,
    payload: Vec<u8>,
    regions: Option<Vec<(usize, usize)>>,
}

impl Model {
    /// Adds a record to the batch, and what it brings to what came; `None` if it makes no sense.
    fn put(&mut self, record: &Record, topics_max: usize) -> Option<()> {
        match record.clone() {
            Record::Full { is_kept, topic, number, payload } => {
                let mark = if is_kept { FULL } else { UNKEPT };
                put_parts(&mut self.batch, mark, TOPICS[topic], number, &payload);
                self.came.push((TOPICS[topic].to_vec(), number, payload.clone()));
                if !is_kept {
                    return Some(());
                }
                if !self.known.contains_key(&topic) && self.known.len() == topics_max {
                    return None;
                }
                self.known.insert(topic, Last { number, payload, regions: None });
            }
            Record::Regions { topic, count, bounds } => {
                self.batch.extend_from_slice(&REGIONS.to_le_bytes());
                self.batch.extend_from_slice(&key(TOPICS[topic]).to_le_bytes());
                self.batch.push(count);
                bounds.iter().for_each(|bound| varint::put(&mut self.batch, *bound));
                let last = self.known.get_mut(&topic)?;
                last.regions = None;
                let rises = bounds.chunks(2).all(|pair| pair[0] < pair[1])
                    && bounds.is_sorted()
                    && bounds.iter().all(|bound| *bound <= last.payload.len() as u64);
                if !rises || usize::from(count) != bounds.len() / 2 || count > 16 {
                    return None;
                }
                let pairs = bounds.chunks(2).map(|pair| (pair[0] as usize, pair[1] as usize));
                last.regions = Some(pairs.collect());
            }
            Record::Next { topic, mask, seed } => {
                self.batch.extend_from_slice(&key(TOPICS[topic]).to_le_bytes());
                self.batch.extend_from_slice(&mask.to_le_bytes());
                let last = self.known.get_mut(&topic)?;
                let regions = last.regions.as_ref()?;
                if u32::from(mask) >> regions.len() != 0 {
                    return None;
                }
                last.number = last.number.checked_add(1)?;
                for (index, &(begin, end)) in regions.iter().enumerate() {
                    if mask >> index & 1 == 1 {
                        for byte in &mut last.payload[begin..end] {
                            *byte = byte.wrapping_add(seed);
                        }
                        self.batch.extend_from_slice(&last.payload[begin..end]);
                    }
                }
                self.came.push((TOPICS[topic].to_vec(), last.number, last.payload.clone()));
            }
        }
        Some(())
    }
}

type Came = Vec<(Vec<u8>, u64, Vec<u8>)>;

/// The results of both decoders for batches, and whether they were accepted; they must agree.
fn decoded(batches: &[Vec<u8>], topics_max: usize) -> (Came, bool) {
    let config = ComprexDecoderConfig { topics_max };
    let (mut one, mut other) =
        (ComprexDecoder::with_config(config), ComprexDecoder::with_config(config));
    let (mut came, mut logged, mut log) = (Vec::new(), Vec::new(), Vec::new());
    for batch in batches {
        let result = one.decode(batch, |topic, number, payload| {
            came.push((topic.to_vec(), number, payload.to_vec()));
        });
        log.clear();
        let mut spans = Vec::new();
        let into = other.decode_into(batch, &mut log, |topic_len, number, end| {
            spans.push((topic_len, number, end));
        });
        assert_eq!(result, into);
        let mut begin = 0;
        for (topic_len, number, end) in spans {
            let (topic, payload) = log[begin..end].split_at(topic_len);
            logged.push((topic.to_vec(), number, payload.to_vec()));
            begin = end;
        }
        assert_eq!(begin, log.len(), "a log ends with a message");
        assert!(one.topics() <= topics_max);
        if result.is_err() {
            assert_eq!(came, logged);
            return (came, false);
        }
    }
    assert_eq!(came, logged);
    (came, true)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]

    #[test]
    fn records_of_a_peer_are_taken_as_a_model_does(
        records in proptest::collection::vec(record(), 0..40),
        per_batch in 1usize..8,
        topics_max in 2usize..4,
        mut left_out in 0..40,
        cut: prop::sample::Index,
    ) {
        let mut model = Model::default();
        let (mut batches, mut is_taken) = (Vec::new(), true);
        'all: for records in records.chunks(per_batch) {
            for record in records {
                let before = model.clone();
                if model.put(record, topics_max).is_some() {
                    continue;
                }
                // Most of what makes no sense is left out, so that there is something before the first that is not.
                if left_out > 0 {
                    left_out -= 1;
                    model = before;
                } else {
                    is_taken = false;
                    batches.push(std::mem::take(&mut model.batch));
                    break 'all;
                }
            }
            batches.push(std::mem::take(&mut model.batch));
        }
        prop_assert_eq!(decoded(&batches, topics_max), (model.came.clone(), is_taken));
        // Of what ends early, whole messages come out and no others.
        if let Some(last) = batches.last_mut() {
            last.truncate(cut.index(last.len() + 1));
            let (came, _) = decoded(&batches, topics_max);
            prop_assert_eq!(came.as_slice(), &model.came[..came.len()]);
        }
    }

    #[test]
    fn any_bytes_are_a_correction_or_an_error(
        fulls in proptest::collection::vec((0..3usize, any::<u64>(), proptest::collection::vec(any::<u8>(), 0..40)), 0..5),
        rest in proptest::collection::vec(any::<u8>(), 0..40),
    ) {
        let (mut critical, mut came, mut expected) = (Vec::new(), Vec::new(), Vec::new());
        for (topic, number, payload) in fulls {
            put_full(&mut critical, TOPICS[topic], number, &payload);
            expected.push((TOPICS[topic].to_vec(), number, payload));
        }
        let whole = critical.len();
        let mut put = |topic: &[u8], number, payload: &[u8]| {
            came.push((topic.to_vec(), number, payload.to_vec()));
        };
        ComprexDecoder::new().correct(&critical, &mut put).unwrap();
        critical.extend_from_slice(&rest);
        let _ = ComprexDecoder::new().correct(&critical[whole..], |_, _, _| {});
        prop_assert_eq!(came, expected);
    }

    #[test]
    fn any_bytes_are_a_batch_or_an_error(batches in proptest::collection::vec(proptest::collection::vec(any::<u8>(), 0..80), 1..6)) {
        decoded(&batches, 3);
    }
}
