//! Target regions and leagues of teams on the host, which is the only device here: what GCC's runtime does where it
//! finds no plugin.

use std::ffi::c_void;
use std::sync::atomic::AtomicU32;
use std::{mem, ptr};

use crate::icv::{TargetOffload, globals};
use crate::share;
use crate::task::Task;
use crate::thread::{self, Position, Thread};
use crate::{message, worker};

/// The code of a target region or of a league.
pub type Body = unsafe extern "C-unwind" fn(*mut c_void);

/// How a compiler says which device it means.
pub mod device {
    /// The one of *default-device-var*.
    pub const ICV: i32 = -1;
    /// None: the host, whatever is set.
    pub const HOST_FALLBACK: i32 = -2;
    /// `omp_invalid_device`: none, and whoever means it has made a mistake.
    pub const INVALID: i32 = -4;
}

/// Bits of the arguments of a target region, from GCC's `gomp-constants.h`.
mod argument {
    pub const DEVICE_MASK: usize = 0x7f;
    pub const IS_PAIR: usize = 1 << 7;
    pub const ID_MASK: usize = 0xff << 8;
    pub const THREAD_LIMIT: usize = 2 << 8;
    pub const VALUE_SHIFT: u32 = 16;
}

/// Ends the program if a device is meant of which it was said that it is none. GCC's runtime does since GCC 13.
pub fn check(device: i32) {
    if device == device::INVALID {
        message::fatal(format_args!("omp_invalid_device encountered"));
    }
}

/// Checks that the host may stand for a device: not if it is none, and not if offloading was made mandatory and it is a
/// device that is not there.
///
/// # Safety
/// `thread` is the calling thread's.
pub unsafe fn fall_back(thread: *mut Thread, device: i32) {
    check(device);
    if globals().target_offload != TargetOffload::Mandatory || device == device::HOST_FALLBACK {
        return;
    }
    let device = match device {
        // SAFETY: the caller's promise.
        device::ICV => unsafe { Thread::icv(thread) }.default_device,
        device => device,
    };
    // Number 0 is the host: there are no others before it.
    if device != 0 {
        message::fatal(format_args!(
            "OMP_TARGET_OFFLOAD is set to MANDATORY, but device not found"
        ));
    }
}

/// The thread limit among the arguments of a target region; 0: none.
///
/// # Safety
/// Null, or words that end in a zero.
pub unsafe fn thread_limit(mut arguments: *const usize) -> u32 {
    if arguments.is_null() {
        return 0;
    }
    // SAFETY: the caller's promise: nothing behind the zero is read.
    let mut next = || unsafe {
        let word = arguments.read();
        arguments = arguments.add(1);
        word
    };
    loop {
        let word = next();
        if word == 0 {
            return 0;
        }
        let value = if word & argument::IS_PAIR != 0 {
            next().cast_signed()
        } else {
            word.cast_signed() >> argument::VALUE_SHIFT
        };
        let is_for_all = word & argument::DEVICE_MASK == 0;
        if is_for_all && word & argument::ID_MASK == argument::THREAD_LIMIT {
            return u32::try_from(value.min(i32::MAX as isize)).unwrap_or(0);
        }
    }
}

/// Runs a target region on the calling thread, which counts as a thread of its own meanwhile: outside of all
/// regions, with the variables of an initial task.
///
/// # Safety
/// `thread` is the calling thread's; `body` may be called with `data`.
pub unsafe fn run(thread: *mut Thread, body: Body, data: *mut c_void, thread_limit: u32) {
    let globals = globals();
    let mut icv = globals.initial;
    if thread_limit != 0 {
        icv.thread_limit = thread_limit;
    }
    // Not on the stack: who leaves the region by `longjmp` stays in it.
    let initial = Box::into_raw(Box::new((
        Task::implicit(ptr::null_mut(), icv),
        AtomicU32::new(0),
    )));
    // SAFETY: the thread is the caller's own and in nobody else's hands; `initial` lives until all is put back, and
    // what `body` made has ended by then.
    unsafe {
        let outside = Position {
            places: (0, globals.places.as_ref().map_or(0, |list| list.len())),
            group: &raw const (*initial).1,
            ..Position::OUTSIDE
        };
        let at = mem::replace(&mut (*thread).at, outside);
        let task = mem::replace(&mut (*thread).task, &raw mut (*initial).0);
        let teams = thread::set_teams_aside(thread);
        body(data);
        thread::give_back_teams(thread);
        thread::put_teams_back(thread, teams);
        (*thread).task = task;
        // Of a loop that was in no region.
        share::give_back((*thread).at.share);
        (*thread).at = at;
        drop(Box::from_raw(initial));
    }
}

/// `omp_pause_resource`: gives back the threads that wait for the calling thread's next region. False inside of a
/// region, where they are needed.
///
/// # Safety
/// `thread` is the calling thread's.
pub unsafe fn pause(thread: *mut Thread) -> bool {
    // SAFETY: outside of all regions nobody is in the thread's teams.
    unsafe {
        if (*thread).at.level != 0 {
            return false;
        }
        thread::give_back_teams(thread);
        worker::end_idle(0);
        true
    }
}

/// Firstprivate variables of a target region: copies, and a table of addresses that points to them. GCC's runtime
/// copies before it runs a region on the host, so that the region may write them.
#[derive(Debug)]
pub struct Private {
    /// Holds the copies.
    _copies: Vec<u8>,
}

/// `GOMP_MAP_FIRSTPRIVATE` of GCC's `gomp-constants.h`.
const MAP_FIRSTPRIVATE: u16 = 0x0c;

impl Private {
    /// Copies the firstprivate variables and has `addresses` point to the copies.
    ///
    /// # Safety
    /// Each table has `count` entries; an address of a firstprivate variable is null or of so many bytes.
    pub unsafe fn copy(
        count: usize,
        addresses: *mut *mut c_void,
        sizes: *const usize,
        kinds: *const u16,
    ) -> Self {
        // The low byte is the kind, the high one the logarithm of the alignment.
        let private = |at: usize| {
            // SAFETY: the caller's promise.
            let (kind, size) = unsafe { (kinds.add(at).read(), sizes.add(at).read()) };
            (kind & 0xff == MAP_FIRSTPRIVATE).then(|| (1_usize << (kind >> 8).min(63), size))
        };
        let mut room = 0_usize;
        for (align, size) in (0..count).filter_map(private) {
            room = room.saturating_add(size).saturating_add(align);
        }
        let mut copies = Vec::with_capacity(room);
        if room > 0 {
            let mut free: *mut u8 = copies.as_mut_ptr();
            for at in 0..count {
                let Some((align, size)) = private(at) else {
                    continue;
                };
                // SAFETY: the table has `count` entries.
                let slot = unsafe { addresses.add(at) };
                // SAFETY: `room` has the size and a whole alignment for each variable.
                unsafe {
                    let from = slot.read();
                    if from.is_null() {
                        continue;
                    }
                    let to = free.add(free.align_offset(align));
                    ptr::copy_nonoverlapping(from.cast::<u8>(), to, size);
                    slot.write(to.cast());
                    free = to.add(size);
                }
            }
        }
        Self { _copies: copies }
    }
}

/// A league of teams on the host: one after the other on the calling thread. 0 stands for what is not given.
///
/// # Safety
/// `thread` is the calling thread's; `body` may be called with `data`.
pub unsafe fn league(
    thread: *mut Thread,
    body: Body,
    data: *mut c_void,
    teams: u32,
    thread_limit: u32,
) {
    use std::sync::atomic::Ordering::Relaxed;
    let globals = globals();
    let or_default = |given: u32, default: i32| match given {
        0 => default.unsigned_abs(),
        given => given,
    };
    let thread_limit = or_default(thread_limit, globals.teams_thread_limit.load(Relaxed));
    // As many as in GCC's runtime, so that programs find there what they find here.
    let teams = match or_default(teams, globals.num_teams.load(Relaxed)) {
        0 => 3,
        teams => teams,
    };
    // SAFETY: the caller's promise.
    unsafe {
        let limit_before = Thread::icv(thread).thread_limit;
        if thread_limit != 0 {
            set_thread_limit(thread, thread_limit);
        }
        for number in 0..teams {
            (*thread).at.league = (number, teams - 1);
            body(data);
        }
        (*thread).at.league = (0, 0);
        Thread::icv(thread).thread_limit = limit_before;
    }
}

/// *thread-limit-var* of what the thread executes; more than an `int` holds is no limit.
///
/// # Safety
/// `thread` is the calling thread's.
pub unsafe fn set_thread_limit(thread: *mut Thread, limit: u32) {
    let limit = if i32::try_from(limit).is_ok() {
        limit
    } else {
        u32::MAX
    };
    // SAFETY: the caller's promise.
    unsafe { Thread::icv(thread) }.thread_limit = limit;
}

/// A box of an array: how many elements in each dimension, and where it lies in arrays of which size.
#[derive(Clone, Copy, Debug)]
pub struct Rectangle<'a> {
    /// Bytes of an element.
    pub element: usize,
    /// Elements to copy, by dimension, the slowest first.
    pub volume: &'a [usize],
    /// Where it begins in the destination.
    pub to: &'a [usize],
    /// Where it begins in the source.
    pub from: &'a [usize],
    /// The size of the destination.
    pub to_size: &'a [usize],
    /// The size of the source.
    pub from_size: &'a [usize],
}

/// Bytes that cannot be counted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Overflow;

impl Rectangle<'_> {
    /// Calls `copy(to, from, bytes)` for each run of bytes, with offsets from the beginnings of the arrays.
    pub fn each_run(&self, copy: &mut impl FnMut(usize, usize, usize)) -> Result<(), Overflow> {
        let dimensions = self.volume.len();
        let strides = |size: &[usize]| {
            let mut strides = vec![self.element; dimensions];
            for at in (1..dimensions).rev() {
                strides[at - 1] = strides[at].checked_mul(size[at]).ok_or(Overflow)?;
            }
            Ok(strides)
        };
        let (to, from) = (strides(self.to_size)?, strides(self.from_size)?);
        self.runs_of(0, (0, 0), &to, &from, copy)
    }

    fn runs_of(
        &self,
        dimension: usize,
        (to, from): (usize, usize),
        to_strides: &[usize],
        from_strides: &[usize],
        copy: &mut impl FnMut(usize, usize, usize),
    ) -> Result<(), Overflow> {
        let begin = |offset: usize, stride: usize, base: usize| {
            base.checked_add(offset.checked_mul(stride).ok_or(Overflow)?)
                .ok_or(Overflow)
        };
        let mut to = begin(self.to[dimension], to_strides[dimension], to)?;
        let mut from = begin(self.from[dimension], from_strides[dimension], from)?;
        let volume = self.volume[dimension];
        if dimension + 1 == self.volume.len() {
            copy(to, from, volume.checked_mul(self.element).ok_or(Overflow)?);
            return Ok(());
        }
        for left in (0..volume).rev() {
            self.runs_of(dimension + 1, (to, from), to_strides, from_strides, copy)?;
            if left > 0 {
                to = to.checked_add(to_strides[dimension]).ok_or(Overflow)?;
                from = from.checked_add(from_strides[dimension]).ok_or(Overflow)?;
            }
        }
        Ok(())
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn the_thread_limit_is_found_among_the_arguments() {
        let limit = |words: &[usize]| {
            // SAFETY: they end in a zero.
            unsafe { thread_limit(words.as_ptr()) }
        };
        let in_word = |value: isize| (value << 16).cast_unsigned() | 2 << 8;
        assert_eq!(limit(&[0]), 0);
        assert_eq!(limit(&[in_word(5), 0]), 5);
        assert_eq!(limit(&[1 << 8 | 3 << 16, in_word(7), 0]), 7);
        assert_eq!(limit(&[2 << 8 | 1 << 7, 9, 0]), 9, "a word of its own");
        assert_eq!(
            limit(&[2 << 8 | 1 << 7, 1 << 40, 0]),
            i32::MAX.unsigned_abs()
        );
        assert_eq!(limit(&[2 << 8 | 5 | 4 << 16, 0]), 0, "for another device");
        assert_eq!(limit(&[in_word(-1), 0]), 0);
        // SAFETY: null is allowed.
        assert_eq!(unsafe { thread_limit(ptr::null()) }, 0);
    }

    #[test]
    fn firstprivate_variables_are_copied_and_aligned() {
        let (mut one, mut two) = (7_u64, [1_u8, 2, 3]);
        let mut addresses: [*mut c_void; 4] = [
            (&raw mut one).cast(),
            (&raw mut two).cast(),
            ptr::null_mut(),
            (&raw mut one).cast(),
        ];
        let sizes = [8, 3, 8, 8];
        let kinds = [0x0c | 6 << 8, 0x0c, 0x0c | 3 << 8, 3];
        // SAFETY: tables of four entries.
        let private =
            unsafe { Private::copy(4, addresses.as_mut_ptr(), sizes.as_ptr(), kinds.as_ptr()) };
        assert_ne!(addresses[0], (&raw mut one).cast());
        assert_eq!(addresses[0].addr() % 64, 0);
        assert_eq!(addresses[3], (&raw mut one).cast(), "another kind");
        assert!(addresses[2].is_null());
        // SAFETY: copies of these variables.
        unsafe {
            assert_eq!(addresses[0].cast::<u64>().read(), 7);
            assert_eq!(addresses[1].cast::<[u8; 3]>().read(), [1, 2, 3]);
        }
        drop(private);
    }

    extern "C-unwind" fn look(data: *mut c_void) {
        let thread = thread::current();
        // SAFETY: the thread's own; `data` is the test's.
        unsafe {
            let seen = &mut *data.cast::<Vec<(u32, u32, u32)>>();
            let limit = Thread::icv(thread).thread_limit;
            seen.push(((*thread).at.league.0, (*thread).at.level, limit));
        }
    }

    #[test]
    fn a_target_region_is_outside_of_all_regions_and_everything_is_put_back() {
        let thread = thread::current();
        let mut seen: Vec<(u32, u32, u32)> = vec![];
        // SAFETY: the thread's own.
        unsafe {
            let task = (*thread).task;
            (*thread).at.level = 3;
            run(thread, look, (&raw mut seen).cast(), 5);
            assert_eq!(((*thread).at.level, (*thread).task), (3, task));
            (*thread).at.level = 0;
        }
        assert_eq!(seen, [(0, 0, 5)]);
    }

    #[test]
    fn a_league_numbers_its_teams() {
        let thread = thread::current();
        let mut seen: Vec<(u32, u32, u32)> = vec![];
        // SAFETY: the thread's own.
        unsafe {
            let before = Thread::icv(thread).thread_limit;
            league(thread, look, (&raw mut seen).cast(), 2, 4);
            assert_eq!(Thread::icv(thread).thread_limit, before);
            assert_eq!((*thread).at.league, (0, 0));
        }
        assert_eq!(seen, [(0, 0, 4), (1, 0, 4)]);
    }

    proptest! {
        /// Three dimensions, element by element.
        #[test]
        fn rectangles_are_copied(
            volume in prop::collection::vec(0_usize..4, 3), to in prop::collection::vec(0_usize..3, 3),
            from in prop::collection::vec(0_usize..3, 3),
        ) {
            let (to_size, from_size) = ([7, 7, 7], [6, 8, 7]);
            let source: Vec<u16> = (0..6 * 8 * 7).collect();
            let mut target = vec![9999_u16; 7 * 7 * 7];
            let mut expected = target.clone();
            for (a, b, c) in (0..volume[0]).flat_map(|a| (0..volume[1]).map(move |b| (a, b)))
                .flat_map(|(a, b)| (0..volume[2]).map(move |c| (a, b, c))) {
                let at = |offset: &[usize], size: [usize; 3]| {
                    ((a + offset[0]) * size[1] + b + offset[1]) * size[2] + c + offset[2]
                };
                expected[at(&to, to_size)] = source[at(&from, from_size)];
            }
            let rectangle = Rectangle {
                element: 2,
                volume: &volume,
                to: &to,
                from: &from,
                to_size: &to_size,
                from_size: &from_size,
            };
            rectangle.each_run(&mut |to, from, bytes| {
                let (to, from, len) = (to / 2, from / 2, bytes / 2);
                if len > 0 {
                    target[to..to + len].copy_from_slice(&source[from..from + len]);
                }
            }).expect("small numbers");
            prop_assert_eq!(target, expected);
        }
    }

    #[test]
    fn sizes_that_cannot_be_counted_are_refused() {
        let huge = [usize::MAX / 2, usize::MAX / 2];
        let rectangle = Rectangle {
            element: 8,
            volume: &[1, 1],
            to: &[0, 0],
            from: &[0, 0],
            to_size: &huge,
            from_size: &[1, 1],
        };
        let mut runs = 0;
        assert_eq!(rectangle.each_run(&mut |_, _, _| runs += 1), Err(Overflow));
        assert_eq!(runs, 0);
    }
}
