#![doc = include_str!("../README.md")]

pub mod buddy;
pub mod fault;
pub mod first_touch;
pub mod huge;
pub mod mapping;
pub mod mmap_lock;
pub mod numa_maps;
pub mod pagemap;
pub mod policy;
pub mod read;
pub mod smaps;
pub mod spaces;
pub mod tally;
pub mod tlb;
pub mod vmalloc;

mod text;

/// Bytes of a kibibyte, the unit of most of `/proc`.
const KIB: u64 = 1024;
