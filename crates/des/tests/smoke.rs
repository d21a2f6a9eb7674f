//! x
use amdahl_des::program::*;
use amdahl_des::*;
use amdahl_topology::Topology;

#[test]
fn hack() {
    let mut w = Workload { name: "x".into(), vars: 5, ..Workload::default() };
    let t = w.time(Time::Dist(Dist::Const(2_000)));
    w.pipes = vec![PipeSpec { capacity: 65536, spin: 0 }; 20];
    // sender
    let n = w.expression(&[Step::Const(200)]);
    let f = w.expression(&[Step::Const(20)]);
    let j = w.expression(&[Step::Var(3)]);
    let me = w.expression(&[Step::Var(0)]);
    let pj = w.element(Element { base: 0, len: 20, index: j });
    let pm = w.element(Element { base: 0, len: 20, index: me });
    let b = w.expression(&[Step::Const(100)]);
    let zero = w.expression(&[Step::Const(0)]);
    let total = w.expression(&[Step::Const(4000)]);
    let _ = t;
    w.vars = 7;
    w.ops = vec![
        Op::Set { var: 4, value: zero }, Op::Set { var: 5, value: n }, Op::Set { var: 6, value: f },
        Op::Set { var: 3, value: zero },
        Op::Write { pipe: pj, bytes: b }, Op::Next { var: 3, end: 6, to: 4 }, Op::Next { var: 4, end: 5, to: 3 }, Op::Exit,
        Op::Set { var: 4, value: zero }, Op::Set { var: 5, value: total },
        Op::Read { pipe: pm, bytes: b }, Op::Next { var: 4, end: 5, to: 10 }, Op::Exit,
    ];
    let tp = |name: &str, entry| Template { name: name.into(), count: 20, entry, start: Time::Dist(Dist::Const(0)), is_daemon: false, is_process: true, nice: 0, mask: None, node: None, memory_permille: 0 };
    w.templates = vec![tp("sender", 0), tp("receiver", 8)];
    let topology = Topology::synthetic("10 core x 2 thread").unwrap();
    let costs = Costs::default();
    for name in ["single", "steal", "linux", "bounded", "dispatcher", "groups=4", "numa"] {
        let policy = amdahl_placement::policy(name).unwrap();
        let sim = Simulation { workload: &w, topology: &topology, costs: &costs, policy: &*policy, seed: 1, limits: Limits::default() };
        let start = std::time::Instant::now();
        let out = sim.run().unwrap();
        let took = start.elapsed().as_secs_f64();
        let r = &out.result;
        println!("{name}: {} {:.3}s busy {:.3} search {:.4} ev {} {:.2}M/s {:?} {:?}", r.end, r.makespan_ns as f64/1e9, r.busy, r.search, r.events, r.events as f64/took/1e6, r.sched, r.why);
    }
}
