//! Messages of sensors as four published applications send them, made up: CITY, TAXI, GRID and FIT of RIoTBench.
//!
//! The `n`th message follows from workload, devices, seed, form, arrival and odd values alone. How often and how far fields change is
//! modelled on RIoTBench's sample rows (CITY, TAXI, FIT) and on half-hourly meters (GRID); TAXI is a meter that reports every 15 seconds,
//! whether hired or idle. Topics, sizes and numbers of devices are those of Oliveira and Gavrilovska, "In-Network Compression for Accelerating
//! IoT Analytics at Scale", table I.
//!
//! | workload | devices | topic | payload (CSV) | one message each |
//! |---|---|---|---|---|
//! | CITY | 10,700 | 35 B | time, source, longitude, latitude, temperature, humidity, light, dust, air quality | 20 s |
//! | TAXI | 50,000 | 47 B | time, seconds, miles, where from, where now, payment, fare, surcharge, tax, tip, total | 15 s |
//! | GRID | 10,217,500 | 30 B | meter, time, consumption | 30 min |
//! | FIT | 10,000 | 32 B | time, subject, 14 channels, label | 20 ms |

use std::{fmt, io::Write as _, num::NonZeroU64, str::FromStr};

use clap::ValueEnum;

/// Which application's messages.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Workload {
    /// Sensors of air quality in seven cities.
    City,
    /// Taxi meters.
    Taxi,
    /// Electricity meters.
    Grid,
    /// Sensors on moving bodies.
    Fit,
}

/// How numbers are written.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum Form {
    /// With as many digits as they have.
    #[default]
    Natural,
    /// Each field padded with spaces to one width, each message to the size of table I: what copying from fixed offsets needs.
    Fixed,
}

/// Which device sends next.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum Arrival {
    /// All in turn, in a fixed order that looks like none; of ten messages one, on average, comes from any device instead.
    #[default]
    Turns,
    /// Any device, each time.
    Random,
}

impl Workload {
    /// All four.
    pub const ALL: [Self; 4] = [Self::City, Self::Taxi, Self::Grid, Self::Fit];

    /// Its name, in capitals.
    pub fn name(self) -> &'static str {
        match self {
            Self::City => "CITY",
            Self::Taxi => "TAXI",
            Self::Grid => "GRID",
            Self::Fit => "FIT",
        }
    }

    /// The first level of its topics.
    pub fn level(self) -> &'static str {
        match self {
            Self::City => "city",
            Self::Taxi => "taxi",
            Self::Grid => "grid",
            Self::Fit => "fit",
        }
    }

    /// Devices, each with a topic, in table I.
    pub fn devices(self) -> u64 {
        match self {
            Self::City => 10_700,
            Self::Taxi => 50_000,
            Self::Grid => 10_217_500,
            Self::Fit => 10_000,
        }
    }

    /// Bytes of a topic.
    pub fn topic_bytes(self) -> usize {
        match self {
            Self::City => 35,
            Self::Taxi => 47,
            Self::Grid => 30,
            Self::Fit => 32,
        }
    }

    /// Bytes of topic and payload in [`Form::Fixed`].
    pub fn message_bytes(self) -> usize {
        match self {
            Self::City => 123,
            Self::Taxi => 144,
            Self::Grid => 80,
            Self::Fit => 173,
        }
    }

    /// Milliseconds from one message of a device to the next.
    pub fn period_ms(self) -> u64 {
        match self {
            Self::City => 20_000,
            Self::Taxi => 15_000,
            Self::Grid => 1_800_000,
            Self::Fit => 20,
        }
    }

    /// Values that a device remembers.
    fn stride(self) -> usize {
        match self {
            Self::City => 7,
            Self::Taxi => 10,
            Self::Grid => 1,
            Self::Fit => CHANNELS + 1,
        }
    }

    /// A column, and a value in it that the application's example flow notifies of.
    fn odd(self) -> (usize, &'static str) {
        match self {
            Self::City => (8, "199"),   // the tree calls that air bad
            Self::Taxi => (8, "99.99"), // far above any tariff
            Self::Grid => (2, "30.500"),
            Self::Fit => (6, "9.9999"), // the leads part
        }
    }
}

impl fmt::Display for Workload {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for Workload {
    type Err = UnknownWorkload;

    fn from_str(text: &str) -> Result<Self, UnknownWorkload> {
        Self::ALL
            .into_iter()
            .find(|workload| workload.name().eq_ignore_ascii_case(text))
            .ok_or_else(|| UnknownWorkload { name: text.to_owned() })
    }
}

/// A name that no workload has.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("no workload is called {name:?}: there are city, taxi, grid and fit")]
pub struct UnknownWorkload {
    /// The name.
    pub name: String,
}

/// Writes messages.
#[derive(Clone, Debug)]
pub struct Generator {
    workload: Workload,
    devices: u64,
    seed: u64,
    form: Form,
    arrival: Arrival,
    odd: Option<NonZeroU64>,
    /// Coprime to `devices`: multiples of it come by each device once.
    stride: u64,
    messages: u64,
    /// Values that the devices remember, one device after the other, in units of their last decimals.
    values: Vec<i32>,
    /// Whether a device has sent before.
    has_begun: Vec<bool>,
}

/// Measured channels of FIT.
const CHANNELS: usize = 14;

/// When all begin: 2015-02-01, 00:00 UTC.
const EPOCH_MS: u64 = 1_422_748_800_000;

/// Longitude and latitude of the cities of CITY, in millionths of a degree.
const CITIES: [(i32, i32); 7] = [
    (6_142_000, 46_204_000),
    (-43_209_000, -22_911_000),
    (121_473_000, 31_230_000),
    (103_851_000, 1_290_000),
    (-122_419_000, 37_774_000),
    (77_594_000, 12_971_000),
    (-71_058_000, 42_360_000),
];

/// How often a channel of FIT changes, in percent.
const CHANNEL_PERCENT: [u64; CHANNELS] =
    [100, 100, 100, 68, 68, 100, 100, 100, 66, 66, 66, 66, 66, 66];

impl Generator {
    /// The messages of `devices` devices, at least one, in natural form and in turns.
    pub fn new(workload: Workload, devices: u64, seed: u64) -> Self {
        let devices = devices.max(1);
        let mut stride = 2_654_435_761 % devices;
        while gcd(stride, devices) != 1 {
            stride += 1;
        }
        Self {
            workload,
            devices,
            seed,
            form: Form::Natural,
            arrival: Arrival::Turns,
            odd: None,
            stride,
            messages: 0,
            values: vec![0; devices as usize * workload.stride()],
            has_begun: vec![false; devices as usize],
        }
    }

    /// The same, written in `form`.
    pub fn with_form(self, form: Form) -> Self {
        Self { form, ..self }
    }

    /// The same, arriving as `arrival` says.
    pub fn with_arrival(self, arrival: Arrival) -> Self {
        Self { arrival, ..self }
    }

    /// The same, but one message in `every` has a value that the application's example flow notifies of: few made-up devices ever would.
    /// Other messages stay as they are. So that all devices have their turn, `every` shares no factor with their number.
    pub fn with_odd(self, every: Option<NonZeroU64>) -> Self {
        Self { odd: every, ..self }
    }

    /// Appends the topic of a device, which is ASCII.
    pub fn topic(&self, device: u64, out: &mut Vec<u8>) {
        let number = device;
        let result = match self.workload {
            Workload::City => {
                let (region, address, sensor) =
                    (number % 107, number / 107, number * 7919 % 10_000);
                write!(out, "city/r{region:03}/addr{address:06}/telemetry_{sensor:04}")
            }
            Workload::Taxi => {
                let (high, low) = (mix(number), mix(number ^ 0xabcdef));
                write!(out, "taxi/nyc/{high:016x}{low:016x}/trip_")
            }
            Workload::Grid => {
                let (zone, station) = (number % 997, number / 997 % 9999);
                write!(out, "grid/z{zone:03}/s{station:04}/meter{number:09}")
            }
            Workload::Fit => {
                let (site, vitals) = (number % 100, number * 31 % 10_000);
                write!(out, "fit/site{site:02}/subj{number:05}/vitals_{vitals:04}")
            }
        };
        result.expect("memory takes all that is written");
    }

    /// Appends the next message's topic to `topic` and its payload to `payload`; returns its device and when it was sent, in
    /// milliseconds since the Unix epoch.
    pub fn next(&mut self, topic: &mut Vec<u8>, payload: &mut Vec<u8>) -> (u64, u64) {
        let message = self.messages;
        self.messages += 1;
        let mut random = Random(mix(self.seed ^ message.wrapping_mul(0x9e37_79b9_7f4a_7c15)));
        let (round, turn) = (message / self.devices, message % self.devices);
        let mut device =
            (u128::from(turn) * u128::from(self.stride) % u128::from(self.devices)) as u64;
        if self.arrival == Arrival::Random || random.below(10) == 0 {
            device = random.below(self.devices);
        }
        let period = self.workload.period_ms();
        let within = match self.workload {
            // Meters report on the hour and the half hour.
            Workload::Grid => 0,
            _ => turn * period / self.devices,
        };
        let time_ms = EPOCH_MS + round * period + within;
        self.topic(device, topic);
        let is_odd = self.odd.is_some_and(|every| message % every == every.get() - 1);
        self.payload(device, time_ms, is_odd, &mut random, payload);
        (device, time_ms)
    }

    fn payload(
        &mut self,
        device: u64,
        time_ms: u64,
        is_odd: bool,
        random: &mut Random,
        out: &mut Vec<u8>,
    ) {
        let stride = self.workload.stride();
        let values = &mut self.values[device as usize * stride..][..stride];
        let begins = !std::mem::replace(&mut self.has_begun[device as usize], true);
        let start = out.len();
        // The device remembers the value that it would have sent: only what is written differs.
        let odd = is_odd.then(|| self.workload.odd());
        let mut line = Line { out, pads: self.form == Form::Fixed, column: 0, odd };
        match self.workload {
            Workload::City => {
                city(device, begins, values, random, time_ms / 1000 * 1000, &mut line);
            }
            Workload::Taxi => {
                taxi(device, begins, values, random, time_ms / 1000 * 1000, &mut line);
            }
            Workload::Grid => grid(device, begins, values, random, time_ms, &mut line),
            Workload::Fit => fit(device, begins, values, random, time_ms, &mut line),
        }
        if self.form == Form::Fixed {
            let bytes = self.workload.message_bytes() - self.workload.topic_bytes();
            out.resize(start + bytes, b' ');
        }
    }
}

fn city(
    device: u64,
    begins: bool,
    v: &mut [i32],
    random: &mut Random,
    time_ms: u64,
    line: &mut Line<'_>,
) {
    if begins {
        let (longitude, latitude) = CITIES[(device % 7) as usize];
        v[0] = longitude + random.below(90_000) as i32;
        v[1] = latitude + random.below(90_000) as i32;
        v[2] = 80 + random.below(250) as i32;
        v[3] = 300 + random.below(400) as i32;
        v[4] = random.below(1500) as i32;
        v[5] = 20_000 + random.below(300_000) as i32;
        v[6] = 10 + random.below(60) as i32;
    }
    random.walk(&mut v[2], 18, 1.5, (-300, 500));
    random.walk(&mut v[3], 55, 3.0, (0, 1000));
    random.walk(&mut v[4], 27, 12.0, (0, 4000));
    random.walk(&mut v[5], 62, 9000.0, (0, 900_000));
    random.walk(&mut v[6], 25, 1.5, (0, 200));
    line.integer(time_ms, 13);
    line.text(format_args!("ci4{:021}", mix(device)));
    for (value, decimals, width) in [
        (v[0], 6, 11),
        (v[1], 6, 10),
        (v[2], 1, 4),
        (v[3], 1, 4),
        (v[4], 0, 4),
        (v[5], 2, 7),
        (v[6], 0, 3),
    ] {
        line.trimmed(value, decimals, width);
    }
}

fn taxi(
    device: u64,
    begins: bool,
    v: &mut [i32],
    random: &mut Random,
    time_ms: u64,
    line: &mut Line<'_>,
) {
    let [
        longitude,
        latitude,
        seconds,
        miles,
        fare,
        surcharge,
        tip,
        from_longitude,
        from_latitude,
        hired,
    ] = v
    else {
        unreachable!("a taxi remembers ten values")
    };
    if begins {
        *longitude = -73_980_000 + (random.gauss() * 30_000.0) as i32;
        *latitude = 40_750_000 + (random.gauss() * 30_000.0) as i32;
    }
    if *hired == 0 {
        if random.percent(5) {
            *hired = 1;
            (*seconds, *miles, *fare, *tip) = (0, 0, 250, 0);
            *surcharge = if random.percent(40) { 50 } else { 0 };
            (*from_longitude, *from_latitude) = (*longitude, *latitude);
        }
    } else {
        let hundredths = random.below(12) as i32;
        *seconds += 15;
        *miles += hundredths;
        *fare += if hundredths > 3 { 50 } else { 0 };
        random.walk(longitude, 90, 400.0, (-74_300_000, -73_600_000));
        random.walk(latitude, 90, 400.0, (40_500_000, 41_000_000));
        // No passenger pays a hundred: all amounts keep to five characters.
        if random.percent(2) || *fare >= 8000 {
            *hired = 0;
            *tip = if random.percent(50) { *fare / 5 } else { 0 };
        }
    }
    line.integer(time_ms, 13);
    line.trimmed(*seconds, 0, 4);
    line.fixed(*miles, 2, 5);
    for (value, width) in
        [(*from_longitude, 10), (*from_latitude, 9), (*longitude, 10), (*latitude, 9)]
    {
        line.fixed(value, 6, width);
    }
    line.text(format_args!("{}", if device.is_multiple_of(2) { "CRD" } else { "CSH" }));
    line.fixed(*fare, 2, 5);
    line.fixed(*surcharge, 2, 4);
    line.text(format_args!("0.5"));
    line.fixed(*tip, 2, 5);
    line.fixed(*fare + *surcharge + 50 + *tip, 2, 5);
}

fn grid(
    device: u64,
    begins: bool,
    v: &mut [i32],
    random: &mut Random,
    time_ms: u64,
    line: &mut Line<'_>,
) {
    if begins {
        v[0] = 100 + random.below(900) as i32;
    }
    v[0] = (v[0] + (random.gauss() * 150.0) as i32).clamp(20, 9000);
    line.text(format_args!("{device:08}"));
    line.integer(time_ms, 19);
    line.fixed(v[0], 3, 21);
}

fn fit(
    device: u64,
    begins: bool,
    v: &mut [i32],
    random: &mut Random,
    time_ms: u64,
    line: &mut Line<'_>,
) {
    if begins {
        for value in v.iter_mut() {
            *value = random.below(190_000) as i32 - 95_000;
        }
        v[CHANNELS] = (device % 12) as i32;
    }
    for (value, percent) in v.iter_mut().zip(CHANNEL_PERCENT) {
        random.walk(value, percent, 900.0, (-99_999, 99_999));
    }
    line.integer(time_ms, 13);
    line.text(format_args!("subject{device:05}"));
    for value in &v[..CHANNELS] {
        line.trimmed(*value, 4, 7);
    }
    line.trimmed(v[CHANNELS], 0, 2);
}

/// A line of CSV.
struct Line<'a> {
    out: &'a mut Vec<u8>,
    pads: bool,
    /// The column that is next.
    column: usize,
    /// A column, and what is written there in place of its value.
    odd: Option<(usize, &'static str)>,
}

impl Line<'_> {
    fn text(&mut self, text: fmt::Arguments<'_>) {
        self.padded(0, |out| out.write_fmt(text).expect("memory takes all that is written"));
    }

    fn integer(&mut self, value: u64, width: usize) {
        self.padded(width, |out| digits(out, value, 1));
    }

    /// `value` in units of the last of `decimals`, all of them written.
    fn fixed(&mut self, value: i32, decimals: u32, width: usize) {
        self.padded(width, |out| {
            let (whole, part) = parts(out, value, decimals);
            digits(out, whole, 1);
            if decimals > 0 {
                out.push(b'.');
                digits(out, part, decimals as usize);
            }
        });
    }

    /// The same, without the zeros at the end.
    fn trimmed(&mut self, value: i32, decimals: u32, width: usize) {
        self.padded(width, |out| {
            let (whole, mut part) = parts(out, value, decimals);
            digits(out, whole, 1);
            let mut decimals = decimals;
            while decimals > 0 && part.is_multiple_of(10) {
                part /= 10;
                decimals -= 1;
            }
            if decimals > 0 {
                out.push(b'.');
                digits(out, part, decimals as usize);
            }
        });
    }

    fn padded(&mut self, width: usize, write: impl FnOnce(&mut Vec<u8>)) {
        if self.column > 0 {
            self.out.push(b',');
        }
        let start = self.out.len();
        match self.odd {
            Some((column, value)) if column == self.column => {
                self.out.extend_from_slice(value.as_bytes());
            }
            _ => write(self.out),
        }
        self.column += 1;
        let len = self.out.len() - start;
        if self.pads && len < width {
            self.out.resize(start + width, b' ');
            self.out[start..].rotate_right(width - len);
        }
    }
}

/// Writes the sign; returns what stands before the point and after it.
fn parts(out: &mut Vec<u8>, value: i32, decimals: u32) -> (u64, u64) {
    if value < 0 {
        out.push(b'-');
    }
    let (value, unit) = (u64::from(value.unsigned_abs()), 10u64.pow(decimals));
    (value / unit, value % unit)
}

/// At least `width` digits.
fn digits(out: &mut Vec<u8>, mut value: u64, width: usize) {
    let mut text = [b'0'; 20];
    let mut at = text.len();
    while value > 0 || text.len() - at < width {
        at -= 1;
        text[at] = b'0' + (value % 10) as u8;
        value /= 10;
    }
    out.extend_from_slice(&text[at..]);
}

/// SplitMix64, of which one message uses a few steps.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        mix(self.0)
    }

    fn below(&mut self, bound: u64) -> u64 {
        ((u128::from(self.next()) * u128::from(bound)) >> 64) as u64
    }

    fn percent(&mut self, percent: u64) -> bool {
        self.below(100) < percent
    }

    /// About normal: the sum of six uniform ones.
    fn gauss(&mut self) -> f64 {
        let sum: f64 = (0..6).map(|_| (self.next() >> 11) as f64 / (1u64 << 53) as f64).sum();
        (sum - 3.0) * std::f64::consts::SQRT_2
    }

    /// Changes `value` in `percent` of all cases, by about `deviation`, at least by one, within `range`.
    fn walk(&mut self, value: &mut i32, percent: u64, deviation: f64, (low, high): (i32, i32)) {
        if self.percent(percent) {
            let mut change = (self.gauss() * deviation) as i32;
            if change == 0 {
                change = if self.next() & 1 == 0 { 1 } else { -1 };
            }
            *value = (*value + change).clamp(low, high);
        }
    }
}

/// The finalizer of SplitMix64.
pub(crate) fn mix(value: u64) -> u64 {
    let value = (value ^ value >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let value = (value ^ value >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
    value ^ value >> 31
}

fn gcd(one: u64, other: u64) -> u64 {
    if other == 0 { one } else { gcd(other, one % other) }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    fn messages(generator: &mut Generator, count: u64) -> Vec<(String, String)> {
        let text = |bytes| String::from_utf8(bytes).unwrap();
        (0..count)
            .map(|_| {
                let (mut topic, mut payload) = (Vec::new(), Vec::new());
                generator.next(&mut topic, &mut payload);
                (text(topic), text(payload))
            })
            .collect()
    }

    #[test]
    fn sizes_are_those_of_the_table_and_fields_as_many_as_are_told() {
        for (workload, fields) in
            [(Workload::City, 9), (Workload::Taxi, 13), (Workload::Grid, 3), (Workload::Fit, 17)]
        {
            let natural = Generator::new(workload, 500, 1);
            let fixed = natural.clone().with_form(Form::Fixed);
            for (topic, payload) in messages(&mut fixed.clone(), 2000) {
                assert_eq!(topic.len(), workload.topic_bytes(), "{topic}");
                assert_eq!(topic.len() + payload.len(), workload.message_bytes(), "{payload}");
                assert_eq!(payload.split(',').count(), fields, "{payload}");
            }
            for ((topic, payload), (same, padded)) in messages(&mut natural.clone(), 2000)
                .into_iter()
                .zip(messages(&mut fixed.clone(), 2000))
            {
                assert_eq!(topic, same);
                assert_eq!(payload, padded.replace(' ', ""), "they differ in their padding alone");
            }
        }
    }

    #[test]
    fn every_device_has_a_topic_of_its_own() {
        for workload in Workload::ALL {
            let generator = Generator::new(workload, 2000, 1);
            let topics: BTreeSet<_> = (0..2000)
                .map(|device| {
                    let mut topic = Vec::new();
                    generator.topic(device, &mut topic);
                    assert!(topic.starts_with(workload.level().as_bytes()));
                    assert!(topic.is_ascii() && topic == topic.to_ascii_lowercase());
                    topic
                })
                .collect();
            assert_eq!(topics.len(), 2000, "{workload}");
        }
    }

    #[test]
    fn all_devices_take_turns_but_for_one_message_in_ten() {
        let mut generator = Generator::new(Workload::City, 1000, 3);
        let devices: BTreeSet<_> =
            (0..1000).map(|_| generator.next(&mut Vec::new(), &mut Vec::new()).0).collect();
        assert!((880..=960).contains(&devices.len()), "{}", devices.len());
    }

    #[test]
    fn one_message_in_many_is_odd_and_all_others_stay() {
        for workload in Workload::ALL {
            for form in [Form::Natural, Form::Fixed] {
                let mut usual = Generator::new(workload, 50, 1).with_form(form);
                let mut odd = usual.clone().with_odd(NonZeroU64::new(97));
                let usual = messages(&mut usual, 1000);
                for (number, ((topic, payload), (same, other))) in
                    usual.iter().zip(messages(&mut odd, 1000)).enumerate()
                {
                    assert_eq!(*topic, same);
                    if number % 97 != 96 {
                        assert_eq!(*payload, other, "{workload}, {number}");
                        continue;
                    }
                    if form == Form::Fixed {
                        assert_eq!(payload.len(), other.len(), "{workload}, {number}");
                    }
                    let (column, value) = workload.odd();
                    for (at, (one, other)) in payload.split(',').zip(other.split(',')).enumerate() {
                        let expected = if at == column { value } else { one.trim() };
                        assert_eq!(other.trim(), expected, "{workload}, {number}, column {at}");
                    }
                }
            }
        }
    }

    #[test]
    fn a_seed_says_all() {
        let of = |seed| messages(&mut Generator::new(Workload::Taxi, 100, seed), 1000);
        assert_eq!(of(1), of(1));
        assert_ne!(of(1), of(2));
    }

    #[test]
    fn an_unknown_workload_is_named() {
        assert_eq!("fit".parse(), Ok(Workload::Fit));
        let error = "oil".parse::<Workload>().unwrap_err();
        assert_eq!(
            error.to_string(),
            "no workload is called \"oil\": there are city, taxi, grid and fit"
        );
    }
}
