//! A raw file as a source: the file's byte n is the memory's byte n.

use std::fs::File;
use std::io;
use std::ops::Range;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use rustix::fs::{FsWord, SeekFrom, fstatfs, seek};
use rustix::io::{Errno, pread};

use super::{Extent, Source, SourceError, there};

/// Bytes that a file system counts as a block of a file.
const BLOCKS_OF: u64 = 512;
/// What `statfs` says of memory.
const TMPFS: FsWord = 0x0102_1994;

/// A raw file. Its holes are zeros that are never read; what lies in the page of the end, behind it, is zero as well.
#[derive(Debug)]
pub struct FileSource {
    file: File,
    len: u64,
    data: Data,
}

/// Where there is content.
#[derive(Debug)]
enum Data {
    /// In rising order.
    Known(Box<[Range<u64>]>),
    /// The file system is asked each time. Holes within what it says is content are read as zeros.
    Asked,
}

impl FileSource {
    /// Opens a file. Looks for its holes: a system call for each. Not of a file in memory (tmpfs, memfd), where the kernel looks at each
    /// page until a hole comes: there it is asked when something is fetched.
    ///
    /// # Errors
    /// What the system says.
    pub fn open(path: &Path) -> io::Result<FileSource> {
        FileSource::of(File::open(path)?)
    }

    /// Of a file that is open for reading. Its position is changed.
    ///
    /// # Errors
    /// What the system says.
    pub fn of(file: File) -> io::Result<FileSource> {
        let metadata = file.metadata()?;
        let len = metadata.len();
        let is_in_memory = fstatfs(&file).is_ok_and(|system| system.f_type == TMPFS);
        let data = if !is_in_memory {
            Data::Known(data_of(&file, len)?.into())
        } else if metadata.blocks().saturating_mul(BLOCKS_OF) >= len {
            Data::Known(Box::from_iter(std::iter::once(0..len)))
        } else {
            Data::Asked
        };
        Ok(FileSource { file, len, data })
    }

    /// Bytes.
    pub fn len(&self) -> u64 {
        self.len
    }

    /// No bytes.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }
}

/// Where the next content of a file begins, from an offset on; `None`: nothing but a hole until its end. What the system does not tell of is content:
/// reading it tells.
pub(crate) fn next_content(file: &File, from: u64) -> Option<u64> {
    match seek(file, SeekFrom::Data(from)) {
        Ok(start) => Some(start),
        Err(Errno::NXIO) => None,
        Err(_) => Some(from),
    }
}

/// Where a file has content. Where the file system does not know, everywhere.
fn data_of(file: &File, len: u64) -> io::Result<Vec<Range<u64>>> {
    let everywhere = Vec::from_iter(std::iter::once(0..len));
    let mut data = Vec::new();
    let mut at = 0;
    while at < len {
        let start = match seek(file, SeekFrom::Data(at)) {
            Ok(start) => start,
            Err(Errno::NXIO) => break,
            Err(Errno::INVAL) => return Ok(everywhere),
            Err(error) => return Err(error.into()),
        };
        let end = seek(file, SeekFrom::Hole(start))?;
        if end <= start {
            // It has changed meanwhile.
            return Ok(everywhere);
        }
        data.push(start..end.min(len));
        at = end;
    }
    Ok(data)
}

impl Source for FileSource {
    fn read(&self, offset: u64, into: &mut [u8]) -> Result<(), SourceError> {
        let into = there(self.len, offset, into)?;
        let mut done = 0;
        while done < into.len() {
            match pread(&self.file, &mut into[done..], offset + done as u64) {
                Ok(0) => {
                    return Err(SourceError::Short {
                        end: offset + done as u64,
                    });
                }
                Ok(read) => done += read,
                Err(Errno::INTR) => {}
                Err(errno) => {
                    return Err(SourceError::Io {
                        operation: "pread",
                        errno,
                    });
                }
            }
        }
        Ok(())
    }

    fn extent(&self, offset: u64, len: u64) -> Extent {
        let content = match &self.data {
            Data::Known(data) => {
                let after = data.partition_point(|data| data.end <= offset);
                data.get(after).cloned()
            }
            Data::Asked => next_content(&self.file, offset).map(|start| start..self.len.max(start)),
        };
        let (is_zero, end) = match content {
            Some(data) if data.start <= offset => (false, data.end),
            Some(data) => (true, data.start),
            // Behind the last content: zeros up to the end of the file, errors after it.
            None if offset < self.len => (true, self.len.next_multiple_of(crate::PAGE as u64)),
            None => (false, u64::MAX),
        };
        // The page of an end is content as far as it goes.
        let end = match is_zero {
            true => end,
            false => end
                .checked_next_multiple_of(crate::PAGE as u64)
                .unwrap_or(end),
        };
        Extent {
            len: (end - offset).min(len),
            is_zero,
        }
    }

    fn is_signal_safe(&self) -> bool {
        true
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::FileExt;

    use super::*;

    #[test]
    fn holes_are_zeros_that_nobody_reads() {
        let file = tempfile::tempfile().unwrap();
        file.write_all_at(&[7; 4096], 1 << 20).unwrap();
        file.set_len(3 << 20).unwrap();
        let source = FileSource::of(file).unwrap();
        let before = source.extent(0, u64::MAX);
        if !before.is_zero {
            println!("SKIPPED: this file system does not tell holes");
            return;
        }
        assert_eq!(before.len, 1 << 20);
        assert_eq!(
            source.extent(4096, 8192),
            Extent {
                len: 8192,
                is_zero: true
            }
        );
        let data = source.extent(1 << 20, u64::MAX);
        assert!(!data.is_zero && data.len >= 4096, "{data:?}");
        let after = (1 << 20) + data.len;
        assert_eq!(
            source.extent(after, u64::MAX),
            Extent {
                len: (3 << 20) - after,
                is_zero: true
            }
        );
    }

    #[test]
    fn a_file_in_memory_is_asked_for_holes_unless_it_has_none() {
        let flags = rustix::fs::MemfdFlags::CLOEXEC;
        let file = File::from(rustix::fs::memfd_create("pager", flags).unwrap());
        file.write_all_at(&[7; 4096], 1 << 20).unwrap();
        file.set_len(3 << 20).unwrap();
        let source = FileSource::of(file.try_clone().unwrap()).unwrap();
        assert!(matches!(source.data, Data::Asked));
        let extent = |offset, len, is_zero| {
            let found = source.extent(offset, 1 << 30);
            assert_eq!(found, Extent { len, is_zero }, "at {offset}");
        };
        extent(4096, (1 << 20) - 4096, true);
        // What lies behind is not known before it is asked for.
        extent(1 << 20, 2 << 20, false);
        extent((1 << 20) + 4096, (2 << 20) - 4096, true);
        extent(3 << 20, 1 << 30, false);
        file.write_all_at(&vec![7; 3 << 20], 0).unwrap();
        let source = FileSource::of(file).unwrap();
        assert!(matches!(source.data, Data::Known(_)));
        assert!(!source.extent(0, 3 << 20).is_zero);
    }

    #[test]
    fn the_page_of_the_end_is_filled_with_zeros_and_no_other() {
        let file = tempfile::tempfile().unwrap();
        file.write_all_at(&[9; 5000], 0).unwrap();
        let source = FileSource::of(file).unwrap();
        let mut page = [1; 4096];
        source.read(4096, &mut page).unwrap();
        assert!(page[..904].iter().all(|byte| *byte == 9));
        assert!(page[904..].iter().all(|byte| *byte == 0));
        let short = SourceError::Short { end: 5000 };
        assert_eq!(source.read(8192, &mut page), Err(short));
        assert_eq!(source.read(0, &mut [0; 12288]), Err(short));
    }

    #[test]
    fn a_file_that_shrinks_is_an_error() {
        let file = tempfile::tempfile().unwrap();
        file.write_all_at(&[9; 8192], 0).unwrap();
        let source = FileSource::of(file.try_clone().unwrap()).unwrap();
        file.set_len(4096).unwrap();
        let read = source.read(4096, &mut [0; 4096]);
        assert_eq!(read, Err(SourceError::Short { end: 4096 }));
    }
}
