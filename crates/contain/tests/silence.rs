//! The panic hook belongs to the process: all of it is one test.

use std::panic::{catch_unwind, set_hook};
use std::sync::atomic::{AtomicU32, Ordering};

use amdahl_contain::contained;

static TOLD: AtomicU32 = AtomicU32::new(0);

fn told() -> u32 {
    TOLD.swap(0, Ordering::Relaxed)
}

/// What a damaged file made the parquet crate assert was printed with a backtrace above the error
/// that was meant for the user.
#[test]
fn only_contained_panics_are_silent() {
    set_hook(Box::new(|_| {
        TOLD.fetch_add(1, Ordering::Relaxed);
    }));

    assert_eq!(contained(|| 7), Some(7));
    assert_eq!(contained(|| -> u32 { panic!("inside") }), None);
    assert_eq!(told(), 0, "inside");

    let outer = contained(|| {
        assert_eq!(contained(|| -> u32 { panic!("nested") }), None);
        panic!("after a nested one");
    });
    assert_eq!(outer, None::<()>);
    assert_eq!(told(), 0, "nested");

    assert!(catch_unwind(|| panic!("after")).is_err());
    assert_eq!(told(), 1, "after");

    let other = contained(|| std::thread::spawn(|| panic!("another thread")).join());
    assert!(other.expect("this thread did not panic").is_err());
    assert_eq!(told(), 1, "another thread");
}
