//! What was packed is read again, whatever it was packed with.

mod common;

use std::io::Read;
use std::sync::Arc;

use amdahl_image::{
    Compression, Input, PAGE_BYTES, Pack, PageKind, PageRun, Place, Region, Unpack, Verify,
};
use common::{Random, memory, on, open, pack, page, read_all, some_pages, stored};
use proptest::prelude::*;

fn compression() -> impl Strategy<Value = Compression> {
    prop_oneof![
        Just(Compression::None),
        Just(Compression::Lz4),
        Just(Compression::Zstd(1)),
        Just(Compression::Zstd(-5)),
    ]
}

/// Ends reads where it likes.
struct Pieces(std::io::Cursor<Vec<u8>>, Random);

impl Read for Pieces {
    fn read(&mut self, buf: &mut [u8]) -> std::io::Result<usize> {
        if self.1.below(9) == 0 {
            return Err(std::io::ErrorKind::Interrupted.into());
        }
        let len = buf.len().min(1 + self.1.below(300_000) as usize);
        self.0.read(&mut buf[..len])
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]

    #[test]
    fn memory_is_what_it_was(
        seed: u64, count in 0..1700usize, compression in compression(), bits in 12..=20u32, threads in 1..4u32,
    ) {
        let mut random = Random(seed);
        let numbers = some_pages(count, &mut random);
        let memory = memory(&numbers);
        let how = Pack::new().compression(compression).cluster_bytes(1 << bits).threads(threads);
        let (bytes, packed) = pack(&how, stored(&memory));
        let image = open(&[&bytes]).unwrap();
        prop_assert_eq!(image.memory_bytes(), memory.len() as u64);
        prop_assert!(read_all(&image).unwrap() == memory);

        // Every kind of page, and each content once.
        let mut contents = numbers.clone();
        contents.sort_unstable();
        contents.dedup();
        let zeros = numbers.iter().filter(|number| **number == 0).count();
        prop_assert_eq!(packed.zero_pages, zeros as u64);
        prop_assert_eq!(packed.absent_pages, 0);
        prop_assert_eq!(packed.stored_pages, contents.iter().filter(|number| **number != 0).count() as u64);
        let mut at = 0;
        for run in image.runs(0..image.pages()) {
            let (pages, kind) = run.unwrap();
            prop_assert_eq!(pages.start, at);
            at = pages.end;
            for page in pages {
                let expected = if numbers[page as usize] == 0 { PageKind::Zero } else { PageKind::Data };
                prop_assert_eq!((kind, image.kind(page).unwrap()), (expected, expected));
            }
        }
        prop_assert_eq!(at, count as u64);

        // Any range, and what comes with a page.
        for _ in 0..20 {
            if count == 0 { break; }
            let first = random.below(count as u64);
            let pages = random.below((count as u64 - first).min(40)) + 1;
            let range = first as usize * PAGE_BYTES..((first + pages) as usize).min(count) * PAGE_BYTES;
            let mut part = vec![1; range.len()];
            image.read(range.start as u64, &mut part).unwrap();
            prop_assert!(part == memory[range]);
            let nearby = image.nearby(first).unwrap();
            prop_assert!(nearby.contains(&first) && nearby.end <= count as u64);
            if let Place::Stored { cluster, offset, .. } = image.place(first).unwrap() {
                for (page, at) in nearby.clone().zip(0u32..) {
                    let Place::Stored { cluster: there, offset: begins, .. } = image.place(page).unwrap() else {
                        panic!("page {page} has content");
                    };
                    let before = (first - nearby.start) as u32;
                    prop_assert_eq!((there, begins + before * 4096), (cluster, offset + at * 4096));
                }
            }
        }
        let verified = Verify::new().run(&Arc::new(image), &mut on).unwrap();
        prop_assert!(verified.is_good(), "{:?}", verified);
    }

    #[test]
    fn the_same_memory_gives_the_same_bytes(seed: u64, count in 1..1500usize, compression in compression()) {
        let memory = memory(&some_pages(count, &mut Random(seed)));
        let of = |threads: u32, input: Input| {
            pack(&Pack::new().compression(compression).threads(threads), input).0
        };
        let one = of(1, stored(&memory));
        prop_assert!(one == of(4, stored(&memory)));
        let stream = Pieces(std::io::Cursor::new(memory.clone()), Random(seed));
        prop_assert!(one == of(2, Input::Stream(Box::new(stream))));
    }

    #[test]
    fn layers_lie_on_each_other(seed: u64, count in 1..1200usize, layers in 1..4usize) {
        let mut random = Random(seed);
        let mut numbers = some_pages(count, &mut random);
        let mut images: Vec<Vec<u8>> = Vec::new();
        for layer in 0..=layers {
            let now = memory(&numbers);
            let mut how = Pack::new().threads(2).cluster_bytes(4096 << random.below(5));
            if layer > 0 {
                let below: Vec<&[u8]> = images.iter().map(Vec::as_slice).collect();
                how = how.base(Arc::new(open(&below).unwrap()));
            }
            let (bytes, packed) = pack(&how, stored(&now));
            images.insert(0, bytes);
            let all: Vec<&[u8]> = images.iter().map(Vec::as_slice).collect();
            let image = Arc::new(open(&all).unwrap());
            prop_assert!(read_all(&image).unwrap() == now);
            prop_assert_eq!(image.info().len(), layer + 1);
            prop_assert_eq!(image.identity(), packed.identity);
            let verified = Verify::new().threads(1).run(&image, &mut on).unwrap();
            prop_assert!(verified.is_good(), "{:?}", verified);
            // Some pages change, some go, the memory grows or shrinks.
            let changes = random.below(count as u64 / 4 + 2);
            for _ in 0..changes {
                let at = random.below(numbers.len() as u64) as usize;
                numbers[at] = if random.below(3) == 0 { 0 } else { 1 + random.below(1 << 40) };
            }
            prop_assert!(layer == 0 || packed.absent_pages + packed.zero_pages + packed.data_pages == now.len() as u64 / 4096);
            match random.below(3) {
                0 => numbers.extend(some_pages(random.below(700) as usize, &mut random)),
                1 => numbers.truncate(1 + random.below(numbers.len() as u64) as usize),
                _ => {}
            }
        }
    }
}

#[test]
fn a_difference_has_only_what_differs() {
    let mut numbers: Vec<u64> = (1..2000).collect();
    let (base, _) = pack(&Pack::new(), stored(&memory(&numbers)));
    (numbers[7], numbers[1000]) = (0, 5_000_001);
    let how = Pack::new().base(Arc::new(open(&[&base]).unwrap()));
    let (diff, packed) = pack(&how, stored(&memory(&numbers)));
    let counts = (packed.absent_pages, packed.zero_pages, packed.stored_pages);
    assert_eq!(counts, (1997, 1, 1));
    assert!(diff.len() < 40_000, "{}", diff.len());
    let image = open(&[&diff, &base]).unwrap();
    assert!(matches!(image.place(6), Ok(Place::Stored { layer: 1, .. })));
    assert!(matches!(
        image.place(1000),
        Ok(Place::Stored { layer: 0, .. })
    ));
    assert_eq!(image.kind(7).unwrap(), PageKind::Zero);
}

#[test]
fn the_identity_is_of_the_memory_and_not_of_the_packing() {
    let now = memory(&some_pages(900, &mut Random(5)));
    let identity = |how: &Pack| pack(how, stored(&now)).1.identity;
    let plain = identity(&Pack::new());
    let other = Pack::new()
        .compression(Compression::Lz4)
        .cluster_bytes(1 << 17)
        .working_set(vec![PageRun {
            first: 800,
            count: 9,
        }])
        .metadata(vec![1, 2, 3]);
    assert_eq!(plain, identity(&other));
    // So a base that was packed anew still fits.
    let (base, _) = pack(&Pack::new(), stored(&now));
    let (again, _) = pack(&other, stored(&now));
    let mut later = now.clone();
    later[5 * PAGE_BYTES] ^= 1;
    let how = Pack::new().base(Arc::new(open(&[&base]).unwrap()));
    let (diff, _) = pack(&how, stored(&later));
    assert!(read_all(&open(&[&diff, &again]).unwrap()).unwrap() == later);
}

#[test]
fn what_is_said_beside_the_memory_is_kept() {
    let now = memory(&(1..=600).collect::<Vec<u64>>());
    let runs = vec![
        PageRun {
            first: 590,
            count: 10,
        },
        PageRun { first: 3, count: 1 },
        PageRun {
            first: 100,
            count: 300,
        },
    ];
    let regions = vec![
        Region {
            guest_address: 0,
            offset: 0,
            len: 0xa0000,
        },
        Region {
            guest_address: 0x1_0000_0000,
            offset: 0xa0000,
            len: 0x1000,
        },
    ];
    let how = Pack::new()
        .working_set(runs.clone())
        .regions(regions.clone())
        .metadata(b"{}".to_vec());
    let (bytes, packed) = pack(&how, stored(&now));
    assert_eq!(packed.stored_pages, 600);
    let image = open(&[&bytes]).unwrap();
    assert!(read_all(&image).unwrap() == now);
    assert_eq!(image.working_set().unwrap(), runs);
    assert_eq!(image.regions().unwrap(), regions);
    assert_eq!(image.metadata().unwrap(), b"{}");
    // It lies at the beginning, in its order.
    let mut clusters = Vec::new();
    for page in runs.iter().flat_map(|run| run.first..run.first + run.count) {
        let Place::Stored {
            cluster, offset, ..
        } = image.place(page).unwrap()
        else {
            panic!("page {page} has content");
        };
        clusters.push(cluster * 4 + u64::from(offset) / 4096);
    }
    assert_eq!(clusters, (0..311).collect::<Vec<u64>>());

    let run = |first, count| PageRun { first, count };
    for wrong in [
        vec![run(599, 2)],
        vec![run(0, 0)],
        vec![run(u64::MAX, 2)],
        // A reader would have to make a list of more pages than there are.
        vec![run(0, 600), run(7, 1)],
        vec![run(0, 600); 1000],
    ] {
        let how = Pack::new().working_set(wrong);
        assert!(
            how.sink(stored(&now), &common::Ram::default(), &mut on)
                .is_err()
        );
    }
}

#[test]
fn pages_far_apart_are_shared_when_they_are_equal() {
    // More than is kept unpacked, so that what was written is read again.
    let numbers: Vec<u64> = (1..=24_000).chain(1..=500).collect();
    let now: Vec<u8> = numbers
        .iter()
        .flat_map(|number| {
            let mut page = vec![*number as u8; PAGE_BYTES];
            page[..8].copy_from_slice(&number.to_le_bytes());
            page
        })
        .collect();
    let (bytes, packed) = pack(&Pack::new(), stored(&now));
    assert_eq!(packed.stored_pages, 24_000);
    assert!(read_all(&open(&[&bytes]).unwrap()).unwrap() == now);
}

#[test]
fn unpacked_it_is_the_same_with_holes() {
    use std::os::unix::fs::MetadataExt;
    let folder = tempfile::tempdir().unwrap();
    let (image, plain) = (folder.path().join("a.ami"), folder.path().join("a.mem"));
    let mut numbers = vec![0; 4000];
    numbers[1000..1010].copy_from_slice(&(1..11).collect::<Vec<u64>>());
    numbers[3999] = 77;
    let now = memory(&numbers);
    Pack::new().file(stored(&now), &image, &mut on).unwrap();
    let image = Arc::new(amdahl_image::Image::open(&image).unwrap());
    Unpack::new().file(&image, &plain, &mut on).unwrap();
    assert!(std::fs::read(&plain).unwrap() == now);
    let blocks = std::fs::metadata(&plain).unwrap().blocks();
    assert!(
        blocks * 512 < 1 << 20,
        "{blocks} blocks of {} bytes",
        now.len()
    );
    let mut stream = Vec::new();
    Unpack::new().stream(&image, &mut stream, &mut on).unwrap();
    assert!(stream == now);
    // And a file with holes is packed without reading them.
    let again = Input::Stored(Arc::new(std::fs::File::open(&plain).unwrap()));
    assert!(pack(&Pack::new(), again).0 == pack(&Pack::new(), stored(&now)).0);
}

#[test]
fn any_number_of_threads_may_read() {
    let mut random = Random(11);
    let now = memory(&some_pages(1500, &mut random));
    let (bytes, _) = pack(&Pack::new(), stored(&now));
    // A cache of very few clusters, over which they fight.
    let store: Box<dyn amdahl_image::Store> = Box::new(bytes);
    let image = amdahl_image::Image::options()
        .cache_bytes(0)
        .open_stores(vec![store])
        .unwrap();
    std::thread::scope(|scope| {
        for thread in 0..4 {
            let (image, now) = (&image, &now);
            scope.spawn(move || {
                let mut random = Random(thread);
                let mut page = vec![0; PAGE_BYTES];
                for _ in 0..2000 {
                    let at = random.below(1500) as usize * PAGE_BYTES;
                    image.read(at as u64, &mut page).unwrap();
                    assert!(page == now[at..at + PAGE_BYTES]);
                }
            });
        }
    });
}

#[test]
fn ranges_are_of_whole_pages_inside_of_the_memory() {
    let (bytes, _) = pack(&Pack::new(), stored(&page(1)));
    let image = open(&[&bytes]).unwrap();
    for (offset, len) in [
        (0, 1),
        (1, 4096),
        (4096, 4096),
        (u64::MAX - 4095, 4096),
        (0, 8192),
    ] {
        assert!(
            image.read(offset, &mut vec![0; len]).is_err(),
            "{offset} {len}"
        );
    }
    assert!(
        image.place(1).is_err()
            && image.place(u64::MAX).is_err()
            && image.nearby(u64::MAX).is_err()
    );
    assert!(image.runs(0..2).next().unwrap().is_err());
    assert!(image.read(4096, &mut []).is_ok() && image.runs(0..0).next().is_none());
}
