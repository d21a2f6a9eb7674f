//! Measuring without privileges.

pub mod preload;
