//! How far a wake-up looks for an idle CPU.

use amdahl_des::{Costs, RunResult};
use amdahl_placement::policy;

use crate::lab::{Case, Lab, Result, Row, median, seconds};

const MACHINE: &str = "2 node x 22 core x 2 thread";

fn run_as(
    lab: &Lab,
    costs: &Costs,
    workload: &str,
    machine: &str,
    name: &str,
    set: &[(&str, f64)],
) -> Result<Vec<RunResult>> {
    let policy = policy(name)?;
    lab.run(&Case {
        workload,
        machine,
        costs,
        policy: &*policy,
        set,
    })
}

/// Mazumdar's bounded search.
pub fn bounded(lab: &mut Lab) -> Result<()> {
    let costs = lab.costs("e5-2699v4")?;
    let time = |lab: &Lab, name: &str, pairs: f64, leg: f64| -> Result<f64> {
        let set = [("pairs", pairs), ("leg", leg)];
        Ok(median(
            &run_as(lab, &costs, "uperf", MACHINE, name, &set)?,
            seconds,
        ))
    };
    let (base, with, without) = ("linux=4", "bounded", "bounded=no-idle-core");
    let leg = 8_000.0;
    lab.section(
        "Bounded wake-up search: ping-pong of 8 KB on 88 CPUs",
        &format!(
            "S. Mazumdar, version 3 of the patches, 2019; `linux=4` against `bounded`. The time of the network stack for a message is assumed ({leg} ns), and \
             the cost of looking at a CPU is the one fitted to hackbench; nothing is fitted here. The errors are those of the throughput; the published gains \
             are a few per cent, so being within 15 % says little beyond the sign. The gains themselves stand beside.",
        ),
    );
    let mut rows = vec![];
    let mut ordered = true;
    for (pairs, on, off) in [(48.0, 2.41, 5.45), (64.0, 6.55, 19.07), (128.0, 6.08, 7.49)] {
        let a = time(lab, base, pairs, leg)?;
        let gains = [
            a / time(lab, with, pairs, leg)?,
            a / time(lab, without, pairs, leg)?,
        ];
        ordered &= gains[0] > 1.0 && gains[1] > 1.0;
        for (what, published, gain) in [("with", on, gains[0]), ("without", off, gains[1])] {
            let what = format!(
                "{pairs} threads, {what} idle-core search (gain {published} %, simulated {:.1} %)",
                gain * 100.0 - 100.0
            );
            rows.push(Row::new(what, 1.0 + published / 100.0, gain));
        }
    }
    lab.rows("bounded", &rows);
    lab.claim("every bounded search gains", ordered);

    lab.section(
        "Bounded wake-up search: the tail",
        "schbench with 44 tasks: 99 % of the wake-ups within 513 us (base), 208 us (with the search for an idle core), 4130 us (without). Its \
         settings are not in our sources, so only the order is looked at: 176 workers of 1 ms on 88 CPUs, of which 60 % are busy.",
    );
    let p99 = |lab: &Lab, name: &str| -> Result<f64> {
        let results = run_as(lab, &costs, "requests", MACHINE, name, &[("gap", 90_000.0)])?;
        Ok(median(&results, |r| r.wakeup_ns.p99 as f64 / 1000.0))
    };
    let [a, b, c] = [p99(lab, base)?, p99(lab, with)?, p99(lab, without)?];
    let row = |what: &str, us| Row::order(format!("{what}: 99 % of wake-ups within us"), us);
    lab.rows(
        "tail",
        &[
            row("base", a),
            row("bounded, with idle-core search", b),
            row("bounded, without", c),
        ],
    );
    lab.claim(
        "searching too little costs in the tail: without is worse than base",
        c > a,
    );
    lab.claim(
        "the search for an idle core makes it better than base",
        b < a,
    );
    Ok(())
}

/// Stopping at 85 % utilisation.
pub fn utilisation(lab: &mut Lab) -> Result<()> {
    let costs = lab.costs("e5-2699v4")?;
    let run = |lab: &Lab, name: &str| -> Result<(f64, f64)> {
        let set = [("pairs", 224.0), ("leg", 5_000.0), ("rounds", 8_000.0)];
        let results = run_as(
            lab,
            &costs,
            "uperf",
            "2 node x 56 core x 2 thread",
            name,
            &set,
        )?;
        Ok((
            median(&results, seconds),
            median(&results, |r| r.sched.examined as f64),
        ))
    };
    lab.section(
        "Stop scanning at 85 % utilisation: netperf on 224 CPUs, 112 in an LLC",
        "Chen Yu, Linux 6.0: `linux=4` against `linux`. 224 pairs. Nothing is fitted.",
    );
    let (before, after) = (run(lab, "linux=4")?, run(lab, "linux")?);
    lab.rows(
        "utilisation",
        &[
            Row::new("throughput, after / before", 2.925, before.0 / after.0),
            Row::new(
                "CPUs scanned, before / after",
                128.3 / 15.6,
                before.1 / after.1,
            ),
        ],
    );
    lab.claim(
        "it scans less and is faster",
        before.0 > after.0 && before.1 > after.1,
    );
    Ok(())
}
