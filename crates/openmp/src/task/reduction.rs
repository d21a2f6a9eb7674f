//! Reductions over tasks: each thread has its own copy of every variable, which a task asks for by the address of
//! the original or of any thread's copy.
//!
//! The compiler's array, in words: number of variables; bytes of one thread's copies; alignment, replaced here by
//! the address of the copies; allocator (-1: any); the next array or 0; not 0 if this is the first of its
//! construct (ours); end of the copies (ours); then for each variable: address of the original, offset in the
//! copies, and a word that is not used here. Variables are sorted by offset. The last array of a construct points to the
//! first of the construct around it.

use std::ptr;

use super::group::{self, Group};
use crate::sync::Ordering;
use crate::thread::Thread;
use crate::{message, team};

const COUNT: usize = 0;
const BYTES: usize = 1;
const BASE: usize = 2;
const NEXT: usize = 4;
const IS_FIRST: usize = 5;
const END: usize = 6;
const VARIABLES: usize = 7;
/// Words for each variable.
const WORDS: usize = 3;

/// The array that tasks within `group`, or outside of any in the region, take part in.
pub(super) unsafe fn of(thread: *mut Thread, group: *mut Group) -> *mut usize {
    // SAFETY: the group is one of the calling thread's task; teams are never freed.
    unsafe {
        match (group.as_ref(), (*thread).at.team.as_ref()) {
            (Some(group), _) => group.reductions,
            (None, Some(team)) => team.reductions.load(Ordering::Acquire),
            (None, None) => ptr::null_mut(),
        }
    }
}

/// Allocates the copies of all arrays of a construct for `nthreads` threads, or takes those of `copies_of`, which
/// another thread has allocated. `around`: the construct around it, or null.
///
/// # Safety
/// The arrays are as described above.
pub unsafe fn prepare(
    data: *mut usize,
    around: *mut usize,
    mut copies_of: *mut usize,
    nthreads: u32,
) {
    // SAFETY: the caller's promise.
    unsafe {
        let mut array = data;
        loop {
            if copies_of.is_null() {
                let bytes = (*array.add(BYTES)).saturating_mul(nthreads as usize);
                let copies = zeroed(bytes, *array.add(BASE));
                *array.add(BASE) = copies;
                *array.add(END) = copies + bytes;
            } else {
                *array.add(BASE) = *copies_of.add(BASE);
                *array.add(END) = *copies_of.add(END);
                copies_of = *copies_of.add(NEXT) as *mut usize;
            }
            *array.add(IS_FIRST) = 0;
            let next = *array.add(NEXT) as *mut usize;
            if next.is_null() {
                *array.add(NEXT) = around as usize;
                break;
            }
            array = next;
        }
        *data.add(IS_FIRST) = 1;
    }
}

fn zeroed(bytes: usize, align: usize) -> usize {
    let mut memory = ptr::null_mut();
    let align = align.max(size_of::<usize>()).next_power_of_two();
    // SAFETY: `memory` is written by the call, and is as long as asked for.
    unsafe {
        if libc::posix_memalign(&mut memory, align, bytes.max(1)) != 0 {
            message::out_of_memory(bytes);
        }
        memory.cast::<u8>().write_bytes(0, bytes);
    }
    memory as usize
}

/// The innermost taskgroup of the calling thread's task takes part in the reductions of `data`.
///
/// # Safety
/// `thread` is the calling thread's; a taskgroup was begun; the array is the compiler's.
pub unsafe fn register_reductions(thread: *mut Thread, data: *mut usize) {
    // SAFETY: the caller's promise.
    unsafe { join_reductions(thread, data, ptr::null_mut()) };
}

/// The same, with the copies that another thread has registered for the same construct.
///
/// # Safety
/// As [`register_reductions`]; the other array is of the same shape.
pub unsafe fn join_reductions(thread: *mut Thread, data: *mut usize, copies_of: *mut usize) {
    // SAFETY: the caller's promise.
    unsafe {
        let nthreads = (*thread).at.team.as_ref().map_or(1, |t| t.nthreads);
        let mut group = (*(*thread).task).group;
        if group.is_null() {
            group = group::start(thread);
        }
        prepare(data, (*group).reductions, copies_of, nthreads);
        (*group).reductions = data;
    }
}

/// A loop, or sections, with reductions over tasks begins: its own taskgroup.
///
/// # Safety
/// `thread` is the calling thread's.
pub unsafe fn begin_workshare(thread: *mut Thread) {
    // SAFETY: the caller's promise; the group was just made.
    unsafe { (*group::start(thread)).is_workshare = true };
}

/// It ends. `is_cancelled`: by cancellation, so that the team does not meet.
///
/// # Safety
/// `thread` is the calling thread's; [`begin_workshare`] came before.
pub unsafe fn end_workshare(thread: *mut Thread, is_cancelled: bool) {
    // SAFETY: the caller's promise.
    unsafe {
        let group = (*(*thread).task).group;
        if !group.is_null() {
            let data = (*group).reductions;
            group::end(thread);
            if (*thread).at.id == 0 && !data.is_null() {
                unregister(data);
            }
        }
        if !is_cancelled {
            team::barrier(thread);
        }
    }
}

/// Frees the copies of a construct.
///
/// # Safety
/// `data` was prepared, and nobody uses the copies any more.
pub unsafe fn unregister(data: *mut usize) {
    // SAFETY: the caller's promise; copies come from `posix_memalign`.
    unsafe {
        let mut array = data;
        loop {
            libc::free(*array.add(BASE) as *mut _);
            array = *array.add(NEXT) as *mut usize;
            if array.is_null() || *array.add(IS_FIRST) != 0 {
                return;
            }
        }
    }
}

/// Replaces each of the addresses, of originals or of any thread's copies, by that of the calling thread's copy. For
/// the first `originals` of them the address of the original is stored behind all.
///
/// # Safety
/// `thread` is the calling thread's; there is room for `count + originals` addresses.
pub unsafe fn remap(thread: *mut Thread, count: usize, originals: usize, addresses: *mut usize) {
    // SAFETY: the caller's promise.
    unsafe {
        let data = of(thread, (*(*thread).task).group);
        for i in 0..count {
            let address = *addresses.add(i);
            let Some((copy, original)) = find(data, address, (*thread).at.id as usize) else {
                message::fatal(format_args!(
                    "couldn't find matching task_reduction or reduction with task modifier for {address:#x}"
                ));
            };
            *addresses.add(i) = copy;
            if i < originals {
                *addresses.add(count + i) = original;
            }
        }
    }
}

/// The copy of thread `id`, and the original, of what is at `address`. Innermost constructs first; time is
/// proportional to the number of variables.
unsafe fn find(data: *mut usize, address: usize, id: usize) -> Option<(usize, usize)> {
    // SAFETY: the arrays are as described above.
    unsafe {
        let mut array = data;
        while !array.is_null() {
            let bytes = *array.add(BYTES);
            let mine = *array.add(BASE) + id * bytes;
            let variables = (0..*array.add(COUNT)).map(|i| array.add(VARIABLES + i * WORDS));
            for variable in variables.clone() {
                if *variable == address {
                    return Some((mine + *variable.add(1), address));
                }
            }
            array = *array.add(NEXT) as *mut usize;
        }
        let mut array = data;
        while !array.is_null() {
            let (base, end, bytes) = (*array.add(BASE), *array.add(END), *array.add(BYTES));
            if (base..end).contains(&address) {
                let offset = (address - base) % bytes;
                let original = (0..*array.add(COUNT))
                    .map(|i| array.add(VARIABLES + i * WORDS))
                    .find(|v| *v.add(1) == offset)
                    .map_or(0, |v| *v);
                return Some((base + id * bytes + offset, original));
            }
            array = *array.add(NEXT) as *mut usize;
        }
        None
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    /// An array of variables at 1000, 1008, ... with copies of 64 bytes.
    fn array(first: usize, count: usize) -> Vec<usize> {
        let mut words = vec![count, 64, 64, usize::MAX, 0, 0, 0];
        for i in 0..count {
            words.extend([first + 8 * i, 8 * i, 0]);
        }
        words
    }

    #[test]
    fn each_thread_finds_its_copy_by_the_original_and_by_any_copy() {
        let (mut outer, mut inner, mut second) = (array(1000, 2), array(2000, 1), array(1008, 1));
        let outer_at = outer.as_mut_ptr();
        let inner_at = inner.as_mut_ptr();
        inner[NEXT] = second.as_mut_ptr() as usize;
        // SAFETY: the arrays are of the form described, and live long enough.
        unsafe {
            prepare(outer_at, ptr::null_mut(), ptr::null_mut(), 4);
            prepare(inner_at, outer_at, ptr::null_mut(), 4);
            let copy =
                |array: *mut usize, id: usize, offset: usize| *array.add(BASE) + 64 * id + offset;
            assert_eq!(find(inner_at, 1000, 3), Some((copy(outer_at, 3, 0), 1000)));
            assert_eq!(find(inner_at, 2000, 1), Some((copy(inner_at, 1, 0), 2000)));
            // The innermost construct counts.
            let second_at = second.as_mut_ptr();
            assert_eq!(find(inner_at, 1008, 2), Some((copy(second_at, 2, 0), 1008)));
            assert_eq!(find(outer_at, 1008, 2), Some((copy(outer_at, 2, 8), 1008)));
            let others = copy(outer_at, 3, 8);
            assert_eq!(
                find(inner_at, others, 0),
                Some((copy(outer_at, 0, 8), 1008))
            );
            assert_eq!(find(inner_at, 3000, 0), None);
            // Another thread with its own arrays, but the same copies.
            let (mut other, mut other_second) = (array(2000, 1), array(1008, 1));
            other[NEXT] = other_second.as_mut_ptr() as usize;
            let other_at = other.as_mut_ptr();
            prepare(other_at, outer_at, inner_at, 4);
            assert_eq!(find(other_at, 1008, 2), find(inner_at, 1008, 2));
            unregister(inner_at);
            unregister(outer_at);
        }
    }
}
