//! What `/proc` tells without privileges.

pub(crate) mod cpus;
pub mod text;
pub(crate) mod threads;
