//! The same models and images for both workers: what each must find, and that they agree.

use png::{BitDepth, ColorType};
use serde_json::{Value, json};
use turbojpeg::Subsamp;

use crate::{
    images::{jpeg, pattern, plain, png, turned},
    onnx::{INT64, Values, answers, answers_of, mirror, model, model_of, node},
    worker::{Worker, both},
};

fn detect(model: &str) -> Value {
    json!({"type": "detect", "model": model})
}

/// The values of an input that a model was given, in its order: those of a classifier that mirrors it.
fn input_of(answer: &Value) -> Vec<f64> {
    let classes = answer["classes"].as_array().unwrap_or_else(|| panic!("no classes: {answer}"));
    let mut values = vec![f64::NAN; classes.len()];
    for class in classes {
        let label = class[1].as_str().unwrap().strip_prefix("class ").unwrap();
        values[label.parse::<usize>().unwrap()] = class[0].as_f64().unwrap();
    }
    values
}

/// Both numbers, wherever they stand, are within `tolerance`; all else is equal.
fn agree(one: &Value, other: &Value, tolerance: f64) -> bool {
    match (one, other) {
        (Value::Array(one), Value::Array(other)) => {
            one.len() == other.len()
                && one.iter().zip(other).all(|(one, other)| agree(one, other, tolerance))
        }
        (Value::Number(one), Value::Number(other)) => {
            (one.as_f64().unwrap() - other.as_f64().unwrap()).abs() <= tolerance
        }
        _ => one == other,
    }
}

/// Images by a name, of all kinds and shapes: encoded, or pixels with their shape.
fn images() -> Vec<(String, Vec<u8>, Option<[usize; 3]>)> {
    let mut images = Vec::new();
    for (width, height) in [(640, 480), (48, 64), (20, 15), (1, 1), (300, 3), (7, 900)] {
        let bgr = pattern(width, height, 3);
        for sampling in [Subsamp::None, Subsamp::Sub2x2, Subsamp::Sub2x1] {
            let name = format!("JPEG {width}x{height} {sampling:?}");
            images.push((name, jpeg(width, height, &bgr, sampling), None));
        }
        let shape = Some([height, width, 3]);
        images.push((format!("pixels {width}x{height}"), bgr, shape));
    }
    let gray = pattern(64, 48, 1);
    images.push(("gray JPEG".to_owned(), jpeg(64, 48, &gray, Subsamp::Gray), None));
    images.push(("gray pixels".to_owned(), gray, Some([48, 64, 1])));
    for orientation in 1..=8 {
        let upright = jpeg(64, 48, &pattern(64, 48, 3), Subsamp::None);
        images.push((format!("turned {orientation}"), turned(&upright, orientation), None));
    }
    for (colour, samples) in [
        (ColorType::Grayscale, 1),
        (ColorType::GrayscaleAlpha, 2),
        (ColorType::Rgb, 3),
        (ColorType::Rgba, 4),
    ] {
        for (depth, bytes) in [(BitDepth::Eight, 1), (BitDepth::Sixteen, 2)] {
            let data = pattern(64, 48, samples * bytes);
            let name = format!("PNG {colour:?} {depth:?}");
            images.push((name, png(64, 48, colour, depth, &data), None));
        }
    }
    let indexed: Vec<u8> = (0..64 * 48 / 2).map(|at: u32| (at % 256) as u8).collect();
    let indexed = png(64, 48, ColorType::Indexed, BitDepth::Four, &indexed);
    images.push(("PNG of a palette".to_owned(), indexed, None));
    let bits = png(64, 48, ColorType::Grayscale, BitDepth::One, &pattern(8, 48, 1));
    let followed = [&bits[..], b"a camera's own words"].concat();
    images.push(("PNG of bits".to_owned(), bits, None));
    images.push(("PNG with bytes behind its end".to_owned(), followed, None));
    images
}

/// The input that each worker gives a model, for each image.
fn inputs(workers: &mut [Worker], name: &str) -> Vec<(String, Vec<Vec<f64>>)> {
    let mut found = Vec::new();
    for (image, data, shape) in images() {
        let mut head = detect(name);
        if let Some(shape) = shape {
            head["shape"] = json!(shape);
        }
        let ask = |worker: &mut Worker| {
            let answer = worker.ask(head.clone(), &data);
            assert_eq!(answer["error"], Value::Null, "{}: {name}, {image}", worker.name);
            input_of(&answer)
        };
        let inputs = workers.iter_mut().map(ask).collect();
        found.push((image, inputs));
    }
    found
}

#[test]
fn both_workers_give_a_model_the_same_input() {
    let mut workers = both();
    for (name, shape, description) in [
        ("rgb", [1, 3, 16, 18], json!({"width": 18, "height": 16})),
        ("stretched", [1, 3, 18, 16], json!({"width": 16, "height": 18, "fit": "stretch"})),
        (
            "bgr",
            [1, 12, 25, 3],
            json!({"width": 25, "height": 12, "layout": "nhwc", "colour": "bgr"}),
        ),
        ("gray", [1, 1, 30, 30], json!({"width": 30, "height": 30, "colour": "gray"})),
        (
            "wide",
            [1, 4, 80, 3],
            json!({"width": 80, "height": 4, "layout": "nhwc", "mean": [10, 20, 30], "std": [1, 2, 4]}),
        ),
    ] {
        let mut description = description;
        description["format"] = json!("classification");
        description["top"] = json!(1000);
        // Values of 0 to 255, so that a step of a pixel is one.
        description["scale"] = json!(1);
        for worker in &mut workers {
            let loaded = worker.load(name, &mirror(&shape), &description);
            assert_eq!(loaded["error"], Value::Null, "{}: {name}", worker.name);
        }
        let compared = workers.len() > 1;
        for (image, found) in inputs(&mut workers, name) {
            assert_eq!(found[0].len() as u64, shape.iter().product::<u64>(), "{name}, {image}");
            if !compared {
                continue;
            }
            let apart: Vec<f64> =
                found[0].iter().zip(&found[1]).map(|(one, other)| (one - other).abs()).collect();
            let most = apart.iter().copied().fold(0.0, f64::max);
            let mean = apart.iter().sum::<f64>() / apart.len() as f64;
            // Where a value lies halfway between two, OpenCV's whole numbers round otherwise.
            assert!(most <= 1.01 && mean <= 0.3, "{name}, {image}: {most} at most, mean {mean}");
        }
    }
}

#[test]
fn a_classifier_sees_the_colours_that_it_declared() {
    for mut worker in both() {
        let description = json!({"format": "classification", "width": 2, "height": 2, "fit": "stretch", "top": 12});
        let picture = plain(64, 48, [200, 20, 30]);
        for (colour, layout, wanted) in [
            ("rgb", "nchw", [30, 30, 30, 30, 20, 20, 20, 20, 200, 200, 200, 200]),
            ("bgr", "nchw", [200, 200, 200, 200, 20, 20, 20, 20, 30, 30, 30, 30]),
            ("rgb", "nhwc", [30, 20, 200, 30, 20, 200, 30, 20, 200, 30, 20, 200]),
        ] {
            let mut description = description.clone();
            (description["colour"], description["layout"], description["scale"]) =
                (json!(colour), json!(layout), json!(1));
            let shape = if layout == "nchw" { [1, 3, 2, 2] } else { [1, 2, 2, 3] };
            assert_eq!(worker.load("m", &mirror(&shape), &description)["error"], Value::Null);
            let mut head = detect("m");
            head["shape"] = json!([48, 64, 3]);
            let answer = worker.ask(head, &picture);
            assert_eq!(input_of(&answer), wanted.map(f64::from), "{}: {colour}", worker.name);
            assert_eq!(answer["size"], json!([64, 48]));
        }
        let mut normal = description.clone();
        (normal["mean"], normal["std"], normal["colour"]) =
            (json!([0.5]), json!([0.25]), json!("gray"));
        assert_eq!(worker.load("n", &mirror(&[1, 1, 2, 2]), &normal)["error"], Value::Null);
        let mut head = detect("n");
        head["shape"] = json!([1, 1, 1]);
        let found = input_of(&worker.ask(head, &[255]));
        assert_eq!(found, [2.0; 4], "{}", worker.name);
        assert_eq!(worker.close(), Ok(()));
    }
}

/// Outputs of a model by which nothing but the format decides.
fn of_formats() -> Vec<(&'static str, Vec<u8>, Value, Value)> {
    let input = [1, 3, 320, 320];
    let columns = |rows: &[&[f32]], count: usize| {
        let mut values = vec![0.0; rows[0].len() * count];
        for (at, row) in rows.iter().enumerate() {
            row.iter().enumerate().for_each(|(column, value)| values[column * count + at] = *value);
        }
        values
    };
    let yolo8 = columns(
        &[
            &[100.0, 100.0, 50.0, 40.0, 0.1, 0.9],
            &[102.0, 101.0, 50.0, 40.0, 0.1, 0.8], // the same thing again
            &[102.0, 101.0, 50.0, 40.0, 0.7, 0.0], // another class there
            &[10.0, 100.0, 5.0, 5.0, 0.2, 0.2],    // too unsure
            &[400.0, 100.0, 5.0, 5.0, 0.9, 0.2],   // outside
        ],
        8,
    );
    let mut yolo5 = vec![0.0; 7 * 7];
    yolo5[..7].copy_from_slice(&[100.0, 100.0, 50.0, 40.0, 0.9, 0.0, 1.0]);
    yolo5[7..14].copy_from_slice(&[102.0, 101.0, 50.0, 40.0, 0.7, 1.0, 0.0]);
    let mut end = vec![0.0; 5 * 6];
    end[..6].copy_from_slice(&[75.0, 80.0, 125.0, 120.0, 0.9, 1.0]);
    end[6..12].copy_from_slice(&[77.0, 81.0, 127.0, 121.0, 0.7, 0.0]);
    let pose = columns(&[&[100.0, 100.0, 50.0, 40.0, 0.9, 90.0, 90.0, 1.0, 110.0, 110.0, 0.5]], 4);
    let names = [("b", "b_out"), ("s", "s_out"), ("l", "l_out")];
    let nodes = names.map(|(name, out)| node("Identity", &[name], &[out]));
    let boxes = [
        ("b", vec![1, 1, 4], Values::Floats(vec![0.25, 0.5, 0.5, 1.5])),
        ("s", vec![1, 1], Values::Floats(vec![0.75])),
        ("l", vec![1, 1], Values::Floats(vec![1.0])),
    ];
    let outputs: [(&str, &[u64]); 3] =
        [("b_out", &[1, 1, 4]), ("s_out", &[1, 1]), ("l_out", &[1, 1])];
    let named = json!({"labels": "l_out", "scores": "s_out", "boxes": "b_out"});
    let two =
        json!([[150.0, 80.0, 250.0, 160.0, 0.9, "dog"], [154.0, 82.0, 254.0, 162.0, 0.7, "cat"]]);
    let description = |format: &str| json!({"format": format, "width": 320, "height": 320, "labels": ["cat", "dog"]});
    let mut posed = description("yolov8-pose");
    (posed["points"], posed["labels"]) = (json!(2), json!([]));
    let mut by_name = json!({"format": "boxes", "width": 32, "height": 32, "fit": "stretch"});
    (by_name["normalized"], by_name["outputs"]) = (json!(true), named);
    let soft =
        json!({"format": "classification", "width": 320, "height": 320, "softmax": true, "top": 2});
    vec![
        (
            "yolov8",
            answers(&[1, 6, 8], yolo8, &input),
            description("yolov8"),
            json!({"boxes": two}),
        ),
        (
            "yolov5",
            answers(&[1, 7, 7], yolo5, &input),
            description("yolov5"),
            json!({"boxes": two}),
        ),
        (
            "end2end",
            answers(&[1, 5, 6], end, &input),
            description("end2end"),
            json!({"boxes": two}),
        ),
        (
            "boxes",
            model(&nodes, &[1, 3, 32, 32], &outputs, &boxes),
            by_name,
            json!({"boxes": [[160.0, 240.0, 320.0, 480.0, 0.75, "class 1"]]}),
        ),
        (
            "pose",
            answers(&[1, 11, 4], pose, &input),
            posed,
            json!({
                "boxes": [[150.0, 80.0, 250.0, 160.0, 0.9, "person"]],
                "poses": [[[180.0, 100.0, 1.0], [220.0, 140.0, 0.5]]],
            }),
        ),
        (
            "soft",
            answers(&[1, 3], vec![1.0, 3.0, 1.0], &input),
            soft,
            json!({"boxes": [], "classes": [[0.786986, "class 1"], [0.106507, "class 0"]]}),
        ),
    ]
}

#[test]
fn boxes_come_back_in_pixels_of_the_source() {
    let picture = jpeg(640, 480, &pattern(640, 480, 3), Subsamp::Sub2x2);
    for mut worker in both() {
        for (name, model, description, wanted) in of_formats() {
            let loaded = worker.load(name, &model, &description);
            assert_eq!(loaded["error"], Value::Null, "{}: {name}", worker.name);
            let answer = worker.ask(detect(name), &picture);
            for part in ["boxes", "classes", "poses"] {
                let same = agree(&answer[part], &wanted[part], 1e-4);
                assert!(same, "{}: {name}: {part}: {answer}, not {wanted}", worker.name);
            }
            // The same picture in a scene whose camera has frames of twice the size.
            let begun =
                worker.ask(json!({"type": "scene", "scene": 5, "source": [1280, 960]}), &[]);
            assert_eq!(begun["error"], Value::Null, "{}", worker.name);
            let mut head = detect(name);
            head["scene"] = json!(5);
            let larger = worker.ask(head, &picture);
            for (one, other) in rows(&answer["boxes"]).zip(rows(&larger["boxes"])) {
                let doubled: Vec<_> =
                    one[..4].iter().map(|side| json!(side.as_f64().unwrap() * 2.0)).collect();
                assert!(
                    agree(&json!(doubled), &json!(other[..4]), 0.02),
                    "{}: {larger}",
                    worker.name
                );
            }
            assert_eq!(rows(&larger["boxes"]).count(), rows(&wanted["boxes"]).count());
        }
        assert_eq!(worker.close(), Ok(()));
    }
}

fn rows(boxes: &Value) -> impl Iterator<Item = &[Value]> {
    boxes.as_array().expect("a list").iter().map(|row| row.as_array().expect("a list").as_slice())
}

#[test]
fn both_workers_keep_the_same_of_many_boxes() {
    let mut workers = both();
    // Knuth's (MMIX): the same seed, the same boxes.
    let mut state = 26_u64;
    let mut random = || {
        state =
            state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 40) as f32 / (1_u64 << 24) as f32
    };
    for (at, (count, iou_max)) in
        [(400, 0.45), (400, 0.1), (3000, 0.9), (0, 0.5)].into_iter().enumerate()
    {
        let columns: Vec<f32> = (0..7)
            .flat_map(|row| {
                let (most, least) = if row < 4 { (200.0, 3.0) } else { (1.0, 0.0) };
                (0..count).map(|_| least + random() * most).collect::<Vec<_>>()
            })
            .collect();
        let model = answers(&[1, 7, count], columns, &[1, 3, 320, 320]);
        let description = json!({"format": "yolov8", "width": 320, "height": 320, "iou_max": iou_max, "score_min": 0.5});
        let picture = jpeg(200, 300, &pattern(200, 300, 3), Subsamp::None);
        let mut answers = Vec::new();
        for worker in &mut workers {
            let name = format!("m{at}");
            assert_eq!(
                worker.load(&name, &model, &description)["error"],
                Value::Null,
                "{}",
                worker.name
            );
            let answer = worker.ask(detect(&name), &picture);
            let found = rows(&answer["boxes"]).count();
            assert!(
                found <= 300 && (found > 20 || count == 0),
                "{}: {found} of {count}",
                worker.name
            );
            answers.push(answer["boxes"].clone());
        }
        assert!(answers.windows(2).all(|two| agree(&two[0], &two[1], 0.011)), "{answers:?}");
    }
}

#[test]
fn models_and_descriptions_that_are_of_no_use_are_refused() {
    let input = [1, 3, 32, 32];
    let description = json!({"format": "yolov8", "width": 32, "height": 32, "labels": ["cat"]});
    let but = |field: &str, value: Value| {
        let mut description = description.clone();
        description[field] = value;
        description
    };
    let zeros =
        |shape: &[u64]| answers(shape, vec![0.0; shape.iter().product::<u64>() as usize], &input);
    let full = |value: f32| answers(&[1, 5, 3], vec![value; 15], &input);
    let good = zeros(&[1, 5, 3]);
    let mut workers = both();
    for (model, description, part) in [
        (full(f32::NAN), description.clone(), "not finite"),
        (full(f32::INFINITY), description.clone(), "not finite"),
        (zeros(&[1, 7, 3]), description.clone(), "7x3 values; its format yolov8 needs 5xN"),
        (zeros(&[1, 7]), description.clone(), "yolov8 needs"),
        (zeros(&[2, 5, 3]), description.clone(), "1 first, one for each image"),
        (zeros(&[1, 3, 5]), but("format", json!("end2end")), "needs Nx6"),
        (zeros(&[1, 2]), but("format", json!("classification")), "1 values, one for each label"),
        (zeros(&[1, 5, 3]), but("format", json!("yolov5")), "needs Nx6 values"),
        (good.clone(), but("height", json!(64)), "cannot look at its input"),
        (good.clone(), but("type", json!("uint8")), "cannot look at its input"),
        (b"no model".to_vec(), description.clone(), "cannot be loaded"),
        (good[..good.len() - 20].to_vec(), description.clone(), "cannot be loaded"),
        (
            answers_of(&[1, 5, 3], "/etc/passwd", &input),
            description.clone(),
            "\"/etc/passwd\", which is no file in the folder of the model",
        ),
        (good.clone(), but("format", json!("yolo")), "format must be one of"),
        (good.clone(), but("width", json!(0)), "width must be a whole number"),
        (good.clone(), but("hight", json!(3)), "unknown field 'hight'"),
        (good.clone(), but("std", json!([0])), "std must not be zero"),
        (good.clone(), but("labels", json!("cat")), "labels must be a list"),
        (
            good.clone(),
            but("providers", json!(["NoSuchProvider"])),
            "has no NoSuchProvider; it has: ",
        ),
        (good.clone(), but("outputs", json!({"boxes": "b"})), "outputs must name"),
        (good.clone(), json!([]), "not a JSON object"),
    ] {
        for worker in &mut workers {
            let error = worker.load("m", &model, &description)["error"].clone();
            let text =
                error.as_str().unwrap_or_else(|| panic!("{}: {part}: it was loaded", worker.name));
            assert!(text.contains(part), "{}: {part}: {text}", worker.name);
        }
    }
    for worker in &mut workers {
        let path = worker.write("street", &answers_of(&[1, 5, 3], "weights", &input), &description);
        std::fs::write(path.with_file_name("weights"), [0; 4 * 15]).unwrap();
        assert_eq!(worker.load_file("beside", &path)["error"], Value::Null, "{}", worker.name);
        let path = worker.write("street", &good, &description);
        let other = path.with_extension("pt");
        std::fs::copy(&path, &other).unwrap();
        let words = |answer: Value| answer["error"].as_str().unwrap_or_default().to_owned();
        assert!(
            words(worker.load_file("m", &other)).contains("must end in .onnx"),
            "{}",
            worker.name
        );
        std::fs::remove_file(path.with_extension("json")).unwrap();
        let error = words(worker.load_file("m", &path));
        assert!(error.contains("says what the model takes"), "{}: {error}", worker.name);
    }
}

#[test]
fn providers_that_the_library_has_are_taken() {
    for mut worker in both() {
        let mut description =
            json!({"format": "classification", "width": 2, "height": 2, "top": 12});
        for (providers, is_sure) in [
            (json!(["CPUExecutionProvider"]), true),
            // Most builds have it; it computes nothing itself.
            (json!(["AzureExecutionProvider", "CPUExecutionProvider"]), false),
        ] {
            description["providers"] = providers;
            let error = worker.load("m", &mirror(&[1, 3, 2, 2]), &description)["error"].clone();
            let is_missing =
                error.as_str().is_some_and(|text| text.contains("has no AzureExecution"));
            assert!(error == Value::Null || is_missing && !is_sure, "{}: {error}", worker.name);
        }
    }
}

/// A model of 2x2 pixels in one gray channel, by values of 0 to 255.
fn of_four(format: &str) -> Value {
    json!({"format": format, "width": 2, "height": 2, "fit": "stretch", "colour": "gray", "scale": 1})
}

#[test]
fn values_and_shapes_that_are_wrong_fail_their_request_alone() {
    // The logarithm of 100 less the image is none where that is brighter.
    let darker = node("Sub", &["limit", "image"], &["left"]);
    let limit = || ("limit", vec![1], Values::Floats(vec![100.0]));
    let logarithm =
        [darker, node("Log", &["left"], &["log"]), node("Flatten", &["log"], &["found"])];
    let finite = model(&logarithm, &[0, 1, 2, 2], &[("found", &[0, 4])], &[limit()]);
    let bright =
        (json!({"type": "detect", "model": "m", "more": true, "shape": [2, 2, 1]}), [200_u8; 4]);
    let dark = (json!({"type": "detect", "model": "m", "shape": [2, 2, 1]}), [99_u8; 4]);
    for mut worker in both() {
        assert_eq!(
            worker.load("m", &finite, &of_four("classification"))["error"],
            Value::Null,
            "{}",
            worker.name
        );
        let answers =
            worker.ask_all(vec![(bright.0.clone(), &bright.1), (dark.0.clone(), &dark.1)]);
        let error =
            answers[0]["error"].as_str().unwrap_or_else(|| panic!("{}: {answers:?}", worker.name));
        assert!(error.contains("not finite"), "{}: {error}", worker.name);
        assert_eq!(input_of(&answers[1]), [0.0; 4], "{}: {answers:?}", worker.name);
    }
}

#[test]
fn an_output_whose_shape_depends_on_the_image_fails_where_it_is_wrong() {
    let nodes = [
        node("Sub", &["limit", "image"], &["left"]),
        node("NonZero", &["left"], &["places"]),
        node("Reshape", &["places", "row"], &["found"]),
    ];
    let constants = [
        ("limit", vec![1], Values::Floats(vec![100.0])),
        ("row", vec![2], Values::Whole(vec![1, -1])),
    ];
    let mut description = of_four("classification");
    description["labels"] = json!((0..16).map(|at| format!("label {at}")).collect::<Vec<_>>());
    let model = model_of(INT64, &nodes, &[1, 1, 2, 2], &[("found", &[1, 0])], &constants);
    let shaped = json!({"type": "detect", "model": "m", "shape": [2, 2, 1]});
    for mut worker in both() {
        let loaded = worker.load("m", &model, &description);
        assert_eq!(loaded["error"], Value::Null, "{}", worker.name);
        let error = worker.ask(shaped.clone(), &[100, 1, 1, 1])["error"].clone();
        let error = error.as_str().unwrap_or_default().to_owned();
        assert!(error.contains("returned 12 values"), "{}: {error}", worker.name);
        let fine = worker.ask(shaped.clone(), &[1; 4]);
        assert_eq!(fine["classes"].as_array().map(Vec::len), Some(5), "{}: {fine}", worker.name);
    }
}

#[test]
fn images_of_a_batch_fail_alone() {
    for mut worker in both() {
        for (name, batch) in [("many", 0), ("one", 1)] {
            let mut description =
                json!({"format": "classification", "width": 2, "height": 2, "fit": "stretch"});
            (description["colour"], description["scale"], description["top"]) =
                (json!("bgr"), json!(1), json!(12));
            assert_eq!(
                worker.load(name, &mirror(&[batch, 3, 2, 2]), &description)["error"],
                Value::Null
            );
            let (first, last) = (plain(8, 8, [200, 0, 0]), plain(8, 8, [0, 200, 0]));
            let head = |shape: Value, more: bool| json!({"type": "detect", "model": name, "shape": shape, "more": more});
            let mut broken = head(json!([8, 8, 3]), true);
            broken.as_object_mut().unwrap().remove("shape");
            let answers = worker.ask_all(vec![
                (head(json!([8, 8, 3]), true), &first),
                (broken, b"%PDF-1.7 and more"),
                (json!({"type": "detect", "model": "none", "more": true}), b""),
                (head(json!([8, 8, 3]), false), &last),
            ]);
            let zero_but = |channel: usize| {
                (0..12).map(|at| if at / 4 == channel { 200.0 } else { 0.0 }).collect::<Vec<f64>>()
            };
            assert_eq!(input_of(&answers[0]), zero_but(0), "{}: {name}", worker.name);
            assert_eq!(input_of(&answers[3]), zero_but(1), "{}: {name}", worker.name);
            for (at, part) in [(1, "a PDF document"), (2, "there is no model 'none'")] {
                let error = answers[at]["error"].as_str().unwrap_or_default();
                assert!(error.contains(part), "{}: {name}: {}", worker.name, answers[at]);
            }
        }
    }
}

#[test]
fn images_that_are_of_no_use_are_refused() {
    let whole = jpeg(64, 48, &pattern(64, 48, 3), Subsamp::Sub2x2);
    let lossless = png(64, 48, ColorType::Rgb, BitDepth::Eight, &pattern(64, 48, 3));
    let mut bomb = whole.clone();
    let at = whole.windows(2).position(|two| two == [0xff, 0xc0]).expect("a frame") + 5;
    bomb[at..at + 4].copy_from_slice(&[0x27, 0x10, 0x4e, 0x20]);
    let mut wide = lossless.clone();
    wide[16..24].copy_from_slice(&[0, 0, 0x4e, 0x20, 0, 0, 0x27, 0x10]);
    let mut cases = vec![
        (bomb, "20000x10000 pixels"),
        (wide, "20000x10000 pixels"),
        (b"GIF89a and more".to_vec(), "begin with 47494638"),
        (Vec::new(), "not an image"),
        (b"\xff\xd8\xff\xd9".to_vec(), "not an image"),
    ];
    for whole in [&whole, &lossless] {
        for length in [whole.len() / 2, whole.len() - 2, 3 * whole.len() / 4] {
            cases.push((whole[..length].to_vec(), "cut off"));
        }
    }
    for mut worker in both() {
        let mut description = of_four("classification");
        description["colour"] = json!("rgb");
        assert_eq!(worker.load("m", &mirror(&[1, 3, 2, 2]), &description)["error"], Value::Null);
        for (data, part) in &cases {
            let answer = worker.ask(detect("m"), data);
            let error = answer["error"].as_str().unwrap_or_default();
            assert!(error.contains(part), "{}: {part}: {answer}", worker.name);
        }
        for whole in [&*whole, &*lossless] {
            let behind = [whole, b"a camera's own words"].concat();
            let answer = worker.ask(detect("m"), &behind);
            assert_eq!(answer["size"], json!([64, 48]), "{}", worker.name);
        }
    }
}

#[test]
fn memory_scenes_and_models_are_as_the_protocol_says() {
    for mut worker in both() {
        assert_eq!(worker.hello["protocol"], 2);
        assert_eq!(worker.hello["memory"], true, "{}", worker.name);
        let words = |answer: Value| answer["error"].as_str().unwrap_or_default().to_owned();
        let placed = |offset: u64, bytes: u64| json!({"type": "detect", "model": "m", "offset": offset, "bytes": bytes, "shape": [2, 2, 1]});
        assert_eq!(
            worker.load("m", &mirror(&[1, 1, 2, 2]), &of_four("classification"))["error"],
            Value::Null
        );
        assert!(words(worker.ask(placed(0, 4), &[])).contains("outside the shared memory"));
        assert!(
            words(worker.ask(json!({"type": "memory", "bytes": 8}), &[]))
                .contains("no descriptor came")
        );
        assert_eq!(
            worker.share(&[0, 0, 0, 0, 1, 2, 3, 4])["error"],
            Value::Null,
            "{}",
            worker.name
        );
        assert_eq!(
            input_of(&worker.ask(placed(4, 4), &[])),
            [1.0, 2.0, 3.0, 4.0],
            "{}",
            worker.name
        );
        for (offset, bytes) in [(5, 4), (u64::from(u32::MAX), 4)] {
            assert!(
                words(worker.ask(placed(offset, bytes), &[])).contains("outside the shared memory")
            );
        }
        let of_scene = json!({"type": "detect", "model": "m", "scene": 3});
        assert!(words(worker.ask(of_scene, &[])).contains("no scene was begun"), "{}", worker.name);
        assert!(
            words(worker.ask(json!({"type": "scene", "source": [0, 5]}), &[])).contains("scene")
        );
        assert!(words(worker.ask(json!({"type": "dance"}), &[])).contains("unknown request"));
        assert!(
            words(worker.ask(json!({"type": "unload", "name": "none"}), &[]))
                .contains("was not loaded")
        );
        assert_eq!(words(worker.ask(json!({"type": "unload", "name": "m"}), &[])), "");
        let error = words(worker.ask(detect("m"), &[]));
        assert!(error.contains("there is no model 'm'"), "{}: {error}", worker.name);
        assert_eq!(worker.close(), Ok(()));
    }
}

#[test]
fn models_of_the_python_worker_are_named_as_such() {
    let Some(mut worker) = both().into_iter().next() else { return };
    assert_eq!(worker.hello["models"], json!([]));
    let error = worker.ask(detect("face"), &[])["error"].as_str().unwrap_or_default().to_owned();
    assert!(error.contains("workers.runtime") && error.contains("face"), "{error}");
    let error =
        worker.ask(json!({"type": "detect"}), &[])["error"].as_str().unwrap_or_default().to_owned();
    assert!(error.contains("no model is loaded"), "{error}");
}

#[test]
fn the_model_that_other_tests_read_is_made_here() {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/testdata/mirror.onnx");
    assert_eq!(std::fs::read(path).unwrap(), mirror(&[0, 1, 2, 2]));
}
