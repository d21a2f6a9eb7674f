//! What can go wrong, and where.

use std::io;
use std::path::{Path, PathBuf};

use crate::Identity;

/// Why an image could not be written or read.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The operating system refused.
    #[error("{doing} {}: {source}", path.display())]
    Io {
        /// What was tried, as in "read" or "rename".
        doing: &'static str,
        /// With which file.
        path: PathBuf,
        /// Its answer.
        source: io::Error,
    },
    /// The file does not begin as an image does.
    #[error("{}: not a memory image (it begins with other bytes)", path.display())]
    NotAnImage {
        /// The file.
        path: PathBuf,
    },
    /// An image of a newer version, or with a feature that this version does not know.
    #[error("{}: {what}; a newer version of this program is needed", path.display())]
    Unsupported {
        /// The file.
        path: PathBuf,
        /// What is not known.
        what: String,
    },
    /// The bytes in the file are not those that were written.
    #[error("{}: damaged: {what} at byte {offset}", path.display())]
    Damaged {
        /// The file.
        path: PathBuf,
        /// Where in the file.
        offset: u64,
        /// What is wrong there.
        what: &'static str,
    },
    /// An image is a difference to a base that was not found.
    #[error(
        "{}: its base {identity} was not found (its name was {name:?}); it is looked for beside the image, or name it",
        path.display()
    )]
    NoBase {
        /// The image that lacks its base.
        path: PathBuf,
        /// Identity of the base.
        identity: Identity,
        /// The file name of the base when the image was written.
        name: String,
    },
    /// The file that was given as base is another image.
    #[error("{}: is image {found}, but the base of {} is {wanted}", path.display(), above.display())]
    WrongBase {
        /// The file that was given.
        path: PathBuf,
        /// The image above it.
        above: PathBuf,
        /// The identity that was asked for.
        wanted: Identity,
        /// The identity of the file.
        found: Identity,
    },
    /// Too many layers lie on each other.
    #[error("{}: {layers} layers lie on each other; {max} are possible (unpack it and pack it anew)", path.display())]
    TooDeep {
        /// The topmost image.
        path: PathBuf,
        /// Layers there would be.
        layers: usize,
        /// Layers there may be.
        max: usize,
    },
    /// What was to be packed, or an option, cannot be.
    #[error("{what}")]
    Input {
        /// What is wrong with it.
        what: String,
    },
    /// A range that is not of whole pages, or not inside of the memory.
    #[error("{len} bytes at {offset}: not whole pages of a memory of {memory_bytes} bytes")]
    Range {
        /// First byte.
        offset: u64,
        /// Bytes asked for.
        len: u64,
        /// Bytes there are.
        memory_bytes: u64,
    },
    /// The caller wanted to stop.
    #[error("interrupted")]
    Interrupted,
}

/// What functions of this crate return.
pub type Result<T> = std::result::Result<T, Error>;

impl Error {
    pub(crate) fn io(doing: &'static str, path: &Path, source: io::Error) -> Error {
        let path = path.to_owned();
        Error::Io {
            doing,
            path,
            source,
        }
    }

    pub(crate) fn input(what: impl Into<String>) -> Error {
        Error::Input { what: what.into() }
    }

    /// The file is not what was written, as opposed to: it could not be read.
    pub fn is_damage(&self) -> bool {
        matches!(self, Error::Damaged { .. } | Error::NotAnImage { .. })
    }
}
