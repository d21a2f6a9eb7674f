//! One object, open for reading.

use std::io;
use std::sync::Arc;

use amdahl_image::Store;
use futures_util::StreamExt;
use object_store::path::Path;
use object_store::{GetOptions, GetRange, ObjectStore, ObjectStoreExt};

use crate::kept::{BLOCK, pieces};
use crate::objects::Shared;
use crate::{Error, Result};

/// An object of one version: it can be read at any place by any number of threads, and gives the bytes of that version or an error.
///
/// A read waits, at most for the time of its [`Limits`](crate::Limits), and allocates: neither asynchronous code nor a signal
/// handler may call it.
pub struct Object {
    shared: Arc<Shared>,
    store: Arc<dyn ObjectStore>,
    key: Path,
    /// By which a replaced object is noticed.
    tag: String,
    bytes: u64,
    /// Tells objects apart among the blocks that are kept.
    number: u64,
}

impl Object {
    /// Asks for the first byte: which version there is, and whether we may read it.
    pub(crate) fn open(
        shared: Arc<Shared>,
        store: Arc<dyn ObjectStore>,
        key: Path,
    ) -> Result<Object> {
        let first = GetOptions {
            range: Some(GetRange::Bounded(0..1)),
            ..GetOptions::default()
        };
        let there = shared.wait(async {
            match store.get_opts(&key, first).await {
                Ok(answer) => Ok(answer.meta),
                Err(error) => {
                    let error = Error::of(error);
                    match error {
                        // An empty object has no first byte.
                        Error::Failed(_) | Error::Answer(_) => match store.head(&key).await {
                            Ok(there) if there.size == 0 => Ok(there),
                            _ => Err(error),
                        },
                        _ => Err(error),
                    }
                }
            }
        })?;
        let number = shared.number();
        // Of an empty object nothing is ever asked for.
        let tag = there.e_tag.or((there.size == 0).then(String::new));
        let tag = tag.ok_or_else(|| {
            Error::Answer(
                "it has no ETag, without which nobody would notice if the object is replaced"
                    .to_owned(),
            )
        })?;
        Ok(Object {
            shared,
            store,
            key,
            tag,
            bytes: there.size,
            number,
        })
    }

    /// Which version it is, in 16 bytes: another object, or another version of it, has others.
    pub fn version(&self) -> [u8; 16] {
        let mut hash = blake3::Hasher::new();
        for part in [
            self.store.to_string().as_str(),
            self.key.as_ref(),
            &self.tag,
        ] {
            hash.update(&(part.len() as u64).to_le_bytes());
            hash.update(part.as_bytes());
        }
        hash.update(&self.bytes.to_le_bytes());
        *hash.finalize().as_bytes().first_chunk().expect("longer")
    }

    /// One request, for exactly what fits into `buf`, of the version that was opened.
    fn fetch(&self, buf: &mut [u8], offset: u64) -> Result<()> {
        let range = offset..offset + buf.len() as u64;
        let options = GetOptions {
            if_match: Some(self.tag.clone()),
            range: Some(GetRange::Bounded(range.clone())),
            ..GetOptions::default()
        };
        self.shared.wait(async {
            let answer = self
                .store
                .get_opts(&self.key, options)
                .await
                .map_err(Error::of)?;
            // A server may pass over the condition.
            if answer.meta.e_tag.as_ref() != Some(&self.tag) || answer.meta.size != self.bytes {
                return Err(Error::Replaced);
            }
            if answer.range != range {
                let (asked, came) = (&range, &answer.range);
                return Err(Error::Answer(format!(
                    "bytes {asked:?} were asked for, {came:?} came"
                )));
            }
            let mut parts = answer.into_stream();
            let mut room = buf;
            while let Some(part) = parts.next().await {
                let part = part.map_err(Error::of)?;
                let Some((now, after)) = room.split_at_mut_checked(part.len()) else {
                    return Err(Error::Answer("it is longer".to_owned()));
                };
                now.copy_from_slice(&part);
                room = after;
            }
            match room.len() {
                0 => Ok(()),
                short => Err(Error::Answer(format!("it is {short} bytes short"))),
            }
        })
    }

    fn read(&self, buf: &mut [u8], offset: u64) -> Result<()> {
        // A long read gains nothing from blocks.
        if buf.len() as u64 >= BLOCK {
            return self.fetch(buf, offset);
        }
        let end = offset + buf.len() as u64;
        let mut rest = buf;
        for piece in pieces(offset..end) {
            let (now, after) = rest.split_at_mut((piece.end - piece.start) as usize);
            let block = piece.start / BLOCK;
            let begin = block * BLOCK;
            let from = (piece.start - begin) as usize;
            self.shared.kept.copy((self.number, block), from, now, || {
                let len = (self.bytes - begin).min(BLOCK);
                let mut block = vec![0; len as usize].into_boxed_slice();
                self.fetch(&mut block, begin)?;
                Ok(block)
            })?;
            rest = after;
        }
        Ok(())
    }
}

impl Store for Object {
    fn len(&self) -> io::Result<u64> {
        Ok(self.bytes)
    }

    fn read_exact_at(&self, buf: &mut [u8], offset: u64) -> io::Result<()> {
        let end = offset.checked_add(buf.len() as u64);
        if end.is_none_or(|end| end > self.bytes) {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        if buf.is_empty() {
            return Ok(());
        }
        Ok(self.read(buf, offset)?)
    }
}
