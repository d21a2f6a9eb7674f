//! Clusters packed and unpacked, by well-kept libraries.

use std::io;
use std::str::FromStr;

use crate::layout::Codec;

/// What clusters are to be compressed with. A cluster that would not become smaller is stored as it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Compression {
    /// Not at all.
    None,
    /// Zstandard at a level from -7 to 22.
    Zstd(i32),
    /// LZ4: faster to unpack, larger.
    Lz4,
}

impl Default for Compression {
    /// Zstandard at level 1: see DESIGN.md for what was measured.
    fn default() -> Compression {
        Compression::Zstd(1)
    }
}

/// The text names no compression.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} is no compression: zstd, zstd:LEVEL (-7 to 22), lz4 or none")]
pub struct ParseCompressionError(String);

impl FromStr for Compression {
    type Err = ParseCompressionError;

    fn from_str(text: &str) -> Result<Compression, ParseCompressionError> {
        let wrong = || ParseCompressionError(text.to_owned());
        match text.split_once(':') {
            None if text == "none" => Ok(Compression::None),
            None if text == "lz4" => Ok(Compression::Lz4),
            None if text == "zstd" => Ok(Compression::default()),
            Some(("zstd", level)) => match level.parse() {
                Ok(level) if (-7..=22).contains(&level) => Ok(Compression::Zstd(level)),
                _ => Err(wrong()),
            },
            _ => Err(wrong()),
        }
    }
}

/// Packs clusters; its memory is used again for the next one.
pub(crate) struct Packer {
    compression: Compression,
    zstd: Option<zstd::bulk::Compressor<'static>>,
    packed: Vec<u8>,
}

impl Packer {
    pub fn new(compression: Compression) -> io::Result<Packer> {
        let zstd = match compression {
            Compression::Zstd(level) => Some(zstd::bulk::Compressor::new(level)?),
            Compression::None | Compression::Lz4 => None,
        };
        let packed = Vec::new();
        Ok(Packer {
            compression,
            zstd,
            packed,
        })
    }

    /// How `plain` is best stored.
    pub fn pack<'a>(&'a mut self, plain: &'a [u8]) -> io::Result<(Codec, &'a [u8])> {
        let bound = lz4_flex::block::get_maximum_output_size(plain.len())
            .max(zstd::zstd_safe::compress_bound(plain.len()));
        self.packed.resize(bound.max(self.packed.len()), 0);
        let (codec, len) = match (self.compression, &mut self.zstd) {
            (Compression::Lz4, _) => {
                let packed = lz4_flex::block::compress_into(plain, &mut self.packed);
                (Codec::Lz4, packed.map_err(io::Error::other)?)
            }
            (_, Some(zstd)) => {
                let packed = zstd.compress_to_buffer(plain, &mut self.packed[..])?;
                (Codec::Zstd, packed)
            }
            (_, None) => return Ok((Codec::Plain, plain)),
        };
        // What saves less than a 32nd is not worth the time of unpacking it.
        if len + plain.len() / 32 >= plain.len() {
            return Ok((Codec::Plain, plain));
        }
        Ok((codec, &self.packed[..len]))
    }
}

/// Unpacks clusters of any codec.
pub(crate) struct Unpacker(Option<zstd::bulk::Decompressor<'static>>);

impl Unpacker {
    pub const fn new() -> Unpacker {
        Unpacker(None)
    }

    /// Fills `plain`, or says that `stored` does not become exactly that much.
    pub fn unpack(&mut self, codec: Codec, stored: &[u8], plain: &mut [u8]) -> bool {
        let unpacked = match codec {
            Codec::Plain if stored.len() == plain.len() => {
                plain.copy_from_slice(stored);
                Some(stored.len())
            }
            Codec::Plain => None,
            Codec::Zstd => {
                if self.0.is_none() {
                    self.0 = zstd::bulk::Decompressor::new().ok();
                }
                let zstd = self.0.as_mut();
                zstd.and_then(|zstd| zstd.decompress_to_buffer(stored, &mut *plain).ok())
            }
            Codec::Lz4 => lz4_flex::block::decompress_into(stored, plain).ok(),
        };
        unpacked == Some(plain.len())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_read() {
        assert_eq!("zstd:-3".parse(), Ok(Compression::Zstd(-3)));
        assert_eq!("zstd".parse(), Ok(Compression::default()));
        assert_eq!("lz4".parse(), Ok(Compression::Lz4));
        assert_eq!("none".parse(), Ok(Compression::None));
        for wrong in ["", "zstd:", "zstd:23", "zstd:x", "lz4:1", "gzip"] {
            assert!(wrong.parse::<Compression>().is_err(), "{wrong}");
        }
    }

    #[test]
    fn what_does_not_shrink_stays_plain() {
        let mut state = 1u64;
        let noise: Vec<u8> = (0..16384)
            .map(|_| {
                state = state
                    .wrapping_mul(6364136223846793005)
                    .wrapping_add(1442695040888963407);
                (state >> 56) as u8
            })
            .collect();
        for compression in [Compression::Zstd(1), Compression::Lz4, Compression::None] {
            let mut packer = Packer::new(compression).unwrap();
            assert_eq!(packer.pack(&noise).unwrap(), (Codec::Plain, &noise[..]));
        }
    }

    #[test]
    fn another_length_is_refused() {
        let plain = vec![7; 16384];
        for compression in [Compression::Zstd(1), Compression::Lz4] {
            let mut packer = Packer::new(compression).unwrap();
            let (codec, packed) = packer.pack(&plain).unwrap();
            let mut unpacker = Unpacker::new();
            for len in [0, 4096, 16383, 16385, 32768] {
                assert!(!unpacker.unpack(codec, packed, &mut vec![0; len]), "{len}");
            }
            let mut again = vec![0; 16384];
            assert!(unpacker.unpack(codec, packed, &mut again) && again == plain);
        }
    }
}
