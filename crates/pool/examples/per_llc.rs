//! Runs something on each last-level cache, wherever its CPUs go: `cargo run -p amdahl-pool --example per_llc`

use amdahl_pool::Pool;
use amdahl_topology::CpuSet;

fn main() {
    let pool = Pool::new().expect("threads can be started");
    let machine = pool.machine();
    let groups: Vec<CpuSet> = (0..machine.llcs())
        .map(|llc| {
            machine
                .llc_cpus(llc)
                .map(|cpu| machine.kernel_cpu(cpu))
                .collect()
        })
        .collect();
    let handles = pool.queue_on_each(&groups, |llc| {
        let cpus = amdahl_topology::allowed().expect("the kernel tells");
        format!(
            "LLC {llc}: ran on CPU {}",
            cpus.first().expect("it is bound")
        )
    });
    for handle in handles {
        println!("{}", handle.join().expect("it does not panic"));
    }
}
