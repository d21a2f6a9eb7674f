//! Nodes of one kind by number. They never move, so a pool grows without copying.

use alloc::boxed::Box;
use alloc::vec::Vec;
use core::alloc::Layout;

use crate::error::OutOfMemory;

/// What the zeroed bytes of new memory already are.
///
/// # Safety
/// All bytes zero is a value of the type.
pub(crate) unsafe trait Zeroed: Sized {}

/// Numbered values, `CHUNK` (a power of two) to an allocation.
pub(crate) struct Pool<T, const CHUNK: usize> {
    chunks: Vec<Box<[T; CHUNK]>>,
}

impl<T: Zeroed, const CHUNK: usize> Pool<T, CHUNK> {
    pub(crate) const fn new() -> Self {
        Pool { chunks: Vec::new() }
    }

    /// Makes room for the numbers below `count`.
    pub(crate) fn ensure(&mut self, count: usize) -> Result<(), OutOfMemory> {
        while self.chunks.len() * CHUNK < count {
            self.chunks.try_reserve(1).map_err(|_| OutOfMemory)?;
            self.chunks.push(zeroed()?);
        }
        Ok(())
    }

    #[inline(always)]
    pub(crate) fn get(&self, id: u32) -> &T {
        &self.chunks[id as usize / CHUNK][id as usize % CHUNK]
    }

    #[inline(always)]
    pub(crate) fn get_mut(&mut self, id: u32) -> &mut T {
        &mut self.chunks[id as usize / CHUNK][id as usize % CHUNK]
    }

    /// Two different ones.
    pub(crate) fn two_mut(&mut self, a: u32, b: u32) -> (&mut T, &mut T) {
        let (a, b) = (a as usize, b as usize);
        let differ = "two different nodes";
        if a / CHUNK == b / CHUNK {
            let chunk = &mut self.chunks[a / CHUNK];
            let [a, b] = chunk
                .get_disjoint_mut([a % CHUNK, b % CHUNK])
                .expect(differ);
            (a, b)
        } else {
            let chunks = self.chunks.get_disjoint_mut([a / CHUNK, b / CHUNK]);
            let [x, y] = chunks.expect(differ);
            (&mut x[a % CHUNK], &mut y[b % CHUNK])
        }
    }

    pub(crate) fn bytes(&self) -> usize {
        let chunk = size_of::<[T; CHUNK]>() + size_of::<Box<[T; CHUNK]>>();
        self.chunks.len() * chunk
    }
}

fn zeroed<T: Zeroed, const CHUNK: usize>() -> Result<Box<[T; CHUNK]>, OutOfMemory> {
    let layout = Layout::new::<[T; CHUNK]>();
    assert!(layout.size() != 0);
    // SAFETY: the layout's size is not zero.
    let memory = unsafe { alloc::alloc::alloc_zeroed(layout) };
    if memory.is_null() {
        return Err(OutOfMemory);
    }
    // SAFETY: the memory comes from the global allocator with the layout of the array, nobody else
    // has it, and `Zeroed` says that its zeros are a value.
    Ok(unsafe { Box::from_raw(memory.cast()) })
}

/// Which numbers of some pools are in use.
pub(crate) struct Ids {
    next: u32,
    /// Has room for all numbers below `limit`, so that giving back allocates nothing.
    free: Vec<u32>,
    limit: u32,
}

impl Ids {
    pub(crate) const fn new() -> Self {
        Ids {
            next: 0,
            free: Vec::new(),
            limit: 0,
        }
    }

    /// Numbers that can be taken now.
    pub(crate) fn spare(&self) -> usize {
        (self.limit - self.next) as usize + self.free.len()
    }

    /// Lets numbers below `limit` be taken.
    pub(crate) fn grow(&mut self, limit: u32) -> Result<(), OutOfMemory> {
        let more = (limit as usize).saturating_sub(self.free.len());
        self.free.try_reserve(more).map_err(|_| OutOfMemory)?;
        self.limit = self.limit.max(limit);
        Ok(())
    }

    pub(crate) fn limit(&self) -> u32 {
        self.limit
    }

    /// Numbers that are taken.
    pub(crate) fn used(&self) -> usize {
        self.next as usize - self.free.len()
    }

    /// Takes a number.
    ///
    /// # Panics
    /// When there is none: room is made before a tree is changed.
    pub(crate) fn take(&mut self) -> u32 {
        if let Some(id) = self.free.pop() {
            return id;
        }
        assert!(self.next < self.limit, "nodes were reserved");
        self.next += 1;
        self.next - 1
    }

    /// Gives a number back.
    pub(crate) fn give(&mut self, id: u32) {
        debug_assert!(self.free.len() < self.free.capacity());
        self.free.push(id);
    }

    pub(crate) fn bytes(&self) -> usize {
        self.free.capacity() * size_of::<u32>()
    }
}
