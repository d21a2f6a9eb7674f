//! What a VMM sends when it hands its memory over.

use std::io::{Read, Write};
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::time::Duration;

use amdahl_pager::handoff::{
    Layout, MESSAGE_BYTES_MAX, Message, Question, REGIONS_MAX, describe, parse, question,
    send_with, take_offer,
};
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

/// What is said to a VMM that asked for clean pages. The first byte says beside which two bytes a file comes, if one does.
pub(crate) fn clean_offer(bytes: &[u8]) {
    const OFFER: &[u8] = b"AMDLCP\0\x01";
    let Some((how, bytes)) = bytes.split_first() else {
        return;
    };
    // The socket takes some 270 messages before somebody reads, however short they are.
    let bytes = &bytes[..bytes.len().min(128)];
    let files = [usize::from(how % 16), usize::from(how / 16)];
    let file = tempfile::tempfile().expect("a file");
    file.set_len(PAGE as u64).expect("a page of it");
    let (ours, theirs) = UnixStream::pair().expect("two sockets");
    let mut sent = 0;
    for (nth, byte) in bytes.iter().enumerate() {
        // Each by itself: what comes with a byte would come with its neighbours else.
        let with = files.contains(&nth).then_some(file.as_fd());
        send_with(&theirs, &[*byte], with).expect("there is room");
        sent += usize::from(with.is_some() && nth < OFFER.len());
    }
    drop(theirs);
    let minute = Duration::from_secs(60);
    let taken = take_offer(&ours, minute);
    let is_right = bytes.starts_with(OFFER) && sent == 1;
    assert_eq!(taken.is_ok(), is_right, "{taken:?}");
    if let Ok(offer) = taken {
        assert_eq!(offer.bytes(), PAGE as u64);
        // It can be changed, so it is not what was promised.
        assert!(offer.map(0, PAGE).is_err());
        let mut rest = Vec::new();
        (&ours).read_to_end(&mut rest).expect("the rest");
        assert_eq!(rest, bytes[OFFER.len()..]);
    }

    let (ours, mut theirs) = UnixStream::pair().expect("two sockets");
    theirs.write_all(bytes).expect("there is room");
    drop(theirs);
    let asked = question(&ours, minute);
    let mut rest = Vec::new();
    (&ours).read_to_end(&mut rest).expect("the rest");
    match asked {
        Ok(Some(asked)) => {
            let question = match asked {
                Question::CleanPages => b"AMDLCQ\0\x01",
                _ => b"AMDLWQ\0\x01",
            };
            assert!(bytes.starts_with(question) && rest == bytes[8..]);
        }
        Ok(None) => assert_eq!(rest, bytes, "left for who takes what is handed over"),
        Err(_) => assert!(bytes.is_empty() || bytes[0] == b'A'),
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
            let least = 3 + usize::from(vm.maps);
            assert!((least..=least + 1).contains(&descriptors));
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
