#![doc = include_str!("../README.md")]

mod cache;
mod elf;
mod search;
mod system;

pub use cache::Cache;
pub use elf::{Elf, ElfError, Machine};
pub use search::{Files, LIBRARIES_MAX, Library, Search, libraries};
pub use system::{ReadError, System};
