//! An address space as a kernel keeps it: guard pages, zones, lazily freed areas.

use amdahl_range_alloc::{AllocError, RangeAlloc, Request};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    // Pages of 4 KiB.
    let mut space = RangeAlloc::new(0x10_0000..0x20_0000)?;
    space.prepare(512, 0)?;

    let stack = space.alloc(&Request::new(4 + 1))?;
    let huge = space.alloc(&Request::new(512).align(512))?;
    let module = space.alloc(&Request::new(40).zone(0x1f_0000..0x20_0000))?;
    println!("stack {stack:#x}, huge page {huge:#x}, module {module:#x}");

    // Addresses that other CPUs may still have in their TLB are not used again at once.
    space.free_lazy(stack)?;
    let next = space.alloc(&Request::new(5))?;
    assert_ne!(next, stack);
    let flushed = space.purge(|area| println!("flush {area:#x?}"));
    println!("{flushed} pages may be used again");
    assert_eq!(space.alloc(&Request::new(5))?, stack);

    match space.alloc(&Request::new(1 << 20)) {
        Err(AllocError::NoSpace { lazy }) => println!("no gap of 4 GiB, {lazy} pages lazily freed"),
        other => println!("{other:?}"),
    }
    print!("{space:#}");
    Ok(())
}
