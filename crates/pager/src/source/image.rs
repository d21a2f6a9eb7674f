//! A memory image as a source: its pages are unpacked and checked as they are asked for.

use std::io;
use std::sync::{Arc, Mutex, PoisonError};

use amdahl_image::{Error, Image, PageKind};
use rustix::io::Errno;

use super::{Extent, Source, SourceError};
use crate::PAGE;

/// An image of `amdahl-image`: byte n of its memory is byte n of the source. Its zero pages are known without reading, a damaged one is an
/// error. Any number of pagers may share it, and with it the image's cache of unpacked clusters.
pub struct ImageSource {
    image: Arc<Image>,
    /// In words, and whether it was damage.
    last_error: Mutex<Option<(String, bool)>>,
}

const PAGE_BYTES: u64 = PAGE as u64;

impl ImageSource {
    /// Of an open image.
    pub fn new(image: Arc<Image>) -> ImageSource {
        ImageSource {
            image,
            last_error: Mutex::new(None),
        }
    }

    /// The image.
    pub fn image(&self) -> &Arc<Image> {
        &self.image
    }

    /// Where and how reading failed the last time, in more words than a [`SourceError`] has; once.
    pub fn take_error(&self) -> Option<String> {
        Some(self.take_failure()?.0)
    }

    /// The same, and whether the image is damaged, as opposed to: it could not be read.
    pub fn take_failure(&self) -> Option<(String, bool)> {
        self.last_error
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .take()
    }

    fn failed(&self, error: &Error) -> SourceError {
        let mut last = self
            .last_error
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        *last = Some((error.to_string(), error.is_damage()));
        match error {
            Error::Damaged { what, .. } => SourceError::Corrupt(what),
            Error::NotAnImage { .. } => SourceError::Corrupt("this is no image any more"),
            Error::Io { source, .. } => io_error("reading the image", source),
            Error::Range { memory_bytes, .. } => SourceError::Short { end: *memory_bytes },
            _ => SourceError::Gone("the image cannot be read"),
        }
    }
}

/// What a store says that is no file, too: it may have waited long enough, and know that it is replaced.
pub(super) fn io_error(operation: &'static str, error: &io::Error) -> SourceError {
    match error.kind() {
        io::ErrorKind::TimedOut => SourceError::Late,
        io::ErrorKind::StaleNetworkFileHandle => {
            SourceError::Gone("it was replaced while it was read")
        }
        io::ErrorKind::PermissionDenied => SourceError::Io {
            operation,
            errno: Errno::ACCESS,
        },
        _ => SourceError::Io {
            operation,
            errno: Errno::from_io_error(error).unwrap_or(Errno::IO),
        },
    }
}

impl Source for ImageSource {
    fn read(&self, offset: u64, into: &mut [u8]) -> Result<(), SourceError> {
        self.image
            .read(offset, into)
            .map_err(|error| self.failed(&error))
    }

    fn extent(&self, offset: u64, len: u64) -> Extent {
        let first = offset / PAGE_BYTES;
        let end = offset.saturating_add(len).div_ceil(PAGE_BYTES);
        let end = end.min(self.image.pages());
        match self.image.runs(first..end).next() {
            Some(Ok((pages, kind))) => Extent {
                len: ((pages.end * PAGE_BYTES).saturating_sub(offset)).min(len),
                is_zero: kind != PageKind::Data,
            },
            // Reading it will say what is wrong.
            Some(Err(_)) | None => Extent {
                len: (PAGE_BYTES - offset % PAGE_BYTES).min(len),
                is_zero: false,
            },
        }
    }
}

#[cfg(test)]
mod tests {
    use std::ops::ControlFlow::Continue;

    use amdahl_image::{Input, Pack, Store};

    use super::*;

    /// Pages 0 to 9: three with content, four of zeros, three with content.
    fn packed() -> (Vec<u8>, Vec<u8>) {
        let mut memory = vec![0; 10 * PAGE];
        for page in [0, 1, 2, 7, 8, 9] {
            let mut state = page as u64 + 1;
            for byte in &mut memory[page * PAGE..][..PAGE] {
                state = state
                    .wrapping_mul(6_364_136_223_846_793_005)
                    .wrapping_add(1);
                *byte = (state >> 33) as u8;
            }
        }
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("vm.ami");
        let input = Input::Stored(Arc::new(memory.clone()));
        Pack::new()
            .file(input, &path, &mut |_| Continue(()))
            .unwrap();
        (memory, std::fs::read(path).unwrap())
    }

    fn source(file: Vec<u8>) -> ImageSource {
        let store: Box<dyn Store> = Box::new(file);
        let image = Image::options().open_stores(vec![store]).unwrap();
        ImageSource::new(Arc::new(image))
    }

    #[test]
    fn zeros_are_known_without_reading() {
        let (memory, file) = packed();
        let source = source(file);
        let extent = |page: u64, pages: u64| {
            let extent = source.extent(page * PAGE_BYTES, pages * PAGE_BYTES);
            (extent.len / PAGE_BYTES, extent.is_zero)
        };
        assert_eq!(extent(0, 512), (3, false));
        assert_eq!(extent(3, 512), (4, true));
        assert_eq!(extent(4, 2), (2, true));
        assert_eq!(extent(7, 512), (3, false));
        assert_eq!(extent(10, 1), (1, false));
        let mut read = vec![1; 10 * PAGE];
        source.read(0, &mut read).unwrap();
        assert!(read == memory);
        let end = 10 * PAGE_BYTES;
        assert_eq!(
            source.read(9 * PAGE_BYTES, &mut [0; 2 * PAGE]),
            Err(SourceError::Short { end })
        );
    }

    #[test]
    fn damage_is_an_error_with_its_place() {
        let (_, mut file) = packed();
        // Of the clusters, which begin behind the header.
        file[5000] ^= 1;
        let source = source(file);
        let read = source.read(0, &mut [0; PAGE]);
        assert!(matches!(read, Err(SourceError::Corrupt(_))), "{read:?}");
        let told = source.take_error().unwrap();
        assert!(
            told.contains("damaged") && told.contains("at byte"),
            "{told}"
        );
        assert_eq!(source.take_error(), None);
        source.read(9 * PAGE_BYTES, &mut [0; PAGE]).unwrap();
    }
}
