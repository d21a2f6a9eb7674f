//! Who ran where and when, for a trace.

use crate::time::Ns;

/// A stretch of a task on a CPU.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Slice {
    /// Index of the CPU in the machine of `amdahl-placement`.
    pub cpu: u32,
    /// Kind of the task: index of its template.
    pub template: u32,
    /// Number of the task, never used again.
    pub task: u32,
    /// Begin.
    pub start: Ns,
    /// End.
    pub end: Ns,
}

/// Keeps the first stretches.
pub(crate) struct Tracer {
    max: usize,
    pub slices: Vec<Slice>,
    pub is_cut: bool,
}

impl Tracer {
    pub fn new(max: usize) -> Tracer {
        Tracer {
            max,
            slices: vec![],
            is_cut: false,
        }
    }

    #[inline]
    pub fn ran(&mut self, cpu: u32, template: u32, task: u32, start: Ns, end: Ns) {
        if self.max == 0 || start == end {
            return;
        }
        if self.slices.len() >= self.max {
            self.is_cut = true;
            return;
        }
        self.slices.push(Slice {
            cpu,
            template,
            task,
            start,
            end,
        });
    }
}
