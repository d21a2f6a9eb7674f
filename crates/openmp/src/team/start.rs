//! What is new in each region, as its workers are told it: on the line of the dock that they look at anyway.

use std::ffi::c_void;
use std::ptr;
use std::sync::atomic::{AtomicPtr, AtomicU64, Ordering};

use super::Body;
use crate::chain::Link;
use crate::share::Share;

/// How a region begins for a worker.
#[derive(Clone, Copy)]
pub(super) struct Start {
    pub(super) body: Body,
    pub(super) data: *mut c_void,
    /// The region of the team.
    pub(super) region: u64,
    /// Meetings of all regions before.
    pub(super) meetings_before: u64,
    /// The work share that all begin in.
    pub(super) share: *mut Link<Share>,
}

/// The same at a dock: written before that is opened, which publishes it, and not before all who may read it have ended the region before.
#[derive(Debug, Default)]
pub(crate) struct Told {
    body: AtomicPtr<()>,
    data: AtomicPtr<c_void>,
    region: AtomicU64,
    meetings_before: AtomicU64,
    share: AtomicPtr<Link<Share>>,
}

impl Told {
    #[inline]
    pub(super) fn tell(&self, start: &Start) {
        let order = Ordering::Relaxed;
        self.body.store(start.body as *mut (), order);
        self.data.store(start.data, order);
        self.region.store(start.region, order);
        self.meetings_before.store(start.meetings_before, order);
        self.share.store(start.share, order);
    }

    /// # Safety
    /// It was told, and the dock was opened since.
    #[inline]
    pub(super) unsafe fn start(&self) -> Start {
        let order = Ordering::Relaxed;
        let body = self.body.load(order);
        debug_assert_ne!(body, ptr::null_mut());
        Start {
            // SAFETY: the caller's promise: it is what `tell` has written.
            body: unsafe { std::mem::transmute::<*mut (), Body>(body) },
            data: self.data.load(order),
            region: self.region.load(order),
            meetings_before: self.meetings_before.load(order),
            share: self.share.load(order),
        }
    }
}
