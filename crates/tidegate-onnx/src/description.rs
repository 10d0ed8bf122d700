//! The JSON next to a model, which says what goes into it and what comes out.

use std::{fs::File, io, io::Read as _, path::Path};

use serde_json::{Map, Value};

/// Largest description, in bytes.
const BYTES_MAX: u64 = 1 << 20;
/// Longest side of a model's input, in pixels.
const SIDE_MAX: u64 = 8192;
/// Every field.
const FIELDS: [&str; 18] = [
    "format",
    "width",
    "height",
    "layout",
    "colour",
    "type",
    "scale",
    "mean",
    "std",
    "fit",
    "labels",
    "score_min",
    "iou_max",
    "points",
    "softmax",
    "normalized",
    "top",
    "outputs",
];
const PROVIDERS: &str = "providers";

/// A checked description.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Description {
    pub(crate) format: Format,
    /// Of the input, in pixels, 1 to 8192.
    pub(crate) width: usize,
    pub(crate) height: usize,
    pub(crate) layout: Layout,
    pub(crate) colour: Colour,
    pub(crate) element: Element,
    pub(crate) scale: f64,
    /// One, or one a channel.
    pub(crate) mean: Vec<f64>,
    /// As `mean`; none is zero.
    pub(crate) std: Vec<f64>,
    pub(crate) fit: Fit,
    pub(crate) labels: Vec<String>,
    pub(crate) score_min: f64,
    pub(crate) iou_max: f64,
    pub(crate) points: usize,
    pub(crate) softmax: bool,
    pub(crate) normalized: bool,
    pub(crate) top: usize,
    /// Names of the outputs of boxes, scores and labels, for [`Format::Boxes`].
    pub(crate) outputs: Option<[String; 3]>,
    pub(crate) providers: Vec<String>,
}

macro_rules! words {
    ($($(#[doc = $doc:literal])+ $name:ident { $($variant:ident = $word:literal,)+ })+) => {$(
        $(#[doc = $doc])+
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub(crate) enum $name {
            $($variant,)+
        }

        impl $name {
            const WORDS: &[(&'static str, Self)] = &[$(($word, Self::$variant)),+];
        }
    )+};
}

words! {
    /// The form of a model's output.
    Format {
        Yolo5 = "yolov5",
        Yolo8 = "yolov8",
        End2End = "end2end",
        Boxes = "boxes",
        Yolo8Pose = "yolov8-pose",
        Classification = "classification",
    }
    /// The order of the input's dimensions.
    Layout {
        Nchw = "nchw",
        Nhwc = "nhwc",
    }
    /// The channels of the input.
    Colour {
        Rgb = "rgb",
        Bgr = "bgr",
        Gray = "gray",
    }
    /// The type of the input's values.
    Element {
        Float32 = "float32",
        Float16 = "float16",
        Uint8 = "uint8",
    }
    /// How an image is brought to the input's size.
    Fit {
        Letterbox = "letterbox",
        Stretch = "stretch",
    }
}

impl Format {
    /// Its word.
    pub(crate) fn word(self) -> &'static str {
        let known = Self::WORDS.iter().find(|(_, format)| *format == self);
        known.expect("each format has a word").0
    }
}

impl Description {
    /// Reads the description of that file.
    pub(crate) fn load(path: &Path) -> Result<Self, DescriptionError> {
        let failed = |source| DescriptionError::Read { path: path.display().to_string(), source };
        let file = File::open(path).map_err(failed)?;
        let mut text = String::new();
        let bytes = file.take(BYTES_MAX + 1).read_to_string(&mut text).map_err(failed)?;
        let path = || path.display().to_string();
        if bytes as u64 > BYTES_MAX {
            return Err(DescriptionError::TooLarge { path: path() });
        }
        let value = serde_json::from_str(&text)
            .map_err(|source| DescriptionError::Json { path: path(), source })?;
        Self::of(&value).map_err(|source| DescriptionError::Field { path: path(), source })
    }

    fn of(value: &Value) -> Result<Self, FieldError> {
        let fields = Fields(value.as_object().ok_or(FieldError::NoObject)?);
        let known = |name: &&String| FIELDS.contains(&name.as_str()) || *name == PROVIDERS;
        if let Some(name) = fields.0.keys().find(|name| !known(name)) {
            return Err(FieldError::Unknown { name: name.clone() });
        }
        let format = fields.one_of("format", Format::WORDS, None)?;
        let std = fields.per_channel("std", 1.0)?;
        if std.contains(&0.0) {
            return Err(FieldError::ZeroStd);
        }
        Ok(Self {
            format,
            width: fields.whole("width", SIDE_MAX, None)?,
            height: fields.whole("height", SIDE_MAX, None)?,
            layout: fields.one_of("layout", Layout::WORDS, Some(Layout::Nchw))?,
            colour: fields.one_of("colour", Colour::WORDS, Some(Colour::Rgb))?,
            element: fields.one_of("type", Element::WORDS, Some(Element::Float32))?,
            scale: fields.real("scale", 1.0 / 255.0)?,
            mean: fields.per_channel("mean", 0.0)?,
            std,
            fit: fields.one_of("fit", Fit::WORDS, Some(Fit::Letterbox))?,
            labels: fields.words("labels", 64)?,
            score_min: fields.real("score_min", 0.25)?,
            iou_max: fields.real("iou_max", 0.45)?,
            points: fields.whole("points", 1000, Some(17))?,
            softmax: fields.0.get("softmax") == Some(&Value::Bool(true)),
            normalized: fields.0.get("normalized") == Some(&Value::Bool(true)),
            top: fields.whole("top", 1000, Some(5))?,
            outputs: fields.outputs(format)?,
            providers: fields.words(PROVIDERS, 100)?,
        })
    }

    /// The label of a class.
    pub(crate) fn label(&self, class: i64) -> String {
        let known = usize::try_from(class).ok().and_then(|class| self.labels.get(class));
        known.cloned().unwrap_or_else(|| format!("class {class}"))
    }

    /// How many channels the input has.
    pub(crate) const fn channels(&self) -> usize {
        match self.colour {
            Colour::Gray => 1,
            Colour::Rgb | Colour::Bgr => 3,
        }
    }
}

struct Fields<'a>(&'a Map<String, Value>);

impl Fields<'_> {
    fn wrong(&self, name: &'static str, expected: String) -> FieldError {
        let found = self.0.get(name).map_or_else(|| "missing".to_owned(), Value::to_string);
        FieldError::Value { name, expected, found: found.chars().take(200).collect() }
    }

    fn one_of<T: Copy>(
        &self,
        name: &'static str,
        words: &[(&str, T)],
        usual: Option<T>,
    ) -> Result<T, FieldError> {
        let found = match (self.0.get(name), usual) {
            (None, Some(usual)) => return Ok(usual),
            (found, _) => found.and_then(Value::as_str),
        };
        let known = words.iter().find(|(word, _)| Some(*word) == found);
        known.map(|(_, known)| *known).ok_or_else(|| {
            let words: Vec<&str> = words.iter().map(|(word, _)| *word).collect();
            self.wrong(name, format!("one of {}", words.join(" ")))
        })
    }

    fn whole(
        &self,
        name: &'static str,
        most: u64,
        usual: Option<usize>,
    ) -> Result<usize, FieldError> {
        let found = match (self.0.get(name), usual) {
            (None, Some(usual)) => return Ok(usual),
            (found, _) => found.and_then(Value::as_u64),
        };
        found
            .filter(|value| (1..=most).contains(value))
            .and_then(|value| usize::try_from(value).ok())
            .ok_or_else(|| self.wrong(name, format!("a whole number from 1 to {most}")))
    }

    fn real(&self, name: &'static str, usual: f64) -> Result<f64, FieldError> {
        match self.0.get(name) {
            None => Ok(usual),
            Some(value) => value.as_f64().ok_or_else(|| self.wrong(name, "a number".to_owned())),
        }
    }

    fn per_channel(&self, name: &'static str, usual: f64) -> Result<Vec<f64>, FieldError> {
        let Some(value) = self.0.get(name) else { return Ok(vec![usual]) };
        let numbers = value
            .as_array()
            .and_then(|values| values.iter().map(Value::as_f64).collect::<Option<Vec<_>>>());
        numbers
            .filter(|numbers| matches!(numbers.len(), 1 | 3))
            .ok_or_else(|| self.wrong(name, "a list of one or three numbers".to_owned()))
    }

    fn words(&self, name: &'static str, bytes_max: usize) -> Result<Vec<String>, FieldError> {
        let Some(value) = self.0.get(name) else { return Ok(Vec::new()) };
        let word = |value: &Value| {
            let word = value.as_str().filter(|word| word.len() <= bytes_max);
            word.map(str::to_owned)
        };
        let words = value.as_array().and_then(|values| values.iter().map(word).collect());
        let expected = || format!("a list of texts of at most {bytes_max} bytes");
        words.ok_or_else(|| self.wrong(name, expected()))
    }

    fn outputs(&self, format: Format) -> Result<Option<[String; 3]>, FieldError> {
        let given = match self.0.get("outputs") {
            None => None,
            Some(value) => Some(value.as_object().ok_or(FieldError::Outputs)?),
        };
        let given = given.filter(|given| !given.is_empty());
        match (format, given) {
            (Format::Boxes, Some(given)) if given.len() == 3 => {
                let name = |part: &str| given.get(part).and_then(Value::as_str).map(str::to_owned);
                match ["boxes", "scores", "labels"].map(name) {
                    [Some(boxes), Some(scores), Some(labels)] => Ok(Some([boxes, scores, labels])),
                    _ => Err(FieldError::Outputs),
                }
            }
            (Format::Boxes, _) | (_, Some(_)) => Err(FieldError::Outputs),
            (_, None) => Ok(None),
        }
    }
}

/// Why a description cannot be used.
#[derive(Debug, thiserror::Error)]
pub(crate) enum DescriptionError {
    /// The file cannot be read.
    #[error("{path}, which says what the model takes and gives, cannot be read")]
    Read {
        path: String,
        #[source]
        source: io::Error,
    },
    /// The file is too large.
    #[error("{path} is over the limit of 1 MiB")]
    TooLarge { path: String },
    /// The file is not JSON.
    #[error("{path} is not JSON")]
    Json {
        path: String,
        #[source]
        source: serde_json::Error,
    },
    /// A field is wrong.
    #[error("{path}")]
    Field {
        path: String,
        #[source]
        source: FieldError,
    },
}

/// A fault of a description.
#[derive(Debug, thiserror::Error)]
pub(crate) enum FieldError {
    /// It is a list, a number or the like.
    #[error("the description is not a JSON object")]
    NoObject,
    /// A field that there is not.
    #[error("the description has the unknown field '{name}'; there are: {} {PROVIDERS}", FIELDS.join(" "))]
    Unknown { name: String },
    /// A field of another type or range.
    #[error("{name} must be {expected}, not {found}")]
    Value { name: &'static str, expected: String, found: String },
    /// Values are divided by it.
    #[error("std must not be zero")]
    ZeroStd,
    /// Outputs are missing, or there are some where none are to be named.
    #[error(
        "outputs must name the outputs \"boxes\", \"scores\" and \"labels\" of a model of the format boxes"
    )]
    Outputs,
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_description_has_its_defaults() {
        let least = json!({"format": "yolov8", "width": 640, "height": 480});
        let description = Description::of(&least).unwrap();
        assert_eq!((description.layout, description.colour), (Layout::Nchw, Colour::Rgb));
        assert_eq!((description.element, description.fit), (Element::Float32, Fit::Letterbox));
        assert_eq!(
            (description.width, description.height, description.points, description.top),
            (640, 480, 17, 5)
        );
        assert_eq!(
            (description.score_min, description.iou_max, description.scale),
            (0.25, 0.45, 1.0 / 255.0)
        );
        assert_eq!(
            (description.label(3), description.label(-1)),
            ("class 3".to_owned(), "class -1".to_owned())
        );
        assert_eq!(description.providers, Vec::<String>::new());
    }

    #[test]
    fn fields_that_are_wrong_are_named() {
        let names = json!({"boxes": "b", "scores": "s", "labels": "l"});
        let good = json!({"format": "boxes", "width": 32, "height": 32, "outputs": names});
        let description = Description::of(&good).unwrap();
        assert_eq!(description.outputs, Some(["b", "s", "l"].map(str::to_owned)));
        for (field, value, part) in [
            ("format", json!("yolo"), "format must be one of yolov5"),
            ("width", json!(0), "width must be a whole number from 1 to 8192, not 0"),
            ("width", json!(8193), "width must be"),
            ("width", json!(true), "width must be"),
            ("hight", json!(3), "unknown field 'hight'"),
            ("std", json!([0]), "std must not be zero"),
            ("std", json!([1, 2]), "std must be a list of one or three numbers"),
            ("mean", json!(["a"]), "mean must be a list"),
            ("scale", json!("1"), "scale must be a number"),
            ("labels", json!("cat"), "labels must be a list"),
            ("labels", json!(["x".repeat(65)]), "labels must be a list"),
            ("outputs", json!({"boxes": "b"}), "outputs must name"),
            ("outputs", json!([]), "outputs must name"),
            ("fit", json!("crop"), "fit must be one of letterbox stretch, not \"crop\""),
        ] {
            let mut wrong = good.clone();
            wrong[field] = value;
            let error = Description::of(&wrong).unwrap_err().to_string();
            assert!(error.contains(part), "{field}: {error}");
        }
        let other = json!({"format": "end2end", "width": 1, "height": 1, "outputs": names});
        assert!(matches!(Description::of(&other), Err(FieldError::Outputs)));
        assert!(matches!(Description::of(&json!([])), Err(FieldError::NoObject)));
    }
}
