//! The causes among which all CPU time of a run is divided.

use serde::{Deserialize, Serialize};

macro_rules! causes {
    ($($variant:ident $id:literal $meaning:literal,)*) => {
        /// A place where CPU time goes. The ids are the stable vocabulary of the JSON output.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
        #[non_exhaustive]
        pub enum Cause {
            $(#[doc = $meaning] #[serde(rename = $id)] $variant,)*
        }

        impl Cause {
            /// All causes in the order in which a stack is drawn, `work` first.
            pub const ALL: [Cause; [$($id),*].len()] = [$(Cause::$variant),*];

            /// The stable id, as written to JSON.
            pub const fn id(self) -> &'static str {
                match self { $(Cause::$variant => $id,)* }
            }

            /// One line that says what the cause is.
            pub const fn meaning(self) -> &'static str {
                match self { $(Cause::$variant => $meaning,)* }
            }

            /// The cause with this id.
            pub fn from_id(id: &str) -> Option<Cause> {
                match id { $($id => Some(Cause::$variant),)* _ => None }
            }
        }
    };
}

causes! {
    Work "work" "CPU time the program also needs on one CPU",
    ExtraWork "extra-work" "more user instructions than on one CPU",
    SlowWork "slow-work" "the same instructions, more cycles: caches, TLB, memory bandwidth, shared lines",
    ExtraKernel "extra-kernel" "kernel CPU time beyond the one-CPU run that no other row explains",
    PageFault "page-fault" "CPU time of page faults beyond the one-CPU run",
    UserSpin "user-spin" "CPU time in user-space spin loops",
    KernelLock "kernel-lock" "spinning or sleeping on kernel locks",
    MmapLock "mmap-lock" "spinning or sleeping on the address-space lock",
    LockWait "lock-wait" "idle because threads wait for a user-space lock or semaphore",
    Barrier "barrier" "idle because threads wait for others at a barrier",
    Partner "partner" "idle because threads wait for another thread or process",
    Serial "serial" "idle because there are fewer threads with work than CPUs",
    Io "io" "idle because of storage or an outside peer",
    Sleep "sleep" "idle because of timers",
    Placement "placement" "a thread was runnable while an allowed CPU was idle",
    Stolen "stolen" "CPU taken away: hypervisor, other processes, quota, interrupts",
    Unexplained "unexplained" "the rest",
}

impl std::fmt::Display for Cause {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.pad(self.id())
    }
}

#[cfg(test)]
mod tests {
    use super::Cause;

    #[test]
    fn ids_are_unique_and_round_trip() {
        for cause in Cause::ALL {
            assert_eq!(Cause::from_id(cause.id()), Some(cause));
        }
    }
}
