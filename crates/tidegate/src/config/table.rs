//! From a list of sections to structs that can be read, shown and compared.

macro_rules! config {
    ($(
        $(#[doc = $section_doc:literal])*
        $section:ident: $struct:ident {
            $($(#[doc = $doc:literal])* $field:ident: $type:ty = $default:expr,)+
        }
    )+
    ;
    $(
        $(#[doc = $named_doc:literal])*
        $prefix:literal in $map:ident: $named:ident $(with $first:literal)? {
            $($(#[doc = $named_field_doc:literal])* $named_field:ident: $named_type:ty = $named_default:expr,)+
        }
    )*) => {
        /// The checked configuration of a program.
        #[derive(Clone, Debug, PartialEq)]
        pub struct Config {
            $($(#[doc = $section_doc])* pub $section: $struct,)+
            $($(#[doc = $named_doc])* pub $map: BTreeMap<String, $named>,)*
            /// Where each setting that is not a default was written, by `section.key`.
            pub origins: Origins,
        }

        impl Default for Config {
            fn default() -> Self {
                Self {
                    $($section: $struct::default(),)+
                    $($map: BTreeMap::from([$(($first.to_owned(), $named::default()))?]),)*
                    origins: Origins::default(),
                }
            }
        }

        $(
            $(#[doc = $named_doc])*
            #[derive(Clone, Debug, PartialEq)]
            pub struct $named { $($(#[doc = $named_field_doc])* pub $named_field: $named_type,)+ }

            impl Default for $named {
                fn default() -> Self {
                    Self { $($named_field: $named_default,)+ }
                }
            }
        )*

        $(
            $(#[doc = $section_doc])*
            #[derive(Clone, Debug, PartialEq)]
            pub struct $struct { $($(#[doc = $doc])* pub $field: $type,)+ }

            impl Default for $struct {
                fn default() -> Self {
                    Self { $($field: $default,)+ }
                }
            }
        )+

        impl Config {
            pub(super) fn set(&mut self, setting: Setting) -> Result<(), ConfigError> {
                let Setting { section, key, text, origin } = setting;
                if key.is_empty() {
                    self.origins.begin(&section, &origin);
                }
                let wrong = |section: &str, key: &str, origin: Origin, problem: String| ConfigError::Value {
                    origin,
                    key: format!("{section}.{key}"),
                    problem: suggested(&problem, Some(&text)),
                };
                match section.as_str() {
                    $(stringify!($section) => {
                        match key.as_str() {
                            "" => return Ok(()),
                            $(stringify!($field) => match read_at(&text, &origin) {
                                Ok(value) => self.$section.$field = value,
                                Err(problem) => return Err(wrong(&section, &key, origin, problem)),
                            },)+
                            _ => {
                                let known = concat!($(stringify!($field), " "),+).trim_end();
                                return Err(ConfigError::UnknownKey { origin, section, key, known });
                            }
                        }
                    })+
                    // Sections that only hold others, such as [mqtt.listener].
                    $($prefix if key.is_empty() => return Ok(()),)*
                    _ => {
                        let (prefix, name) = section.rsplit_once('.').unwrap_or((&section, ""));
                        match prefix {
                            $($prefix if !name.is_empty() => {
                                let named = self.$map.entry(name.to_owned()).or_default();
                                match key.as_str() {
                                    "" => return Ok(()),
                                    $(stringify!($named_field) => match read_at(&text, &origin) {
                                        Ok(value) => named.$named_field = value,
                                        Err(problem) => return Err(wrong(&section, &key, origin, problem)),
                                    },)+
                                    _ => {
                                        let known = concat!($(stringify!($named_field), " "),+).trim_end();
                                        return Err(ConfigError::UnknownKey { origin, section, key, known });
                                    }
                                }
                            })*
                            _ => {
                                let known = concat!($(stringify!($section), " "),+ $(, $prefix, ".NAME ")*).trim_end();
                                return Err(ConfigError::UnknownSection { origin, section, known });
                            }
                        }
                    }
                }
                self.origins.settings.insert(format!("{section}.{key}"), origin);
                Ok(())
            }
        }

        impl Config {
            /// The settings of `other` that are not as here, as `section.key`; of what only one has, `section.NAME`.
            pub fn differences(&self, other: &Self) -> Vec<String> {
                let mut found = Vec::new();
                $($(
                    if self.$section.$field != other.$section.$field {
                        found.push(concat!(stringify!($section), ".", stringify!($field)).to_owned());
                    }
                )+)+
                $(
                    for (name, here) in &self.$map {
                        let Some(there) = other.$map.get(name) else {
                            found.push(format!("{}.{name}", $prefix));
                            continue;
                        };
                        $(
                            if here.$named_field != there.$named_field {
                                found.push(format!("{}.{name}.{}", $prefix, stringify!($named_field)));
                            }
                        )+
                    }
                    let is_new = |name: &&String| !self.$map.contains_key(*name);
                    found.extend(other.$map.keys().filter(is_new).map(|name| format!("{}.{name}", $prefix)));
                )*
                found
            }

            /// A file with every setting explained and commented out, for a new site.
            pub fn template() -> String {
                let config = Config::default();
                let mut text = String::from("# Every setting at its default. Take away a `#` to change one.\n");
                $(
                    text.push_str(concat!("\n[", stringify!($section), "]\n"));
                    $(
                        text.push_str(concat!($("#", $doc, "\n",)*));
                        let value = Value::show(&config.$section.$field).unwrap_or_else(|| "\"\"".to_owned());
                        text.push_str(&format!("#{} = {value}\n", stringify!($field)));
                    )+
                )+
                $(
                    let first: Option<&str> = None$(.or(Some($first)))?;
                    let comment = if first.is_some() { "" } else { "# " };
                    let name = first.unwrap_or("NAME");
                    let docs = concat!($("#", $named_doc, "\n",)*);
                    text.push_str(&format!("\n{docs}{comment}[{}.{name}]\n", $prefix));
                    let named = $named::default();
                    $(
                        text.push_str(concat!($("#", $named_field_doc, "\n",)*));
                        let value = Value::show(&named.$named_field).unwrap_or_else(|| "\"\"".to_owned());
                        text.push_str(&format!("{}{} = {value}\n", if first.is_some() { "#" } else { "# " }, stringify!($named_field)));
                    )+
                )*
                text
            }
        }

        /// As TOML, with where each setting that is not a default was written.
        impl fmt::Display for Config {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                let mut separator = "";
                $(
                    writeln!(f, "{separator}[{}]", stringify!($section))?;
                    separator = "\n";
                    $(
                        match Value::show(&self.$section.$field) {
                            Some(text) => write!(f, "{} = {text}", stringify!($field))?,
                            None => write!(f, "# {} is not set", stringify!($field))?,
                        }
                        let name = concat!(stringify!($section), ".", stringify!($field));
                        match self.origins.of(name) {
                            Some(origin) => writeln!(f, " # {origin}")?,
                            None => writeln!(f)?,
                        }
                    )+
                )+
                $(
                    for (name, named) in &self.$map {
                        let section = format!("{}.{name}", $prefix);
                        writeln!(f, "{separator}[{}.{}]", $prefix, super::value::key(name))?;
                        $(
                            match Value::show(&named.$named_field) {
                                Some(text) => write!(f, "{} = {text}", stringify!($named_field))?,
                                None => write!(f, "# {} is not set", stringify!($named_field))?,
                            }
                            match self.origins.of(&format!("{section}.{}", stringify!($named_field))) {
                                Some(origin) => writeln!(f, " # {origin}")?,
                                None => writeln!(f)?,
                            }
                        )+
                    }
                )*
                let _ = separator;
                Ok(())
            }
        }
    };
}
