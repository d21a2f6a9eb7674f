//! A slot of a guest's memory: a memfd that Cloud Hypervisor maps, too, and a pager that fills our mapping of it.

use std::ops::Range;
use std::os::fd::{AsFd, BorrowedFd};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use amdahl_image::Image;
use amdahl_pager::{
    Background, Backing, Engine, Extent, FileSource, ImageSource, Mapping, PAGE, Pager, Source,
    SourceError,
};

use super::described::Described;

/// The content of a slot, in a memfd in which it begins further on.
struct Behind {
    content: Arc<dyn Source>,
    before: u64,
}

impl Source for Behind {
    fn read(&self, offset: u64, into: &mut [u8]) -> Result<(), SourceError> {
        let zeros = usize::try_from(self.before.saturating_sub(offset)).unwrap_or(usize::MAX);
        let (zeros, rest) = into.split_at_mut(zeros.min(into.len()));
        zeros.fill(0);
        match rest.is_empty() {
            true => Ok(()),
            false => self
                .content
                .read(offset.max(self.before) - self.before, rest),
        }
    }

    fn extent(&self, offset: u64, len: u64) -> Extent {
        match self.before.checked_sub(offset) {
            None | Some(0) => self.content.extent(offset - self.before, len),
            Some(zeros) => Extent {
                len: zeros.min(len),
                is_zero: true,
            },
        }
    }
}

pub struct Slot {
    pub described: Described,
    mapping: Arc<Mapping>,
    pager: Pager,
}

/// How slots are filled.
#[derive(Clone, Copy)]
pub struct Filling {
    pub background: Background,
    pub timeout: Duration,
}

impl Slot {
    pub fn new(described: Described, folder: &Path, filling: Filling) -> Result<Slot, String> {
        let raw = folder.join(format!("memory-{}", described.slot));
        let packed = raw.with_extension("ami");
        let (content, len): (Arc<dyn Source>, u64) = match packed.exists() {
            true => {
                let image = Image::open(&packed);
                let image = image.map_err(|error| format!("{}: {error}", packed.display()))?;
                let len = image.memory_bytes();
                (Arc::new(ImageSource::new(Arc::new(image))), len)
            }
            false => {
                let file = FileSource::open(&raw);
                let file = file.map_err(|error| format!("{}: {error}", raw.display()))?;
                let len = file.len();
                (Arc::new(file), len)
            }
        };
        if len != described.size {
            return Err(format!(
                "slot {} has {} bytes, and its memory {len}: are they of one snapshot?",
                described.slot, described.size
            ));
        }
        let all = usize::try_from(described.file_offset + described.size)
            .map_err(|_| format!("slot {} is too large for this machine", described.slot))?;
        let mapping = Mapping::new(all, Backing::Shared).map_err(|error| error.to_string())?;
        let mapping = Arc::new(mapping);
        let source = Behind {
            content,
            before: described.file_offset,
        };
        let pager = Pager::builder()
            .mapping(&mapping, 0)
            .source(Arc::new(source))
            // Those who fault are in another process.
            .engine(Engine::Sharded)
            .background(filling.background)
            .timeout(filling.timeout)
            .start()
            .map_err(|error| error.to_string())?;
        Ok(Slot {
            described,
            mapping,
            pager,
        })
    }

    /// What Cloud Hypervisor maps.
    pub fn memfd(&self) -> BorrowedFd<'_> {
        self.mapping
            .file()
            .expect("shared memory has a file")
            .as_fd()
    }

    /// The part of it that is at these addresses of the guest.
    pub fn part(&self, gpa: u64, len: u64) -> Option<Range<u64>> {
        let at = gpa.checked_sub(self.described.gpa)?;
        let end = at.checked_add(len)?;
        let offset = self.described.file_offset;
        (len > 0 && end <= self.described.size).then(|| offset + at..offset + end)
    }

    /// Has these bytes of the memfd there; whether they are. What the guest has given up since is zero.
    pub fn bring(&self, part: Range<u64>) -> bool {
        let first = part.start - part.start % PAGE as u64;
        let start = self.mapping.as_ptr().expose_provenance() as u64;
        (first..part.end)
            .step_by(PAGE)
            .all(|at| is_readable(start + at))
    }

    pub fn pages_missing(&self) -> usize {
        self.pager.missing_pages()
    }
}

/// Reads our own memory as somebody else's, which waits until the page has arrived: one that is lost is an error, and no signal.
/// `/proc/self/mem` would not wait.
fn is_readable(address: u64) -> bool {
    let mut byte = 0_u8;
    let local = libc::iovec {
        iov_base: (&raw mut byte).cast(),
        iov_len: 1,
    };
    let remote = libc::iovec {
        iov_base: std::ptr::with_exposed_provenance_mut(address as usize),
        iov_len: 1,
    };
    // SAFETY: a byte is written to `byte`; the kernel checks the other address, whatever it is.
    let read = unsafe {
        libc::process_vm_readv(libc::getpid(), &raw const local, 1, &raw const remote, 1, 0)
    };
    read == 1
}

#[cfg(test)]
mod tests {
    use amdahl_pager::MemorySource;

    use super::*;

    #[test]
    fn content_may_begin_further_on() {
        let bytes: Vec<u8> = (1..=100).collect();
        let source = Behind {
            content: Arc::new(MemorySource::of_bytes(bytes.into())),
            before: 10,
        };
        let mut read = [9; 4];
        source.read(8, &mut read).unwrap();
        assert_eq!(read, [0, 0, 1, 2]);
        source.read(10, &mut read).unwrap();
        assert_eq!(read, [1, 2, 3, 4]);
        source.read(0, &mut read).unwrap();
        assert_eq!(read, [0; 4]);
        assert!(
            source.extent(3, 100)
                == Extent {
                    len: 7,
                    is_zero: true
                }
        );
        assert!(!source.extent(10, 5).is_zero);
        assert!(source.read(9000, &mut read).is_err());
    }
}
