//! An address space: faults look up what is mapped without a lock, while others map and unmap under a lock of the range.
//!
//!     cargo run -p amdahl-range-lock --example address_space

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::thread;

use amdahl_range_lock::{RangeLock, SeqRangeMap};

/// What is mapped.
#[derive(Clone, Debug, PartialEq)]
struct Area {
    name: &'static str,
    writable: bool,
}

struct AddressSpace {
    areas: SeqRangeMap<Area>,
    /// Held for writing by who changes pages of a range, for reading by who uses them.
    pages: RangeLock,
}

impl AddressSpace {
    /// Maps, while nobody uses the pages.
    fn map(&self, range: std::ops::Range<u64>, area: Area) {
        let _pages = self.pages.write(range.clone());
        self.areas.insert(range, area);
    }

    /// Whether a write to this address is allowed.
    fn fault(&self, address: u64) -> bool {
        let page = address & !0xfff;
        let _page = self.pages.read(page..=page + 0xfff);
        self.areas.get(address).is_some_and(|area| area.writable)
    }
}

fn main() {
    let space = AddressSpace {
        areas: SeqRangeMap::new(),
        pages: RangeLock::new(),
    };
    space.map(
        0x40_0000..0x60_0000,
        Area {
            name: "text",
            writable: false,
        },
    );
    space.map(
        0x60_0000..0x80_0000,
        Area {
            name: "data",
            writable: true,
        },
    );
    let (over, faults) = (AtomicBool::new(false), AtomicU64::new(0));
    thread::scope(|scope| {
        for cpu in 0..2 {
            let (space, over, faults) = (&space, &over, &faults);
            scope.spawn(move || {
                while !over.load(Relaxed) {
                    assert!(space.fault(0x60_0000 + cpu * 0x1000));
                    assert!(!space.fault(0x40_0000 + cpu * 0x1000));
                    faults.fetch_add(2, Relaxed);
                }
            });
        }
        for round in 0.. {
            if round >= 5000 && faults.load(Relaxed) >= 10_000 {
                break;
            }
            let stack = 0x7000_0000 + round % 100 * 0x1_0000;
            space.map(
                stack..stack + 0x8000,
                Area {
                    name: "stack",
                    writable: true,
                },
            );
        }
        over.store(true, Relaxed);
    });
    println!("{} faults meanwhile", faults.load(Relaxed));
    for (range, area) in space.areas.reader().snapshot().overlapping(..0x7003_0000) {
        println!("{:#x}-{:#x} {}", range.start(), range.end(), area.name);
    }
    let gap = space.areas.reader().snapshot().gaps(0x40_0000..).next();
    println!("the first gap: {:#x?}", gap.expect("it is not full"));
}
