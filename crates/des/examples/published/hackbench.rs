//! Stealing on idle.

use amdahl_des::Costs;
use amdahl_placement::policy;

use crate::lab::{Case, Lab, Result, Row, median, seconds};

/// Groups; base and stealing: seconds, busy %, cost of finding work %, steals and idle entries per CPU.
const PUBLISHED: [(f64, [f64; 5], [f64; 5]); 3] = [
    (
        1.0,
        [8.084, 75.02, 0.31, 0.0, 46291.0],
        [5.938, 96.80, 0.63, 7433.0, 7190.0],
    ),
    (
        2.0,
        [13.892, 85.33, 0.45, 0.0, 70958.0],
        [11.491, 99.23, 0.84, 19463.0, 4578.0],
    ),
    (
        4.0,
        [25.279, 91.28, 0.51, 0.0, 94691.0],
        [22.504, 99.80, 0.75, 29353.0, 2385.0],
    ),
];

const MACHINE: &str = "10 core x 2 thread";
const LOOPS: f64 = 1500.0;
const FULL: f64 = 100_000.0;

struct Figures {
    s: f64,
    busy: f64,
    search: f64,
    steals: f64,
    idle: f64,
}

pub fn run(lab: &mut Lab) -> Result<()> {
    let mut costs = lab.costs("e5-2630v4")?;
    let simulate =
        |lab: &Lab, costs: &Costs, name: &str, groups: f64, message: f64| -> Result<Figures> {
            let policy = policy(name)?;
            let set = [("groups", groups), ("loops", LOOPS), ("message", message)];
            let results = lab.run(&Case {
                workload: "hackbench",
                machine: MACHINE,
                costs,
                policy: &*policy,
                set: &set,
            })?;
            let per_cpu = FULL / LOOPS / 20.0;
            Ok(Figures {
                s: median(&results, seconds) * FULL / LOOPS,
                busy: median(&results, |r| r.busy * 100.0),
                search: median(&results, |r| r.search * 100.0),
                steals: median(&results, |r| r.sched.steals as f64 * per_cpu),
                idle: median(&results, |r| r.sched.idle_entries as f64 * per_cpu),
            })
        };
    let (base, steal) = ("linux=4", "linux=4+steal");
    let mut message = 800.0;
    for _ in 0..2 {
        let Figures { s, search, .. } = simulate(lab, &costs, base, 4.0, message)?;
        costs.examine = (costs.examine as f64 * PUBLISHED[2].1[2] / search).round() as u64;
        // Each message occupies both ends.
        let per_message = s * 20.0 / (FULL * 20.0 * 20.0 * 4.0) * 1e9;
        let wanted = PUBLISHED[2].1[0] * 20.0 / (FULL * 20.0 * 20.0 * 4.0) * 1e9;
        message += (wanted - per_message) / 2.0 * 0.9;
    }
    lab.section(
        "Stealing on idle: hackbench on 20 CPUs",
        &format!(
            "S. Sistare, version 4 of the patches, 2018; `linux=4` against `linux=4+steal`. {LOOPS} messages for each sender and receiver, scaled to {FULL}. \
             Fitted by the base with 4 groups: the CPU time of a message, {message:.0} ns at each end, and of looking at one CPU, {} ns.",
            costs.examine,
        ),
    );
    let mut rows = vec![];
    let mut gains = vec![];
    for (groups, then, now) in PUBLISHED {
        let (a, b) = (
            simulate(lab, &costs, base, groups, message)?,
            simulate(lab, &costs, steal, groups, message)?,
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
        gains.push(a.s / b.s);
    }
    lab.rows("hackbench", &rows);
    lab.claim(
        "stealing wins, the less the more groups there are",
        gains[0] > gains[1] && gains[1] > gains[2] && gains[2] > 1.0,
    );
    Ok(())
}
