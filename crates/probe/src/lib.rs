#![doc = include_str!("../README.md")]
pub mod bpf;
pub mod symbol;
pub mod unprivileged;
