//! Which predictor would have cost least, found by looking at a few messages of a schema.
//!
//! One message of every [`PERIOD`] is compared with the one before it and with its topic's last: what would each predictor have cost? A
//! change is sent to the decoder as a record, so it needs to know nothing of this.

use crate::{
    schema::{Predictor, Schema},
    varint,
};

/// Messages from one look to the next, as long as it is not settled which predictors are best …
const PERIOD: u32 = 32;

/// … and at most: it doubles each time that the same ones have been best for long in all slots.
const PERIOD_MAX: u32 = 8 * PERIOD;

/// Looks after which a verdict is given.
const LOOKS: u32 = 8;

/// Bytes for each four looks that another predictor must save.
const MARGIN: u32 = 1;

/// Observations of a schema's slots.
#[derive(Debug)]
pub(crate) struct Probe {
    messages: u32,
    /// Messages from one look to the next, a power of two.
    period: u32,
    /// Whether what was seen of slots was so in the message before.
    is_fresh: bool,
    slots: Vec<Seen>,
}

impl Default for Probe {
    fn default() -> Self {
        Self { messages: 0, period: PERIOD, is_fresh: false, slots: Vec::new() }
    }
}

/// Observations of a slot.
#[derive(Debug, Default)]
struct Seen {
    /// In the message before the one that is looked at: the text, its value, and what it changed by.
    text: Vec<u8>,
    value: Option<i64>,
    step: Option<i64>,
    /// Bytes that each of [`Predictor::ALL`] would have cost.
    costs: [u32; 3],
    looks: u32,
    /// Whether its predictor has been the best for long, since the period was doubled.
    is_settled: bool,
}

impl Probe {
    pub(crate) fn add_slot(&mut self, number: usize) {
        self.slots.insert(number, Seen::default());
        self.begin_anew();
    }

    /// Notes that a slot has another format or predictor.
    pub(crate) fn change_slot(&mut self, number: usize) {
        self.slots[number] = Seen::default();
        self.begin_anew();
    }

    fn begin_anew(&mut self) {
        self.period = PERIOD;
        self.is_fresh = false;
    }

    /// Whether the next message is none to look at; then it is counted.
    #[inline]
    pub(crate) fn passes(&mut self) -> bool {
        let next = self.messages.wrapping_add(1);
        let passes = next & (self.period - 1) > 1;
        if passes {
            self.messages = next;
        }
        passes
    }

    /// Notes that a topic's payload went from `old`, with fields of the lengths `lens`, to `new`, in which those of `changed` have other
    /// lengths. Returns a slot for which another predictor is better, and that.
    #[inline]
    pub(crate) fn look(
        &mut self,
        schema: &Schema,
        old: &[u8],
        lens: &[u8],
        new: &[u8],
        changed: &[(u8, u8)],
    ) -> Option<(u8, Predictor)> {
        self.messages = self.messages.wrapping_add(1);
        match self.messages & (self.period - 1) {
            0 => {
                self.remember(schema, old, lens, new, changed);
                self.is_fresh = true;
            }
            1 if std::mem::take(&mut self.is_fresh) => {
                return self.compare(schema, old, lens, new, changed);
            }
            _ => {}
        }
        None
    }

    fn remember(
        &mut self,
        schema: &Schema,
        old: &[u8],
        lens: &[u8],
        new: &[u8],
        changed: &[(u8, u8)],
    ) {
        each_slot(schema, old, lens, new, changed, |number, old, new| {
            let numeral = schema.slots[number].numeral;
            let seen = &mut self.slots[number];
            seen.text.clear();
            seen.text.extend_from_slice(new);
            seen.value = numeral.parse(new);
            seen.step = match (seen.value, numeral.parse(old)) {
                (Some(new), Some(old)) => Some(new.wrapping_sub(old)),
                _ => None,
            };
        });
    }

    fn compare(
        &mut self,
        schema: &Schema,
        old: &[u8],
        lens: &[u8],
        new: &[u8],
        changed: &[(u8, u8)],
    ) -> Option<(u8, Predictor)> {
        let mut better = None;
        each_slot(schema, old, lens, new, changed, |number, old, new| {
            let slot = &schema.slots[number];
            let seen = &mut self.slots[number];
            let value = slot.numeral.parse(new);
            let held = slot.numeral.parse(old);
            let stepped = held.zip(seen.step).map(|(held, step)| held.wrapping_add(step));
            seen.costs[0] += if old == new { 0 } else { cost(held, value, new) };
            seen.costs[1] += match stepped {
                Some(_) if stepped == value => 0,
                Some(_) => cost(stepped, value, new),
                None => cost(held, value, new),
            };
            seen.costs[2] += if seen.text == new { 0 } else { cost(seen.value, value, new) };
            seen.looks += 1;
            if seen.looks < LOOKS {
                return;
            }
            let current = seen.costs[usize::from(slot.predictor.code())];
            let best = Predictor::ALL
                .into_iter()
                .min_by_key(|predictor| seen.costs[usize::from(predictor.code())])
                .expect("there are three");
            if seen.costs[usize::from(best.code())] + seen.looks / 4 * MARGIN < current {
                better = Some((number as u8, best));
                (seen.costs, seen.looks, seen.is_settled) = ([0; 3], 0, false);
            } else if seen.looks >= 8 * LOOKS {
                // Older observations count for less than newer ones.
                seen.costs = seen.costs.map(|cost| cost / 2);
                seen.looks /= 2;
                seen.is_settled = true;
            }
        });
        if better.is_some() {
            self.period = PERIOD;
        } else if self.slots.iter().all(|seen| seen.is_settled) {
            self.period = (2 * self.period).min(PERIOD_MAX);
            self.slots.iter_mut().for_each(|seen| seen.is_settled = false);
        }
        better
    }
}

/// Bytes of a token.
fn cost(predicted: Option<i64>, value: Option<i64>, text: &[u8]) -> u32 {
    match (predicted, value) {
        (Some(predicted), Some(value)) => {
            varint::len(varint::zigzag(value.wrapping_sub(predicted)))
        }
        (Some(_), None) => text.len() as u32 + 2,
        (None, _) => text.len() as u32 + 1,
    }
}

/// Calls `with` for each slot: its number, and its text in both payloads.
fn each_slot(
    schema: &Schema,
    old: &[u8],
    lens: &[u8],
    new: &[u8],
    mut changed: &[(u8, u8)],
    mut with: impl FnMut(usize, &[u8], &[u8]),
) {
    let mut slots = schema.slots.iter().enumerate().peekable();
    let (mut old_at, mut new_at) = (0, 0);
    for (field, (&len, &gap)) in lens.iter().zip(&schema.gaps).enumerate() {
        let old_len = usize::from(len);
        let mut new_len = old_len;
        if let [(first, len), rest @ ..] = changed
            && usize::from(*first) == field
        {
            new_len = usize::from(*len);
            changed = rest;
        }
        old_at += usize::from(gap);
        new_at += usize::from(gap);
        if let Some((number, _)) = slots.next_if(|(_, slot)| usize::from(slot.field) == field) {
            with(number, &old[old_at..old_at + old_len], &new[new_at..new_at + new_len]);
        }
        old_at += old_len;
        new_at += new_len;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{layout::Cut, layout::Numeral, number::Format};

    /// Shows a probe messages of one field, by what `value` has it be; returns at which of them it wanted another predictor.
    fn shown(
        probe: &mut Probe,
        schema: &Schema,
        messages: u32,
        value: impl Fn(u32) -> u32,
    ) -> Option<(u32, Predictor)> {
        // Topics take turns, ten of them: the last value of each was ten messages ago.
        (10..messages).find_map(|n| {
            let (old, new) = (value(n - 10).to_string(), value(n).to_string());
            let lens = [old.len() as u8];
            let changed = [(0, new.len() as u8)];
            let better = probe.look(schema, old.as_bytes(), &lens, new.as_bytes(), &changed);
            better.map(|(_, predictor)| (n, predictor))
        })
    }

    #[test]
    fn settled_slots_are_looked_at_less_and_change_all_the_same() {
        let mut schema = Schema::new(Cut::Csv(b','), vec![0, 0].into());
        let numeral = Numeral::Decimal(Format { decimals: 0, trimmed: false });
        schema.set_slot(0, numeral, Predictor::Hold);
        let mut probe = Probe::default();
        probe.add_slot(0);
        let noise = |n: u32| crate::topics::hash(1, &n.to_le_bytes()) as u32 >> 16;
        assert_eq!(shown(&mut probe, &schema, 100_000, noise), None);
        assert_eq!(probe.period, PERIOD_MAX);
        // From now on all topics have one value.
        let (at, better) = shown(&mut probe, &schema, 100_000, |n| noise(n / 10))
            .expect("the stream's value is better");
        assert_eq!(better, Predictor::Stream);
        assert!(at < 40 * PERIOD_MAX, "{at}");
        assert_eq!(probe.period, PERIOD);
    }

    /// A schema with numbers in its first fields, and a probe for it.
    fn numbers(fields: u8, slots: u8) -> (Schema, Probe) {
        let mut gaps = vec![1; usize::from(fields) + 1];
        (gaps[0], gaps[usize::from(fields)]) = (0, 0);
        let mut schema = Schema::new(Cut::Csv(b','), gaps.into());
        let mut probe = Probe::default();
        for field in 0..slots {
            add(&mut schema, &mut probe, field);
        }
        (schema, probe)
    }

    fn add(schema: &mut Schema, probe: &mut Probe, field: u8) {
        let numeral = Numeral::Decimal(Format { decimals: 0, trimmed: false });
        schema.set_slot(field, numeral, Predictor::Hold);
        probe.add_slot(usize::from(field));
    }

    /// Shows messages of two fields of noise, to which no predictor but the first is the right one.
    fn show_noise(probe: &mut Probe, schema: &Schema, messages: std::ops::Range<u32>) {
        let noise = |n: u32, k: u32| {
            10_000 + (crate::topics::hash(k.into(), &n.to_le_bytes()) as u32 >> 16) % 90_000
        };
        let line = |n: u32| format!("{},{}", noise(n, 1), noise(n, 2));
        for n in messages {
            let (old, new) = (line(n), line(n + 10));
            let better = probe.look(schema, old.as_bytes(), &[5, 5], new.as_bytes(), &[]);
            assert_eq!(better, None, "{n}");
        }
    }

    #[test]
    fn looks_become_few_only_once_all_slots_are_settled() {
        let (mut schema, mut probe) = numbers(2, 1);
        // Verdicts on the first slot are old when the second comes.
        show_noise(&mut probe, &schema, 0..PERIOD * 8 * LOOKS - PERIOD);
        add(&mut schema, &mut probe, 1);
        show_noise(&mut probe, &schema, 0..PERIOD * 8 * LOOKS / 2);
        assert_eq!(probe.period, PERIOD, "one of two");
        show_noise(&mut probe, &schema, 0..PERIOD * 8 * LOOKS);
        assert_eq!(probe.period, 2 * PERIOD, "both");
        show_noise(&mut probe, &schema, 0..100_000);
        assert_eq!(probe.period, PERIOD_MAX);
        probe.change_slot(1);
        assert_eq!(probe.period, PERIOD, "one is another");
    }

    #[test]
    fn fields_missing_in_the_message_before_are_not_compared() {
        let (mut schema, mut probe) = numbers(2, 1);
        show_noise(&mut probe, &schema, 0..100_000);
        while probe.messages % PERIOD_MAX != PERIOD {
            show_noise(&mut probe, &schema, 0..1);
        }
        // The last that was remembered is as many messages ago.
        add(&mut schema, &mut probe, 1);
        show_noise(&mut probe, &schema, 0..PERIOD - 1);
        assert_eq!(probe.slots[1].looks, 0);
        show_noise(&mut probe, &schema, 0..2);
        assert_eq!(probe.slots[1].looks, 1);
    }
}
