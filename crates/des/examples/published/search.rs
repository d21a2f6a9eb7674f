//! How far a wake-up looks for an idle CPU.

use amdahl_placement::policy;

use crate::lab::{Case, Lab, Result, Row, median, seconds};

const MACHINE: &str = "2 node x 22 core x 2 thread";

pub fn run(lab: &mut Lab) -> Result<()> {
    let mut costs = lab.costs("e5-2630v4")?;
    let simulate = |lab: &Lab, costs: &amdahl_des::Costs, name: &str, pairs: f64, leg: f64| -> Result<(f64, f64, f64)> {
        let policy = policy(name)?;
        let set = [("pairs", pairs), ("rounds", 1000.0), ("leg", leg)];
        let results = lab.run(&Case { workload: "uperf", machine: MACHINE, costs, policy: &*policy, set: &set })?;
        Ok((median(&results, seconds), median(&results, |r| r.search * 100.0), median(&results, |r| r.busy * 100.0)))
    };
    let leg = std::env::var("LEG").map_or(8000.0, |s| s.parse().unwrap());
    costs.examine = std::env::var("EX").map_or(45, |s| s.parse().unwrap());
    let mut rows = vec![];
    for (pairs, on, off) in [(48.0, 2.41, 5.45), (64.0, 6.55, 19.07), (128.0, 6.08, 7.49)] {
        let base = simulate(lab, &costs, "linux=4", pairs, leg)?;
        let with = simulate(lab, &costs, "bounded", pairs, leg)?;
        let without = simulate(lab, &costs, "bounded=no-idle-core", pairs, leg)?;
        println!("{pairs}: {base:?} {with:?} {without:?}");
        rows.push(Row::new(format!("{pairs} threads: gain %"), on, (base.0 / with.0 - 1.0) * 100.0));
        rows.push(Row::new(format!("{pairs} threads, no idle-core search: gain %"), off, (base.0 / without.0 - 1.0) * 100.0));
    }
    lab.rows("uperf", &rows);
    for name in ["linux=4", "bounded", "bounded=no-idle-core"] {
        let policy = policy(name)?;
        let results = lab.run(&Case { workload: "schbench", machine: MACHINE, costs: &costs, policy: &*policy, set: &[] })?;
        println!("{name} {:?} {:?}", results[0].histograms, results[0].wakeup_ns);
    }
    Ok(())
}
