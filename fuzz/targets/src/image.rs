//! Memory images.

use amdahl_image::{Image, PAGE_BYTES, Place, Store};

/// Pages that are read at most.
const PAGES: u64 = 96;

/// A file as it is and with its checksums made right, and two files as an image and its base.
pub(crate) fn memory_image(bytes: &[u8]) {
    read(&[bytes]);
    let mut sealed = bytes.to_vec();
    amdahl_image::fuzz::seal(&mut sealed);
    read(&[&sealed]);
    let mut both = bytes.to_vec();
    let (top, base) = both.split_at_mut(amdahl_image::fuzz::second_at(bytes));
    amdahl_image::fuzz::stack(top, base);
    read(&[top, base]);
}

/// Whatever can be read is the same in whichever way it is read.
fn read(layers: &[&[u8]]) {
    let store = |bytes: &&[u8]| -> Box<dyn Store> { Box::new(bytes.to_vec()) };
    let options = Image::options().cache_bytes(1 << 20);
    let Ok(image) = options.open_stores(layers.iter().map(store).collect()) else {
        return;
    };
    let pages = image.pages();
    let in_memory =
        |first: u64, count: u64| first.checked_add(count).is_some_and(|end| end <= pages);
    for run in image.working_set().unwrap_or_default() {
        assert!(run.count > 0 && in_memory(run.first, run.count));
    }
    for region in image.regions().unwrap_or_default() {
        assert!(region.offset + region.len <= image.memory_bytes());
    }
    let _ = (image.metadata(), image.codecs(), image.info());
    let mut at = 0;
    for run in image.runs(0..pages.min(1 << 16)) {
        let Ok((run, kind)) = run else {
            break;
        };
        assert!(run.start == at && run.end > at && in_memory(run.start, run.end - run.start));
        assert_eq!(image.kind(run.end - 1).expect("it was found"), kind);
        at = run.end;
    }
    let mut window = vec![0; PAGES as usize * PAGE_BYTES];
    let first = pages.saturating_sub(PAGES);
    let window = &mut window[..(pages - first) as usize * PAGE_BYTES];
    let whole = image.read(first * PAGE_BYTES as u64, window).is_ok();
    for page in first..pages {
        let mut alone = [1; PAGE_BYTES];
        let read = image.read(page * PAGE_BYTES as u64, &mut alone).is_ok();
        assert!(read || !whole, "page {page}");
        let in_window = &window[(page - first) as usize * PAGE_BYTES..][..PAGE_BYTES];
        assert!(!read || !whole || alone == *in_window, "page {page}");
        let Ok(nearby) = image.nearby(page) else {
            continue;
        };
        assert!(nearby.contains(&page) && nearby.end <= pages);
        if let Ok(Place::Stored { offset, .. }) = image.place(page) {
            assert!((offset as usize).is_multiple_of(PAGE_BYTES) && offset < 1 << 20);
        }
    }
}
