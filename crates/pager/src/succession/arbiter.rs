//! Who may serve: a lock that the kernel holds and gives back at a death, and in what order others may take it.
//!
//! Locks are of an open file description (`F_OFD_SETLK`) that each process makes for itself and passes to nobody: whatever duplicates of the
//! memory others have, a lock ends with the process that took it, when none of its threads can make a system call any more.

use std::os::fd::{AsRawFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicU64, Ordering};

use rustix::fs::{Mode, OFlags, open};
use rustix::io::Errno;

use super::ledger::{LedgerError, system};
use super::shared::Shared;
use super::turn::{Heirs, Rank};
use crate::PAGE;

const MAGIC: u64 = u64::from_le_bytes(*b"amdahlTN");
const VERSION: u64 = 1;
/// Words: magic, version, the last member's number, the heirs, who was given the turn and has not confirmed it.
const MEMBER: usize = 2;
const HEIRS: usize = 3;
const GIVEN: usize = 4;
/// The byte that whoever serves has locked; that of a member is behind it by its number.
const TURN: u64 = 0;

/// What came of a claim.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Claim {
    /// The turn is ours.
    Ours,
    /// Another has it, or comes first: to be tried again.
    Wait,
    /// Never in this line: we were dropped, or another has it for good.
    Never,
}

/// The turn that some processes share: at most one has it at any time.
#[derive(Debug)]
pub struct Arbiter {
    memory: Shared,
    /// Our own open file, whose locks are ours alone.
    own: OwnedFd,
}

impl Arbiter {
    /// A new one. Its turn is this process's.
    ///
    /// # Errors
    /// [`LedgerError::System`]: no memory, no descriptor, no `/proc`, or no locks (Linux 3.15).
    pub fn new() -> Result<Arbiter, LedgerError> {
        let arbiter = Arbiter::of(Shared::new("amdahl-turn", PAGE)?)?;
        arbiter.word(0).store(MAGIC, Ordering::SeqCst);
        arbiter.word(1).store(VERSION, Ordering::SeqCst);
        match arbiter.lock(TURN) {
            Ok(true) => Ok(arbiter),
            Ok(false) => Err(LedgerError::Wrong("is locked by another")),
            Err(errno) => Err(system("fcntl(F_OFD_SETLK)")(errno)),
        }
    }

    /// One that another process has made.
    ///
    /// # Errors
    /// [`LedgerError`]: it is none, of another version, or may still change its size.
    pub fn open(fd: OwnedFd) -> Result<Arbiter, LedgerError> {
        let arbiter = Arbiter::of(Shared::open(fd, PAGE)?)?;
        let is = |word: usize, value| arbiter.word(word).load(Ordering::SeqCst) == value;
        match is(0, MAGIC) && is(1, VERSION) {
            true => Ok(arbiter),
            false => Err(LedgerError::Wrong("is none, or of another version")),
        }
    }

    fn of(memory: Shared) -> Result<Arbiter, LedgerError> {
        let path = format!("/proc/self/fd/{}", memory.descriptor().as_raw_fd());
        let own = open(path, OFlags::RDWR | OFlags::CLOEXEC, Mode::empty())
            .map_err(system("opening /proc/self/fd"))?;
        Ok(Arbiter { memory, own })
    }

    /// To be sent to another process.
    pub fn descriptor(&self) -> BorrowedFd<'_> {
        self.memory.descriptor()
    }

    fn word(&self, nth: usize) -> &AtomicU64 {
        debug_assert!(nth <= GIVEN);
        self.memory.word(nth * 8)
    }

    /// A lock on a byte by our open file: `command` with `kind`, and the lock that there is.
    fn fcntl(&self, command: i32, kind: i32, byte: u64) -> Result<i32, Errno> {
        // SAFETY: plain numbers, for which zero bits are a value.
        let mut lock: libc::flock = unsafe { std::mem::zeroed() };
        lock.l_type = kind as libc::c_short;
        lock.l_whence = libc::SEEK_SET as libc::c_short;
        lock.l_start = byte as libc::off_t;
        lock.l_len = 1;
        // SAFETY: these commands take this structure.
        match unsafe { libc::fcntl(self.own.as_raw_fd(), command, &raw mut lock) } {
            -1 => Err(Errno::from_io_error(&std::io::Error::last_os_error()).unwrap_or(Errno::IO)),
            _ => Ok(lock.l_type.into()),
        }
    }

    /// Whether it is ours now.
    fn lock(&self, byte: u64) -> Result<bool, Errno> {
        match self.fcntl(libc::F_OFD_SETLK, libc::F_WRLCK, byte) {
            Ok(_) => Ok(true),
            Err(Errno::AGAIN | Errno::ACCESS) => Ok(false),
            Err(errno) => Err(errno),
        }
    }

    fn unlock(&self, byte: u64) {
        let _ = self.fcntl(libc::F_OFD_SETLK, libc::F_UNLCK, byte);
    }

    fn heirs(&self) -> Heirs {
        Heirs::from_bits(self.word(HEIRS).load(Ordering::SeqCst))
    }

    // ---- For the one that has the turn ----

    /// A number for one that wants to follow.
    pub fn invite(&self) -> u32 {
        loop {
            let number = self.word(MEMBER).fetch_add(1, Ordering::SeqCst) as u32;
            if let Some(number) = number.checked_add(1) {
                return number;
            }
        }
    }

    /// Whether a member lives. What cannot be known is taken for life.
    pub fn is_present(&self, member: u32) -> bool {
        let found = self.fcntl(libc::F_OFD_GETLK, libc::F_WRLCK, u64::from(member));
        found != Ok(libc::F_UNLCK)
    }

    /// Who may take the turn after our death.
    pub fn set_heirs(&self, heirs: Heirs) {
        self.word(HEIRS).store(heirs.bits(), Ordering::SeqCst);
    }

    /// Gives the turn, to the first of them before others.
    pub fn give(&self, heirs: Heirs) {
        self.word(GIVEN)
            .store(heirs.first().into(), Ordering::SeqCst);
        self.set_heirs(heirs);
        self.unlock(TURN);
    }

    /// Takes the word back that was given to a member; false if it has confirmed that it serves.
    pub fn revoke(&self, member: u32) -> bool {
        self.ends_given(member)
    }

    /// Has the turn again, if nobody has it.
    pub fn reclaim(&self, heirs: Heirs) -> bool {
        let is_ours = self.lock(TURN) == Ok(true);
        if is_ours {
            self.set_heirs(heirs);
            self.word(GIVEN).store(0, Ordering::SeqCst);
        }
        is_ours
    }

    // ---- For those that follow ----

    /// Is present from now on, until its end.
    ///
    /// # Errors
    /// [`LedgerError`]: the number is another's.
    pub fn enter(&self, member: u32) -> Result<(), LedgerError> {
        match self.lock(u64::from(member)) {
            Ok(true) if member > 0 => Ok(()),
            Ok(_) => Err(LedgerError::Wrong("has another of this number")),
            Err(errno) => Err(system("fcntl(F_OFD_SETLK)")(errno)),
        }
    }

    /// Takes the turn, if it is free and we are next. Who comes after us stays in the line until [`set_heirs`](Arbiter::set_heirs), which must be called
    /// before there is a VM that the other does not hold.
    pub fn claim(&self, member: u32) -> Claim {
        let rank = || {
            self.heirs()
                .rank(member, |earlier| self.is_present(earlier))
        };
        let answer = |rank: Rank| match rank {
            Rank::Never => Claim::Never,
            _ => Claim::Wait,
        };
        // Before it is locked, so that nobody finds it locked for nothing.
        let before = rank();
        if before != Rank::Next || self.lock(TURN) != Ok(true) {
            return answer(before);
        }
        // Nobody but who has it changes the list.
        let now = rank();
        if now != Rank::Next {
            self.unlock(TURN);
            return answer(now);
        }
        // They hold all VMs as well, until we put them out.
        self.set_heirs(self.heirs().after(member));
        Claim::Ours
    }

    /// We serve, as the one before wanted: for good. False if it has taken its word back; then we must end at once.
    pub fn confirm(&self, member: u32) -> bool {
        self.ends_given(member)
    }

    fn ends_given(&self, member: u32) -> bool {
        let given = self.word(GIVEN);
        let order = Ordering::SeqCst;
        given
            .compare_exchange(member.into(), 0, order, order)
            .is_ok()
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use rustix::fs::{MemfdFlags, fcntl_add_seals, memfd_create};

    use super::super::shared::SEALS;
    use super::*;

    /// As another process would have it: with an open file of its own.
    fn other(of: &Arbiter) -> Arbiter {
        Arbiter::open(of.descriptor().try_clone_to_owned().unwrap()).unwrap()
    }

    fn member(of: &Arbiter) -> (Arbiter, u32) {
        let (arbiter, number) = (other(of), of.invite());
        assert!(!of.is_present(number));
        arbiter.enter(number).unwrap();
        assert!(of.is_present(number));
        (arbiter, number)
    }

    #[test]
    fn one_of_two_heirs_serves_after_a_death() {
        let first = Arbiter::new().unwrap();
        let ((one, a), (two, b)) = (member(&first), member(&first));
        assert_eq!(one.claim(a), Claim::Never);
        first.set_heirs(Heirs::new(a, b));
        assert_eq!((one.claim(a), two.claim(b)), (Claim::Wait, Claim::Wait));
        drop(first);
        // The earlier lives.
        assert_eq!(two.claim(b), Claim::Wait);
        assert_eq!(one.claim(a), Claim::Ours);
        assert_eq!(two.claim(b), Claim::Wait);
        one.set_heirs(Heirs::default());
        assert_eq!(two.claim(b), Claim::Never);
        drop(one);
        assert_eq!(two.claim(b), Claim::Never);
    }

    #[test]
    fn the_second_serves_when_the_first_dies_before_it_has_put_it_out() {
        let first = Arbiter::new().unwrap();
        let ((one, a), (two, b)) = (member(&first), member(&first));
        first.give(Heirs::new(a, b));
        drop(first);
        assert_eq!(one.claim(a), Claim::Ours);
        drop(one);
        assert_eq!(two.claim(b), Claim::Ours);
    }

    #[test]
    fn the_second_serves_when_the_earlier_is_dead_as_well() {
        let first = Arbiter::new().unwrap();
        let ((one, a), (two, b)) = (member(&first), member(&first));
        first.give(Heirs::new(a, b));
        drop(one);
        drop(first);
        assert_eq!(two.claim(b), Claim::Ours);
    }

    #[test]
    fn one_that_was_dropped_never_serves() {
        let first = Arbiter::new().unwrap();
        let ((one, a), (two, b)) = (member(&first), member(&first));
        first.set_heirs(Heirs::new(a, 0));
        first.set_heirs(Heirs::new(b, 0));
        drop(first);
        assert_eq!(one.claim(a), Claim::Never);
        assert_eq!(two.claim(b), Claim::Ours);
    }

    #[test]
    fn a_word_is_kept_or_taken_back_but_not_both() {
        let first = Arbiter::new().unwrap();
        let (one, a) = member(&first);
        first.give(Heirs::new(a, 0));
        assert_eq!(one.claim(a), Claim::Ours);
        assert!(first.revoke(a));
        assert!(!one.confirm(a));
        assert!(!first.reclaim(Heirs::default()));
        drop(one);
        assert!(first.reclaim(Heirs::default()));
        let (one, a) = member(&first);
        first.give(Heirs::new(a, 0));
        assert_eq!(one.claim(a), Claim::Ours);
        assert!(one.confirm(a));
        assert!(!first.revoke(a));
    }

    /// A duplicate that is closed, here or where it was sent to, gives nothing back: locks by process would.
    #[test]
    fn duplicates_that_are_closed_give_nothing_back() {
        let first = Arbiter::new().unwrap();
        let (one, a) = member(&first);
        first.set_heirs(Heirs::new(a, 0));
        drop(first.descriptor().try_clone_to_owned().unwrap());
        drop(other(&first));
        assert_eq!(one.claim(a), Claim::Wait);
        assert!(other(&first).enter(a).is_err());
        assert!(other(&first).enter(0).is_err());
    }

    #[test]
    fn what_is_none_is_refused() {
        let file = std::fs::File::open("/dev/null").unwrap();
        assert!(Arbiter::open(file.into()).is_err());
        let make = |flags: MemfdFlags| {
            let fd = memfd_create("none", MemfdFlags::CLOEXEC | flags).unwrap();
            rustix::fs::ftruncate(&fd, PAGE as u64).unwrap();
            fd
        };
        assert!(Arbiter::open(make(MemfdFlags::ALLOW_SEALING)).is_err());
        let empty = make(MemfdFlags::ALLOW_SEALING);
        fcntl_add_seals(&empty, SEALS).unwrap();
        let says = Arbiter::open(empty).unwrap_err().to_string();
        assert!(says.contains("none"), "{says}");
    }
}
