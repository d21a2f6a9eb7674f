//! What is recorded of a run.

use amdahl_probe::bpf::wire::{KERNEL_FRAMES, STACK_BYTES, Stack, USER_FRAMES};

/// A stack as the BPF side writes it.
pub(crate) fn stack_record(bytes: &[u8]) {
    if let Some(stack) = Stack::parse(bytes) {
        assert!(stack.kernel.len() <= KERNEL_FRAMES);
        assert!(stack.user.len() <= USER_FRAMES);
        assert!(stack.bytes.len() <= STACK_BYTES);
    }
}
