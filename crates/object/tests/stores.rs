//! The stores of the library that need no server: memory and a folder.

use std::fs;
use std::io;
use std::path::Path;
use std::sync::Arc;

use amdahl_image::{Shelf, Store};
use amdahl_object::{Limits, Objects};
use object_store::memory::InMemory;
use object_store::{ObjectStore, ObjectStoreExt};
use proptest::prelude::*;

fn put(store: &dyn ObjectStore, key: &str, content: &[u8]) {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .build()
        .unwrap();
    let content = content.to_vec().into();
    runtime.block_on(store.put(&key.into(), content)).unwrap();
}

#[test]
fn a_replaced_object_in_memory_is_noticed() {
    let store = Arc::new(InMemory::new());
    put(&*store, "a/vm", &[1; 5000]);
    let objects = Objects::new(Limits::default()).unwrap();
    let objects = objects.with_store("b", Arc::clone(&store) as Arc<dyn ObjectStore>);
    let object = objects.object("s3://b/a/vm").unwrap();
    let mut read = [0; 10];
    object.read_exact_at(&mut read, 4990).unwrap();
    assert_eq!(read, [1; 10]);
    put(&*store, "a/vm", &[2; 5000]);
    // What was kept is of the version that was opened.
    object.read_exact_at(&mut read, 0).unwrap();
    assert_eq!(read, [1; 10]);
    let objects = Objects::new(Limits {
        kept_bytes: 0,
        ..Limits::default()
    })
    .unwrap();
    let objects = objects.with_store("b", Arc::clone(&store) as Arc<dyn ObjectStore>);
    let object = objects.object("s3://b/a/vm").unwrap();
    put(&*store, "a/vm", &[2; 5000]);
    let error = object.read_exact_at(&mut read, 0).unwrap_err();
    assert_eq!(
        error.kind(),
        io::ErrorKind::StaleNetworkFileHandle,
        "{error}"
    );
}

#[test]
fn a_folder_is_a_store_too() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path().canonicalize().unwrap();
    fs::create_dir(folder.join("below")).unwrap();
    for name in ["vm", "other", "below/third"] {
        fs::write(folder.join(name), [3; 5000]).unwrap();
    }
    let objects = Objects::new(Limits {
        kept_bytes: 0,
        ..Limits::default()
    })
    .unwrap();
    let path = format!("file://{}/vm", folder.display());
    let object = objects.open(Path::new(&path)).unwrap();
    assert_eq!(object.len().unwrap(), 5000);
    let mut read = [0; 5000];
    object.read_exact_at(&mut read, 0).unwrap();
    assert_eq!(read, [3; 5000]);
    let mut beside = objects.names_beside(&path).unwrap();
    beside.sort();
    assert_eq!(
        beside,
        ["other", "vm"].map(|name| format!("file://{}/{name}", folder.display()))
    );
    fs::write(folder.join("vm"), [4; 5001]).unwrap();
    let error = object.read_exact_at(&mut read, 0).unwrap_err();
    assert_eq!(
        error.kind(),
        io::ErrorKind::StaleNetworkFileHandle,
        "{error}"
    );
    fs::remove_file(folder.join("vm")).unwrap();
    let error = object.read_exact_at(&mut read, 0).unwrap_err();
    assert_eq!(error.kind(), io::ErrorKind::NotFound, "{error}");
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(32))]

    #[test]
    fn what_is_read_is_what_is_there(
        bytes in 0..700_000_usize,
        reads in prop::collection::vec((0..700_000_usize, 0..400_000_usize), 1..8),
        kept in 0..4_usize,
    ) {
        let content: Vec<u8> = (0..bytes).map(|at| (at % 251) as u8).collect();
        let store = Arc::new(InMemory::new());
        put(&*store, "vm", &content);
        let limits = Limits { kept_bytes: kept << 18, ..Limits::default() };
        let objects = Objects::new(limits).unwrap().with_store("b", store);
        let object = objects.object("s3://b/vm").unwrap();
        prop_assert_eq!(object.len().unwrap(), bytes as u64);
        for (offset, len) in reads {
            let mut read = vec![0; len];
            match object.read_exact_at(&mut read, offset as u64) {
                Ok(()) => prop_assert!(read == content[offset..offset + len]),
                Err(error) => {
                    prop_assert_eq!(error.kind(), io::ErrorKind::UnexpectedEof);
                    prop_assert!(offset + len > bytes);
                }
            }
        }
    }
}
