use amdahl_des::{Costs, Limits, Simulation, workload};
use amdahl_topology::Topology;
use std::collections::BTreeMap;
fn main() {
    let a: Vec<String> = std::env::args().skip(1).collect();
    // workload machine policy costs.json key=value...
    let text = std::fs::read_to_string(&a[0]).unwrap();
    let mut costs: Costs = if a[3] == "-" {
        Costs::default()
    } else {
        serde_json::from_str(&std::fs::read_to_string(&a[3]).unwrap()).unwrap()
    };
    let mut set = BTreeMap::new();
    for kv in &a[4..] {
        let (k, v) = kv.split_once('=').unwrap();
        if let Some(k) = k.strip_prefix("c.") {
            let mut j = serde_json::to_value(&costs).unwrap();
            j[k] = serde_json::from_str(v).unwrap();
            costs = serde_json::from_value(j).unwrap();
        } else {
            set.insert(k.to_owned(), v.to_owned());
        }
    }
    let w = workload::parse(&text, &set).unwrap();
    let topology = Topology::synthetic(&a[1]).unwrap();
    let policy = amdahl_placement::policy(&a[2]).unwrap();
    let t = std::time::Instant::now();
    let r = Simulation {
        workload: &w,
        topology: &topology,
        costs: &costs,
        policy: &*policy,
        seed: 1,
        limits: Limits::default(),
    }
    .run()
    .unwrap()
    .result;
    let host = t.elapsed().as_secs_f64();
    let n = topology.cpu_set().len() as f64;
    let total = r.makespan_ns as f64 * n;
    let per = |x: u64| x as f64 / n;
    println!(
        "{} {} {:.4}s busy {:.2} search {:.2} steals/cpu {:.0} idle/cpu {:.0} wake/cpu {:.0} examined/search.. {:.0} p50 {} p99 {} max {} {:?}",
        a[2],
        r.end,
        r.makespan_ns as f64 / 1e9,
        r.busy * 100.,
        r.search * 100.,
        per(r.sched.steals),
        per(r.sched.idle_entries),
        per(r.sched.wakeups),
        per(r.sched.examined),
        r.wakeup_ns.p50,
        r.wakeup_ns.p99,
        r.wakeup_ns.max,
        r.counters
    );
    println!(
        "   {}",
        r.used_ns
            .iter()
            .map(|(k, v)| format!("{k} {:.1}%", *v as f64 / total * 100.))
            .collect::<Vec<_>>()
            .join(" ")
    );
    println!(
        "   preempt {} migrations {:?} events {} {:.1}M/s",
        r.sched.preemptions,
        r.sched.migrations,
        r.events,
        r.events as f64 / host / 1e6
    );
    for w in &r.why {
        println!("   {w}");
    }
    println!("   {:?}", r.histograms);
}
