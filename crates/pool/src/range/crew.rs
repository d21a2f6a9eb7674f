//! Who may come to help with a range: pure.

/// Those who help with a range or have helped, and how many more may come.
#[derive(Debug)]
pub(crate) struct Crew {
    /// Slots, each with its node if it is a worker's.
    members: Vec<(u32, Option<u32>)>,
    helpers_max: u32,
    per_node_max: u32,
}

/// What comes of a helper that wants to come in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Entry {
    /// It may not; another one may.
    Refused,
    /// It is in, and so may be others.
    In,
    /// It is in, and was the last one of its node.
    LastOfNode,
    /// It is in, and was the last one of all.
    Last,
}

impl Crew {
    pub(super) fn new(helpers_max: u32, per_node_max: u32) -> Self {
        Crew {
            members: Vec::new(),
            helpers_max,
            per_node_max,
        }
    }

    pub(super) fn slots(&self) -> impl Iterator<Item = u32> {
        self.members.iter().map(|&(slot, _)| slot)
    }

    /// Whether nobody has come.
    pub(super) fn is_empty(&self) -> bool {
        self.members.is_empty()
    }

    /// How many have come.
    fn len(&self) -> u32 {
        self.members.len() as u32
    }

    /// The thread of `slot`, of `node` if it is a worker, while `limit` threads may run in the pool. That is asked
    /// each time: more may come when it is raised, and who is in stays.
    pub(super) fn enter(&mut self, slot: u32, node: Option<u32>, limit: u32) -> Entry {
        let of_node = self.members.iter().filter(|(_, at)| *at == node);
        let on_node = of_node.count() as u32;
        // Who was here before left when nothing was left.
        let was_here = self.members.iter().any(|&(member, _)| member == slot);
        // The caller is one of those who may run, also beside the one worker that always may.
        let is_full = self.len() >= self.helpers_max || limit < 2;
        if was_here || is_full || on_node >= self.per_node_max {
            return Entry::Refused;
        }
        self.members.push((slot, node));
        if self.len() >= self.helpers_max {
            Entry::Last
        } else if on_node + 1 >= self.per_node_max {
            Entry::LastOfNode
        } else {
            Entry::In
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// How many threads a range had was decided when it began: nobody came to one that began under a quota of one CPU,
    /// however much the quota was raised then.
    #[test]
    fn more_come_when_more_may_run() {
        let mut crew = Crew::new(3, u32::MAX);
        assert_eq!(
            crew.enter(1, Some(0), 1),
            Entry::Refused,
            "the caller alone"
        );
        assert_eq!(crew.enter(1, Some(0), 2), Entry::In);
        assert_eq!(crew.enter(1, Some(0), 4), Entry::Refused, "it was here");
        assert_eq!(crew.enter(2, Some(0), 1), Entry::Refused);
        assert_eq!(crew.enter(2, Some(0), 4), Entry::In);
        assert_eq!(crew.enter(9, None, 4), Entry::Last, "a guest");
        assert_eq!(crew.enter(3, Some(0), 4), Entry::Refused);
    }

    proptest! {
        /// Whoever comes in whatever order under whatever limits: the caps hold, and nobody is refused for nothing.
        #[test]
        fn caps_hold_and_places_are_given(
            helpers_max in 0u32..6, per_node_max in 0u32..4,
            comers in prop::collection::vec((0u32..12, 0u32..4), 0..40),
        ) {
            let mut crew = Crew::new(helpers_max, per_node_max);
            let mut model: Vec<u32> = vec![];
            for (slot, limit) in comers {
                let node = |slot: u32| slot % 3;
                let on_node = model.iter().filter(|&&at| node(at) == node(slot)).count() as u32;
                let may = limit >= 2
                    && !model.contains(&slot)
                    && (model.len() as u32) < helpers_max
                    && on_node < per_node_max;
                let entry = crew.enter(slot, Some(node(slot)), limit);
                prop_assert_eq!(entry != Entry::Refused, may);
                if may {
                    model.push(slot);
                    let is_last = model.len() as u32 == helpers_max;
                    prop_assert_eq!(entry == Entry::Last, is_last);
                    prop_assert_eq!(entry == Entry::LastOfNode, !is_last && on_node + 1 == per_node_max);
                }
                prop_assert!(crew.slots().eq(model.iter().copied()));
            }
        }
    }
}
