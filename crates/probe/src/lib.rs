#![doc = include_str!("../README.md")]
pub mod bpf;
pub mod clock;
pub mod perf;
pub mod symbol;
pub mod unprivileged;

mod mapping;
