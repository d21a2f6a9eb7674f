//! Where simple schedulers lose: wake-ups, a line that all write to, work that nobody is told of.

use amdahl_des::Costs;
use amdahl_placement::{Policy, policy};

use crate::lab::{Case, Lab, Result, Row, median, seconds};

/// A central dispatcher, one queue, a kernel's own scheduler: pipes on 128 CPUs.
pub fn pipes(lab: &mut Lab) -> Result<()> {
    lab.section(
        "Wake-ups on 128 CPUs",
        "Switching through pipes under sched_ext's schedulers; only ratios of the scores can be compared. `linux` stands for EEVDF, `dispatcher` for \
         the central dispatcher, `single` for scx_simple, which has one queue. Nothing is fitted; costs are the simulator's defaults.",
    );
    let costs = Costs::default();
    let rate = |lab: &Lab, name: &str| -> Result<f64> {
        let policy = policy(name)?;
        let case = Case {
            workload: "pipes",
            machine: "8 llc x 8 core x 2 thread",
            costs: &costs,
            policy: &*policy,
            set: &[],
        };
        Ok(median(&lab.run(&case)?, |r| {
            r.counters["rounds"] as f64 / seconds(r)
        }))
    };
    let (linux, central, single) = (
        rate(lab, "linux")?,
        rate(lab, "dispatcher")?,
        rate(lab, "single")?,
    );
    lab.rows(
        "pipes",
        &[
            Row::new(
                "EEVDF / central dispatcher",
                32508.0 / 171.0,
                linux / central,
            ),
            Row::new("EEVDF / one queue", 32508.0 / 596.0, linux / single),
        ],
    );
    lab.claim(
        "own queues are fastest, then one queue, then the dispatcher",
        linux > single && single > central,
    );
    Ok(())
}

/// The load counter of a group on 224 CPUs.
pub fn counter(lab: &mut Lab) -> Result<()> {
    let costs = Costs::default();
    let share = |lab: &Lab, work: f64, set: &[(&str, f64)]| -> Result<f64> {
        let policy = policy("steal=machine")?;
        let own = [("work", work), ("rounds", (8e6 / work).max(50.0))];
        let set = [&own, set].concat();
        let case = Case {
            workload: "counter",
            machine: "2 node x 56 core x 2 thread",
            costs: &costs,
            policy: &*policy,
            set: &set,
        };
        let results = lab.run(&case)?;
        Ok(median(&results, |r| {
            100.0 * r.used_ns["stall"] as f64 / r.used_ns.values().sum::<u64>() as f64
        }))
    };
    let published = 13.75 + 10.63;
    let (mut low, mut high) = (1_000.0, 300_000.0);
    for _ in 0..10 {
        let middle = f64::sqrt(low * high);
        if share(lab, middle, &[])? > published {
            low = middle
        } else {
            high = middle
        }
    }
    lab.section(
        "The load counter of a group on 224 CPUs",
        &format!("Fitted: the time between two updates of a CPU, {high:.0} ns, by the share of the time before. What it was after is not in our sources."),
    );
    let before = share(lab, high, &[])?;
    let limited = share(lab, high, &[("every", (1e6 / high).round())])?;
    let split = share(lab, high, &[("lines", 2.0)])?;
    lab.rows(
        "counter",
        &[
            Row::new("one counter, % of the time", published, before).fitted(),
            Row::order("at most one update in a ms, % of the time", limited),
            Row::order("a part for each LLC, % of the time", split),
        ],
    );
    lab.claim(
        "both remedies take away more than nine tenths",
        limited < before / 10.0 && split < before / 10.0,
    );
    Ok(())
}

/// Tasks that nobody takes from the CPU where they were made.
pub fn shared(lab: &mut Lab) -> Result<()> {
    lab.section(
        "A queue shared by an LLC, and tasks that nobody takes",
        "40 threads on a 16-CPU LLC: 3.97 s, and 48.17 s when work conservation broke. Neither the benchmark nor the bug is in our sources: \
         here hackbench's 40 tasks, with `groups=llc` and with `groups-apart=1`, where nobody takes a task from the CPU where it was made. Nothing is fitted.",
    );
    let costs = Costs::default();
    let time = |lab: &Lab, policy: &dyn Policy| -> Result<f64> {
        let case = Case {
            workload: "hackbench",
            machine: "8 core x 2 thread",
            costs: &costs,
            policy,
            set: &[("loops", 300.0)],
        };
        Ok(median(&lab.run(&case)?, seconds))
    };
    let whole = time(lab, &*policy("groups=llc")?)?;
    let broken = time(lab, &*policy("groups-apart=1")?)?;
    lab.rows(
        "shared",
        &[Row::new("broken / whole", 48.17 / 3.97, broken / whole)],
    );
    lab.claim(
        "breaking work conservation costs more than twice the time",
        broken > 2.0 * whole,
    );
    Ok(())
}

/// Helpers at the lowest priority that inherit the caller's at the end.
pub fn lending(lab: &mut Lab) -> Result<()> {
    lab.section("Lending priority", "A8 gives no figures to compare with. 8 CPUs, one busy thread of usual priority on each; 256 chunks of 5 ms.");
    let costs = Costs::default();
    let run = |lab: &Lab, lend: f64| -> Result<f64> {
        let policy = policy("linux+steal")?;
        let case = Case {
            workload: "lending",
            machine: "8 core",
            costs: &costs,
            policy: &*policy,
            set: &[("lend", lend)],
        };
        Ok(median(&lab.run(&case)?, seconds))
    };
    let (without, with) = (run(lab, 0.0)?, run(lab, 1.0)?);
    lab.rows(
        "lending",
        &[
            Row::order("without lending, s", without),
            Row::order("with lending, s", with),
        ],
    );
    lab.claim("lending shortens the end of the job", with < without);
    Ok(())
}
