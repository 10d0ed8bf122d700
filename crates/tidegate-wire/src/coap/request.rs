//! A request, read from its code and options (RFC 7252 section 5).

use tidegate_message::{TopicError, check_topic_name};

use super::{
    Block, BlockError, Code, ContentFormat, Message, OptionNumber, ServerConfig, option::uint,
};

/// A method that is understood.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Method {
    /// Asks for a value.
    Get,
    /// Gives a value.
    Post,
    /// Gives a value.
    Put,
}

impl Method {
    /// Its code.
    pub fn code(self) -> Code {
        match self {
            Self::Get => Code::GET,
            Self::Post => Code::POST,
            Self::Put => Code::PUT,
        }
    }
}

/// A request whose options are all understood.
#[derive(Debug)]
pub(super) struct Request {
    pub(super) method: Method,
    /// The levels of Uri-Path with `/` between them: a topic name, but for [`DISCOVERY`].
    pub(super) path: String,
    /// The values of Uri-Query with `&` between them.
    pub(super) query: String,
    pub(super) content_format: Option<ContentFormat>,
    pub(super) accept: Option<ContentFormat>,
    /// Whether to begin or to end following; none if nothing is said.
    pub(super) observe: Option<bool>,
    pub(super) block1: Option<Block>,
    pub(super) block2: Option<Block>,
    pub(super) size1: Option<u32>,
    /// Classes of responses that are not wanted, a bit each (RFC 7967).
    pub(super) no_response: u8,
}

/// The path that lists what there is (RFC 6690).
pub(super) const DISCOVERY: &str = ".well-known/core";
/// Most bytes of all queries together.
const QUERY_BYTES_MAX: usize = 1024;

impl Request {
    pub(super) fn parse(
        message: &Message<'_>,
        config: &ServerConfig,
    ) -> Result<Self, RequestError> {
        let method = match message.code {
            Code::GET => Method::Get,
            Code::POST => Method::Post,
            Code::PUT => Method::Put,
            code => return Err(RequestError::Method { code }),
        };
        let mut request = Self {
            method,
            // Most often the path is most of the options.
            path: String::with_capacity(message.options.as_bytes().len().min(64)),
            query: String::new(),
            content_format: None,
            accept: None,
            observe: None,
            block1: None,
            block2: None,
            size1: None,
            no_response: 0,
        };
        let (mut last, mut levels) = (None, 0);
        for (number, value) in message.options.iter() {
            let is_repeated = last.replace(number) == Some(number);
            let fits = number.definition().is_some_and(|definition| {
                (definition.bytes_min..=definition.bytes_max).contains(&value.len())
                    && (definition.is_repeatable || !is_repeated)
            });
            // Of a wrong length or once too often it counts as not known (sections 5.4.3 and 5.4.5).
            let is_known = fits && request.take(number, value, &mut levels, config)?;
            if !is_known && number.is_critical() {
                return Err(RequestError::Option { number });
            }
        }
        if request.path != DISCOVERY {
            if request.path.split('/').next() == Some(".well-known") {
                return Err(RequestError::WellKnown);
            }
            check_topic_name(&request.path, config.path_levels_max)?;
        }
        Ok(request)
    }

    /// Takes an option that is as its definition says; returns whether it means something here.
    fn take(
        &mut self,
        number: OptionNumber,
        value: &[u8],
        levels: &mut usize,
        config: &ServerConfig,
    ) -> Result<bool, RequestError> {
        let amount = uint(value).unwrap_or(0);
        let is_get = self.method == Method::Get;
        match number {
            OptionNumber::URI_PATH => {
                let bytes_max = config.path_bytes_max;
                if self.path.len() + value.len() + 1 > bytes_max {
                    return Err(RequestError::PathTooLong { bytes_max });
                }
                let level = str::from_utf8(value).map_err(|_| RequestError::PathLevel)?;
                if level.contains('/') || level == "." || level == ".." {
                    return Err(RequestError::PathLevel);
                }
                if *levels > 0 {
                    self.path.push('/');
                }
                self.path.push_str(level);
                *levels += 1;
            }
            OptionNumber::URI_QUERY => {
                let text = str::from_utf8(value).map_err(|_| RequestError::Query)?;
                if self.query.len() + text.len() + 1 > QUERY_BYTES_MAX {
                    return Err(RequestError::Query);
                }
                if !self.query.is_empty() {
                    self.query.push('&');
                }
                self.query.push_str(text);
            }
            // One host and one port are served, whatever they are called.
            OptionNumber::URI_HOST | OptionNumber::URI_PORT => {}
            OptionNumber::PROXY_URI | OptionNumber::PROXY_SCHEME => {
                return Err(RequestError::Proxy);
            }
            OptionNumber::CONTENT_FORMAT => self.content_format = Some(format(amount)),
            OptionNumber::ACCEPT => self.accept = Some(format(amount)),
            OptionNumber::OBSERVE if is_get => {
                self.observe = match amount {
                    0 => Some(true),
                    1 => Some(false),
                    _ => None,
                };
            }
            OptionNumber::BLOCK1 if !is_get => self.block1 = Some(Block::from_value(amount)?),
            OptionNumber::BLOCK2 => self.block2 = Some(Block::from_value(amount)?),
            OptionNumber::SIZE1 => self.size1 = Some(amount),
            OptionNumber::NO_RESPONSE => self.no_response = amount as u8,
            _ => return Ok(false),
        }
        Ok(true)
    }
}

fn format(value: u32) -> ContentFormat {
    ContentFormat(u16::try_from(value).expect("its value has at most two bytes"))
}

/// Why a message that decodes is no request that can be served.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RequestError {
    /// The method is not served.
    #[error("method {code} is not served; GET, POST and PUT are (RFC 7252, 5.8)")]
    Method {
        /// Its code.
        code: Code,
    },
    /// A critical option is not known, or is not as it is defined.
    #[error("critical option {} is not understood (RFC 7252, 5.4.1)", .number.0)]
    Option {
        /// The option.
        number: OptionNumber,
    },
    /// The request is for a proxy.
    #[error("this is not a proxy (RFC 7252, 5.7)")]
    Proxy,
    /// The path is too long.
    #[error("path has more than {bytes_max} bytes")]
    PathTooLong {
        /// The limit.
        bytes_max: usize,
    },
    /// A level of the path is not UTF-8, has a slash, or is `.` or `..`.
    #[error("a level of the path is not UTF-8, has a slash, or is . or .. (RFC 7252, 5.10.1)")]
    PathLevel,
    /// The path is no topic name.
    #[error("the path is not a topic")]
    Topic(#[from] TopicError),
    /// A path below `.well-known` that there is not.
    #[error("/{DISCOVERY} is the only resource below /.well-known")]
    WellKnown,
    /// The query is not UTF-8 or too long.
    #[error("the query is not UTF-8 or has more than {QUERY_BYTES_MAX} bytes")]
    Query,
    /// A block's size is reserved.
    #[error(transparent)]
    Block(#[from] BlockError),
}

impl RequestError {
    /// The code of the answer.
    pub fn code(&self) -> Code {
        match self {
            Self::Method { .. } => Code::METHOD_NOT_ALLOWED,
            Self::Option { .. } => Code::BAD_OPTION,
            Self::Proxy => Code::PROXYING_NOT_SUPPORTED,
            Self::WellKnown => Code::NOT_FOUND,
            Self::PathTooLong { .. }
            | Self::PathLevel
            | Self::Topic(_)
            | Self::Query
            | Self::Block(_) => Code::BAD_REQUEST,
        }
    }
}
