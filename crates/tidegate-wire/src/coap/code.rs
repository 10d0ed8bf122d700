//! Codes of messages: methods and response codes (RFC 7252 sections 5.8, 5.9 and 12.1).

use std::fmt;

/// A code: a class of three bits and a detail of five, written `class.detail`.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Code(pub u8);

impl Code {
    /// 0.00, the code of a message that is no request and no response.
    pub const EMPTY: Self = Self::new(0, 0);
    /// 0.01
    pub const GET: Self = Self::new(0, 1);
    /// 0.02
    pub const POST: Self = Self::new(0, 2);
    /// 0.03
    pub const PUT: Self = Self::new(0, 3);
    /// 0.04
    pub const DELETE: Self = Self::new(0, 4);
    /// 2.01
    pub const CREATED: Self = Self::new(2, 1);
    /// 2.04
    pub const CHANGED: Self = Self::new(2, 4);
    /// 2.05
    pub const CONTENT: Self = Self::new(2, 5);
    /// 2.31 (RFC 7959)
    pub const CONTINUE: Self = Self::new(2, 31);
    /// 4.00
    pub const BAD_REQUEST: Self = Self::new(4, 0);
    /// 4.01
    pub const UNAUTHORIZED: Self = Self::new(4, 1);
    /// 4.02
    pub const BAD_OPTION: Self = Self::new(4, 2);
    /// 4.03
    pub const FORBIDDEN: Self = Self::new(4, 3);
    /// 4.04
    pub const NOT_FOUND: Self = Self::new(4, 4);
    /// 4.05
    pub const METHOD_NOT_ALLOWED: Self = Self::new(4, 5);
    /// 4.06
    pub const NOT_ACCEPTABLE: Self = Self::new(4, 6);
    /// 4.08 (RFC 7959)
    pub const REQUEST_ENTITY_INCOMPLETE: Self = Self::new(4, 8);
    /// 4.13
    pub const REQUEST_ENTITY_TOO_LARGE: Self = Self::new(4, 13);
    /// 4.15
    pub const UNSUPPORTED_CONTENT_FORMAT: Self = Self::new(4, 15);
    /// 5.00
    pub const INTERNAL_SERVER_ERROR: Self = Self::new(5, 0);
    /// 5.03
    pub const SERVICE_UNAVAILABLE: Self = Self::new(5, 3);
    /// 5.04
    pub const GATEWAY_TIMEOUT: Self = Self::new(5, 4);
    /// 5.05
    pub const PROXYING_NOT_SUPPORTED: Self = Self::new(5, 5);

    /// The code `class.detail`, of which three and five bits count.
    pub const fn new(class: u8, detail: u8) -> Self {
        Self((class & 0b111) << 5 | (detail & 0b1_1111))
    }

    /// 0 to 7: of requests 0, of success 2, of the client's errors 4, of the server's 5.
    pub const fn class(self) -> u8 {
        self.0 >> 5
    }

    /// 0 to 31.
    pub const fn detail(self) -> u8 {
        self.0 & 0b1_1111
    }

    /// Whether it is a method's, known or not.
    pub const fn is_request(self) -> bool {
        self.class() == 0 && self.detail() != 0
    }

    /// Whether it is a response's, known or not.
    pub const fn is_response(self) -> bool {
        matches!(self.class(), 2..=5)
    }

    /// Whether it is that of a response that says that it went well.
    pub const fn is_success(self) -> bool {
        self.class() == 2
    }
}

/// `2.05`
impl fmt::Display for Code {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{:02}", self.class(), self.detail())
    }
}

impl fmt::Debug for Code {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{self}")
    }
}
