//! Memory of a size that the caller chooses: where there is none, that is an error.

/// There is no memory for what was asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("no memory for {bytes} bytes: ask for less")]
pub struct OutOfMemory {
    /// How much it would have taken.
    pub bytes: u64,
}

/// So many values.
pub(crate) fn filled<T>(
    count: usize,
    mut make: impl FnMut() -> T,
) -> Result<Box<[T]>, OutOfMemory> {
    let mut all = Vec::new();
    all.try_reserve_exact(count).map_err(|_| OutOfMemory {
        bytes: (count as u64).saturating_mul(size_of::<T>() as u64),
    })?;
    all.extend((0..count).map(|_| make()));
    Ok(all.into_boxed_slice())
}
