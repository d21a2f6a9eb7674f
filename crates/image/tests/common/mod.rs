//! What the tests share: memories, images in memory, and stores that fail.
#![allow(dead_code)]

use std::io;
use std::ops::ControlFlow;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use amdahl_image::{Image, Input, PAGE_BYTES, Pack, Packed, Progress, Sink, Store};

/// SplitMix64 (Steele, Lea and Flood 2014).
pub struct Random(pub u64);

impl Random {
    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    pub fn below(&mut self, n: u64) -> u64 {
        self.next() % n.max(1)
    }
}

/// A page that is told by a number: 0 is zeros, odd ones are noise, even ones pack well.
pub fn page(number: u64) -> Vec<u8> {
    let mut random = Random(number);
    let word = |random: &mut Random| match number % 2 {
        0 => (number << 8) | random.below(4),
        _ => random.next(),
    };
    match number {
        0 => vec![0; PAGE_BYTES],
        _ => (0..PAGE_BYTES / 8)
            .flat_map(|_| word(&mut random).to_le_bytes())
            .collect(),
    }
}

pub fn memory(pages: &[u64]) -> Vec<u8> {
    pages.iter().flat_map(|number| page(*number)).collect()
}

/// Runs of zeros, of new pages, and pages that were there before.
pub fn some_pages(count: usize, random: &mut Random) -> Vec<u64> {
    let mut pages: Vec<u64> = Vec::new();
    while pages.len() < count {
        let longest = if random.below(4) == 0 { 700 } else { 9 };
        let run = 1 + random.below(longest) as usize;
        let kind = random.below(4);
        for _ in 0..run.min(count - pages.len()) {
            let page = match kind {
                0 => 0,
                1 if !pages.is_empty() => pages[random.below(pages.len() as u64) as usize],
                _ => 1 + random.below(1 << 40),
            };
            pages.push(page);
        }
    }
    pages
}

pub fn on(_: Progress) -> ControlFlow<()> {
    ControlFlow::Continue(())
}

/// An image, or any file, in memory. Can have a disk error or a full disk after so many accesses.
#[derive(Default)]
pub struct Ram {
    pub bytes: Mutex<Vec<u8>>,
    /// Accesses until it fails; 0 never.
    pub left: AtomicU64,
    pub error: Option<i32>,
}

impl Ram {
    pub fn failing(bytes: Vec<u8>, after: u64, error: i32) -> Ram {
        Ram {
            bytes: Mutex::new(bytes),
            left: AtomicU64::new(after),
            error: Some(error),
        }
    }

    fn access(&self) -> io::Result<()> {
        let Some(error) = self.error else {
            return Ok(());
        };
        let less = |left: u64| left.checked_sub(1);
        match self
            .left
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, less)
        {
            Ok(_) => Ok(()),
            Err(_) => Err(io::Error::from_raw_os_error(error)),
        }
    }
}

impl Store for Ram {
    fn len(&self) -> io::Result<u64> {
        self.access()?;
        Ok(self.bytes.lock().unwrap().len() as u64)
    }

    fn read_exact_at(&self, buf: &mut [u8], offset: u64) -> io::Result<()> {
        self.access()?;
        self.bytes.lock().unwrap().read_exact_at(buf, offset)
    }
}

impl Sink for Ram {
    fn write_all_at(&self, buf: &[u8], offset: u64) -> io::Result<()> {
        self.access()?;
        let mut bytes = self.bytes.lock().unwrap();
        let end = offset as usize + buf.len();
        if bytes.len() < end {
            bytes.resize(end, 0);
        }
        bytes[offset as usize..end].copy_from_slice(buf);
        Ok(())
    }
}

pub fn stored(memory: &[u8]) -> Input {
    Input::Stored(Arc::new(memory.to_vec()))
}

pub fn pack(pack: &Pack, input: Input) -> (Vec<u8>, Packed) {
    let ram = Ram::default();
    let packed = pack.sink(input, &ram, &mut on).unwrap();
    let bytes = ram.bytes.into_inner().unwrap();
    assert_eq!(bytes.len() as u64, packed.file_bytes);
    (bytes, packed)
}

/// Opens layers, the image itself first.
pub fn open(layers: &[&[u8]]) -> amdahl_image::Result<Image> {
    let store = |bytes: &&[u8]| -> Box<dyn Store> { Box::new(bytes.to_vec()) };
    Image::options().open_stores(layers.iter().map(store).collect())
}

pub fn read_all(image: &Image) -> amdahl_image::Result<Vec<u8>> {
    let mut memory = vec![0xaa; image.memory_bytes() as usize];
    image.read(0, &mut memory)?;
    Ok(memory)
}
