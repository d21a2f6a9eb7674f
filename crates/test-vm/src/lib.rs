//! A small virtual machine for tests: several CPUs that write their memory all the time and can say, from inside, whether it is what
//! it should be.
//!
//! Each CPU has a slice of the memory. A step takes a page of it by a sequence of pseudo-random numbers and makes a word of each line of it a new one out of the old
//! one and the number; so what is in memory after some steps follows from what was there at first, and a page that was lost, is
//! older than it should be or came from elsewhere changes the sum that the CPU computes at the end. [`model`] does the same in plain Rust.
//!
//! With KVM the CPUs are those of a guest in long mode. Its code and page tables are in its memory, too. Where there is no KVM,
//! threads of this process stand in, which run the same steps on the same memory. What a machine knows besides its memory is in its
//! [state](Machine::state), which is the same for both.

#![cfg(target_os = "linux")]

#[cfg(target_arch = "x86_64")]
mod kvm;
mod machine;
pub mod model;
mod stand_in;

pub use machine::{Kind, Machine, Refusal, Running, Stopped, contents, kinds};
pub use model::{Cpu, Sum};

/// Pages at the beginning that no CPU writes: the guest's page tables and code.
pub const BOOT_PAGES: usize = 64;
/// Steps between two looks at what the host wants.
pub const STEPS_AT_ONCE: u32 = 8;
