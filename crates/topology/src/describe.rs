//! Puts a machine in words.

use crate::{Cpu, Topology};

/// Longer descriptions are summed up.
const LEN_MAX: usize = 160;

impl Topology {
    /// The machine in the grammar of [`Topology::synthetic`], in full levels:
    /// `1 node x 1 llc x 2 core x 1 thread`.
    ///
    /// Unequal parts are added up: `(8 core x 2 thread + 8 core@600 x 1 thread)`.
    /// Packages are named where they are not the same as nodes. A machine too
    /// irregular for one line is summed up, which `synthetic` does not read:
    /// `irregular: 3 nodes, 9 llcs, 61 cores, 110 threads`.
    pub fn describe(&self) -> String {
        let mut cpus: Vec<&Cpu> = self.cpus().iter().collect();
        // Packages can only be drawn around nodes; without NUMA there may be one
        // node around all packages.
        cpus.sort_unstable_by_key(|cpu| (cpu.node, cpu.core, cpu.thread));
        let node_splits = by(&cpus, |cpu| cpu.node)
            .any(|node| node.iter().any(|cpu| cpu.package != node[0].package));
        let text = if node_splits || self.packages() == self.nodes() {
            nodes(&cpus)
        } else {
            cpus.sort_by_key(|cpu| cpu.package);
            let packages = by(&cpus, |cpu| cpu.package)
                .map(|package| format!("package x {}", in_product(nodes(package))));
            add_up(packages)
        };
        if text.len() <= LEN_MAX {
            return text;
        }
        let counts = [
            (self.nodes(), "node"),
            (self.llcs(), "llc"),
            (self.cores(), "core"),
            (self.cpus().len() as u32, "thread"),
        ]
        .map(|(count, what)| format!("{count} {what}{}", if count == 1 { "" } else { "s" }));
        format!("irregular: {}", counts.join(", "))
    }
}

fn nodes(cpus: &[&Cpu]) -> String {
    add_up(by(cpus, |cpu| cpu.node).map(|node| format!("node x {}", in_product(llcs(node)))))
}

fn llcs(cpus: &[&Cpu]) -> String {
    add_up(by(cpus, |cpu| cpu.llc).map(|llc| format!("llc x {}", in_product(cores(llc)))))
}

fn cores(cpus: &[&Cpu]) -> String {
    add_up(by(cpus, |cpu| cpu.core).map(|core| {
        let threads = core.len();
        match core[0].capacity {
            Topology::FULL_CAPACITY => format!("core x {threads} thread"),
            capacity => format!("core@{capacity} x {threads} thread"),
        }
    }))
}

fn by<'a, 'b>(
    cpus: &'a [&'b Cpu],
    group_of: fn(&Cpu) -> u32,
) -> impl Iterator<Item = &'a [&'b Cpu]> {
    cpus.chunk_by(move |a, b| group_of(a) == group_of(b))
}

/// Counts equal neighbours: `2 a + 1 b`.
fn add_up(parts: impl Iterator<Item = String>) -> String {
    let parts: Vec<String> = parts.collect();
    let terms: Vec<String> = parts
        .chunk_by(|a, b| a == b)
        .map(|equal| format!("{} {}", equal.len(), equal[0]))
        .collect();
    terms.join(" + ")
}

fn in_product(sum: String) -> String {
    // Sums that are deeper inside stand in parentheses already.
    let mut depth = 0;
    let is_sum = sum.chars().any(|c| {
        depth += i32::from(c == '(') - i32::from(c == ')');
        c == '+' && depth == 0
    });
    match is_sum {
        true => format!("({sum})"),
        false => sum,
    }
}
