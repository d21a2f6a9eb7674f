//! Raw memory in whatever an image can be in, as a source: byte n of the store is byte n of the memory.

use std::io;
use std::sync::{Mutex, PoisonError};

use amdahl_image::Store;

use super::{Source, SourceError, image, there};

/// Raw memory in a [`Store`]: an object, for example. What lies in the page of its end, behind it, is zero.
pub struct StoreSource {
    store: Box<dyn Store>,
    len: u64,
    last_error: Mutex<Option<String>>,
}

impl StoreSource {
    /// Of a store.
    ///
    /// # Errors
    /// When it does not tell its size.
    pub fn new(store: Box<dyn Store>) -> io::Result<StoreSource> {
        let len = store.len()?;
        Ok(StoreSource {
            store,
            len,
            last_error: Mutex::default(),
        })
    }

    /// Bytes.
    pub fn len(&self) -> u64 {
        self.len
    }

    /// No bytes.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// How reading failed the last time, in more words than a [`SourceError`] has; once.
    pub fn take_error(&self) -> Option<String> {
        self.last_error
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .take()
    }
}

impl Source for StoreSource {
    fn read(&self, offset: u64, into: &mut [u8]) -> Result<(), SourceError> {
        let into = there(self.len, offset, into)?;
        self.store.read_exact_at(into, offset).map_err(|error| {
            let mut last = self
                .last_error
                .lock()
                .unwrap_or_else(PoisonError::into_inner);
            *last = Some(error.to_string());
            match error.kind() {
                io::ErrorKind::UnexpectedEof => SourceError::Short { end: offset },
                _ => image::io_error("reading the memory", &error),
            }
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A store that fails in one way.
    struct Failing(io::ErrorKind);

    impl Store for Failing {
        fn len(&self) -> io::Result<u64> {
            Ok(8192)
        }

        fn read_exact_at(&self, _: &mut [u8], _: u64) -> io::Result<()> {
            Err(io::Error::new(self.0, "it does not want to"))
        }
    }

    #[test]
    fn what_fails_for_good_is_not_tried_again() {
        for (kind, may_pass) in [
            (io::ErrorKind::TimedOut, false),
            (io::ErrorKind::StaleNetworkFileHandle, false),
            (io::ErrorKind::UnexpectedEof, false),
            (io::ErrorKind::Other, true),
        ] {
            let source = StoreSource::new(Box::new(Failing(kind))).unwrap();
            let error = source.read(0, &mut [0; 4096]).unwrap_err();
            assert_eq!(error.may_pass(), may_pass, "{error}");
            assert_eq!(source.take_error().as_deref(), Some("it does not want to"));
            assert_eq!(source.take_error(), None);
        }
    }

    #[test]
    fn the_page_of_the_end_is_filled_with_zeros_and_no_other() {
        let source = StoreSource::new(Box::new(vec![9; 5000])).unwrap();
        let mut page = [1; 4096];
        source.read(4096, &mut page).unwrap();
        assert!(page[..904].iter().all(|byte| *byte == 9) && page[904..] == [0; 3192]);
        let short = SourceError::Short { end: 5000 };
        assert_eq!(source.read(8192, &mut page), Err(short));
    }
}
