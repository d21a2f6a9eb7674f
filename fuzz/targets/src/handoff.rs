//! What a VMM sends when it hands its memory over.

use amdahl_pager::handoff::{Layout, MESSAGE_BYTES_MAX, Message, REGIONS_MAX, describe, parse};
use amdahl_pager::succession::message::{self as words, BYTES_MAX, common_version};
use amdahl_pager::{HandedOver, PAGE};

/// The first byte says how the message is cut and how long the source is.
pub(crate) fn message(bytes: &[u8]) {
    let Some((how, bytes)) = bytes.split_first() else {
        return;
    };
    let mut whole = Message::new();
    let at_once = whole.push(bytes);
    let mut pieces = Message::new();
    let mut in_pieces = Ok(false);
    for piece in bytes.chunks(1 + usize::from(how % 16)) {
        in_pieces = pieces.push(piece);
        if in_pieces.is_err() {
            break;
        }
    }
    assert_eq!(in_pieces, at_once);
    assert_eq!(pieces.bytes(), whole.bytes());
    assert!(whole.bytes().len() <= MESSAGE_BYTES_MAX);

    let source_bytes = 1u64 << (how / 16 * 4);
    let parsed = parse(bytes, source_bytes);
    let Ok(regions) = parsed else {
        return;
    };
    assert!(matches!(at_once, Ok(true)), "a message ends where it ends");
    assert!((1..=REGIONS_MAX).contains(&regions.len()));
    let again = parse(describe(&regions).as_bytes(), source_bytes);
    assert_eq!(again.as_ref(), Ok(&regions));
    let source_bytes = source_bytes.next_multiple_of(PAGE as u64);
    for (nth, region) in regions.iter().enumerate() {
        let HandedOver {
            start,
            len,
            source_offset,
            page_bytes,
        } = *region;
        assert!(len > 0 && len % page_bytes == 0 && start % page_bytes == 0);
        assert!(start.checked_add(len).is_some() && source_offset % PAGE as u64 == 0);
        assert!(source_offset + len as u64 <= source_bytes);
        for other in &regions[..nth] {
            assert!(start + len <= other.start || other.start + other.len <= start);
        }
    }
    let layout = Layout::new(&regions);
    let last = source_bytes / PAGE as u64;
    for page in [0, 1, last / 2, last.saturating_sub(1)] {
        for pages in layout.pages(page..page + 1) {
            assert_eq!(layout.source_page(pages.start), Some(page));
        }
    }
}

/// What one daemon says to another. The first byte says how many descriptors come with it.
pub(crate) fn succession(bytes: &[u8]) {
    let Some((how, bytes)) = bytes.split_first() else {
        return;
    };
    let descriptors = usize::from(how % 6);
    let Ok(message) = words::Message::decode(bytes, descriptors) else {
        return;
    };
    assert!(bytes.len() <= BYTES_MAX);
    // What is said once more is the same, if numbers have not become longer by being written as usual.
    if let Ok(again) = message.encode() {
        let read = words::Message::decode(&again, descriptors);
        assert_eq!(read.expect("what was just written"), message);
    }
    match message {
        words::Message::Hello { oldest, newest, .. } => {
            if let Some(version) = common_version(oldest, newest) {
                assert!((oldest..=newest).contains(&version));
                assert!((words::OLDEST..=words::VERSION).contains(&version));
            }
        }
        words::Message::Vm(vm) => {
            assert!((3..=4).contains(&descriptors));
            let source_bytes = 1u64 << (how / 8 * 2);
            if let Ok(regions) = vm.regions(source_bytes) {
                assert!((1..=REGIONS_MAX).contains(&regions.len()));
                let bytes: usize = regions.iter().map(|region| region.len).sum();
                assert!(bytes as u64 <= source_bytes.next_multiple_of(PAGE as u64));
            }
        }
        _ => {}
    }
}
