//! One queue for all CPUs.

use crate::answer::{Cost, Waking, Woken};
use crate::compose::{Reach, WakePart};
use crate::find::{home, idle_outward};
use crate::{CpuState, Distance, Machine, QueueId, Queues, View};

/// All tasks wait in one queue; a free CPU takes the first one.
///
/// # Source
/// The symmetric scheduler of Plan 9, measured in the NIX notes (lsub, January 2012) as "SMP".
///
/// # Cost model
/// A decision is O(CPUs / 64). What it costs is the queue: every wake-up and every switch takes the
/// one lock, whose line moves between CPUs each time.
///
/// # Known bad case
/// Many CPUs and short turns: the NIX notes have 50.7 s of system time with 32 CPUs against 5.6 s with 4 for the
/// same build, which took longer with the 32.
#[derive(Clone, Copy, Debug, Default)]
pub struct Single;

impl WakePart for Single {
    fn queues(&self, machine: &Machine) -> Queues {
        Queues::one(machine)
    }

    fn wake(&self, state: &mut CpuState, view: &dyn View, task: &Waking) -> Woken {
        let Some(near) = home(state, view, task) else {
            return Woken::Nowhere;
        };
        let mut cost = Cost::default();
        let notify = idle_outward(view, task, near, Distance::Remote, &mut cost);
        Woken::Queue {
            queue: QueueId(0),
            notify,
            cost,
        }
    }

    fn reach(&self, _: &Machine) -> Reach {
        Reach {
            distance: Some(Distance::Remote),
            misses: "nothing",
        }
    }
}
