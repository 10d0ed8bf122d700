//! The example flows: their models are what training makes of generated examples, and they notify when they should.
//!
//! The examples follow made-up rules with noise: they show how a model is learned and used, and say nothing about any city, taxi or
//! heart. With `TIDEGATE_GOLDEN` set, the models are written again.

use std::{fs, path::PathBuf};

use super::*;
use crate::{
    Model,
    train::{self, LinearTraining, TreeTraining},
};

fn examples() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../examples/flows")
}

/// Numbers from 0 to 1, the same each time.
struct Random(u64);

impl Random {
    fn next(&mut self) -> f64 {
        self.0 =
            self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 40) as f64 / (1_u64 << 24) as f64
    }

    fn between(&mut self, low: f64, high: f64) -> f64 {
        low + (high - low) * self.next()
    }
}

fn names(names: &[&str]) -> Vec<String> {
    names.iter().map(|name| (*name).to_owned()).collect()
}

/// The models of the example flows, by name.
fn trained() -> Vec<(&'static str, Model)> {
    let mut random = Random(1);
    let mut city = "temperature,humidity,light,dust,airquality_raw,airquality\n".to_owned();
    for _ in 0..2_000 {
        let dust = random.between(0.0, 5_000.0).round();
        let raw = random.between(0.0, 200.0).round();
        let humidity = random.between(10.0, 95.0).round();
        let load = dust / 40.0 + raw + random.between(-15.0, 15.0);
        let class = match load {
            load if load < 80.0 => "good",
            load if load < 160.0 => "moderate",
            _ => "bad",
        };
        let (temperature, light) =
            (random.between(-10.0, 40.0).round(), random.between(0.0, 1_300.0).round());
        city.push_str(&format!("{temperature},{humidity},{light},{dust},{raw},{class}\n"));
    }
    let tree = train::tree(
        &city,
        &TreeTraining {
            target: "airquality".to_owned(),
            features: names(&["temperature", "humidity", "light", "dust", "airquality_raw"]),
            depth_max: 4,
            leaf_rows_min: 25,
        },
    )
    .unwrap();
    assert!(tree.accuracy > 0.8, "{}", tree.accuracy);

    let mut taxi = "trip_time_in_secs,trip_distance,surcharge,fare_amount\n".to_owned();
    for _ in 0..1_000 {
        let distance = (random.between(0.3, 15.0) * 100.0).round() / 100.0;
        let seconds = (distance * random.between(120.0, 300.0)).round();
        let surcharge = (random.next() * 2.0).round() / 2.0;
        let fare = 2.5 + 1.55 * distance + 0.0045 * seconds + random.between(-0.5, 0.5);
        taxi.push_str(&format!("{seconds},{distance},{surcharge},{fare:.2}\n"));
    }
    let features = names(&["trip_time_in_secs", "trip_distance", "surcharge"]);
    let fare = LinearTraining { target: "fare_amount".to_owned(), features, ridge: 0.0 };
    let fare = train::linear(&taxi, &fare).unwrap();
    assert!(fare.r_squared > 0.99, "{}", fare.r_squared);

    let mut fit = "acc_chest_x,acc_chest_y,ecg_lead_1,ecg_lead_2\n".to_owned();
    for _ in 0..1_000 {
        let (x, y) = (random.between(-12.0, -6.0), random.between(-2.0, 2.0));
        let first = random.between(-1.0, 1.0);
        let second = 0.8 * first + 0.01 * x + random.between(-0.1, 0.1);
        fit.push_str(&format!("{x:.3},{y:.3},{first:.4},{second:.4}\n"));
    }
    let features = names(&["acc_chest_x", "acc_chest_y", "ecg_lead_1"]);
    let ecg = LinearTraining { target: "ecg_lead_2".to_owned(), features, ridge: 0.0 };
    let ecg = train::linear(&fit, &ecg).unwrap();
    vec![("city-airquality", tree.model), ("taxi-fare", fare.model), ("fit-ecg", ecg.model)]
}

#[test]
fn the_models_of_the_examples_are_what_training_makes() {
    for (name, model) in trained() {
        let file = examples().join(format!("models/{name}.json"));
        let text = model.to_json();
        if std::env::var_os("TIDEGATE_GOLDEN").is_some() {
            fs::write(&file, &text).unwrap();
        }
        assert_eq!(fs::read_to_string(&file).unwrap(), text, "{name}");
        assert_eq!(Model::parse(text.as_bytes()).unwrap(), model);
    }
}

fn models() -> Models {
    let mut models = Models::new();
    for name in ["city-airquality", "taxi-fare", "fit-ecg"] {
        let json = fs::read(examples().join(format!("models/{name}.json"))).unwrap();
        models.insert(name, Model::parse(&json).unwrap());
    }
    for name in ["city-sources", "taxi-payments"] {
        let lines = fs::read_to_string(examples().join(format!("models/{name}.txt"))).unwrap();
        models.insert_set(name, &lines);
    }
    models
}

/// The flows of an example file, by name.
fn example(name: &str) -> Vec<Flow> {
    let text = fs::read_to_string(examples().join(format!("{name}.toml"))).unwrap();
    let specs: Specs = toml::from_str(&text).unwrap_or_else(|error| panic!("{name}: {error}"));
    let flows = specs.into_flows().map(|spec| Flow::compile(&spec, &models()));
    flows.map(|flow| flow.unwrap_or_else(|error| panic!("{error}"))).collect()
}

/// Topics and payloads of what is published.
fn notified(flow: &mut Flow, messages: &[(&str, &str)]) -> Vec<(usize, String, String)> {
    let messages: Vec<_> =
        messages.iter().map(|(topic, payload)| (*topic, payload.as_bytes())).collect();
    assert!(messages.iter().all(|(topic, _)| flow.matches(topic)));
    run(flow, Instant::from_millis(1_422_748_800_000), &messages).emissions
}

#[test]
fn oil_notifies_of_what_is_far_above_average() {
    let mut flow = example("oil").remove(0);
    let payload = |sensor: u32, temperature: &str| {
        let mut payload = vec![b' '; 64];
        payload[..4].copy_from_slice(&sensor.to_le_bytes());
        payload[8..14].copy_from_slice(temperature.as_bytes());
        payload
    };
    let payloads = [
        payload(7, " 90.00"),
        payload(7, " 91.00"),
        payload(8, "120.00"), // its own average
        payload(7, "999.00"), // out of range: an outlier, and no part of the average
        payload(7, "130.00"),
        payload(7, " 90.50"),
    ];
    let messages: Vec<_> =
        payloads.iter().map(|payload| ("vehicle/oil/x", payload.as_slice())).collect();
    let outcome = run(&mut flow, Instant::EPOCH, &messages);
    assert_eq!(outcome.emissions.len(), 1, "{outcome:?}");
    assert_eq!((outcome.emissions[0].0, &*outcome.emissions[0].1), (4, "alarm/oil/7"));
    assert_eq!(flow.stats().filtered, 1);
}

#[test]
fn city_notifies_of_bad_air_and_sums_up_its_regions() {
    let [mut city, mut region]: [Flow; 2] = example("city").try_into().unwrap();
    let row = |ts: u64, source: &str, temperature: &str, dust: u32, raw: u32| {
        format!("{ts},{source},6.17,46.19,{temperature},53.7,0,{dust},{raw}")
    };
    let known = "ci4lr75sl000802ypo4qrcjda23";
    let ts = 1_422_748_800_000;
    let rows = [
        row(ts, known, "8", 411, 40),
        row(ts + 1, known, "", 4_000, 190),
        row(ts + 2, "a-stranger", "8", 4_000, 190),
        row(ts + 3, known, "80", 4_000, 190), // no temperature on Earth
        row(ts + 60_000, known, "8", 400, 20),
        "not a row".to_owned(),
    ];
    let messages: Vec<_> =
        rows.iter().map(|row| ("city/north/7/telemetry", row.as_str())).collect();
    let found = notified(&mut city, &messages);
    assert_eq!(found.len(), 2, "{found:?}");
    assert_eq!((found[0].0, &*found[0].1), (1, "alarm/city/north/7"));
    // The temperature that was missing is filled in.
    assert!(found[0].2.contains(r#""airquality_class":"bad","dust":4000"#), "{}", found[0].2);
    assert!(found[0].2.contains(r#""dust_count":2,"temperature":8}"#), "{}", found[0].2);
    assert_eq!((found[1].0, &*found[1].1), (5, "dead/city/city/north/7/telemetry"));
    let found = notified(&mut region, &messages);
    let expected = (4, "city/north/airquality".to_owned());
    assert_eq!((found[0].0, found[0].1.clone()), expected, "{found:?}");
    assert!(found[0].2.starts_with(r#"{"airquality":152.5,"sources":2.0"#), "{}", found[0].2);
}

#[test]
fn taxi_notifies_of_a_fare_far_above_the_tariff() {
    let mut flow = example("taxi").remove(0);
    let row = |fare: f64, payment: &str| {
        format!("1358101800000,1440,9.08,-73.98,40.77,-73.92,40.87,{payment},{fare},0.5,0.5,0,30")
    };
    let rows = [
        row(23.0, "CSH"),
        row(23.5, "CRD"),
        row(60.0, "CSH"),
        row(60.0, "XXX"),
        row(60.0, "CSH"),
        row(23.0, "CSH"),
        row(60.0, "CRD"),
    ];
    let messages: Vec<_> =
        rows.iter().map(|row| ("taxi/149298F6/08F944E7", row.as_str())).collect();
    let found = notified(&mut flow, &messages);
    let from: Vec<_> = found.iter().map(|(from, _, _)| *from).collect();
    // Reported once, and again after it was over; the payment of XXX is unknown.
    assert_eq!(from, [2, 6], "{found:?}");
    assert_eq!(found[0].1, "alarm/taxi/149298F6/08F944E7");
    assert!(found[0].2.starts_with(r#"{"fare_amount":60,"fare_expected":2"#), "{}", found[0].2);
}

#[test]
fn grid_notifies_of_a_meter_far_above_its_average() {
    let mut flow = example("grid").remove(0);
    let used = [1.0, 1.2, 0.9, 1.1, 1.0, 20.0, 25.0, 99.0, 1.0];
    let rows: Vec<_> = used.iter().map(|used| format!("meter-1,1422748800000,{used}")).collect();
    let messages: Vec<_> = rows.iter().map(|row| ("grid/meter-1", row.as_str())).collect();
    let found = notified(&mut flow, &messages);
    assert_eq!(found.len(), 1, "{found:?}");
    assert_eq!((found[0].0, &*found[0].1), (5, "alarm/grid/meter-1"));
    assert!(found[0].2.ends_with("on average of 6"), "{}", found[0].2);
}

#[test]
fn fit_notifies_when_leads_part_and_when_they_meet() {
    let mut flow = example("fit").remove(0);
    let row = |first: &str, second: &str| {
        format!(
            "1417890600000,subject8,-9.3,-0.67,2.2,{first},{second},-0.57,-9.8,-1.5,-0.1,-0.2,0.8,-0.4,0.4,0.1,0"
        )
    };
    let rows = [
        row("0.1", "0.05"),
        row("0.1", "3"),
        row("0.1", "3.1"),
        row("?", "0.05"), // the last good 0.1 stands in
        row("0.1", "0.06"),
    ];
    let messages: Vec<_> = rows.iter().map(|row| ("fit/8", row.as_str())).collect();
    let found = notified(&mut flow, &messages);
    let from: Vec<_> = found.iter().map(|(from, _, _)| *from).collect();
    assert_eq!(from, [1, 3], "{found:?}");
    assert_eq!(found[0].1, "alarm/fit/subject8");
    assert!(found[1].2.starts_with(r#"{"ecg_lead_1":0.1,"#), "{}", found[1].2);
    assert_eq!(flow.stats().mended, 1);
}
