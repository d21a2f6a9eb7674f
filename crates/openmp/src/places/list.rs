//! Places on a machine: what a description comes to where some CPUs may be used and others not.

use std::fmt;

use super::CpuSet;
use super::spec::{Interval, Item, Spec};
use super::topology::{Level, Topology};

/// Places, in the order in which threads get them. There is at least one, and none is empty.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PlaceList {
    places: Vec<CpuSet>,
}

/// Why a description gives no places, and the words of GCC's runtime for it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Unusable {
    /// A CPU number beyond those of the machine.
    OutOfRange(u64),
    /// The same, reached by a stride.
    StepOutOfRange(u64, i64),
    /// A CPU was excluded from a place that it is not in.
    NotInPlace(u64),
    /// A place was excluded that is not there.
    NoSuchPlace,
    /// All places were excluded.
    NoneLeft,
    /// The process may not run on any CPU of the places.
    NoneAllowed,
    /// No place was asked for.
    NoneWanted,
}

impl fmt::Display for Unusable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Self::OutOfRange(cpu) => write!(f, "Logical CPU number {cpu} out of range"),
            Self::StepOutOfRange(cpu, stride) => {
                write!(f, "Logical CPU number {cpu}+{stride} out of range")
            }
            Self::NotInPlace(cpu) => {
                write!(f, "Logical CPU {cpu} to be removed is not in the set")
            }
            Self::NoSuchPlace => {
                f.write_str("Trying to remove a non-existing place from list of places")
            }
            Self::NoneLeft => f.write_str("All places have been removed"),
            Self::NoneAllowed => f.write_str("None of the places contain usable logical CPUs"),
            Self::NoneWanted => f.write_str("Error reading core/socket topology"),
        }
    }
}

impl PlaceList {
    /// The places of a description among the CPUs that may be used, and how many places were left out because
    /// none of their CPUs may.
    pub fn resolve(
        spec: &Spec,
        allowed: &CpuSet,
        topology: impl FnOnce() -> Topology,
    ) -> Result<(Self, usize), Unusable> {
        let places = match spec {
            Spec::Abstract(level, count) => {
                let mut places = topology().groups(*level, allowed);
                let count = count.unwrap_or(u64::MAX);
                places.truncate(usize::try_from(count).unwrap_or(usize::MAX));
                return Self::of(places)
                    .map(|list| (list, 0))
                    .ok_or(Unusable::NoneWanted);
            }
            Spec::Explicit(items) => explicit(items, limit(allowed))?,
            Spec::Cpus(cpus) => cpus.iter().flat_map(each).collect(),
        };
        let wanted = places.len();
        let places = places
            .iter()
            .map(|place| place.intersection(allowed))
            .filter(|place| !place.is_empty())
            .collect();
        let list = Self::of(places).ok_or(Unusable::NoneAllowed)?;
        let left_out = wanted - list.places.len();
        Ok((list, left_out))
    }

    /// Each CPU a place: what there is when binding was asked for and no places were given.
    pub fn threads(allowed: &CpuSet, topology: &Topology) -> Option<Self> {
        Self::of(topology.groups(Level::Threads, allowed))
    }

    fn of(places: Vec<CpuSet>) -> Option<Self> {
        (!places.is_empty()).then_some(Self { places })
    }

    /// How many there are.
    pub fn len(&self) -> u32 {
        // Cannot truncate: descriptions are bounded.
        self.places.len() as u32
    }

    /// Never true: there is at least one.
    pub fn is_empty(&self) -> bool {
        self.places.is_empty()
    }

    /// The CPUs of a place.
    pub fn get(&self, place: u32) -> Option<&CpuSet> {
        self.places.get(place as usize)
    }
}

/// As `OMP_PLACES` has it: `{0:4},{4,8}`.
impl fmt::Display for PlaceList {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (at, place) in self.places.iter().enumerate() {
            let comma = if at == 0 { "" } else { "," };
            write!(f, "{comma}{{{}}}", within_braces(place))?;
        }
        Ok(())
    }
}

/// A place as `OMP_PLACES` has it within its braces: `0:4,8`.
fn within_braces(place: &CpuSet) -> String {
    // Neighbours, as first and last.
    let mut runs: Vec<(u32, u32)> = vec![];
    for cpu in place.iter() {
        match runs.last_mut() {
            Some((_, last)) if *last + 1 == cpu => *last = cpu,
            _ => runs.push((cpu, cpu)),
        }
    }
    let run = |&(first, last): &(u32, u32)| match last - first {
        0 => format!("{first}"),
        more => format!("{first}:{}", more + 1),
    };
    runs.iter().map(run).collect::<Vec<_>>().join(",")
}

/// CPU numbers from here on are taken for typing errors: whole words of the mask up to the last CPU allowed.
fn limit(allowed: &CpuSet) -> u64 {
    (u64::from(allowed.last().unwrap_or(0)) / 64 + 1) * 64
}

fn each(cpus: &Interval) -> impl Iterator<Item = CpuSet> + use<> {
    let Interval { first, len, stride } = *cpus;
    // Read with bounds: cannot overflow.
    (0..len).map(move |at| {
        let cpu = first + at * stride.unsigned_abs();
        let cpu = u32::try_from(cpu).ok();
        cpu.filter(|&cpu| cpu <= CpuSet::MAX_PARSED)
            .into_iter()
            .collect()
    })
}

fn explicit(items: &[Item], limit: u64) -> Result<Vec<CpuSet>, Unusable> {
    let mut places: Vec<CpuSet> = vec![];
    for item in items {
        let mut place = place(item, limit)?;
        if item.is_excluded {
            let at = places.iter().position(|other| *other == place);
            places.remove(at.ok_or(Unusable::NoSuchPlace)?);
            continue;
        }
        for _ in 1..item.len {
            let next = shifted(&place, item.stride, limit)?;
            places.push(std::mem::replace(&mut place, next));
        }
        places.push(place);
    }
    if places.is_empty() {
        return Err(Unusable::NoneLeft);
    }
    Ok(places)
}

/// First what is in, then what is out, whatever their order.
fn place(item: &Item, limit: u64) -> Result<CpuSet, Unusable> {
    let mut set = CpuSet::default();
    for resource in item.place.iter().filter(|resource| !resource.is_excluded) {
        let Interval {
            first: mut cpu,
            len,
            stride,
        } = resource.cpus;
        // With a stride of 0 there is but one.
        let len = if stride == 0 { 1 } else { len };
        for left in (0..len).rev() {
            if cpu >= limit {
                return Err(Unusable::OutOfRange(cpu));
            }
            set.insert(cpu as u32);
            if left > 0 {
                cpu = cpu
                    .checked_add_signed(stride)
                    .ok_or(Unusable::StepOutOfRange(cpu, stride))?;
            }
        }
    }
    for resource in item.place.iter().filter(|resource| resource.is_excluded) {
        let cpu = resource.cpus.first;
        if cpu >= limit {
            return Err(Unusable::OutOfRange(cpu));
        }
        if !set.remove(cpu as u32) {
            return Err(Unusable::NotInPlace(cpu));
        }
    }
    Ok(set)
}

fn shifted(place: &CpuSet, stride: i64, limit: u64) -> Result<CpuSet, Unusable> {
    place
        .iter()
        .map(|cpu| {
            u64::from(cpu)
                .checked_add_signed(stride)
                .filter(|&cpu| cpu < limit)
                .map(|cpu| cpu as u32)
                .ok_or(Unusable::StepOutOfRange(cpu.into(), stride))
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::super::topology::tests::machine;
    use super::*;

    fn resolve(text: &str, allowed: &str) -> Result<(String, usize), Unusable> {
        let spec = Spec::places(text.as_bytes()).expect("well-formed");
        let topology = || machine(2, 1, 2, 4, 2);
        PlaceList::resolve(&spec, &allowed.parse().unwrap(), topology)
            .map(|(list, left_out)| (list.to_string(), left_out))
    }

    fn places(text: &str, allowed: &str) -> String {
        resolve(text, allowed).expect("places").0
    }

    #[test]
    fn neighbours_are_written_as_one() {
        let place: CpuSet = [0, 1, 2, 3, 8, 10, 11].into_iter().collect();
        assert_eq!(within_braces(&place), "0:4,8,10:2");
    }

    #[test]
    fn the_examples_of_the_specification() {
        for text in [
            "{0,1,2,3},{4,5,6,7},{8,9,10,11},{12,13,14,15}",
            "{0:4},{4:4},{8:4},{12:4}",
            "{0:4}:4:4",
        ] {
            assert_eq!(places(text, "0-15"), "{0:4},{4:4},{8:4},{12:4}", "{text}");
        }
        assert_eq!(places("{0:4}:3:4,!{4:4}", "0-15"), "{0:4},{8:4}");
        assert_eq!(places("{0:8:2,!4}", "0-15"), "{0,2,6,8,10,12,14}");
        assert_eq!(places("{3}:4:-1", "0-15"), "{3},{2},{1},{0}");
        assert_eq!(places("2,0", "0-15"), "{2},{0}");
    }

    #[test]
    fn abstract_names() {
        assert_eq!(places("cores(3)", "0-31"), "{0,16},{1,17},{2,18}");
        assert_eq!(
            places("ll_caches", "0-31"),
            "{0:4,16:4},{4:4,20:4},{8:4,24:4},{12:4,28:4}"
        );
        assert_eq!(places("sockets", "0-3,8"), "{0:4},{8}");
        assert_eq!(places("threads", "0,1,16"), "{0},{16},{1}");
        assert_eq!(resolve("threads(0)", "0-3"), Err(Unusable::NoneWanted));
    }

    #[test]
    fn what_may_not_be_used_is_left_out() {
        assert_eq!(resolve("{0},{1:2},{5}", "0,2-3"), Ok(("{0},{2}".into(), 1)));
        assert_eq!(resolve("{1}", "0"), Err(Unusable::NoneAllowed));
    }

    #[test]
    fn what_cannot_be_is_told() {
        for (text, why) in [
            ("{64}", Unusable::OutOfRange(64)),
            ("{0:3:40}", Unusable::OutOfRange(80)),
            ("{1:3:-1}", Unusable::StepOutOfRange(0, -1)),
            ("{0}:3:40", Unusable::StepOutOfRange(40, 40)),
            ("{0,!1}", Unusable::NotInPlace(1)),
            ("{0,!99}", Unusable::OutOfRange(99)),
            ("{0},!{1}", Unusable::NoSuchPlace),
            ("{0},!{0}", Unusable::NoneLeft),
        ] {
            assert_eq!(resolve(text, "0-15"), Err(why), "{text}");
        }
    }

    #[test]
    fn each_cpu_a_place() {
        let spec = Spec::cpus(b"4-0,1")
            .or(Spec::cpus(b"0-4:2 1,7"))
            .expect("well-formed");
        let (list, left_out) =
            PlaceList::resolve(&spec, &"0-4".parse().unwrap(), Topology::default).expect("places");
        assert_eq!(
            (list.to_string().as_str(), left_out),
            ("{0},{2},{4},{1}", 1)
        );
    }

    proptest! {
        /// A list that was printed and is read again is the same.
        #[test]
        fn what_is_printed_can_be_read(places in prop::collection::vec(prop::collection::btree_set(0_u32..128, 1..9), 1..9)) {
            let list = PlaceList {
                places: places.into_iter().map(|place| place.into_iter().collect()).collect(),
            };
            let spec = Spec::places(list.to_string().as_bytes()).expect("well-formed");
            let all: CpuSet = (0..128).collect();
            prop_assert_eq!(PlaceList::resolve(&spec, &all, Topology::default), Ok((list, 0)));
        }
    }
}
