//! In place of `rseq` where there are no restartable sequences, and where code is interpreted by loom or Miri.

/// No thread is registered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Registration {
    None,
}

pub(crate) fn registration() -> Registration {
    Registration::None
}

/// Words of which each CPU has its own.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Rows {
    pub base: *mut i64,
    #[expect(dead_code, reason = "the sequences read it")]
    pub stride: usize,
    pub cpus: u32,
}

/// Adds nothing.
///
/// # Safety
/// None is needed here.
pub(crate) unsafe fn add(_: Registration, _: &Rows, _: i64) -> bool {
    false
}

/// Adds nothing.
///
/// # Safety
/// None is needed here.
pub(crate) unsafe fn add_fetch(_: Registration, _: &Rows, _: i64) -> Option<(u32, i64)> {
    None
}

/// Not known.
pub(crate) fn cpu(_: Registration) -> Option<u32> {
    None
}

/// Does nothing.
pub(crate) fn register_thread(_: Registration) {}
