//! Two snapshots of a memory: the first one whole, the second one as a difference to it.
//!
//!     cargo run -p amdahl-image --example snapshots

use std::ops::ControlFlow::Continue;
use std::sync::Arc;

use amdahl_image::{Image, Input, PAGE_BYTES, Pack, Place};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let folder = tempfile::tempdir()?;
    let (first, second) = (
        folder.path().join("first.ami"),
        folder.path().join("second.ami"),
    );

    // 64 MiB, every fourth page of which has some text.
    let mut memory = vec![0; 64 << 20];
    for (page, number) in memory.chunks_mut(PAGE_BYTES).zip(0..).step_by(4) {
        let text = format!("page {number} ");
        page.chunks_mut(text.len())
            .for_each(|part| part.copy_from_slice(&text.as_bytes()[..part.len()]));
    }
    let pack = |how: Pack, memory: &[u8], path| {
        how.file(Input::Stored(Arc::new(memory.to_vec())), path, &mut |_| {
            Continue(())
        })
    };
    let packed = pack(Pack::new(), &memory, &first)?;
    println!(
        "first:  {} KiB, identity {}",
        packed.file_bytes >> 10,
        packed.identity
    );

    // The program goes on: three pages change.
    for page in [5, 4000, 16000] {
        memory[page * PAGE_BYTES..][..5].copy_from_slice(b"later");
    }
    let base = Arc::new(Image::open(&first)?);
    let packed = pack(Pack::new().base(base), &memory, &second)?;
    println!(
        "second: {} KiB, {} pages stored, {} as in the first",
        packed.file_bytes >> 10,
        packed.stored_pages,
        packed.absent_pages,
    );

    // Its base is found beside it. Single pages are read from wherever they are.
    let image = Image::open(&second)?;
    let mut page = vec![0; PAGE_BYTES];
    for number in [4000, 4004, 4005] {
        image.read(number * PAGE_BYTES as u64, &mut page)?;
        let place = match image.place(number)? {
            Place::Stored { layer: 0, .. } => "in the second",
            Place::Stored { .. } => "in the first",
            _ => "zero",
        };
        let text = String::from_utf8_lossy(&page[..10]).replace('\0', ".");
        println!("page {number}: {text} ({place})");
    }
    assert_eq!(image.nearby(4000)?, 4000..4001);
    Ok(())
}
