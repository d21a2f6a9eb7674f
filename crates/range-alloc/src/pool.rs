//! Nodes of one kind by number, one beside the other: the way to a node is a multiplication, where
//! chunks that never move would take another load on each level of a search.

use core::alloc::Layout;
use core::marker::PhantomData;
use core::ops::Range;
use core::ptr::NonNull;

use crate::error::OutOfMemory;

/// What the zeroed bytes of new memory already are.
///
/// # Safety
/// All bytes zero is a value of the type.
pub(crate) unsafe trait Zeroed: Copy {}

/// Numbered values. They move when there is to be room for more.
pub(crate) struct Pool<T> {
    /// Of `len` values.
    first: NonNull<T>,
    len: usize,
    /// What the global allocator gave; dangling as long as there is nothing.
    memory: NonNull<u8>,
    owns: PhantomData<T>,
}

// SAFETY: a pool owns its values, as a box does.
unsafe impl<T: Send> Send for Pool<T> {}
// SAFETY: as above.
unsafe impl<T: Sync> Sync for Pool<T> {}

/// What global allocators align to at no cost. More takes `aligned_alloc`, which is slow in glibc and has
/// no form that knows of zeros.
const PLAIN_ALIGN: usize = 16;

/// Memory for so many values, wherever it begins.
fn layout<T>(count: usize) -> Option<Layout> {
    let values = Layout::array::<T>(count).ok()?;
    let spare = align_of::<T>().saturating_sub(PLAIN_ALIGN);
    let size = values.size().checked_add(spare)?;
    Layout::from_size_align(size, PLAIN_ALIGN).ok()
}

impl<T: Zeroed> Pool<T> {
    pub(crate) fn new() -> Self {
        Pool {
            first: NonNull::dangling(),
            len: 0,
            memory: NonNull::dangling(),
            owns: PhantomData,
        }
    }

    /// So many values, all zero. Of many, untouched pages cost nothing.
    fn zeroed(count: usize) -> Result<Self, OutOfMemory> {
        let layout = layout::<T>(count).ok_or(OutOfMemory)?;
        assert!(layout.size() != 0);
        // SAFETY: the layout's size is not zero.
        let memory = unsafe { alloc::alloc::alloc_zeroed(layout) };
        let memory = NonNull::new(memory).ok_or(OutOfMemory)?;
        let offset = memory.align_offset(align_of::<T>());
        Ok(Pool {
            // SAFETY: the layout has room for the values from the first aligned byte on.
            first: unsafe { memory.add(offset) }.cast(),
            len: count,
            memory,
            owns: PhantomData,
        })
    }

    /// Makes room for the numbers below `count`.
    pub(crate) fn ensure(&mut self, count: usize) -> Result<(), OutOfMemory> {
        if self.len < count {
            let mut all = Pool::zeroed(count)?;
            all.all_mut()[..self.len].copy_from_slice(self.all());
            *self = all;
        }
        Ok(())
    }
}

impl<T> Pool<T> {
    #[inline(always)]
    fn all(&self) -> &[T] {
        // SAFETY: there are `len` values (`Zeroed` says that zeros are values), which the pool owns.
        unsafe { core::slice::from_raw_parts(self.first.as_ptr(), self.len) }
    }

    #[inline(always)]
    fn all_mut(&mut self) -> &mut [T] {
        // SAFETY: as in `all`, and the pool is borrowed for writing.
        unsafe { core::slice::from_raw_parts_mut(self.first.as_ptr(), self.len) }
    }

    #[inline(always)]
    pub(crate) fn get(&self, id: u32) -> &T {
        &self.all()[id as usize]
    }

    #[inline(always)]
    pub(crate) fn get_mut(&mut self, id: u32) -> &mut T {
        &mut self.all_mut()[id as usize]
    }

    /// Values beside each other.
    #[inline(always)]
    pub(crate) fn slice(&self, ids: Range<usize>) -> &[T] {
        &self.all()[ids]
    }

    #[inline(always)]
    pub(crate) fn slice_mut(&mut self, ids: Range<usize>) -> &mut [T] {
        &mut self.all_mut()[ids]
    }

    /// Numbers that there is room for.
    pub(crate) fn len(&self) -> usize {
        self.len
    }

    /// Two different ones.
    pub(crate) fn two_mut(&mut self, a: u32, b: u32) -> (&mut T, &mut T) {
        let both = self.all_mut().get_disjoint_mut([a as usize, b as usize]);
        let [a, b] = both.expect("two different nodes");
        (a, b)
    }

    pub(crate) fn bytes(&self) -> usize {
        size_of_val(self.all())
    }
}

impl<T> Drop for Pool<T> {
    fn drop(&mut self) {
        if self.len > 0 {
            let layout = layout::<T>(self.len).expect("it was allocated with it");
            // SAFETY: the global allocator gave the memory with this layout. The values need no
            // drop: they are `Copy`.
            unsafe { alloc::alloc::dealloc(self.memory.as_ptr(), layout) }
        }
    }
}

/// A value that can tell which number follows it in a chain of those that are not in use.
pub(crate) trait Linked {
    fn link(&mut self) -> &mut u32;
}

/// Which numbers of some pools are in use. Those given back are chained through the values.
#[derive(Clone)]
pub(crate) struct Ids {
    next: u32,
    /// The first of the chain, if there are any.
    free: u32,
    count: u32,
    limit: u32,
}

impl Ids {
    pub(crate) const fn new() -> Self {
        Ids {
            next: 0,
            free: 0,
            count: 0,
            limit: 0,
        }
    }

    /// All numbers below `count` are taken, and there is room for no more.
    pub(crate) const fn all_taken(count: u32) -> Self {
        Ids {
            next: count,
            free: 0,
            count: 0,
            limit: count,
        }
    }

    /// Numbers that can be taken now.
    pub(crate) fn spare(&self) -> usize {
        (self.limit - self.next + self.count) as usize
    }

    /// Lets numbers below `limit` be taken.
    pub(crate) fn grow(&mut self, limit: u32) {
        self.limit = self.limit.max(limit);
    }

    pub(crate) fn limit(&self) -> u32 {
        self.limit
    }

    /// Numbers that are taken.
    pub(crate) fn used(&self) -> usize {
        (self.next - self.count) as usize
    }

    /// Takes a number.
    ///
    /// # Panics
    /// When there is none: room is made before a tree is changed.
    pub(crate) fn take<T: Linked>(&mut self, pool: &mut Pool<T>) -> u32 {
        if self.count > 0 {
            let id = self.free;
            self.free = *pool.get_mut(id).link();
            self.count -= 1;
            return id;
        }
        assert!(self.next < self.limit, "nodes were reserved");
        self.next += 1;
        self.next - 1
    }

    /// Gives a number back.
    pub(crate) fn give<T: Linked>(&mut self, id: u32, pool: &mut Pool<T>) {
        *pool.get_mut(id).link() = self.free;
        self.free = id;
        self.count += 1;
    }
}
