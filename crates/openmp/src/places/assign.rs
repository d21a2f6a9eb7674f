//! Which place and place partition each thread of a team gets: "Controlling OpenMP Thread Affinity" of the OpenMP
//! specification. Where that leaves a choice, it is taken as GCC's runtime takes it.

use crate::icv::ProcBind;

/// Consecutive places of the list: the internal control variable *place-partition-var*.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Partition {
    /// Index of its first place.
    pub off: u32,
    /// How many places it has.
    pub len: u32,
}

/// What a thread of a team gets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Placement {
    /// Index of the place that it is bound to.
    pub place: u32,
    /// Where the teams that it creates are placed.
    pub partition: Partition,
}

/// The placement of a team's threads: O(1) for each, nothing is stored per thread.
#[derive(Clone, Copy, Debug)]
pub struct Assignment {
    parent: Partition,
    /// Of the primary thread, relative to the partition.
    primary: u32,
    rule: Rule,
}

#[derive(Clone, Copy, Debug)]
enum Rule {
    /// All where the primary thread is.
    Primary,
    /// `run` threads to a place, one place after the other; who is left after all have been filled goes one to a
    /// place, from the primary's again.
    Runs { run: u32, is_spread: bool },
    /// One thread to a subpartition. The first `longer` of them have `len + 1` places, the others `len`.
    Subpartitions {
        threads: u32,
        len: u32,
        longer: u32,
        primary: u32,
    },
}

/// How the threads of a team are assigned to the places of the partition of the thread that creates it, which is
/// at `place`. `None` where threads are not bound: the policy is `False`, or there are no places.
///
/// A `place` outside of the partition counts as its first.
pub fn assign(
    policy: ProcBind,
    threads: u32,
    partition: Partition,
    place: u32,
) -> Option<Assignment> {
    if partition.len == 0 {
        return None;
    }
    let threads = threads.max(1);
    let primary = place
        .checked_sub(partition.off)
        .filter(|&primary| primary < partition.len)
        .unwrap_or(0);
    let is_spread = policy == ProcBind::Spread;
    let rule = match policy {
        ProcBind::False => return None,
        ProcBind::Primary => Rule::Primary,
        ProcBind::Spread if threads <= partition.len => {
            let (len, longer) = (partition.len / threads, partition.len % threads);
            let in_longer = longer * (len + 1);
            Rule::Subpartitions {
                threads,
                len,
                longer,
                primary: match primary.checked_sub(in_longer) {
                    None => primary / (len + 1),
                    Some(behind) => longer + behind / len,
                },
            }
        }
        ProcBind::True | ProcBind::Close | ProcBind::Spread => Rule::Runs {
            run: (threads / partition.len).max(1),
            is_spread,
        },
    };
    Some(Assignment {
        parent: partition,
        primary,
        rule,
    })
}

impl Assignment {
    /// What the thread of this number gets. The primary thread, number 0, stays where it is.
    pub fn of(&self, thread: u32) -> Placement {
        let Partition { off, len } = self.parent;
        match self.rule {
            Rule::Primary => Placement {
                place: off + self.primary,
                partition: self.parent,
            },
            Rule::Runs { run, is_spread } => {
                // Cannot overflow: `run` times `len` is at most the number of threads.
                let step = match thread.checked_sub(run * len) {
                    None => thread / run,
                    Some(left_over) => left_over % len,
                };
                let place = off + wrapped(self.primary, step, len);
                Placement {
                    place,
                    partition: if is_spread {
                        Partition { off: place, len: 1 }
                    } else {
                        self.parent
                    },
                }
            }
            Rule::Subpartitions {
                threads,
                len: short,
                longer,
                primary,
            } => {
                let index = wrapped(primary, thread % threads, threads);
                let partition = Partition {
                    off: off + index * short + index.min(longer),
                    len: short + u32::from(index < longer),
                };
                Placement {
                    place: if thread == 0 {
                        off + self.primary
                    } else {
                        partition.off
                    },
                    partition,
                }
            }
        }
    }
}

/// `start + step` modulo `len`, for both below `len`, without overflow.
fn wrapped(start: u32, step: u32, len: u32) -> u32 {
    let behind = len - start;
    if step < behind {
        start + step
    } else {
        step - behind
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn whole(len: u32) -> Partition {
        Partition { off: 0, len }
    }

    fn places(policy: ProcBind, threads: u32, partition: Partition, place: u32) -> Vec<u32> {
        let assignment = assign(policy, threads, partition, place).expect("bound");
        (0..threads).map(|i| assignment.of(i).place).collect()
    }

    /// The examples of the specification's document of examples, "affinity": eight places.
    #[test]
    fn the_examples_of_the_specification() {
        assert_eq!(places(ProcBind::Spread, 4, whole(8), 0), [0, 2, 4, 6]);
        assert_eq!(places(ProcBind::Spread, 4, whole(8), 1), [1, 2, 4, 6]);
        assert_eq!(
            places(ProcBind::Spread, 16, whole(8), 0),
            [0, 0, 1, 1, 2, 2, 3, 3, 4, 4, 5, 5, 6, 6, 7, 7]
        );
        assert_eq!(places(ProcBind::Close, 4, whole(8), 0), [0, 1, 2, 3]);
        assert_eq!(
            places(ProcBind::Close, 16, whole(8), 2),
            [2, 2, 3, 3, 4, 4, 5, 5, 6, 6, 7, 7, 0, 0, 1, 1]
        );
        assert_eq!(places(ProcBind::Primary, 3, whole(8), 5), [5, 5, 5]);
    }

    #[test]
    fn what_is_left_over_begins_at_the_primary_again() {
        assert_eq!(
            places(ProcBind::Close, 7, whole(3), 1),
            [1, 1, 2, 2, 0, 0, 1]
        );
    }

    #[test]
    fn a_spread_team_divides_the_partition() {
        let assignment =
            assign(ProcBind::Spread, 3, Partition { off: 4, len: 8 }, 8).expect("bound");
        let of = |i| assignment.of(i).partition;
        assert_eq!(of(0), Partition { off: 7, len: 3 });
        assert_eq!(of(1), Partition { off: 10, len: 2 });
        assert_eq!(of(2), Partition { off: 4, len: 3 });
        assert_eq!(assignment.of(0).place, 8);
    }

    #[test]
    fn without_a_policy_or_places_nobody_is_bound() {
        assert!(assign(ProcBind::False, 4, whole(8), 0).is_none());
        assert!(assign(ProcBind::Close, 4, whole(0), 0).is_none());
    }

    #[test]
    fn extreme_numbers_do_not_overflow() {
        let partition = Partition {
            off: u32::MAX - 2,
            len: 2,
        };
        for policy in [ProcBind::Primary, ProcBind::Close, ProcBind::Spread] {
            let assignment = assign(policy, u32::MAX, partition, u32::MAX - 1).expect("bound");
            for thread in [0, 1, u32::MAX / 2, u32::MAX - 1] {
                assert!(assignment.of(thread).place >= partition.off);
            }
        }
    }

    /// Step by step, as a thread would count: what the closed form must equal.
    fn by_counting(
        policy: ProcBind,
        threads: u32,
        parent: Partition,
        primary: u32,
    ) -> Vec<Placement> {
        let mut out = vec![];
        let end = parent.off + parent.len;
        if policy == ProcBind::Spread && threads <= parent.len {
            let mut parts = vec![];
            let mut off = parent.off;
            for i in 0..threads {
                let len = parent.len / threads + u32::from(i < parent.len % threads);
                parts.push(Partition { off, len });
                off += len;
            }
            let mine = parts
                .iter()
                .position(|part| (part.off..part.off + part.len).contains(&primary))
                .expect("in one");
            parts.rotate_left(mine);
            for (i, partition) in parts.into_iter().enumerate() {
                let place = if i == 0 { primary } else { partition.off };
                out.push(Placement { place, partition });
            }
            return out;
        }
        let next = |place| {
            if place + 1 == end {
                parent.off
            } else {
                place + 1
            }
        };
        let (mut place, mut on_place) = (primary, 0);
        let mut run = (threads / parent.len).max(1);
        for thread in 0..threads {
            if on_place == run {
                place = next(place);
                on_place = 0;
                if threads > parent.len && thread == threads - threads % parent.len {
                    run = 1;
                }
            }
            on_place += 1;
            out.push(Placement {
                place: if policy == ProcBind::Primary {
                    primary
                } else {
                    place
                },
                partition: if policy == ProcBind::Spread {
                    Partition { off: place, len: 1 }
                } else {
                    parent
                },
            });
        }
        out
    }

    proptest! {
        #[test]
        fn the_closed_form_equals_counting(
            policy in prop::sample::select(vec![ProcBind::True, ProcBind::Primary, ProcBind::Close, ProcBind::Spread]),
            threads in 1_u32..70, off in 0_u32..9, len in 1_u32..40, place in 0_u32..40,
        ) {
            let parent = Partition { off, len };
            let primary = off + place % len;
            let assignment = assign(policy, threads, parent, primary).expect("bound");
            let all: Vec<Placement> = (0..threads).map(|i| assignment.of(i)).collect();
            prop_assert_eq!(all, by_counting(policy, threads, parent, primary));
        }

        /// What the specification promises, whatever is chosen.
        #[test]
        fn places_are_shared_evenly(
            policy in prop::sample::select(vec![ProcBind::Close, ProcBind::Spread]),
            threads in 1_u32..70, off in 0_u32..9, len in 1_u32..40, place in 0_u32..40,
        ) {
            let parent = Partition { off, len };
            let primary = off + place % len;
            let assignment = assign(policy, threads, parent, primary).expect("bound");
            let mut on = vec![0_u32; len as usize];
            for i in 0..threads {
                let Placement { place, partition } = assignment.of(i);
                on[(place - off) as usize] += 1;
                prop_assert!(place >= partition.off && place < partition.off + partition.len);
                prop_assert!(partition.off >= off && partition.off + partition.len <= off + len);
                if policy == ProcBind::Spread && threads <= len {
                    prop_assert!(partition.len >= len / threads);
                }
            }
            prop_assert_eq!(assignment.of(0).place, primary);
            for count in on {
                prop_assert!(count >= threads / len && count <= threads.div_ceil(len));
            }
        }
    }
}
