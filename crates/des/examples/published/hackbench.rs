//! Stealing on idle.

use amdahl_des::{Costs, RunResult};
use amdahl_placement::policy;

use crate::lab::{Case, Lab, Result, Row, median, seconds};

/// Groups; base and stealing: seconds, busy %, cost of finding work %, steals, idle entries and wake-ups per CPU.
const PUBLISHED: [(f64, [f64; 6], [f64; 6]); 5] = [
    (
        1.0,
        [8.084, 75.02, 0.31, 0.0, 46291.0, 59183.0],
        [5.938, 96.80, 0.63, 7433.0, 7190.0, 24061.0],
    ),
    (
        2.0,
        [13.892, 85.33, 0.45, 0.0, 70958.0, 119264.0],
        [11.491, 99.23, 0.84, 19463.0, 4578.0, 69512.0],
    ),
    (
        3.0,
        [19.668, 89.04, 0.49, 0.0, 87047.0, 176850.0],
        [16.987, 99.66, 0.77, 24707.0, 1985.0, 113826.0],
    ),
    (
        4.0,
        [25.279, 91.28, 0.51, 0.0, 94691.0, 227474.0],
        [22.504, 99.80, 0.75, 29353.0, 2385.0, 164786.0],
    ),
    (
        8.0,
        [47.832, 94.86, 0.56, 0.0, 144141.0, 486322.0],
        [44.441, 99.86, 0.67, 38190.0, 1616.0, 387401.0],
    ),
];

/// The same command on other machines of the same series: name, machine; groups, seconds of base and of stealing.
type Machine = (&'static str, &'static str, &'static [[f64; 3]]);
const ELSEWHERE: [Machine; 3] = [
    (
        "44 CPUs",
        "22 core x 2 thread",
        &[
            [1.0, 4.586, 4.596],
            [2.0, 7.693, 5.775],
            [3.0, 10.442, 8.288],
            [4.0, 13.087, 11.057],
            [8.0, 24.145, 22.076],
            [16.0, 43.779, 41.741],
        ],
    ),
    (
        "40 CPUs",
        "2 node x 10 core x 2 thread",
        &[
            [1.0, 7.945, 7.219],
            [2.0, 8.444, 6.689],
            [3.0, 12.100, 9.962],
            [4.0, 15.001, 13.109],
            [8.0, 27.960, 26.127],
        ],
    ),
    (
        "88 CPUs",
        "2 node x 22 core x 2 thread",
        &[
            [1.0, 5.826, 5.840],
            [2.0, 5.041, 6.171],
            [3.0, 6.839, 6.324],
            [4.0, 8.177, 7.318],
            [8.0, 14.429, 13.966],
            [16.0, 26.401, 25.149],
        ],
    ),
];

const TWENTY: (&str, f64) = ("10 core x 2 thread", 20.0);
const FULL: f64 = 100_000.0;
const BASE: &str = "linux=4";
const STEAL: &str = "linux=4+steal";

/// Of a run of 100,000 messages for each sender and receiver; counts are those of a CPU.
struct Figures {
    s: f64,
    busy: f64,
    search: f64,
    steals: f64,
    idle: f64,
    wakeups: f64,
}

/// What a run of `FULL` messages would give, from two short ones: their beginnings and ends are the same, so what the
/// longer has more is what goes on in between.
fn extrapolated(
    lab: &Lab,
    (machine, cpus): (&str, f64),
    costs: &Costs,
    name: &str,
    (groups, message): (f64, f64),
    loops: [f64; 2],
) -> Result<Figures> {
    let policy = policy(name)?;
    let mut ends = vec![];
    for loops in loops {
        let set = [("groups", groups), ("loops", loops), ("message", message)];
        ends.push(lab.run(&Case {
            workload: "hackbench",
            machine,
            costs,
            policy: &*policy,
            set: &set,
        })?);
    }
    let full = |of: &dyn Fn(&RunResult) -> f64| {
        let [short, long] = [&ends[0], &ends[1]].map(|results| median(results, of));
        short + (long - short) / (loops[1] - loops[0]) * (FULL - loops[0])
    };
    let s = full(&seconds);
    Ok(Figures {
        s,
        busy: full(&|r| r.busy * 100.0 * seconds(r)) / s,
        search: full(&|r| r.search * 100.0 * seconds(r)) / s,
        steals: full(&|r| r.sched.steals as f64) / cpus,
        idle: full(&|r| r.sched.idle_entries as f64) / cpus,
        wakeups: full(&|r| r.sched.wakeups as f64) / cpus,
    })
}

pub fn run(lab: &mut Lab) -> Result<()> {
    let mut costs = lab.costs("e5-2630v4")?;
    let loops = [1000.0, 3000.0];
    let simulate = |lab: &Lab, costs: &Costs, name: &str, groups: f64, message: f64| {
        extrapolated(lab, TWENTY, costs, name, (groups, message), loops)
    };
    let mut message = 800.0;
    for _ in 0..2 {
        let Figures { s, search, .. } = simulate(lab, &costs, BASE, 4.0, message)?;
        costs.examine = (costs.examine as f64 * PUBLISHED[3].1[2] / search).round() as u64;
        // Each message occupies both ends.
        let per_message = s * 20.0 / (FULL * 20.0 * 20.0 * 4.0) * 1e9;
        let wanted = PUBLISHED[3].1[0] * 20.0 / (FULL * 20.0 * 20.0 * 4.0) * 1e9;
        message += (wanted - per_message) / 2.0 * 0.9;
    }
    lab.section(
        "Stealing on idle: hackbench on 20 CPUs",
        &format!(
            "S. Sistare, version 4 of the patches, 2018; `linux=4` against `linux=4+steal`. Runs of {} and {} messages for each sender and receiver, extrapolated to {FULL}. \
             Fitted by the base with 4 groups: the CPU time of a message, {message:.0} ns at each end, and of looking at one CPU, {} ns.",
            loops[0], loops[1], costs.examine,
        ),
    );
    let mut rows = vec![];
    let mut gains = vec![];
    for (groups, then, now) in PUBLISHED {
        let (a, b) = (
            simulate(lab, &costs, BASE, groups, message)?,
            simulate(lab, &costs, STEAL, groups, message)?,
        );
        let row = |what: &str, published, simulated| {
            Row::new(format!("{groups} groups: {what}"), published, simulated)
        };
        let time = row("base, s", then[0], a.s);
        rows.push(if groups == 4.0 { time.fitted() } else { time });
        rows.push(row("stealing, s", now[0], b.s));
        rows.push(row("base s / stealing s", then[0] / now[0], a.s / b.s));
        rows.push(row("base, busy %", then[1], a.busy));
        rows.push(row("stealing, busy %", now[1], b.busy));
        let search = row("base, finding work %", then[2], a.search);
        rows.push(if groups == 4.0 {
            search.fitted()
        } else {
            search
        });
        rows.push(row("stealing, finding work %", now[2], b.search));
        rows.push(row("steals per CPU", now[3], b.steals));
        rows.push(row("base, idle entries per CPU", then[4], a.idle));
        rows.push(row("stealing, idle entries per CPU", now[4], b.idle));
        rows.push(row("base, wake-ups per CPU", then[5], a.wakeups));
        rows.push(row("stealing, wake-ups per CPU", now[5], b.wakeups));
        gains.push(a.s / b.s);
    }
    lab.rows("hackbench", &rows);
    lab.claim(
        "stealing wins, the less the more groups there are",
        gains[0] > gains[1] && gains[1] > gains[2] && gains[2] > 1.0,
    );
    elsewhere(lab, &costs, message)
}

/// Other machines with the same constants.
fn elsewhere(lab: &mut Lab, costs: &Costs, message: f64) -> Result<()> {
    lab.section(
        "Stealing on idle: hackbench on 44, 40 and 88 CPUs",
        "The same patches, an average of ten runs on each machine. All constants are those of the 20 CPUs; one seed, runs of 600 and 1800 messages.",
    );
    let seeds = std::mem::replace(&mut lab.seeds, 1);
    let mut rows = vec![];
    for (name, machine, published) in ELSEWHERE {
        for &[groups, then, now] in published {
            let at = (machine, 1.0);
            let of = |lab: &Lab, policy: &str| {
                extrapolated(lab, at, costs, policy, (groups, message), [600.0, 1800.0])
            };
            let (a, b) = (of(lab, BASE)?, of(lab, STEAL)?);
            let row = |what: &str, published, simulated| {
                Row::new(
                    format!("{name}, {groups} groups: {what}"),
                    published,
                    simulated,
                )
            };
            rows.push(row("base, s", then, a.s));
            rows.push(row("stealing, s", now, b.s));
            rows.push(row("base s / stealing s", then / now, a.s / b.s));
        }
    }
    lab.seeds = seeds;
    lab.rows("elsewhere", &rows);
    Ok(())
}
