//! Whatever happens to an image: the right memory, or a clear error.

mod common;

use std::fs;
use std::io::Read;
use std::ops::ControlFlow;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use amdahl_image::{
    Compression, Error, Image, Input, LAYERS_MAX, Pack, PageRun, Region, Unpack, Verify,
};
use common::{Ram, Random, memory, on, open, pack, read_all, some_pages, stored};

fn small(compression: Compression) -> (Vec<u8>, Vec<u8>) {
    let numbers = [0, 2, 4, 6, 2, 0, 0, 8, 10, 12, 14, 16, 3];
    let memory = memory(&numbers);
    let how = Pack::new()
        .compression(compression)
        .working_set(vec![PageRun { first: 3, count: 2 }])
        .regions(vec![Region {
            guest_address: 0,
            offset: 0,
            len: 4096,
        }])
        .metadata(b"name: small".to_vec());
    (pack(&how, stored(&memory)).0, memory)
}

/// Everything that can be read is as it was, or an error.
fn right_or_refused(bytes: &[u8], memory: &[u8], good: &Image, what: &str) -> bool {
    let Ok(image) = open(&[bytes]) else {
        return false;
    };
    let mut all = true;
    let mut page = [0; 4096];
    for (at, expected) in memory.chunks(4096).enumerate() {
        match image.read(at as u64 * 4096, &mut page) {
            Ok(()) => assert!(page == expected, "{what}: page {at} is wrong"),
            Err(_) => all = false,
        }
    }
    macro_rules! same {
        ($part:ident) => {
            match image.$part() {
                Ok(part) => assert_eq!(part, good.$part().unwrap(), "{what}"),
                Err(_) => all = false,
            }
        };
    }
    same!(working_set);
    same!(regions);
    same!(metadata);
    assert_eq!(
        image.info()[0].stored_pages,
        good.info()[0].stored_pages,
        "{what}"
    );
    all
}

#[test]
fn a_damaged_byte_is_found_or_changes_nothing() {
    for compression in [Compression::Zstd(1), Compression::Lz4, Compression::None] {
        let (bytes, memory) = small(compression);
        let good = open(&[&bytes]).unwrap();
        assert!(right_or_refused(&bytes, &memory, &good, "undamaged"));
        let mut random = Random(1);
        let mut found = 0;
        let step = if compression == Compression::None {
            13
        } else {
            3
        };
        for at in (0..bytes.len()).step_by(step) {
            let mut damaged = bytes.clone();
            damaged[at] ^= 1 + random.below(255) as u8;
            let unharmed = right_or_refused(&damaged, &memory, &good, &format!("byte {at}"));
            found += usize::from(!unharmed);
            if at < 4096 {
                assert!(!unharmed, "byte {at} of the header");
            }
        }
        // Padding is most of so small a file; all that means something is found.
        assert!(found * step > 4096 + 200, "{found} of {}", bytes.len());
    }
}

#[test]
fn verify_says_which_pages_are_damaged() {
    let (mut bytes, memory) = small(Compression::Zstd(1));
    // In the first cluster: those of the working set, 6 and 2, then 4 and 8 as they come.
    bytes[4096 + 10] ^= 1;
    let image = Arc::new(open(&[&bytes]).unwrap());
    let verified = Verify::new().run(&image, &mut on).unwrap();
    let pages: Vec<_> = verified
        .damages
        .iter()
        .map(|damage| damage.pages.clone())
        .collect();
    assert_eq!(verified.damaged_pages, 5);
    assert_eq!(pages, [Some(1..5), Some(7..8)]);
    let mut page = [0; 4096];
    for at in 0..13u64 {
        let read = image.read(at * 4096, &mut page);
        assert_eq!(read.is_err(), (1..5).contains(&at) || at == 7, "page {at}");
        assert!(read.is_err() || page == memory[at as usize * 4096..][..4096]);
    }
}

#[test]
fn verify_finds_a_forged_memory() {
    // All checksums are right, but it is not the memory of this identity.
    let (mut bytes, _) = small(Compression::None);
    bytes[4096] ^= 1;
    amdahl_image::fuzz::seal(&mut bytes);
    let image = Arc::new(open(&[&bytes]).unwrap());
    let verified = Verify::new().run(&image, &mut on).unwrap();
    assert!(
        verified
            .damages
            .iter()
            .any(|damage| damage.what.contains("identity")),
        "{verified:?}"
    );
}

#[test]
fn a_file_that_was_cut_is_refused() {
    let (bytes, _) = small(Compression::Zstd(1));
    for len in 0..bytes.len() {
        assert!(
            open(&[&bytes[..len]]).is_err(),
            "{len} of {} bytes",
            bytes.len()
        );
    }
    let mut longer = bytes.clone();
    longer.push(0);
    assert!(open(&[&longer]).is_err());
}

#[test]
fn unknown_versions_and_features_are_named() {
    let (bytes, _) = small(Compression::Zstd(1));
    for (at, value, word) in [
        (8, 2, "version 2"),
        (16, 4, "features 0x4"),
        (33, 30, "clusters of 2^30"),
    ] {
        let mut newer = bytes.clone();
        newer[at] = value;
        amdahl_image::fuzz::seal(&mut newer);
        let error = open(&[&newer]).err().unwrap().to_string();
        assert!(
            error.contains(word) && error.contains("newer version"),
            "{error}"
        );
    }
    // What a reader need not know.
    let mut newer = bytes.clone();
    newer[24] = 1;
    amdahl_image::fuzz::seal(&mut newer);
    assert!(open(&[&newer]).is_ok());
    assert!(matches!(open(&[b"hello"]), Err(Error::NotAnImage { .. })));
}

#[test]
fn disk_errors_while_reading_are_errors() {
    let (bytes, memory) = small(Compression::Lz4);
    let mut failures = 0;
    for after in 0.. {
        let ram = Ram::failing(bytes.clone(), after, 5);
        let image = Image::options()
            .cache_bytes(1 << 20)
            .open_stores(vec![Box::new(ram)]);
        match image.and_then(|image| read_all(&image)) {
            Ok(read) => {
                assert!(read == memory);
                break;
            }
            Err(error) => assert!(error.to_string().contains("Input/output error"), "{error}"),
        }
        failures += 1;
    }
    assert!(failures > 5, "{failures}");
}

#[test]
fn an_error_is_not_remembered() {
    // The cluster that could not be read is read when it can be.
    let (bytes, memory) = small(Compression::Zstd(1));
    let ram: Arc<Ram> = Arc::new(Ram::failing(bytes, 1000, 5));
    struct Shared(Arc<Ram>);
    impl amdahl_image::Store for Shared {
        fn len(&self) -> std::io::Result<u64> {
            self.0.len()
        }
        fn read_exact_at(&self, buf: &mut [u8], offset: u64) -> std::io::Result<()> {
            self.0.read_exact_at(buf, offset)
        }
    }
    let image = Image::options()
        .open_stores(vec![Box::new(Shared(Arc::clone(&ram)))])
        .unwrap();
    let mut page = [0; 4096];
    ram.left.store(0, Ordering::Relaxed);
    assert!(image.read(4096, &mut page).is_err());
    ram.left.store(1000, Ordering::Relaxed);
    image.read(4096, &mut page).unwrap();
    assert!(page == memory[4096..8192]);
}

#[test]
fn a_full_disk_or_a_broken_input_leaves_no_image() {
    let mut random = Random(3);
    let now = memory(&some_pages(1200, &mut random));
    for after in [0, 1, 2, 5, 9, 12] {
        let ram = Ram::failing(Vec::new(), after, 28);
        let error = Pack::new().sink(stored(&now), &ram, &mut on).unwrap_err();
        assert!(error.to_string().contains("No space left"), "{error}");
        // The header comes last.
        assert!(open(&[&ram.bytes.lock().unwrap()]).is_err());
    }
    for after in [0, 1, 2] {
        let input = Input::Stored(Arc::new(Ram::failing(now.clone(), after, 5)));
        let error = Pack::new()
            .sink(input, &Ram::default(), &mut on)
            .unwrap_err();
        assert!(error.to_string().contains("Input/output error"), "{error}");
    }
}

/// Bytes, then an error.
struct Breaks(std::io::Cursor<Vec<u8>>);

impl Read for Breaks {
    fn read(&mut self, buf: &mut [u8]) -> std::io::Result<usize> {
        match self.0.read(buf)? {
            0 => Err(std::io::Error::from_raw_os_error(5)),
            len => Ok(len),
        }
    }
}

#[test]
fn what_fails_leaves_the_old_file_and_nothing_else() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("a.ami");
    fs::write(&path, "the old one").unwrap();
    let now = memory(&(1..3000).collect::<Vec<u64>>());
    let broken = Input::Stream(Box::new(Breaks(std::io::Cursor::new(now.clone()))));
    assert!(Pack::new().file(broken, &path, &mut on).is_err());
    let odd = Input::Stream(Box::new(std::io::Cursor::new(now[..10_000].to_vec())));
    assert!(matches!(
        Pack::new().file(odd, &path, &mut on),
        Err(Error::Input { .. })
    ));
    // Stopped at any time, also after the last byte of the input.
    for calls in 1..8 {
        let mut left = calls;
        let mut stop = |_| {
            left -= 1;
            if left == 0 {
                ControlFlow::Break(())
            } else {
                ControlFlow::Continue(())
            }
        };
        let input = Input::Stream(Box::new(std::io::Cursor::new(now.clone())));
        let stopped = Pack::new().file(input, &path, &mut stop);
        assert!(matches!(stopped, Err(Error::Interrupted)), "{calls}");
    }
    assert_eq!(fs::read(&path).unwrap(), b"the old one");
    assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1);

    let image = folder.path().join("b.ami");
    Pack::new().file(stored(&now), &image, &mut on).unwrap();
    let mut bytes = fs::read(&image).unwrap();
    bytes[5000] ^= 1;
    fs::write(&image, bytes).unwrap();
    let image = Arc::new(Image::open(&image).unwrap());
    let unpacked = Unpack::new().file(&image, &path, &mut on);
    assert!(unpacked.unwrap_err().is_damage());
    assert_eq!(fs::read(&path).unwrap(), b"the old one");
    assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 2);
}

#[test]
fn bases_are_found_by_what_they_hold() {
    let folder = tempfile::tempdir().unwrap();
    let at = |name: &str| folder.path().join(name);
    let write = |name: &str, numbers: &[u64], base: Option<&str>| {
        let mut how = Pack::new();
        if let Some(base) = base {
            how = how.base(Arc::new(Image::open(at(base)).unwrap()));
        }
        how.file(stored(&memory(numbers)), at(name), &mut on)
            .unwrap()
    };
    write("base.ami", &[1, 2, 3], None);
    write("diff.ami", &[1, 9, 3], Some("base.ami"));
    write("other.ami", &[7, 7, 7], None);
    let good = memory(&[1, 9, 3]);
    assert!(read_all(&Image::open(at("diff.ami")).unwrap()).unwrap() == good);
    // Under another name beside it; elsewhere, if it is said where.
    fs::rename(at("base.ami"), at("renamed")).unwrap();
    assert!(read_all(&Image::open(at("diff.ami")).unwrap()).unwrap() == good);
    fs::create_dir(at("elsewhere")).unwrap();
    fs::rename(at("renamed"), at("elsewhere/b")).unwrap();
    assert!(matches!(
        Image::open(at("diff.ami")),
        Err(Error::NoBase { .. })
    ));
    let named = |base: &str| Image::options().base(at(base)).open(at("diff.ami"));
    assert!(read_all(&named("elsewhere/b").unwrap()).unwrap() == good);
    assert!(named("other.ami").is_err());
    // Another memory under the old name is not taken for it.
    write("base.ami", &[1, 2, 4], None);
    assert!(matches!(
        Image::open(at("diff.ami")),
        Err(Error::NoBase { .. })
    ));
    // A base that is none, and an image as its own base.
    let needless = Image::options().base(at("other.ami")).open(at("base.ami"));
    assert!(matches!(needless, Err(Error::Input { .. })));
    let base = Arc::new(Image::open(at("other.ami")).unwrap());
    let onto = Pack::new()
        .base(base)
        .file(stored(&good), at("other.ami"), &mut on);
    assert!(matches!(onto, Err(Error::Input { .. })));
    assert!(Image::open(at("other.ami")).is_ok());
}

#[test]
fn a_chain_has_an_end() {
    let mut layers: Vec<Vec<u8>> = Vec::new();
    for layer in 0..LAYERS_MAX {
        let mut how = Pack::new().threads(1);
        let below: Vec<&[u8]> = layers.iter().map(Vec::as_slice).collect();
        if layer > 0 {
            how = how.base(Arc::new(open(&below).unwrap()));
        }
        let (bytes, _) = pack(&how, stored(&memory(&[1, 2 * layer as u64])));
        layers.insert(0, bytes);
    }
    let all: Vec<&[u8]> = layers.iter().map(Vec::as_slice).collect();
    let image = open(&all).unwrap();
    assert!(read_all(&image).unwrap() == memory(&[1, 2 * (LAYERS_MAX as u64 - 1)]));
    let how = Pack::new().base(Arc::new(image));
    let deeper = how.sink(stored(&memory(&[1, 1])), &Ram::default(), &mut on);
    assert!(matches!(deeper, Err(Error::TooDeep { .. })));
    // Out of order, one missing, one twice.
    assert!(matches!(open(&all[..2]), Err(Error::NoBase { .. })));
    assert!(matches!(
        open(&[all[0], all[2]]),
        Err(Error::WrongBase { .. })
    ));
    assert!(matches!(
        open(&[all[0], all[0]]),
        Err(Error::WrongBase { .. })
    ));
}

fn number(bytes: &[u8], at: usize) -> usize {
    let number = bytes[at..at + 8].try_into().unwrap();
    u64::from_le_bytes(number) as usize
}

/// An image of pages that are as in the base or zero, which then says of none that it knows it.
fn knows_nothing(pages: &[u64], below: &[&[u8]]) -> Vec<u8> {
    let how = Pack::new().base(Arc::new(open(below).unwrap()));
    let (mut bytes, packed) = pack(&how, stored(&memory(pages)));
    assert_eq!((packed.stored_pages, number(&bytes, 64)), (0, 1));
    // Without clusters the only table is where the index begins.
    let table = number(&bytes, 72);
    bytes[table..table + 2048].fill(0);
    amdahl_image::fuzz::seal(&mut bytes);
    bytes
}

#[test]
fn behind_the_end_of_a_base_is_nothing() {
    let ten: Vec<u64> = (1..11).collect();
    let twenty: Vec<u64> = (1..21).collect();
    let longer = |pages: &[u64]| [pages, &[0; 10]].concat();
    let check = |layers: &[&[u8]], expected: &[u64]| {
        let image = Arc::new(open(layers).unwrap());
        assert!(read_all(&image).unwrap() == memory(expected));
        assert_eq!(image.kind(15).unwrap(), amdahl_image::PageKind::Absent);
        for page in 0..20 {
            assert!(image.nearby(page).unwrap().contains(&page));
        }
    };
    // The only group of the base is a run of stored pages, which has no more of them.
    let base = pack(&Pack::new(), stored(&memory(&ten))).0;
    let top = knows_nothing(&longer(&ten), &[&base]);
    check(&[&top, &base], &longer(&ten));
    // What ends in the middle hides what lies below it.
    let bottom = pack(&Pack::new(), stored(&memory(&twenty))).0;
    let how = Pack::new().base(Arc::new(open(&[&bottom]).unwrap()));
    let mut changed = ten.clone();
    changed[0] = 99;
    let middle = pack(&how, stored(&memory(&changed))).0;
    let top = knows_nothing(&longer(&changed), &[&middle, &bottom]);
    check(&[&top, &middle, &bottom], &longer(&changed));
}

#[test]
fn runs_end_where_a_base_ends() {
    let base = pack(&Pack::new(), stored(&memory(&[0; 522]))).0;
    let top = knows_nothing(&[0; 1024], &[&base]);
    let image = open(&[&top, &base]).unwrap();
    let runs: Vec<_> = image.runs(0..1024).map(Result::unwrap).collect();
    use amdahl_image::PageKind::{Absent, Zero};
    assert_eq!(runs, [(0..522, Zero), (522..1024, Absent)]);
}

#[test]
fn numbers_behind_the_end_are_refused() {
    let (mut bytes, _) = pack(&Pack::new(), stored(&memory(&[1, 0, 2])));
    let table = number(&bytes, 72) + 4096;
    bytes[table + 4 * 3] = 1;
    amdahl_image::fuzz::seal(&mut bytes);
    assert!(read_all(&open(&[&bytes]).unwrap()).unwrap_err().is_damage());
}

#[test]
fn tables_that_no_group_has_are_refused() {
    // As many as the header says would be allocated.
    let (mut bytes, _) = pack(&Pack::new(), stored(&memory(&[0])));
    let index = number(&bytes, 72);
    bytes.splice(index..index, [0; 4096]);
    bytes[64] = 1;
    amdahl_image::fuzz::seal(&mut bytes);
    let error = open(&[&bytes]).err().unwrap();
    assert!(error.to_string().contains("number of tables"), "{error}");
}

#[test]
fn verify_tells_what_it_found_until_it_was_ended() {
    let (mut bytes, _) = small(Compression::Zstd(1));
    let stopped = |bytes: &[u8]| {
        let image = Arc::new(open(&[bytes]).unwrap());
        let verified = Verify::new().run(&image, &mut |_| ControlFlow::Break(()));
        let verified = verified.unwrap();
        assert!(!verified.is_complete && !verified.is_good());
        verified
    };
    assert!(stopped(&bytes).damages.is_empty());
    bytes[4096 + 10] ^= 1;
    assert_eq!(stopped(&bytes).damaged_pages, 5);
}

#[test]
fn an_image_is_not_unpacked_onto_itself() {
    let folder = tempfile::tempdir().unwrap();
    let at = |name: &str| folder.path().join(name);
    Pack::new()
        .file(stored(&memory(&[1, 2])), at("base.ami"), &mut on)
        .unwrap();
    let base = Arc::new(Image::open(at("base.ami")).unwrap());
    Pack::new()
        .base(base)
        .file(stored(&memory(&[1, 4])), at("top.ami"), &mut on)
        .unwrap();
    let image = Arc::new(Image::open(at("top.ami")).unwrap());
    for name in ["top.ami", "base.ami"] {
        let onto = Unpack::new().file(&image, at(name), &mut on);
        assert!(matches!(onto, Err(Error::Input { .. })), "{name}");
    }
    assert!(read_all(&Image::open(at("top.ami")).unwrap()).is_ok());
}

/// A store that reads an image before it answers.
struct Nested(Image, Vec<u8>);

impl amdahl_image::Store for Nested {
    fn len(&self) -> std::io::Result<u64> {
        self.1.len().try_into().map_err(std::io::Error::other)
    }

    fn read_exact_at(&self, buf: &mut [u8], offset: u64) -> std::io::Result<()> {
        read_all(&self.0).map_err(std::io::Error::other)?;
        self.1.read_exact_at(buf, offset)
    }
}

#[test]
fn a_store_may_read_an_image() {
    let now = memory(&[2, 4, 6, 8]);
    let (bytes, _) = pack(&Pack::new(), stored(&now));
    // A cluster that is read whole is not kept: it is unpacked each time.
    let store = Nested(open(&[&bytes]).unwrap(), bytes);
    let image = Image::options().open_stores(vec![Box::new(store)]);
    assert!(read_all(&image.unwrap()).unwrap() == now);
}

#[test]
fn what_cannot_be_added_is_refused_before_a_stream_is_read() {
    let how = Pack::new().metadata(vec![1; (1 << 20) + 1]);
    let broken = Input::Stream(Box::new(Breaks(std::io::Cursor::new(Vec::new()))));
    let refused = how.sink(broken, &Ram::default(), &mut on);
    assert!(matches!(refused, Err(Error::Input { .. })));
}
