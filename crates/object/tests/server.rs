//! Objects of a real S3 server, which is also made to fail in the ways that servers and networks do.

use std::fs;
use std::io;
use std::ops::ControlFlow::Continue;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use amdahl_image::{Image, Input, Pack, Shelf, Store};
use amdahl_object::{Error, Limits, Object, Objects};
use amdahl_test_objects::{Fault, Server};
use tempfile::TempDir;

/// Short, so that tests of silence are.
const LIMITS: Limits = Limits {
    timeout: Duration::from_secs(2),
    requests: 4,
    kept_bytes: 0,
};

/// What reads may take beyond their limit on a busy machine; a read that hangs takes for ever.
const SOON: Duration = Duration::from_secs(20);

struct Place {
    folder: TempDir,
    server: Server,
}

impl Place {
    fn new() -> Place {
        let folder = tempfile::tempdir().unwrap();
        fs::create_dir(folder.path().join("bucket")).unwrap();
        let server = Server::start(folder.path()).unwrap();
        Place { folder, server }
    }

    fn put(&self, key: &str, content: &[u8]) {
        let path = self.folder.path().join("bucket").join(key);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, content).unwrap();
    }

    fn objects(&self, limits: Limits) -> Objects {
        let variables = self.server.variables();
        variables
            .iter()
            .fold(Objects::new(limits).unwrap(), |objects, (name, value)| {
                objects.set(name, value).unwrap()
            })
    }
}

fn content(bytes: usize) -> Vec<u8> {
    let mut state = 1_u32;
    let next = || {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        (state >> 24) as u8
    };
    std::iter::repeat_with(next).take(bytes).collect()
}

/// Tries to read a part, which must end soon.
#[track_caller]
fn fails(object: &Object) -> io::Error {
    let begun = Instant::now();
    let error = object.read_exact_at(&mut [0; 4096], 4096).unwrap_err();
    assert!(begun.elapsed() < LIMITS.timeout + SOON, "{error}");
    assert_ne!(error.kind(), io::ErrorKind::UnexpectedEof, "{error}");
    error
}

#[test]
fn any_part_is_read_and_asked_for_by_its_version() {
    let place = Place::new();
    let content = content(700_000);
    place.put("deep/vm", &content);
    for kept_bytes in [0, 16 << 20] {
        let objects = place.objects(Limits {
            kept_bytes,
            ..LIMITS
        });
        let object = objects.object("s3://bucket/deep/vm").unwrap();
        assert_eq!(object.len().unwrap(), 700_000);
        place.server.asked();
        for (offset, len) in [
            (0, 1),
            (1, 4096),
            (262_143, 2),
            (262_000, 300_000),
            (699_999, 1),
            (700_000, 0),
            (0, 700_000),
        ] {
            let mut read = vec![0; len];
            object.read_exact_at(&mut read, offset as u64).unwrap();
            assert!(read == content[offset..offset + len], "{len} at {offset}");
        }
        let asked = place.server.asked();
        let is_exact =
            |one: &amdahl_test_objects::Asked| one.range.is_some() && one.if_match.is_some();
        assert!(asked.iter().all(is_exact), "{asked:?}");
        for (offset, len) in [(700_000, 1), (0, 700_001), (u64::MAX, 2)] {
            let error = object.read_exact_at(&mut vec![0; len], offset).unwrap_err();
            assert_eq!(error.kind(), io::ErrorKind::UnexpectedEof);
        }
        assert_eq!(place.server.asked(), []);
    }
}

#[test]
fn neighbours_cost_one_request() {
    let place = Place::new();
    place.put("vm", &content(600_000));
    let kept_bytes = 1 << 20;
    let object = place
        .objects(Limits {
            kept_bytes,
            ..LIMITS
        })
        .object("s3://bucket/vm")
        .unwrap();
    place.server.asked();
    for page in 0..146 {
        object.read_exact_at(&mut [0; 4096], page * 4096).unwrap();
    }
    assert_eq!(place.server.asked().len(), 3);
}

#[test]
fn so_many_are_asked_for_at_once_and_no_more() {
    let place = Place::new();
    place.put("vm", &content(1 << 20));
    place.server.fail(Fault::Slow(Duration::from_millis(20)));
    let limits = Limits {
        timeout: Duration::from_secs(60),
        ..LIMITS
    };
    let object = place.objects(limits).object("s3://bucket/vm").unwrap();
    std::thread::scope(|scope| {
        for thread in 0..16 {
            let object = &object;
            scope.spawn(move || {
                for nth in 0..4 {
                    object
                        .read_exact_at(&mut [0; 4096], (thread * 4 + nth) * 4096)
                        .unwrap();
                }
            });
        }
    });
    assert!(
        (2..=4).contains(&place.server.at_once()),
        "{}",
        place.server.at_once()
    );
}

#[test]
fn an_object_that_is_replaced_is_an_error_and_never_other_bytes() {
    let place = Place::new();
    let before = content(100_000);
    place.put("vm", &before);
    let objects = place.objects(LIMITS);
    let object = objects.object("s3://bucket/vm").unwrap();
    let version = object.version();
    assert_eq!(objects.object("s3://bucket/vm").unwrap().version(), version);
    // Of the same size, and otherwise in a place that is not read.
    let mut after = before.clone();
    after[99_999] ^= 1;
    place.put("vm", &after);
    let error = fails(&object);
    assert_eq!(error.kind(), io::ErrorKind::StaleNetworkFileHandle);
    assert!(error.to_string().contains("replaced"), "{error}");
    let now = objects.object("s3://bucket/vm").unwrap();
    assert_ne!(now.version(), version);
    now.read_exact_at(&mut [0; 4096], 0).unwrap();
    fs::remove_file(place.folder.path().join("bucket/vm")).unwrap();
    assert_eq!(fails(&now).kind(), io::ErrorKind::NotFound);
}

#[test]
fn what_cannot_be_opened_says_why() {
    let place = Place::new();
    place.put("vm", &content(5000));
    place.put("empty", &[]);
    let objects = place.objects(LIMITS);
    let open = |name: &str| objects.object(name).err().expect("refused");
    assert_eq!(open("s3://bucket/other"), Error::NotFound);
    assert!(matches!(
        open("s3://nothing/vm"),
        Error::NoBucket | Error::NotFound
    ));
    assert!(matches!(open("s3://bucket/"), Error::Name { .. }));
    assert_eq!(
        objects.object("s3://bucket/empty").unwrap().len().unwrap(),
        0
    );
    let stranger = place
        .objects(LIMITS)
        .set("AWS_SECRET_ACCESS_KEY", "wrong")
        .unwrap();
    let error = stranger.object("s3://bucket/vm").err().expect("refused");
    let Error::Refused(what) = &error else {
        panic!("{error:?}")
    };
    assert_eq!(what, "SignatureDoesNotMatch");
    assert!(
        Objects::new(LIMITS)
            .unwrap()
            .set("AWS_NONSENSE", "1")
            .is_err()
    );
}

#[test]
fn a_server_that_fails_is_an_error_in_time() {
    let place = Place::new();
    place.put("vm", &content(100_000));
    let object = place.objects(LIMITS).object("s3://bucket/vm").unwrap();
    for (fault, kinds) in [
        (
            Fault::Slow(Duration::from_secs(100)),
            &[io::ErrorKind::TimedOut][..],
        ),
        (Fault::Stuck, &[io::ErrorKind::TimedOut]),
        (Fault::Cut, &[io::ErrorKind::TimedOut, io::ErrorKind::Other]),
        (
            Fault::Unavailable,
            &[io::ErrorKind::TimedOut, io::ErrorKind::Other],
        ),
        (Fault::Longer, &[io::ErrorKind::InvalidData]),
        (Fault::Shorter, &[io::ErrorKind::InvalidData]),
        (Fault::Whole, &[io::ErrorKind::InvalidData]),
    ] {
        place.server.fail(fault);
        let error = fails(&object);
        assert!(
            kinds.contains(&error.kind()),
            "{fault:?}: {:?} {error}",
            error.kind()
        );
        // It is asked no more, and serves again at once.
        place.server.fail(Fault::None);
        object.read_exact_at(&mut [0; 4096], 4096).unwrap();
    }
    drop(place.server);
    let error = fails(&object);
    assert!(
        matches!(error.kind(), io::ErrorKind::Other | io::ErrorKind::TimedOut),
        "{error}"
    );
}

#[test]
fn a_fault_that_passes_is_not_seen() {
    let place = Place::new();
    place.put("vm", &content(100_000));
    let limits = Limits {
        timeout: Duration::from_secs(60),
        ..LIMITS
    };
    let object = place.objects(limits).object("s3://bucket/vm").unwrap();
    for fault in [Fault::Unavailable, Fault::Cut] {
        place.server.fail(fault);
        place.server.asked();
        std::thread::scope(|scope| {
            scope.spawn(|| object.read_exact_at(&mut [0; 4096], 0).unwrap());
            let begun = Instant::now();
            while place.server.asked().is_empty() {
                assert!(begun.elapsed() < limits.timeout, "nobody asks");
                std::thread::yield_now();
            }
            place.server.fail(Fault::None);
        });
    }
}

#[test]
fn an_image_finds_its_bases_beside_it() {
    let place = Place::new();
    let local = tempfile::tempdir().unwrap();
    let at = |name: &str| local.path().join(name);
    let mut memory = content(1 << 20);
    let pack = |how: Pack, memory: &[u8], name: &str| {
        let input = Input::Stored(Arc::new(memory.to_vec()));
        how.file(input, at(name), &mut |_| Continue(())).unwrap();
        fs::read(at(name)).unwrap()
    };
    let base = pack(Pack::new(), &memory, "base.ami");
    memory[5 * 4096..6 * 4096].fill(7);
    let how = Pack::new().base(Arc::new(Image::open(at("base.ami")).unwrap()));
    let top = pack(how, &memory, "top.ami");
    place.put("vms/top.ami", &top);
    place.put("vms/deeper/base.ami", &base);
    place.put("base.ami", &base);
    let objects = place.objects(Limits {
        kept_bytes: 1 << 20,
        ..LIMITS
    });
    let open = || Image::options().open_on(&objects, "s3://bucket/vms/top.ami");
    // Neither below nor above.
    assert!(matches!(open(), Err(amdahl_image::Error::NoBase { .. })));
    let named = Image::options().base("s3://bucket/base.ami");
    let reads = |image: &Image| {
        let mut read = vec![0; 1 << 20];
        image.read(0, &mut read).unwrap();
        assert!(read == memory);
    };
    reads(&named.open_on(&objects, "s3://bucket/vms/top.ami").unwrap());
    for name in ["vms/base.ami", "vms/called-otherwise"] {
        place.put(name, &base);
        let image = open().unwrap();
        reads(&image);
        assert_eq!(
            image.info()[1].path,
            Path::new(&format!("s3://bucket/{name}"))
        );
        fs::remove_file(place.folder.path().join("bucket").join(name)).unwrap();
    }
    // What is beside it cannot be known: not "there is none".
    place.server.fail(Fault::Stuck);
    let beside = objects.beside(Path::new("s3://bucket/vms/top.ami"));
    assert_eq!(beside.unwrap_err().kind(), io::ErrorKind::TimedOut);
}
