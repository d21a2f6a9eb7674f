//! A machine is restored lazily: its memory arrives while it runs, page tables and code included, and what the guest computes on it
//! proves that all of it was right.
//!
//! The engine `inline` is not among those tried: where a guest touches a missing page, the kernel faults it in for the guest, and there is no thread
//! in user space that could serve itself, unless KVM leaves to user space for it (memory-fault exits of userfault memory, which the mainline
//! kernel does not have).

use std::sync::Arc;

use amdahl_pager::{
    Background, Backing, Engine, Event, Extent, Mapping, MemorySource, PAGE, Pager, Source,
    SourceError, Support,
};
use amdahl_test_vm::{BOOT_PAGES, Kind, Machine, contents, kinds, model};

const CPUS: usize = 3;
const PAGES: usize = BOOT_PAGES + 3 * 200;

/// Memory as it was when a machine was stopped, and the state of that machine.
fn snapshot() -> (Vec<u8>, Arc<[u8]>, Vec<u8>) {
    let memory = Arc::new(Mapping::new(PAGES * PAGE, Backing::Small).unwrap());
    Machine::boot(&memory);
    for page in BOOT_PAGES..PAGES {
        // Some pages stay zero.
        if page % 5 > 0 {
            memory.write(page * PAGE + 8, &(page as u64).to_le_bytes());
        }
    }
    let at_first = contents(&memory);
    let running = Machine::new(Kind::Threads, memory.clone(), CPUS).unwrap();
    let running = running.run().unwrap();
    running.wait_for(100);
    let state = running.pause().unwrap().state();
    (at_first, contents(&memory).into(), state)
}

fn is_possible() -> bool {
    let support = Support::probe();
    // A guest's pages are touched by the kernel.
    let serves_the_kernel = matches!(
        support.way,
        Some(amdahl_pager::Way::Device | amdahl_pager::Way::Call)
    );
    if !serves_the_kernel {
        println!("SKIPPED: {support}");
    }
    serves_the_kernel
}

#[test]
fn a_guest_restored_lazily_finds_its_memory() {
    if !is_possible() {
        return;
    }
    let (at_first, content, state) = snapshot();
    for kind in kinds() {
        for engine in [Engine::Reader, Engine::Sharded] {
            for backing in [Backing::Small, Backing::Huge, Backing::Shared] {
                let memory = Arc::new(Mapping::new(PAGES * PAGE, backing).unwrap());
                let pager = Pager::builder()
                    .mapping(&memory, 0)
                    .source(Arc::new(MemorySource::of_bytes(content.clone())))
                    .engine(engine)
                    .window(16 * PAGE)
                    .background(Background::Off)
                    .start()
                    .unwrap();
                let machine = Machine::of_state(kind, memory.clone(), &state).unwrap();
                let running = machine.run().unwrap();
                running.wait_for(running.steps() + 30);
                assert!(pager.stats().faults > 0);
                for (number, sum) in running.sums().unwrap().into_iter().enumerate() {
                    let expected = model::expected(&at_first, CPUS, number, sum.steps);
                    assert_eq!(sum, expected, "{kind}, {engine}, {backing:?}, CPU {number}");
                }
                // Sums read all of the slices.
                let (stats, missing) = pager.finish();
                assert_eq!((missing, stats.lost_pages), (0, 0));
            }
        }
    }
}

/// Has all pages but one.
struct Holed(MemorySource, u64);

impl Source for Holed {
    fn read(&self, offset: u64, into: &mut [u8]) -> Result<(), SourceError> {
        let hole = self.1 * PAGE as u64;
        if offset < hole + PAGE as u64 && hole < offset + into.len() as u64 {
            return Err(SourceError::Gone("it was lost"));
        }
        self.0.read(offset, into)
    }

    fn extent(&self, offset: u64, len: u64) -> Extent {
        self.0.extent(offset, len)
    }
}

#[test]
fn a_guest_whose_page_is_lost_stops() {
    if !is_possible() {
        return;
    }
    let kinds = kinds();
    if !kinds.contains(&Kind::Kvm) {
        // Threads of this process would be stopped by a signal, and the test with them.
        return;
    }
    let (_, content, state) = snapshot();
    let hole = BOOT_PAGES as u64 + 250;
    let memory = Arc::new(Mapping::new(PAGES * PAGE, Backing::Small).unwrap());
    let pager = Pager::builder()
        .mapping(&memory, 0)
        .source(Arc::new(Holed(MemorySource::of_bytes(content), hole)))
        .engine(Engine::Reader)
        .window(PAGE)
        .start()
        .unwrap();
    let machine = Machine::of_state(Kind::Kvm, memory, &state).unwrap();
    // To sum up is to touch all.
    let refused = machine.run().unwrap().sums();
    assert!(refused.is_err(), "{refused:?}");
    let event = pager.next_event(std::time::Duration::ZERO);
    let lost = matches!(event, Some(Event::Lost { page, pages: 1, .. }) if page as u64 == hole);
    assert!(lost, "{event:?}");
}
