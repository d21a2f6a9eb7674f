//! NIX's table: one queue, groups, a dispatcher.

use amdahl_des::Costs;
use amdahl_placement::policy;

use crate::lab::{Case, Lab, Result, Row, median, seconds};

const ALL: &str = "4 package x 2 node x 4 core";
const FOUR: &str = "1 node x 4 core";

/// Name, machine, policy; seconds of a build from a remote file server, of a copy, of a build in memory.
const PUBLISHED: [(&str, &str, &str, [f64; 3]); 5] = [
    ("SMP, 4 cores", FOUR, "single+spin=10s", [10.79, 0.61, 5.07]),
    (
        "SMP, 32 cores",
        ALL,
        "single+spin=10s",
        [14.03, 1.92, 10.46],
    ),
    (
        "8 groups, stealing",
        ALL,
        "groups=4+spin=10s",
        [13.86, 1.13, 9.40],
    ),
    (
        "8 groups, apart",
        ALL,
        "groups-apart=4+spin=10s",
        [9.64, 0.60, 4.80],
    ),
    (
        "AMP, 32 cores",
        ALL,
        "dispatcher+spin=10s",
        [10.17, 0.995, 5.78],
    ),
];

struct Fit {
    costs: Costs,
    service: f64,
    calls: f64,
    remote: f64,
}

impl Fit {
    /// The costs as `policy` has them: idle CPUs that steal go round all queues.
    fn costs_of(&self, policy: &str) -> Costs {
        let mut costs = self.costs.clone();
        if policy.starts_with("groups=") {
            costs.queue_poller_far = costs.queue_poller;
        }
        costs
    }

    fn copy(&self, lab: &Lab, machine: &str, name: &str) -> Result<f64> {
        let (policy, costs) = (policy(name)?, self.costs_of(name));
        let set = [
            ("service", self.service),
            ("cpus", if machine == FOUR { 4.0 } else { 32.0 }),
        ];
        let case = Case {
            workload: "copy",
            machine,
            costs: &costs,
            policy: &*policy,
            set: &set,
        };
        Ok(median(&lab.run(&case)?, seconds))
    }

    fn build(&self, lab: &Lab, machine: &str, name: &str, set: &[(&str, f64)]) -> Result<f64> {
        let (policy, costs) = (policy(name)?, self.costs_of(name));
        let cpus = if machine == FOUR { 4.0 } else { 32.0 };
        let own = [
            ("service", self.service),
            ("calls", self.calls),
            ("at_once", cpus),
            ("cpus", cpus),
        ];
        let set = [&own, set].concat();
        let case = Case {
            workload: "mk",
            machine,
            costs: &costs,
            policy: &*policy,
            set: &set,
        };
        Ok(median(&lab.run(&case)?, seconds))
    }

    fn one(&self, lab: &Lab, job: usize, machine: &str, name: &str) -> Result<f64> {
        match job {
            0 => self.build(lab, machine, name, &[("remote", self.remote)]),
            1 => self.copy(lab, machine, name),
            _ => self.build(lab, machine, name, &[]),
        }
    }
}

/// Finds where `of` is `wanted`, by secants from two starts; `of` rises.
fn solve(
    wanted: f64,
    mut a: f64,
    mut b: f64,
    mut of: impl FnMut(f64) -> Result<f64>,
) -> Result<f64> {
    let (mut at_a, mut at_b) = (of(a)?, of(b)?);
    for _ in 0..4 {
        if (at_b / wanted - 1.0).abs() < 0.005 || at_a == at_b {
            break;
        }
        let next = (b + (wanted - at_b) * (b - a) / (at_b - at_a)).max(0.0);
        (a, at_a, b) = (b, at_b, next);
        at_b = of(b)?;
    }
    Ok(b)
}

pub fn run(lab: &mut Lab) -> Result<()> {
    let mut fit = Fit {
        costs: lab.costs("opteron-6128")?,
        service: 15_000.0,
        calls: 600.0,
        remote: 0.0,
    };
    let smp = PUBLISHED[0].2;
    let of = |index: usize, job: usize| PUBLISHED[index].3[job];
    fit.service = solve(of(0, 1), 15_000.0, 24_000.0, |service| {
        Fit {
            service,
            costs: fit.costs.clone(),
            ..fit
        }
        .copy(lab, FOUR, smp)
    })?;
    fit.costs.queue_poller = solve(of(1, 1), 100.0, 300.0, |poller| {
        let mut costs = fit.costs.clone();
        costs.queue_poller = poller.round() as u64;
        Fit { costs, ..fit }.copy(lab, ALL, smp)
    })?
    .round() as u64;
    fit.costs.assign = solve(of(4, 1), 5000.0, 10_000.0, |assign| {
        let mut costs = fit.costs.clone();
        costs.assign = assign.round() as u64;
        Fit { costs, ..fit }.copy(lab, ALL, PUBLISHED[4].2)
    })?
    .round() as u64;
    fit.calls = solve(of(0, 2), 2000.0, 3000.0, |calls| {
        Fit {
            calls,
            costs: fit.costs.clone(),
            ..fit
        }
        .build(lab, FOUR, smp, &[])
    })?;
    fit.remote = solve(of(0, 0), 500e3, 1e6, |remote| {
        fit.build(lab, FOUR, smp, &[("remote", remote)])
    })?;
    let mut rows = vec![];
    let mut simulated = vec![];
    for job in [1, 2, 0] {
        for (index, (name, machine, policy, published)) in PUBLISHED.iter().enumerate() {
            let is_fitted = index == 0 || (job == 1 && matches!(index, 1 | 4));
            let row = Row::new(
                format!("job {}: {name}, s", job + 1),
                published[job],
                fit.one(lab, job, machine, policy)?,
            );
            simulated.push(row.simulated);
            rows.push(if is_fitted { row.fitted() } else { row });
        }
    }
    lab.section(
        "NIX: one queue, groups, a dispatcher",
        &format!(
            "Seconds of the notes of 2012 on 32 cores: job 1 is a build from a remote file server, job 2 a copy within a file system in memory, job 3 a build in it. \
             Fitted, one after the other: the file server's time for a call, {:.1} us (job 2, SMP on 4 cores); what an idle CPU that polls the run queue adds to \
             its lock, {} ns (job 2, SMP on 32); a dispatcher's time for an assignment, {:.1} us (job 2, AMP); calls of a compilation, {:.0} (job 3, SMP on 4); \
             the network's time, {:.0} us (job 1, SMP on 4). Idle CPUs of groups that steal poll all queues, as those of NIX did.",
            fit.service / 1e3,
            fit.costs.queue_poller,
            fit.costs.assign as f64 / 1e3,
            fit.calls,
            fit.remote / 1e3,
        ),
    );
    lab.rows("nix", &rows);
    for (index, name) in ["copy", "build in memory", "remote build"]
        .into_iter()
        .enumerate()
    {
        let [smp_4, smp_32, stealing, apart, amp] = simulated[5 * index..5 * index + 5] else {
            unreachable!("five rows a job")
        };
        lab.claim(
            &format!("{name}: SMP on 32 cores is slowest, stealing groups are next"),
            smp_32 >= stealing && stealing > amp,
        );
        lab.claim(
            &format!("{name}: AMP is next, 4 cores and groups apart are fastest"),
            stealing > amp && amp > smp_4.max(apart),
        );
    }
    sweep(lab, &fit)
}

/// The real build and the pseudo-build on more and more cores.
fn sweep(lab: &mut Lab, fit: &Fit) -> Result<()> {
    let cores = [2.0, 4.0, 6.0, 8.0, 16.0, 32.0];
    lab.section(
        "NIX: the build with dependencies against all compilations at once",
        "Of the notes: the real build gets worse with SMP beyond about 6 cores and gains with AMP until 16; with all compilations at once, SMP is flat beyond 4 \
         and AMP 30 to 40 % faster. Job 3 with the constants above.",
    );
    let mut rows = vec![];
    let mut table = vec![];
    for (build, after_others) in [("mk", 1.0), ("pmk", 0.0)] {
        for (name, policy) in [("SMP", "single+spin=10s"), ("AMP", "dispatcher+spin=10s")] {
            let mut line = vec![];
            for n in cores {
                let machine = match n as u32 {
                    n @ ..4 => format!("1 node x {n} core"),
                    6 => "1 node x 4 core + 1 node x 2 core".into(),
                    n => format!("{} node x 4 core", n / 4),
                };
                let at_once = if after_others == 1.0 { n } else { 1000.0 };
                let s = fit.build(
                    lab,
                    &machine,
                    policy,
                    &[
                        ("at_once", at_once),
                        ("cpus", n),
                        ("after_others", after_others),
                    ],
                )?;
                rows.push(Row::order(format!("{build}, {name}, {n} cores, s"), s));
                line.push(s);
            }
            table.push(line);
        }
    }
    lab.rows("sweep", &rows);
    let [mk_smp, mk_amp, pmk_smp, pmk_amp] = &table[..] else {
        unreachable!("four lines")
    };
    lab.claim(
        "mk, SMP: worse on 32 cores than on 6",
        mk_smp[5] > mk_smp[2],
    );
    lab.claim(
        "mk, AMP: 16 cores are faster than 4, and 32 about as fast",
        mk_amp[4] < mk_amp[1] && mk_amp[5] < 1.05 * mk_amp[4],
    );
    lab.claim(
        "pmk, SMP: flat beyond 4 (within 15 %)",
        pmk_smp[2..]
            .iter()
            .all(|s| (s / pmk_smp[1] - 1.0).abs() < 0.15),
    );
    lab.claim(
        "pmk: AMP is at least 30 % faster on 32 cores",
        pmk_smp[5] > 1.3 * pmk_amp[5],
    );
    Ok(())
}
