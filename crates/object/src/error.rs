//! What can go wrong, in words of whoever wants an object. Which object it was says who asked.

use std::error::Error as _;
use std::io;
use std::time::Duration;

/// Why an object could not be opened or read.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The name is not one of an object.
    #[error("{name:?} is no name of an object ({why}); s3://BUCKET/KEY or file:///PATH is needed")]
    Name {
        /// As it was given.
        name: String,
        /// What is wrong with it.
        why: String,
    },
    /// What the environment says cannot be used.
    #[error("the store cannot be used as the variables AWS_* say: {0}")]
    Settings(String),
    /// No object has this key.
    #[error("there is no object of this name")]
    NotFound,
    /// There is no such bucket.
    #[error("there is no bucket of this name there (where to look: AWS_ENDPOINT, AWS_REGION)")]
    NoBucket,
    /// The server refuses.
    #[error(
        "the server refuses: {0} (who asks: AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY, AWS_SESSION_TOKEN; what is needed: s3:GetObject, and s3:ListBucket to look for bases)"
    )]
    Refused(String),
    /// It is not the object any more that was opened.
    #[error("the object was replaced after it was opened; start again to use the new one")]
    Replaced,
    /// The answer took too long, tries that failed included.
    #[error("no whole answer within {0:?}")]
    Late(Duration),
    /// The answer is not what was asked for.
    #[error("the server's answer is not what was asked for: {0}")]
    Answer(String),
    /// The server cannot be reached, or cannot answer.
    #[error(
        "the server cannot be asked: {0} (where it is: AWS_ENDPOINT, AWS_REGION; http:// needs AWS_ALLOW_HTTP=true)"
    )]
    Failed(String),
    /// The operating system refused.
    #[error("{doing}: {why}")]
    System {
        /// What was tried.
        doing: &'static str,
        /// Its answer.
        why: String,
    },
}

/// What functions of this crate return.
pub type Result<T> = std::result::Result<T, Error>;

impl Error {
    /// Of what the library says.
    pub(crate) fn of(error: object_store::Error) -> Error {
        use object_store::Error as E;
        let all = chain(&error);
        let code = code(&all);
        let said = || match code {
            Some(code) => code.to_owned(),
            None => plain(&deepest(&error)),
        };
        match (&error, code) {
            (_, Some("NoSuchBucket")) => Error::NoBucket,
            (_, Some("PreconditionFailed"))
            | (E::Precondition { .. } | E::NotModified { .. }, _) => Error::Replaced,
            (E::NotFound { .. }, _) => Error::NotFound,
            (E::PermissionDenied { .. } | E::Unauthenticated { .. }, _) => Error::Refused(said()),
            (E::InvalidPath { .. }, _) => Error::Answer(said()),
            // The library's words for headers that are missing or name another range, which are of no kind of their own.
            _ if all.contains("Header missing")
                || all.contains("Requested ")
                || all.contains("partial")
                || all.contains("Content-Range") =>
            {
                Error::Answer(said())
            }
            _ => Error::Failed(said()),
        }
    }
}

impl From<Error> for io::Error {
    fn from(error: Error) -> io::Error {
        let kind = match &error {
            Error::Name { .. } | Error::Settings(_) => io::ErrorKind::InvalidInput,
            Error::NotFound | Error::NoBucket => io::ErrorKind::NotFound,
            Error::Refused(_) => io::ErrorKind::PermissionDenied,
            Error::Replaced => io::ErrorKind::StaleNetworkFileHandle,
            Error::Late(_) => io::ErrorKind::TimedOut,
            // Never `UnexpectedEof`, which says that the object itself is too short.
            Error::Answer(_) => io::ErrorKind::InvalidData,
            Error::Failed(_) | Error::System { .. } => io::ErrorKind::Other,
        };
        io::Error::new(kind, error)
    }
}

/// All that an error says, with its causes.
fn chain(error: &object_store::Error) -> String {
    let mut text = error.to_string();
    let mut at = error.source();
    while let Some(cause) = at {
        text += "\n";
        text += &cause.to_string();
        at = cause.source();
    }
    text
}

/// The last cause.
fn deepest(error: &object_store::Error) -> String {
    let mut at: &dyn std::error::Error = error;
    while let Some(cause) = at.source() {
        at = cause;
    }
    at.to_string()
}

/// The code in an error that a server of S3 sends: `<Code>NoSuchKey</Code>`. A word, whatever the server says.
fn code(text: &str) -> Option<&str> {
    let (_, rest) = text.split_once("<Code>")?;
    let (code, _) = rest.split_once("</Code>")?;
    let is_word =
        (1..=64).contains(&code.len()) && code.bytes().all(|byte| byte.is_ascii_alphanumeric());
    is_word.then_some(code)
}

/// What a stranger says, so that it can be shown: a line without control characters, not too long.
fn plain(text: &str) -> String {
    let shown = text.chars().map(|c| if c.is_control() { ' ' } else { c });
    let mut shown: String = shown.take(300).collect();
    shown.truncate(shown.trim_end().len());
    shown
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_servers_code_is_a_word_or_nothing() {
        let body = "404: <?xml?><Error><Code>NoSuchBucket</Code><Message>m</Message></Error>";
        assert_eq!(code(body), Some("NoSuchBucket"));
        let long = format!("<Code>{}</Code>", "a".repeat(65));
        for wrong in [
            "",
            "<Code></Code>",
            "<Code>a b</Code>",
            "<Code>\x1b[31m</Code>",
            "<Code>a",
            &long,
        ] {
            assert_eq!(code(wrong), None, "{wrong:?}");
        }
    }

    #[test]
    fn what_a_stranger_says_is_a_short_line() {
        assert_eq!(plain("a\n\x1b[31mb"), "a  [31mb");
        assert_eq!(plain(&"é".repeat(1000)).chars().count(), 300);
    }

    #[test]
    fn no_error_is_taken_for_the_end_of_an_object() {
        for error in [
            Error::Answer("it is short".to_owned()),
            Error::Late(Duration::from_secs(1)),
            Error::Replaced,
            Error::Failed("x".to_owned()),
        ] {
            assert_ne!(io::Error::from(error).kind(), io::ErrorKind::UnexpectedEof);
        }
    }
}
