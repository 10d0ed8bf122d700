//! All that is wrong with a configuration, gone through to the end, each mistake with its place.

use std::fmt;

use tidegate_api::ApiError;
use tidegate_message::{Code, suggest::suggested};

use super::{Config, Origin};

/// The purpose of reading a configuration.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Purpose {
    /// To run by it: numbers and keys that the data folder keeps from the first start on are made where they are missing.
    Run,
    /// To look whether a start would take it: nothing is written.
    Check,
}

/// One mistake.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Problem {
    /// The stable code of its kind.
    pub code: Code,
    /// Where it was written; none where a default does not hold.
    pub place: Option<Origin>,
    /// The problem, and the way out.
    pub text: String,
}

impl Problem {
    /// A problem by its `text`; if it begins with a file and a line, that is the place.
    pub(super) fn new(code: Code, text: &str) -> Self {
        let placed = text.split_once(": ").and_then(|(place, rest)| {
            let (path, line) = place.rsplit_once(':')?;
            let line = line.parse().ok().filter(|_| !path.is_empty())?;
            Some((Origin::File { path: path.into(), line }, rest))
        });
        let (place, text) = placed.map_or((None, text), |(place, rest)| (Some(place), rest));
        Self { code, place, text: suggested(text, None) }
    }
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.place {
            Some(place) => write!(f, "{place}: {}", self.text),
            None => f.write_str(&self.text),
        }
    }
}

/// Mistakes, in the order in which they were found; printed a line each.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Problems(Vec<Problem>);

impl Problems {
    /// Notes a mistake, or all that it is made of.
    pub fn note(&mut self, error: ApiError) {
        let several =
            std::error::Error::source(&error).and_then(|cause| cause.downcast_ref::<Self>());
        match several {
            Some(several) => self.add(several.clone()),
            None => self.say(error.code(), error.chain()),
        }
    }

    /// Notes a mistake whose text names its place, or the setting in question.
    pub fn say(&mut self, code: Code, text: impl Into<String>) {
        // Several parts may go by one setting.
        self.add(Self(vec![Problem::new(code, &text.into())]));
    }

    /// The value, if it is right; else its mistake is recorded.
    pub fn take<T>(&mut self, result: Result<T, ApiError>) -> Option<T> {
        result.map_err(|error| self.note(error)).ok()
    }

    /// All that is right of them; the mistakes of the others are noted.
    pub fn take_all<T>(
        &mut self,
        results: impl IntoIterator<Item = Result<T, ApiError>>,
    ) -> Vec<T> {
        results.into_iter().filter_map(|result| self.take(result)).collect()
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Each of them.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = &Problem> {
        self.0.iter()
    }

    /// Says of each that does not name its place where the setting was written that it names.
    #[must_use]
    pub fn placed(mut self, config: &Config) -> Self {
        for problem in &mut self.0 {
            if problem.place.is_none() {
                problem.place = config.origins.named_in(&problem.text).cloned();
            }
        }
        self
    }

    /// Adds those of `others` that are not among these.
    pub fn add(&mut self, others: Self) {
        for problem in others.0 {
            if !self.0.contains(&problem) {
                self.0.push(problem);
            }
        }
    }

    /// Fails if there is one: with that one, or with all of them as its cause.
    ///
    /// # Errors
    /// With the code of the first.
    pub fn into_result(mut self) -> Result<(), ApiError> {
        match self.0.len() {
            0 => Ok(()),
            1 => {
                let Problem { code, text, .. } = self.0.remove(0);
                Err(ApiError::new(code, text))
            }
            _ => self.refuse(),
        }
    }

    /// Fails if there is one, and says that it is the configuration which is wrong.
    ///
    /// # Errors
    /// With the code of the first, caused by all of them.
    pub fn refuse(self) -> Result<(), ApiError> {
        let Some(first) = self.0.first() else { return Ok(()) };
        let text = match self.0.len() {
            1 => "the configuration is wrong".to_owned(),
            count => format!("the configuration has {count} mistakes"),
        };
        Err(ApiError::new(first.code, text).caused_by(self))
    }
}

impl fmt::Display for Problems {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (place, problem) in self.0.iter().enumerate() {
            write!(f, "{}{problem}", if place == 0 { "" } else { "\n" })?;
        }
        Ok(())
    }
}

impl std::error::Error for Problems {}

impl From<Vec<Problem>> for Problems {
    fn from(problems: Vec<Problem>) -> Self {
        Self(problems)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mistakes_are_kept_apart_and_each_is_said_once() {
        let mut all = Problems::default();
        all.note(ApiError::new(Code::CONFIG_INVALID, "one").caused_by("for a reason"));
        let mut inner = Problems::default();
        inner.say(Code::CONFIG_INVALID, "two");
        inner.say(Code::CONFIG_INVALID, "three");
        all.note(inner.clone().into_result().unwrap_err());
        all.add(inner);
        all.say(Code::CONFIG_INVALID, "a/b:7: four");
        let placed = all.0.pop().expect("it was said");
        assert_eq!(placed.place, Some(Origin::File { path: "a/b".into(), line: 7 }));
        assert_eq!((&*placed.text, &*placed.to_string()), ("four", "a/b:7: four"));
        assert_eq!(all.to_string(), "one: for a reason\ntwo\nthree");
        let error = all.refuse().unwrap_err();
        assert_eq!(error.message(), "the configuration has 3 mistakes");
        assert!(Problems::default().into_result().is_ok());
    }
}
