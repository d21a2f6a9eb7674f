//! A run queue: jobs that no worker has yet.

use std::collections::VecDeque;

use crate::job::JobRef;
use crate::sync::{AtomicUsize, Ordering};
use crate::waits::{Counted, Waits};

/// First in, first out, under a lock held for a few instructions; whether there is anything is one load.
pub(crate) struct RunQueue {
    len: AtomicUsize,
    jobs: Counted<VecDeque<JobRef>>,
}

impl RunQueue {
    pub(crate) fn new(what: &'static str) -> Self {
        RunQueue {
            len: AtomicUsize::new(0),
            jobs: Counted::new(what, VecDeque::new()),
        }
    }

    pub(crate) fn push(&self, job: JobRef) {
        let mut jobs = self.jobs.lock();
        jobs.push_back(job);
        // Release: a worker that sees the length and then locks finds the job; see `Registry::has_work`.
        self.len.store(jobs.len(), Ordering::Release);
    }

    #[inline]
    pub(crate) fn len(&self) -> usize {
        self.len.load(Ordering::Acquire)
    }

    /// The first job.
    pub(crate) fn pop(&self) -> Option<JobRef> {
        if self.len() == 0 {
            return None;
        }
        let mut jobs = self.jobs.lock();
        let job = jobs.pop_front();
        self.len.store(jobs.len(), Ordering::Release);
        job
    }

    /// The first job; up to half of the others, at most `most`, go to `keep` until it refuses one.
    pub(crate) fn pop_some(
        &self,
        most: usize,
        mut keep: impl FnMut(JobRef) -> bool,
    ) -> Option<JobRef> {
        if self.len() == 0 {
            return None;
        }
        let mut jobs = self.jobs.lock();
        let first = jobs.pop_front();
        for _ in 0..most.min(jobs.len() / 2) {
            match jobs.pop_front() {
                Some(job) if !keep(job) => {
                    jobs.push_front(job);
                    break;
                }
                _ => {}
            }
        }
        self.len.store(jobs.len(), Ordering::Release);
        first
    }

    pub(crate) fn waits(&self) -> &Waits {
        &self.jobs.waits
    }
}
