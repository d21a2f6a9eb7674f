//! The thin edge: all system calls of the crate.

pub(crate) mod clock;
pub(crate) mod futex;
pub(crate) mod huge;
pub(crate) mod mapping;
pub(crate) mod running;
pub(crate) mod signal;
pub(crate) mod support;
pub(crate) mod uffd;
