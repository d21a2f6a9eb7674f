//! Nodes of one kind by number, one beside the other: the way to a node is a multiplication, where
//! chunks that never move would take another load on each level of a search.

use alloc::boxed::Box;
use alloc::vec::Vec;
use core::alloc::Layout;

use crate::error::OutOfMemory;

/// What the zeroed bytes of new memory already are.
///
/// # Safety
/// All bytes zero is a value of the type.
pub(crate) unsafe trait Zeroed: Copy {}

/// Numbered values. They move when there is to be room for more.
pub(crate) struct Pool<T> {
    all: Box<[T]>,
}

impl<T: Zeroed> Pool<T> {
    pub(crate) fn new() -> Self {
        Pool {
            all: Box::default(),
        }
    }

    /// Makes room for the numbers below `count`.
    pub(crate) fn ensure(&mut self, count: usize) -> Result<(), OutOfMemory> {
        if self.all.len() < count {
            let mut all = zeroed(count)?;
            all[..self.all.len()].copy_from_slice(&self.all);
            self.all = all;
        }
        Ok(())
    }

    #[inline(always)]
    pub(crate) fn get(&self, id: u32) -> &T {
        &self.all[id as usize]
    }

    #[inline(always)]
    pub(crate) fn get_mut(&mut self, id: u32) -> &mut T {
        &mut self.all[id as usize]
    }

    /// Two different ones.
    pub(crate) fn two_mut(&mut self, a: u32, b: u32) -> (&mut T, &mut T) {
        let both = self.all.get_disjoint_mut([a as usize, b as usize]);
        let [a, b] = both.expect("two different nodes");
        (a, b)
    }

    pub(crate) fn bytes(&self) -> usize {
        size_of_val(&*self.all)
    }
}

/// So many values, of which untouched pages cost nothing.
fn zeroed<T: Zeroed>(count: usize) -> Result<Box<[T]>, OutOfMemory> {
    let layout = Layout::array::<T>(count).map_err(|_| OutOfMemory)?;
    assert!(layout.size() != 0);
    // SAFETY: the layout's size is not zero.
    let memory = unsafe { alloc::alloc::alloc_zeroed(layout) };
    if memory.is_null() {
        return Err(OutOfMemory);
    }
    let all = core::ptr::slice_from_raw_parts_mut(memory.cast(), count);
    // SAFETY: the memory comes from the global allocator with the layout of the slice, nobody else
    // has it, and `Zeroed` says that its zeros are values.
    Ok(unsafe { Box::from_raw(all) })
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
