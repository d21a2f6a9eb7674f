//! What `amdahl sched` records.

use super::programs::{Programs, needed, object, wanted};

/// Switches, wake-ups, migrations and new threads, without stacks.
pub static SCHED: Programs = Programs {
    object: object!("sched"),
    tracepoints: &[
        needed("on_switch", "sched_switch"),
        needed("on_waking", "sched_waking"),
        needed("on_migrate", "sched_migrate_task"),
        needed("on_new", "sched_wakeup_new"),
        wanted("on_rename", "task_rename"),
        wanted("on_hrtimer_expire_entry", "hrtimer_expire_entry"),
        wanted("on_hrtimer_expire_exit", "hrtimer_expire_exit"),
        wanted("on_irq_handler_entry", "irq_handler_entry"),
        wanted("on_irq_handler_exit", "irq_handler_exit"),
        wanted("on_softirq_entry", "softirq_entry"),
        wanted("on_softirq_exit", "softirq_exit"),
    ],
    samples: false,
    tell_last_switch: true,
};
