//! One sentence of an error and all that caused it.

/// An error and what caused it, joined by colons; for logs and for records that carry one sentence.
pub fn error_chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut next = error.source();
    while let Some(cause) = next {
        text.push_str(": ");
        text.push_str(&cause.to_string());
        next = cause.source();
    }
    text
}

#[cfg(test)]
mod tests {
    use std::{error::Error, fmt, io};

    use super::error_chain;

    #[derive(Debug)]
    struct NotSent(io::Error);

    impl fmt::Display for NotSent {
        fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.write_str("the record was not sent")
        }
    }

    impl Error for NotSent {
        fn source(&self) -> Option<&(dyn Error + 'static)> {
            Some(&self.0)
        }
    }

    #[test]
    fn an_error_is_named_before_its_causes() {
        let error = NotSent(io::Error::other("no space left"));
        assert_eq!(error_chain(&error), "the record was not sent: no space left");
        assert_eq!(error_chain(&error.0), "no space left");
    }
}
