//! What a futex is, from how polls see it used.
//!
//! A poll knows no waker. It does know the operation and the expected value, which
//! libraries choose in characteristic ways: locks expect one of a few constants,
//! barriers wait plainly for a generation to pass, and conditions wait with a bit set.

use rustc_hash::FxHashSet;

use crate::cause::Cause;
use crate::event::{Blocked, CallStack, Tid};

const WAIT: u64 = 0;
const WAIT_BITSET: u64 = 9;
const LOCK_PI: u64 = 6;
const LOCK_PI2: u64 = 13;
const WAIT_REQUEUE_PI: u64 = 11;
const OPERATION: u64 = 0x7f;
const WAITERS_MAX: usize = 64;

const PRIVATE: u64 = 0x80;

/// The thread whose end a call may wait for: libc waits for its id to be cleared. The kernel clears
/// it and wakes like another process would, so this wait is not a private one as most are.
pub(super) fn joins(args: &[u64; 4]) -> Option<Tid> {
    let operation = args[1] & OPERATION;
    let value = args[2] as u32;
    (matches!(operation, WAIT | WAIT_BITSET) && args[1] & PRIVATE == 0 && value > 3)
        .then_some(value)
}

/// The futex that a thread waits for, if it waits for one.
pub(super) fn address(blocked: &Blocked) -> Option<u64> {
    let is_futex = blocked.syscall.map(libc::c_long::from) == Some(libc::SYS_futex);
    is_futex.then_some(blocked.args[0])
}

/// The runtimes of OpenMP have no names for their inner functions. Where they wait for a value that
/// changes, it is that of a team: the slowest thread of a barrier is seldom seen waiting.
fn is_of_a_team(stack: &CallStack) -> bool {
    const RUNTIMES: &[&str] = &["libgomp.so", "libomp.so", "libiomp"];
    let innermost = stack
        .user
        .iter()
        .take(2)
        .map(|frame| frame.module.rsplit('/').next().unwrap_or(""));
    innermost
        .into_iter()
        .any(|file| RUNTIMES.iter().any(|runtime| file.starts_with(runtime)))
}

/// How one futex was seen to be used.
#[derive(Debug, Default)]
pub(super) struct PolledFutex {
    seen: u64,
    operation: u64,
    first_value: u32,
    values_differ: bool,
    waiters: FxHashSet<Tid>,
    in_team: bool,
}

impl PolledFutex {
    /// `stack` is that of the wait.
    pub(super) fn see(&mut self, tid: Tid, args: &[u64; 4], stack: Option<&CallStack>) {
        self.in_team |= stack.is_some_and(is_of_a_team);
        let value = args[2] as u32;
        if self.seen == 0 {
            self.operation = args[1] & OPERATION;
            self.first_value = value;
        }
        self.seen += 1;
        self.values_differ |= self.first_value != value;
        if self.waiters.len() < WAITERS_MAX {
            self.waiters.insert(tid);
        }
    }

    /// `beside`: the futex next to it in memory is waited for too, as in libc's conditions, which
    /// have two groups of waiters.
    pub(super) fn cause(&self, beside: bool) -> Cause {
        if matches!(self.operation, LOCK_PI | LOCK_PI2) {
            return Cause::LockWait;
        }
        if self.operation == WAIT_REQUEUE_PI {
            return Cause::Partner;
        }
        let plain = self.operation == WAIT;
        let many = self.waiters.len() > 1;
        match (self.first_value, self.values_differ) {
            (_, true) if plain && (many || self.in_team) => Cause::Barrier,
            (1..=3, false) => Cause::LockWait,
            (0, false) if !plain && many && !beside => Cause::LockWait,
            _ => Cause::Partner,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::event::Frame;

    fn used(waits: &[(Tid, u64, u64)], beside: bool) -> Cause {
        let mut futex = PolledFutex::default();
        for &(tid, operation, value) in waits {
            futex.see(tid, &[0x1000, operation | PRIVATE, value, 0], None);
        }
        futex.cause(beside)
    }

    #[test]
    fn operation_and_value_tell_primitives_apart() {
        assert_eq!(used(&[(1, WAIT, 2), (2, WAIT, 2)], false), Cause::LockWait);
        assert_eq!(used(&[(1, WAIT, 2), (2, WAIT, 4)], false), Cause::Barrier);
        assert_eq!(
            used(&[(1, WAIT_BITSET, 7), (2, WAIT_BITSET, 9)], false),
            Cause::Partner
        );
        assert_eq!(
            used(&[(1, WAIT_BITSET, 0), (2, WAIT_BITSET, 0)], true),
            Cause::Partner
        );
        assert_eq!(
            used(&[(1, WAIT_BITSET, 0), (2, WAIT_BITSET, 0)], false),
            Cause::LockWait
        );
        assert_eq!(
            used(&[(1, WAIT_BITSET, u64::from(u32::MAX))], false),
            Cause::Partner
        );
        assert_eq!(used(&[(1, LOCK_PI, 0)], false), Cause::LockWait);
    }

    #[test]
    fn a_team_of_openmp_waits_at_barriers_even_if_one_thread_does_all_the_waiting() {
        let frame = Frame {
            module: "/usr/lib/libgomp.so.1.0.0".to_owned(),
            ..Frame::default()
        };
        let stack = CallStack {
            user: vec![frame],
            ..CallStack::default()
        };
        for (stack, cause) in [(Some(&stack), Cause::Barrier), (None, Cause::Partner)] {
            let mut futex = PolledFutex::default();
            for value in [8, 16] {
                futex.see(1, &[0x1000, PRIVATE, value, 0], stack);
            }
            assert_eq!(futex.cause(false), cause);
        }
    }

    #[test]
    fn a_join_names_its_thread() {
        assert_eq!(joins(&[0x7f00, 0x109, 1262, 0]), Some(1262));
        assert_eq!(joins(&[0x7f00, PRIVATE, 2, 0]), None);
        assert_eq!(joins(&[0x7f00, 1, 1262, 0]), None);
        assert_eq!(joins(&[0x7f00, PRIVATE, 1262, 0]), None);
    }
}
