//! Sections of keys that can be read, shown and compared.

use std::fmt::Write as _;

use tidegate_message::suggest::suggested;

use super::{Config, ConfigError, Origin, layers::Setting};

/// A bound of a key, of the section and the whole configuration: the key, what it says, whether it is kept.
pub(super) type Bound<S> = (&'static str, &'static str, fn(&S, &Config) -> bool);

/// A key with its value as TOML, none if it is not set, and what the template says of it.
pub(super) struct Shown {
    pub(super) key: &'static str,
    pub(super) docs: &'static str,
    pub(super) value: Option<String>,
}

/// A section of the configuration. Made by [`section!`].
pub(super) trait Section: Default + Sized + 'static {
    /// Text of the template about it.
    const DOCS: &'static str;
    /// Its keys, with a space behind each.
    const KEYS: &'static str;
    /// Conditions that must hold, in the order of its keys; of one key the first that does not hold says enough.
    const BOUNDS: &'static [Bound<Self>];

    /// Takes a value from its text; none if there is no such key.
    fn set(&mut self, key: &str, text: &str, origin: &Origin) -> Option<Result<(), String>>;

    /// Each key.
    fn shown(&self) -> Vec<Shown>;

    /// Whether all of its keys are fixed from start to stop.
    const IS_FIXED: bool;

    /// Whether this key is, of a section that is exchanged while a node runs.
    fn is_fixed(key: &str) -> bool;

    /// The keys that are not as in `other`.
    fn differences(&self, other: &Self) -> Vec<&'static str>;
}

/// Whether a mark says that something is fixed from start to stop.
macro_rules! is_fixed {
    () => {
        false
    };
    (fixed) => {
        true
    };
    ($other:ident) => {
        false
    };
}

/// Whether a mark lets a key stand in sections of that kind.
macro_rules! is_for {
    (fixed $kinds:ident $kind:expr;) => {
        true
    };
    (of $kinds:ident $kind:expr; $($of:ident)+) => {
        matches!($kind, $($kinds::$of)|+)
    };
    (not $kinds:ident $kind:expr; $($of:ident)+) => {
        !matches!($kind, $($kinds::$of)|+)
    };
}

/// A key that is set and means nothing for sections of that kind.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Misplaced {
    /// The key.
    pub key: &'static str,
    /// The words of the kinds that it is for.
    pub kinds: Vec<&'static str>,
}

/// The keys of one kind, of a section that has a key for its kind.
macro_rules! kinds {
    // Without a kind no mark may name one: it would hold nothing.
    ($struct:ident [] $([$field:ident $(fixed;)*])+) => {};
    ($struct:ident [$of_kind:ident $kinds:ident] $([$field:ident $($mark:ident $($of:ident)*;)*])+) => {
        impl $struct {
            /// The keys that are not as they are by default.
            pub fn keys_set(&self) -> Vec<&'static str> {
                $crate::table::Section::differences(self, &Self::default())
            }

            /// The keys that are set and are for other kinds, in their order.
            pub fn misplaced(&self) -> Vec<$crate::Misplaced> {
                let is_for = |key: &str, kind: $kinds| match key {
                    $(stringify!($field) => true $(&& is_for!($mark $kinds kind; $($of)*))*,)+
                    _ => true,
                };
                let wrong = self.keys_set().into_iter().filter(|key| !is_for(key, self.$of_kind));
                let misplaced = wrong.map(|key| {
                    let kinds = $kinds::WORDS.iter().filter(|(_, kind)| is_for(key, *kind));
                    $crate::Misplaced { key, kinds: kinds.map(|(word, _)| *word).collect() }
                });
                misplaced.collect()
            }
        }
    };
}

/// A setting that is not as it was.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Difference {
    /// As `section.key`; of what only one configuration has, `section.NAME`.
    pub setting: String,
    /// Whether it is fixed from start to stop, and so takes effect at the next start.
    pub is_fixed: bool,
}

/// A section: its keys, each with its type, its default, `; fixed` where it holds from start to stop, and what must hold of it in the
/// configuration. `: fixed` behind the name of the section stands for all its keys.
///
/// In a section `by KEY: WORDS`, whose kind that key says, `; of A | B` stands behind what is for these kinds alone, and `; not A` behind
/// what is for all others.
macro_rules! section {
    (
        $(#[doc = $section_doc:literal])+
        $struct:ident $(: $whole:ident)? $(by $of_kind:ident: $kinds:ident)? {
            $(
                $(#[doc = $doc:literal])+
                $field:ident: $type:ty = $default:expr $(; $mark:ident $($of:ident)|*)* $(=> $bound:tt if $kept:expr)*,
            )+
        }
    ) => {
        $(#[doc = $section_doc])+
        #[derive(Clone, Debug, PartialEq)]
        pub struct $struct { $($(#[doc = $doc])+ pub $field: $type,)+ }

        impl Default for $struct {
            fn default() -> Self {
                Self { $($field: $default,)+ }
            }
        }

        kinds! { $struct [$($of_kind $kinds)?] $([$field $($mark $($of)*;)*])+ }

        impl $crate::table::Section for $struct {
            const DOCS: &'static str = concat!($("#", $section_doc, "\n",)+);
            const KEYS: &'static str = concat!($(stringify!($field), " "),+);
            const BOUNDS: &'static [$crate::table::Bound<Self>] =
                &[$($((stringify!($field), $bound, $kept),)*)+];
            const IS_FIXED: bool = is_fixed!($($whole)?);

            fn is_fixed(key: &str) -> bool {
                match key {
                    $(stringify!($field) => false $(|| is_fixed!($mark))*,)+
                    _ => false,
                }
            }

            fn set(
                &mut self,
                key: &str,
                text: &str,
                origin: &$crate::Origin,
            ) -> Option<Result<(), String>> {
                Some(match key {
                    $(stringify!($field) => {
                        $crate::value::read_at(text, origin).map(|value| self.$field = value)
                    })+
                    _ => return None,
                })
            }

            fn shown(&self) -> Vec<$crate::table::Shown> {
                vec![$($crate::table::Shown {
                    key: stringify!($field),
                    docs: concat!($("#", $doc, "\n",)+),
                    value: $crate::value::Value::show(&self.$field),
                }),+]
            }

            fn differences(&self, other: &Self) -> Vec<&'static str> {
                let mut found = Vec::new();
                $(
                    if self.$field != other.$field {
                        found.push(stringify!($field));
                    }
                )+
                found
            }
        }
    };
}

/// The sections of a configuration: those that there are once, and those that have names.
macro_rules! config {
    (
        $($section:ident: $struct:ident,)+
        ;
        $($prefix:literal in $map:ident: $named:ident $(with $first:literal)? $(; $mark:ident)?,)+
    ) => {
        /// The checked configuration of a program.
        #[derive(Clone, Debug, PartialEq)]
        pub struct Config {
            $(
                #[doc = concat!("`[", stringify!($section), "]`.")]
                pub $section: $struct,
            )+
            $(
                #[doc = concat!("`[", $prefix, ".NAME]`, by name.")]
                pub $map: BTreeMap<String, $named>,
            )+
            /// Where each setting that is not a default was written, by `section.key`.
            pub origins: Origins,
        }

        impl Default for Config {
            fn default() -> Self {
                Self {
                    $($section: $struct::default(),)+
                    $($map: BTreeMap::from([$(($first.to_owned(), $named::default()))?]),)+
                    origins: Origins::default(),
                }
            }
        }

        impl Config {
            pub(super) fn set(&mut self, setting: Setting) -> Result<(), ConfigError> {
                if setting.key.is_empty() {
                    self.origins.begin(&setting.section, &setting.origin);
                }
                match setting.section.as_str() {
                    $(stringify!($section) => put(&mut self.$section, &setting)?,)+
                    // Sections that only hold others, such as [mqtt.listener].
                    $($prefix if setting.key.is_empty() => {})+
                    _ => match setting.section.rsplit_once('.') {
                        $(Some(($prefix, name)) if !name.is_empty() => {
                            put(self.$map.entry(name.to_owned()).or_default(), &setting)?;
                        })+
                        _ => {
                            let known =
                                concat!($(stringify!($section), " "),+ $(, $prefix, ".NAME ")+).trim_end();
                            let Setting { section, origin, .. } = setting;
                            return Err(ConfigError::UnknownSection { origin, section, known });
                        }
                    },
                }
                if !setting.key.is_empty() {
                    let name = format!("{}.{}", setting.section, setting.key);
                    self.origins.settings.insert(name, setting.origin);
                }
                Ok(())
            }

            /// The settings of `other` that are not as here.
            pub fn differences(&self, other: &Self) -> Vec<Difference> {
                let mut found = Vec::new();
                $(different(stringify!($section), &self.$section, &other.$section, &mut found);)+
                $(
                    let is_fixed = is_fixed!($($mark)?);
                    differ($prefix, is_fixed, &self.$map, &other.$map, &mut found);
                )+
                found
            }

            /// The bounds that are not kept.
            pub(super) fn check(&self) -> Vec<ConfigError> {
                let mut broken = Broken { config: self, wrong: Vec::new(), blamed: Vec::new() };
                $(broken.add(stringify!($section), &self.$section);)+
                $(for (name, named) in &self.$map { broken.add_named($prefix, name, named); })+
                broken.wrong
            }

            /// A file with every setting explained and commented out, for a new site.
            pub fn template() -> String {
                let config = Config::default();
                let mut text = String::from("# Every setting at its default. Take away a `#` to change one.\n");
                $(
                    text.push_str(concat!("\n[", stringify!($section), "]\n"));
                    explain(&mut text, &config.$section, "#");
                )+
                $(
                    let first: Option<&str> = None$(.or(Some($first)))?;
                    let (head, key) = if first.is_some() { ("", "#") } else { ("# ", "# ") };
                    let docs = <$named as Section>::DOCS;
                    text.push_str(&format!("\n{docs}{head}[{}.{}]\n", $prefix, first.unwrap_or("NAME")));
                    explain(&mut text, &$named::default(), key);
                )+
                text
            }
        }

        /// As TOML, with where each setting that is not a default was written.
        impl fmt::Display for Config {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                let mut parts = vec![
                    $(part(self, stringify!($section), stringify!($section), &self.$section)),+
                ];
                $(
                    parts.extend(self.$map.iter().map(|(name, named)| {
                        let head = format!("{}.{}", $prefix, super::value::key(name));
                        part(self, &format!("{}.{name}", $prefix), &head, named)
                    }));
                )+
                f.write_str(&parts.join("\n"))
            }
        }
    };
}

/// Takes one setting of a section.
pub(super) fn put<S: Section>(into: &mut S, setting: &Setting) -> Result<(), ConfigError> {
    let Setting { section, key, text, origin } = setting;
    if key.is_empty() {
        return Ok(());
    }
    let (section, key, origin) = (section.clone(), key.clone(), origin.clone());
    match into.set(&key, text, &origin) {
        Some(Ok(())) => Ok(()),
        Some(Err(problem)) => {
            let problem = suggested(&problem, Some(text));
            Err(ConfigError::Value { origin, key: format!("{section}.{key}"), problem })
        }
        None => {
            let known = S::KEYS.trim_end();
            Err(ConfigError::UnknownKey { origin, section, key, known })
        }
    }
}

/// Adds to `found` in what a section called `name` differs.
pub(super) fn different<S: Section>(name: &str, here: &S, there: &S, found: &mut Vec<Difference>) {
    found.extend(here.differences(there).into_iter().map(|key| Difference {
        setting: format!("{name}.{key}"),
        is_fixed: S::IS_FIXED || S::is_fixed(key),
    }));
}

/// Adds to `found` in what the named sections of two configurations differ; `is_fixed`: whether one that comes or goes does so at the next
/// start.
pub(super) fn differ<S: Section>(
    prefix: &str,
    is_fixed: bool,
    here: &std::collections::BTreeMap<String, S>,
    there: &std::collections::BTreeMap<String, S>,
    found: &mut Vec<Difference>,
) {
    let whole = |name: &String| Difference {
        setting: format!("{prefix}.{name}"),
        is_fixed: is_fixed || S::IS_FIXED,
    };
    for (name, section) in here {
        match there.get(name) {
            Some(other) => different(&format!("{prefix}.{name}"), section, other, found),
            None => found.push(whole(name)),
        }
    }
    found.extend(there.keys().filter(|name| !here.contains_key(*name)).map(whole));
}

/// Each key of a section at its default, explained, behind `comment`.
pub(super) fn explain<S: Section>(text: &mut String, section: &S, comment: &str) {
    for Shown { key, docs, value } in section.shown() {
        let value = value.unwrap_or_else(|| "\"\"".to_owned());
        text.push_str(docs);
        text.push_str(&format!("{comment}{key} = {value}\n"));
    }
}

/// A section as TOML, with `head` in brackets; `name` is what its settings are known by.
pub(super) fn part<S: Section>(config: &Config, name: &str, head: &str, section: &S) -> String {
    let mut text = format!("[{head}]\n");
    for Shown { key, value, .. } in section.shown() {
        let line = match value {
            Some(value) => format!("{key} = {value}"),
            None => format!("# {key} is not set"),
        };
        let origin = config.origins.of(&format!("{name}.{key}"));
        let origin = origin.map(|origin| format!(" # {origin}")).unwrap_or_default();
        writeln!(text, "{line}{origin}").expect("a string takes all");
    }
    text
}

/// Gathers the bounds that are not kept.
pub(super) struct Broken<'c> {
    pub(super) config: &'c Config,
    pub(super) wrong: Vec<ConfigError>,
    pub(super) blamed: Vec<String>,
}

impl Broken<'_> {
    pub(super) fn add<S: Section>(&mut self, name: &str, section: &S) {
        for (key, bound, kept) in S::BOUNDS {
            let key = format!("{name}.{key}");
            // The first bound of a setting says enough, and of one that goes by the size of frames nothing is known while that is wrong.
            let says_enough = self.blamed.contains(&key)
                || (name == "log" && self.blamed.iter().any(|key| key == "frames.frame_bytes_max"));
            if !says_enough && !kept(section, self.config) {
                let origin = self.config.origins.of(&key).cloned();
                self.blamed.push(key.clone());
                self.wrong.push(ConfigError::Bound { origin, key, bound });
            }
        }
    }

    pub(super) fn add_named<S: Section>(&mut self, prefix: &str, name: &str, section: &S) {
        let section_name = format!("{prefix}.{name}");
        for (key, bound, kept) in S::BOUNDS {
            if !kept(section, self.config) {
                let origins = &self.config.origins;
                let origin = origins.of(&format!("{section_name}.{key}")).cloned();
                let origin = origin.or_else(|| origins.section(&section_name));
                self.wrong.push(ConfigError::Bound { origin, key: (*key).to_owned(), bound });
            }
        }
    }
}
