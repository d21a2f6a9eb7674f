//! Where the content of memory comes from.

mod file;
#[cfg(feature = "image")]
mod image;
mod own;
mod process;
#[cfg(feature = "image")]
mod store;

use std::fmt;

use rustix::io::Errno;

pub use file::FileSource;
pub(crate) use file::next_content;
#[cfg(feature = "image")]
pub use image::ImageSource;
pub use own::MemorySource;
pub use process::ProcessSource;
#[cfg(feature = "image")]
pub use store::StoreSource;

/// Content for memory. Asked by many threads at once, for any range, in any order, perhaps twice for the same.
///
/// A source that keeps somebody waiting longer than the pager's timeout, with all tries after errors, is taken for dead: the pages that are waited for are
/// lost. It may say that it [is away](Source::is_away) for a while.
pub trait Source: Send + Sync {
    /// Fills `into` with the content from `offset` on, all of it.
    ///
    /// # Errors
    /// [`SourceError`]; what is in `into` then is used by nobody.
    fn read(&self, offset: u64, into: &mut [u8]) -> Result<(), SourceError>;

    /// As [`read`](Source::read), for content that nobody waits for yet: a source that many ask lets it stand behind the rest.
    ///
    /// # Errors
    /// As [`read`](Source::read).
    fn read_ahead(&self, offset: u64, into: &mut [u8]) -> Result<(), SourceError> {
        self.read(offset, into)
    }

    /// What is at `offset`: zeros, which are not read but mapped, or content. Of at most `len` bytes, how many are of that kind;
    /// at least 1. Must be fast.
    fn extent(&self, offset: u64, len: u64) -> Extent {
        let _ = offset;
        Extent {
            len,
            is_zero: false,
        }
    }

    /// The content as memory of this process, if it is that and stays valid and unchanged as long as the source lives. Saves
    /// one copy.
    fn in_memory(&self, offset: u64, len: usize) -> Option<*const u8> {
        let _ = (offset, len);
        None
    }

    /// Whether all functions of this trait may be called inside of a signal handler: they take no lock, allocate nothing and make
    /// only async-signal-safe calls. Without that, the engine [`Inline`](crate::Engine::Inline) cannot be used.
    fn is_signal_safe(&self) -> bool {
        false
    }

    /// Whether the source is away and may come back: meanwhile nobody who waits for it is given up, and afterwards all have the pager's timeout anew. It bounds
    /// that by itself: from some time on without an answer this is false, whatever becomes of it. Asked several times a second; must be fast, and wait for nobody.
    fn is_away(&self) -> bool {
        false
    }
}

/// Of `into`, what a source of `len` bytes has from `offset` on. Behind its end only the rest of a page is asked for, which is filled
/// with zeros here.
fn there(len: u64, offset: u64, into: &mut [u8]) -> Result<&mut [u8], SourceError> {
    let there = len.saturating_sub(offset);
    let there = usize::try_from(there).map_or(into.len(), |there| there.min(into.len()));
    if into.len() - there >= crate::PAGE || there == 0 && !into.is_empty() {
        return Err(SourceError::Short { end: len });
    }
    let (into, behind) = into.split_at_mut(there);
    behind.fill(0);
    Ok(into)
}

/// Content of one kind.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Extent {
    /// Bytes.
    pub len: u64,
    /// All are zero.
    pub is_zero: bool,
}

/// Why content could not be had.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum SourceError {
    /// A system call failed.
    Io {
        /// Which.
        operation: &'static str,
        /// What the kernel said.
        errno: Errno,
    },
    /// The source ends before.
    Short {
        /// Where it ends.
        end: u64,
    },
    /// It has not answered within a time of its own. Whoever waits has waited long enough: it is not asked again for the same pages.
    Late,
    /// The source is gone for good: another try is useless.
    Gone(&'static str),
    /// What came is not what was stored.
    Corrupt(&'static str),
}

impl SourceError {
    /// Another try may help.
    pub(crate) fn may_pass(self) -> bool {
        match self {
            SourceError::Io { errno, .. } => {
                matches!(errno, Errno::INTR | Errno::AGAIN | Errno::NOMEM | Errno::IO)
            }
            SourceError::Corrupt(_) => true,
            SourceError::Short { .. } | SourceError::Gone(_) | SourceError::Late => false,
        }
    }
}

impl fmt::Display for SourceError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            SourceError::Io { operation, errno } => {
                write!(f, "{operation}: {}", std::io::Error::from(*errno))
            }
            SourceError::Short { end } => write!(f, "the source ends at byte {end}"),
            SourceError::Late => f.write_str("the source did not answer in time"),
            SourceError::Gone(why) => write!(f, "the source is gone: {why}"),
            SourceError::Corrupt(what) => write!(f, "damaged content: {what}"),
        }
    }
}

impl std::error::Error for SourceError {}
