//! Names for places: what is waited for there, and which line of code waits.

use std::sync::Arc;

use amdahl_speedup::cause::Cause;
use amdahl_speedup::event::{CallStack, Frame};
use amdahl_speedup::primitive::{
    Class, KernelPrimitive, Primitive, UserLock, kernel_frame, own_frame,
};

use crate::event::{Kind, LockId, Place};
use crate::tally::{Tally, Use};
use crate::tracker::Tracker;

/// A line of code.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Site {
    /// Source file; empty if unknown.
    pub file: String,
    /// Line in it; 0 if unknown.
    pub line: u32,
    /// Function; empty if unknown.
    pub symbol: String,
    /// ELF file, `[kernel]` or `[jit]`; empty if unknown.
    pub module: String,
}

impl Site {
    fn of(frame: &Frame) -> Site {
        Site {
            file: frame.file.clone().unwrap_or_default(),
            line: frame.line.unwrap_or(0),
            symbol: frame.symbol.clone(),
            module: frame.module.clone(),
        }
    }
}

/// What is waited for.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct What {
    /// The field's word: `spinlock`, `pthread mutex`, `mmap_lock (read)`, ...
    pub name: String,
    /// How the waits are to be read.
    pub class: Class,
    /// It lies in the kernel.
    pub is_kernel: bool,
}

/// Names what a tracker has seen.
#[derive(Clone, Copy)]
pub(crate) struct Names<'a> {
    pub tracker: &'a Tracker,
    pub tally: &'a Tally,
}

impl Names<'_> {
    pub fn stack(&self, place: Place) -> Option<Arc<CallStack>> {
        let known = self.tracker.known(place)?;
        Some(Arc::clone(&known.stack))
    }

    /// The line that waits at `place`.
    pub fn site(&self, kind: Kind, place: Place) -> Site {
        let Some(known) = self.tracker.known(place) else {
            return Site::default();
        };
        let frame = match kind {
            Kind::Kernel(_) | Kind::KernelSleep => {
                kernel_frame(&known.stack).or_else(|| own_frame(&known.stack))
            }
            Kind::Futex | Kind::Goroutine | Kind::User(_) | Kind::Nap => own_frame(&known.stack),
        };
        frame.map(Site::of).unwrap_or_default()
    }

    /// The program's own line at `place`: of a waker, or of who wants a kernel lock.
    pub fn own_site(&self, place: Place) -> Site {
        let known = self.tracker.known(place);
        let frame = known.and_then(|known| own_frame(&known.stack));
        frame.map(Site::of).unwrap_or_default()
    }

    pub fn what(&self, kind: Kind, place: Place, lock: LockId) -> What {
        self.what_of_all(kind, place)
            .unwrap_or_else(|| self.by_use(place, lock))
    }

    /// What is waited for at `place`, if that is the same for all locks there.
    pub fn what_of_all(&self, kind: Kind, place: Place) -> Option<What> {
        match kind {
            Kind::Kernel(primitive) => Some(kernel(primitive)),
            Kind::KernelSleep => Some(kernel(KernelPrimitive::Other)),
            Kind::User(lock) => Some(user(lock)),
            Kind::Futex | Kind::Goroutine | Kind::Nap => {
                let lock = self.tracker.known(place)?.lock;
                (lock.primitive != Primitive::Futex).then(|| user(lock))
            }
        }
    }

    /// A futex without a name, told by how it is used.
    fn by_use(&self, place: Place, lock: LockId) -> What {
        let known = self.tracker.known(place);
        let name = known.map_or_else(|| "futex".to_owned(), |known| known.lock.to_string());
        let used = self.tally.uses.get(&lock);
        let (suffix, class) = match used.map(|used| used.of_futex.cause()) {
            _ if used.is_some_and(Use::is_of_a_barrier) => (" (barrier)", Class::Barrier),
            // Most of these are conditions, which are no loss as such.
            Some(Cause::Barrier) => (" (condition or barrier)", Class::Partner),
            Some(Cause::Partner) => (" (condition)", Class::Partner),
            _ => ("", Class::Lock),
        };
        What {
            name: name + suffix,
            class,
            is_kernel: false,
        }
    }
}

fn user(lock: UserLock) -> What {
    What {
        name: lock.to_string(),
        class: lock.primitive.class(),
        is_kernel: false,
    }
}

fn kernel(primitive: KernelPrimitive) -> What {
    What {
        name: primitive.name().to_owned(),
        class: Class::Lock,
        is_kernel: true,
    }
}
