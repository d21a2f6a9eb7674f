//! What was waited for, once the run is over and all uses of each futex are known.

use rustc_hash::FxHashMap;

use crate::cause::Cause;
use crate::event::{StackId, Tid};
use crate::partition::{Charge, ChargeKey};

use super::futex::PolledFutex;
use super::polled::Why;
use super::user_wait::Objects;

/// What is waited for, by whom and where, until the end of the run tells the cause.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct Key {
    pub(super) why: Why,
    pub(super) tid: Tid,
    pub(super) stack: Option<StackId>,
    /// Address of the futex, or 0.
    pub(super) object: u64,
}

/// All that is known at the end of the run.
#[derive(Debug)]
pub(super) struct Resolver<'a> {
    pub(super) objects: Objects,
    pub(super) futexes: &'a FxHashMap<(Tid, u64), PolledFutex>,
    /// The workload is one thread.
    pub(super) is_alone: bool,
}

impl Resolver<'_> {
    /// Gives `charge` to its cause; `put` takes one or several parts of it.
    pub(super) fn resolve(
        &self,
        key: &Key,
        charge: Charge,
        site: &mut impl FnMut(Tid, u64) -> Option<StackId>,
        put: &mut impl FnMut(ChargeKey, Charge),
    ) {
        let Key {
            tid, stack, object, ..
        } = *key;
        let cause = match key.why {
            Why::Cause(cause) => cause,
            // One thread alone has no partner inside.
            Why::Peer if self.is_alone => Cause::Io,
            Why::Peer => Cause::Partner,
            Why::Service => Cause::Sleep,
            Why::Unknown | Why::Unseen => Cause::Unexplained,
            Why::Futex { pid, address } => {
                if let Some((kind, callers)) = self.objects.holding(pid, address) {
                    // The kernel does not tell which of the callers it was: each by its own time.
                    let total: f64 = callers.iter().map(|caller| caller.ns as f64).sum();
                    for caller in &callers {
                        let part = if total > 0.0 {
                            caller.ns as f64 / total
                        } else {
                            1.0 / callers.len() as f64
                        };
                        let stack = stack.or_else(|| site(pid, caller.caller));
                        let key = ChargeKey {
                            cause: kind.cause(),
                            tid,
                            stack,
                            object: caller.object,
                        };
                        put(
                            key,
                            Charge {
                                ns: charge.ns * part,
                                count: charge.count,
                            },
                        );
                    }
                    return;
                }
                self.by_use(pid, address)
            }
        };
        put(
            ChargeKey {
                cause,
                tid,
                stack,
                object,
            },
            charge,
        );
    }

    /// The cause to which all of a wait goes.
    pub(super) fn cause(&self, key: &Key) -> Cause {
        let mut cause = Cause::Unexplained;
        let mut put = |to: ChargeKey, _| cause = to.cause;
        self.resolve(key, Charge::default(), &mut |_, _| None, &mut put);
        cause
    }

    fn by_use(&self, pid: Tid, address: u64) -> Cause {
        let beside = [address.wrapping_sub(4), address.wrapping_add(4)];
        let beside = beside
            .iter()
            .any(|&near| self.futexes.contains_key(&(pid, near)));
        self.futexes
            .get(&(pid, address))
            .map_or(Cause::Partner, |used| used.cause(beside))
    }
}
