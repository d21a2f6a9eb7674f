//! Sums that are kept per CPU by scheduler events, and their value at any time between events.

/// What one CPU knows: its own events alone have changed it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CpuLine {
    /// Its last switch; 0 if none was seen.
    pub since_ns: u64,
    /// Who has run since then.
    pub who: Who,
    /// Nanoseconds that our threads ran here, up to `since_ns`.
    pub run_ns: u64,
    /// Nanoseconds that nobody ran here, up to `since_ns`.
    pub idle_ns: u64,
    /// The times at which waits ended here, less those at which they began, wrapping.
    pub waits_ns: i64,
    /// Waits that began here, less those that ended.
    pub waiting: i64,
}

/// Whose a CPU is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Who {
    /// Nobody's: it idles.
    Nobody,
    /// A thread's of ours.
    Ours,
    /// A thread's of others, or it is not known.
    #[default]
    Other,
}

/// Sums over CPUs at one time.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Totals {
    /// Nanoseconds that our threads ran.
    pub run_ns: u64,
    /// Nanoseconds that our threads could run and did not.
    pub wait_ns: u64,
    /// Nanoseconds that CPUs idled.
    pub idle_ns: u64,
    /// Our threads that run or wait now.
    pub runnable_now: u64,
    /// What goes on now counts up to here.
    pub at_ns: u64,
}

impl Totals {
    /// At `now_ns`, of `lines`, each with whether its CPU is allowed: only there idling counts. What goes on counts up to now.
    pub fn at(now_ns: u64, lines: impl IntoIterator<Item = (CpuLine, bool)>) -> Totals {
        let mut totals = Totals {
            at_ns: now_ns,
            ..Totals::default()
        };
        let (mut waits_ns, mut waiting, mut running) = (0_i64, 0_i64, 0);
        for (line, is_allowed) in lines {
            // A switch after `now_ns` was taken has closed what went on then.
            let open_ns = match line.since_ns {
                0 => 0,
                since_ns => now_ns.saturating_sub(since_ns),
            };
            let (mut run_ns, mut idle_ns) = (line.run_ns, line.idle_ns);
            match line.who {
                Who::Ours => {
                    run_ns = run_ns.saturating_add(open_ns);
                    running += 1;
                }
                Who::Nobody => idle_ns = idle_ns.saturating_add(open_ns),
                Who::Other => {}
            }
            totals.run_ns = totals.run_ns.saturating_add(run_ns);
            if is_allowed {
                totals.idle_ns = totals.idle_ns.saturating_add(idle_ns);
            }
            waits_ns = waits_ns.wrapping_add(line.waits_ns);
            waiting = waiting.wrapping_add(line.waiting);
        }
        // Lines are not read at the same moment: a wait may be seen to end whose beginning was not.
        let wait_ns = waits_ns.wrapping_add(waiting.wrapping_mul(now_ns as i64));
        totals.wait_ns = u64::try_from(wait_ns).unwrap_or(0);
        totals.runnable_now = running + u64::try_from(waiting).unwrap_or(0);
        totals
    }
}
