//! The outputs of a model, and what they mean.

use crate::{
    description::{Description, Fit, Format},
    image::Size,
    resample::letterbox,
};

/// Boxes that are compared with each other, and boxes that are kept.
const CANDIDATES_MAX: usize = 2000;
const FOUND_MAX: usize = 300;

/// Values of an output, row-major.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Array {
    pub(crate) shape: Vec<usize>,
    pub(crate) values: Vec<f64>,
}

/// The findings in one image.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Found {
    /// Left, top, right, bottom, score and label of each.
    pub(crate) boxes: Vec<([f64; 5], String)>,
    pub(crate) classes: Vec<(f64, String)>,
    /// Each as its points: x, y, score. As many as boxes, for a model of poses.
    pub(crate) poses: Vec<Vec<[f64; 3]>>,
}

impl Found {
    /// Whether JSON has a form for each of its numbers.
    pub(crate) fn is_finite(&self) -> bool {
        let boxes = self.boxes.iter().flat_map(|(numbers, _)| numbers);
        let points = self.poses.iter().flatten().flatten();
        boxes
            .chain(points)
            .chain(self.classes.iter().map(|(score, _)| score))
            .all(|n| n.is_finite())
    }
}

impl Array {
    /// The part of one image of a batch of `images`, whose dimension is the first.
    pub(crate) fn of_image(&self, image: usize, images: usize) -> Self {
        let count = self.values.len() / images;
        let values = self.values[image * count..][..count].to_vec();
        Self { shape: self.shape[1..].to_vec(), values }
    }

    fn side(&self, at: usize) -> usize {
        self.shape.get(at).copied().unwrap_or(0)
    }
}

/// An output of another shape than its format has.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "the model {model} returned {} values; its format {} needs {wanted}",
    .shape.iter().map(ToString::to_string).collect::<Vec<_>>().join("x"), .format.word()
)]
pub(crate) struct ShapeError {
    pub(crate) model: String,
    pub(crate) shape: Vec<usize>,
    pub(crate) format: Format,
    pub(crate) wanted: String,
}

/// How many dimensions each output that is read has, that of the batch included.
pub(crate) const fn ranks(format: Format) -> &'static [usize] {
    match format {
        Format::Boxes => &[3, 2, 2],
        Format::Classification => &[2],
        _ => &[3],
    }
}

/// A description with the name of its model, for errors.
#[derive(Clone, Copy)]
pub(crate) struct Reader<'a> {
    pub(crate) model: &'a str,
    pub(crate) description: &'a Description,
}

/// Boxes before any is dropped, the corners in pixels of the model's input.
struct Candidates<'a> {
    corners: Vec<[f64; 4]>,
    scores: Vec<f64>,
    classes: Vec<i64>,
    /// The points of each, by its number.
    points: Option<&'a dyn Fn(usize) -> Vec<[f64; 3]>>,
}

impl Reader<'_> {
    pub(crate) fn wrong(&self, shape: &[usize], wanted: impl Into<String>) -> ShapeError {
        let (model, shape) = (self.model.to_owned(), shape.to_vec());
        ShapeError { model, shape, format: self.description.format, wanted: wanted.into() }
    }

    /// The findings in an image, by the outputs for it; boxes in pixels of `source`.
    pub(crate) fn found(&self, outputs: &[Array], source: Size) -> Result<Found, ShapeError> {
        match self.description.format {
            Format::Classification => self.classes(&outputs[0]),
            Format::Boxes => self.named(outputs, source),
            Format::End2End => self.end_to_end(&outputs[0], source),
            Format::Yolo5 | Format::Yolo8 | Format::Yolo8Pose => self.yolo(&outputs[0], source),
        }
    }

    fn classes(&self, output: &Array) -> Result<Found, ShapeError> {
        let description = self.description;
        let mut values = output.values.clone();
        if !description.labels.is_empty() && values.len() != description.labels.len() {
            let wanted = format!("{} values, one for each label", description.labels.len());
            return Err(self.wrong(&[values.len()], wanted));
        }
        if description.softmax {
            let most = values.iter().copied().fold(f64::NEG_INFINITY, f64::max);
            values.iter_mut().for_each(|value| *value = (*value - most).exp());
            let sum: f64 = values.iter().sum();
            values.iter_mut().for_each(|value| *value /= sum);
        }
        let best = descending(&values, (0..values.len()).collect());
        let class = |at: &usize| (rounded(values[*at], 1e6), description.label(*at as i64));
        Ok(Found {
            classes: best.iter().take(description.top).map(class).collect(),
            ..Found::default()
        })
    }

    fn named(&self, outputs: &[Array], source: Size) -> Result<Found, ShapeError> {
        let [corners, scores, classes] = outputs else {
            return Err(self.wrong(&[outputs.len()], "three outputs"));
        };
        if corners.shape.len() != 2 || corners.shape[1] != 4 {
            return Err(self.wrong(&corners.shape, "boxes of Nx4 and N scores and labels"));
        }
        if scores.shape != corners.shape[..1] || classes.shape != corners.shape[..1] {
            return Err(self.wrong(&scores.shape, "as many scores and labels as boxes"));
        }
        let description = self.description;
        let [wide, high] = match description.normalized {
            true => [description.width as f64, description.height as f64],
            false => [1.0; 2],
        };
        let corners = corners.values.chunks_exact(4);
        let corners =
            corners.map(|c| [c[0] * wide, c[1] * high, c[2] * wide, c[3] * high]).collect();
        let classes = classes.values.iter().map(|class| *class as i64).collect();
        let scores = scores.values.clone();
        Ok(self.boxes(&Candidates { corners, scores, classes, points: None }, source))
    }

    fn end_to_end(&self, output: &Array, source: Size) -> Result<Found, ShapeError> {
        self.two_dimensions(output)?;
        if output.shape[1] != 6 {
            return Err(self.wrong(&output.shape, "Nx6: corners, score, class"));
        }
        let rows = || output.values.chunks_exact(6);
        let corners = rows().map(|row| [row[0], row[1], row[2], row[3]]).collect();
        let scores = rows().map(|row| row[4]).collect();
        let classes = rows().map(|row| row[5] as i64).collect();
        Ok(self.boxes(&Candidates { corners, scores, classes, points: None }, source))
    }

    fn two_dimensions(&self, output: &Array) -> Result<(), ShapeError> {
        match output.shape.len() {
            2 => Ok(()),
            _ => Err(self.wrong(&output.shape, "two dimensions for each image")),
        }
    }

    fn yolo(&self, output: &Array, source: Size) -> Result<Found, ShapeError> {
        self.two_dimensions(output)?;
        let description = self.description;
        let by_row = description.format == Format::Yolo5;
        let (rows, columns) = match by_row {
            true => (output.side(0), output.side(1)),
            false => (output.side(1), output.side(0)),
        };
        let is_pose = description.format == Format::Yolo8Pose;
        let before = if description.format == Format::Yolo8 { 4 } else { 5 };
        let count = match (is_pose, description.labels.len()) {
            (true, _) => 3 * description.points,
            (false, 0) => columns.saturating_sub(before),
            (false, labels) => labels,
        };
        if count < 1 || columns != before + count {
            let values = before + count;
            let wanted =
                if by_row { format!("Nx{values} values") } else { format!("{values}xN values") };
            return Err(self.wrong(&output.shape, wanted));
        }
        let value = |row: usize, column: usize| match by_row {
            true => output.values[row * columns + column],
            false => output.values[column * rows + row],
        };
        let corners = |row| {
            let [x, y, half_width, half_height] =
                [value(row, 0), value(row, 1), value(row, 2) / 2.0, value(row, 3) / 2.0];
            [x - half_width, y - half_height, x + half_width, y + half_height]
        };
        let best = |row| {
            let sure = if by_row { value(row, 4) } else { 1.0 };
            let first = (value(row, before) * sure, 0);
            (1..count).fold(first, |best, class| {
                let score = value(row, before + class) * sure;
                if score > best.0 { (score, class as i64) } else { best }
            })
        };
        let points = |row: usize| {
            let point = |at| [5, 6, 7].map(|part| value(row, 3 * at + part));
            (0..description.points).map(point).collect()
        };
        let scores = match is_pose {
            true => (0..rows).map(|row| (value(row, 4), 0)).collect::<Vec<_>>(),
            false => (0..rows).map(best).collect(),
        };
        let (scores, classes) = scores.into_iter().unzip();
        let corners = (0..rows).map(corners).collect();
        let points: &dyn Fn(usize) -> Vec<[f64; 3]> = &points;
        let points = is_pose.then_some(points);
        Ok(self.boxes(&Candidates { corners, scores, classes, points }, source))
    }

    fn boxes(&self, candidates: &Candidates<'_>, source: Size) -> Found {
        let description = self.description;
        let scores = &candidates.scores;
        let sure = (0..scores.len()).filter(|at| scores[*at] >= description.score_min).collect();
        let mut kept = descending(scores, sure);
        kept.truncate(CANDIDATES_MAX);
        if description.format != Format::End2End {
            kept = suppressed(candidates, &kept, description.iou_max);
        }
        kept.truncate(FOUND_MAX);
        let to_source = ToSource::new(description, source);
        let most = [source.width as f64, source.height as f64];
        let mut found = Found::default();
        for at in kept {
            let [left, top, right, bottom] = candidates.corners[at];
            let clipped = |[x, y]: [f64; 2]| {
                let [x, y] = to_source.point([x, y]);
                [x.clamp(0.0, most[0]), y.clamp(0.0, most[1])].map(|side| rounded(side, 1e2))
            };
            let ([x1, y1], [x2, y2]) = (clipped([left, top]), clipped([right, bottom]));
            // A box without area shows nothing.
            if !(x1 < x2 && y1 < y2) {
                continue;
            }
            let is_person = description.labels.is_empty() && candidates.points.is_some();
            let label = if is_person {
                "person".to_owned()
            } else {
                description.label(candidates.classes[at])
            };
            found.boxes.push(([x1, y1, x2, y2, rounded(scores[at], 1e4)], label));
            if let Some(points) = candidates.points {
                let point = |[x, y, score]: [f64; 3]| {
                    let [x, y] = to_source.point([x, y]);
                    [rounded(x, 1e2), rounded(y, 1e2), rounded(score, 1e4)]
                };
                found.poses.push(points(at).into_iter().map(point).collect());
            }
        }
        found
    }
}

/// From pixels of the model's input to those of the source.
struct ToSource {
    scale: [f64; 2],
    begin: [f64; 2],
}

impl ToSource {
    fn new(description: &Description, source: Size) -> Self {
        let input = Size { width: description.width, height: description.height };
        match description.fit {
            Fit::Stretch => Self {
                scale: [
                    source.width as f64 / input.width as f64,
                    source.height as f64 / input.height as f64,
                ],
                begin: [0.0; 2],
            },
            Fit::Letterbox => {
                let (scale, left, top) = letterbox(source, input);
                Self { scale: [1.0 / scale; 2], begin: [left, top] }
            }
        }
    }

    fn point(&self, [x, y]: [f64; 2]) -> [f64; 2] {
        [(x - self.begin[0]) * self.scale[0], (y - self.begin[1]) * self.scale[1]]
    }
}

/// These numbers of values, the largest value first; equal ones stay in order.
fn descending(values: &[f64], mut numbers: Vec<usize>) -> Vec<usize> {
    numbers.sort_by(|one, other| values[*other].total_cmp(&values[*one]));
    numbers
}

/// Those boxes, of the best first, of which none overlaps a better one of its class by more than `iou_max`.
fn suppressed(candidates: &Candidates<'_>, sorted: &[usize], iou_max: f64) -> Vec<usize> {
    let (corners, classes) = (&candidates.corners, &candidates.classes);
    let area =
        |[left, top, right, bottom]: [f64; 4]| (right - left).max(0.0) * (bottom - top).max(0.0);
    let mut kept: Vec<usize> = Vec::new();
    for &at in sorted {
        let (box_, class) = (corners[at], classes[at]);
        let overlaps = kept.iter().any(|better| {
            let other = corners[*better];
            let shared = area([
                box_[0].max(other[0]),
                box_[1].max(other[1]),
                box_[2].min(other[2]),
                box_[3].min(other[3]),
            ]);
            let union = (area(box_) + area(other) - shared).max(1e-9);
            classes[*better] == class && shared / union > iou_max
        });
        if !overlaps {
            kept.push(at);
        }
        if kept.len() == FOUND_MAX {
            break;
        }
    }
    kept
}

/// `value` in whole parts, `parts` of which make one.
fn rounded(value: f64, parts: f64) -> f64 {
    (value * parts).round_ties_even() / parts
}
