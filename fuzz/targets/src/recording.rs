//! What is recorded of a run.

use amdahl_probe::bpf::wire::{KERNEL_FRAMES, STACK_BYTES, Stack, USER_FRAMES};
use amdahl_sched::recording::read_part;
use amdahl_sched::{Analysis, Settings};

/// A stack as the BPF side writes it.
pub(crate) fn stack_record(bytes: &[u8]) {
    if let Some(stack) = Stack::parse(bytes) {
        assert!(stack.kernel.len() <= KERNEL_FRAMES);
        assert!(stack.user.len() <= USER_FRAMES);
        assert!(stack.bytes.len() <= STACK_BYTES);
    }
}

/// A part of a recording of the scheduler, and what is made of its events.
pub(crate) fn sched_part(bytes: &[u8]) {
    let Ok(part) = read_part(bytes.to_vec()) else {
        return;
    };
    let mut analysis = Analysis::new(Settings::new(part.meta.topology));
    for event in &part.events {
        analysis.event(event);
    }
    let outcome = analysis.outcome(0);
    let wall = outcome.wall_ns();
    for cpu in &outcome.cpus {
        assert!(cpu.run_ns + cpu.idle_ns <= wall && cpu.idle_wasted_ns <= cpu.idle_ns);
    }
}
