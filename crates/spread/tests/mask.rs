//! Masks against a naive model.

mod threads;

use std::sync::atomic::{AtomicU32, Ordering};

use amdahl_spread::{CpuMask, Mask, MaskError, SparseMask, Word};
use proptest::prelude::*;

/// Which bits are set, one by one.
#[derive(Clone, Debug)]
struct Model(Vec<bool>);

impl Model {
    fn from(&self, start: u32) -> Vec<u32> {
        let cpus = self.0.len() as u32;
        let start = if start < cpus { start } else { 0 };
        (start..cpus)
            .chain(0..start)
            .filter(|&cpu| self.0[cpu as usize])
            .collect()
    }
}

#[derive(Clone, Debug)]
enum Op {
    Set(u32),
    Clear(u32),
    ClearAll,
    Union(Vec<u32>),
}

fn ops(cpus: u32) -> impl Strategy<Value = Vec<Op>> {
    let cpu = 0..cpus + 3;
    let op = prop_oneof![
        8 => cpu.clone().prop_map(Op::Set),
        4 => cpu.clone().prop_map(Op::Clear),
        1 => Just(Op::ClearAll),
        1 => prop::collection::vec(cpu, 0..40).prop_map(Op::Union),
    ];
    prop::collection::vec(op, 0..60)
}

fn agree<W: Word>(mask: &Mask<W>, model: &Model) {
    let cpus = model.0.len() as u32;
    let all = model.from(0);
    assert_eq!(mask.cpus(), cpus);
    assert_eq!(mask.count() as usize, all.len());
    assert_eq!(mask.is_empty(), all.is_empty());
    assert_eq!(mask.first(), all.first().copied());
    assert_eq!(mask.to_cpu_set().iter().collect::<Vec<u32>>(), all);
    for start in 0..cpus + 2 {
        let expected = model.from(start);
        assert_eq!(mask.iter_from(start).collect::<Vec<u32>>(), expected);
        assert_eq!(mask.first_from(start), expected.first().copied());
        let set = model.0.get(start as usize).copied().unwrap_or(false);
        assert_eq!(mask.test(start), set);
        for length in [0, 1, 7, 64, cpus] {
            let end = start.saturating_add(length);
            let within: Vec<u32> = all
                .iter()
                .copied()
                .filter(|cpu| (start..end).contains(cpu))
                .collect();
            assert_eq!(mask.iter_within(start..end).collect::<Vec<u32>>(), within);
        }
    }
    assert_eq!(mask.iter_within(0..u32::MAX).count(), all.len());
}

/// `other` is made anew for each union, larger than the mask or smaller.
fn run<W: Word, V: Word>(mask: &Mask<W>, other: impl Fn(u32) -> Mask<V>, ops: &[Op]) {
    let cpus = mask.cpus();
    let mut model = Model(vec![false; cpus as usize]);
    let out = |cpu| MaskError::OutOfRange { cpu, cpus };
    for op in ops {
        match op {
            Op::Set(cpu) => {
                let expected = match model.0.get_mut(*cpu as usize) {
                    Some(bit) => Ok(std::mem::replace(bit, true)),
                    None => Err(out(*cpu)),
                };
                assert_eq!(mask.set(*cpu), expected);
            }
            Op::Clear(cpu) => {
                let expected = match model.0.get_mut(*cpu as usize) {
                    Some(bit) => Ok(std::mem::replace(bit, false)),
                    None => Err(out(*cpu)),
                };
                assert_eq!(mask.clear(*cpu), expected);
            }
            Op::ClearAll => {
                mask.clear_all();
                model.0.fill(false);
            }
            Op::Union(list) => {
                let other = other(list.iter().max().map_or(1, |max| max + 1));
                for &cpu in list {
                    other.set(cpu).expect("made for it");
                    if let Some(bit) = model.0.get_mut(cpu as usize) {
                        *bit = true;
                    }
                }
                let beyond = list.iter().filter(|&&cpu| cpu >= cpus).min();
                let expected = beyond.map_or(Ok(()), |&cpu| Err(out(cpu)));
                assert_eq!(mask.union_with(&other), expected);
            }
        }
        agree(mask, &model);
    }
}

fn sparse(cpus: u32, bits: u32) -> SparseMask {
    SparseMask::with_bits_per_line(cpus, bits).expect("valid")
}

fn dense(cpus: u32) -> CpuMask {
    CpuMask::new(cpus).expect("valid")
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(if cfg!(miri) { 1 } else { 60 }))]

    #[test]
    fn a_mask_is_its_model(
        (cpus, ops) in (1_u32..if cfg!(miri) { 20 } else { 200 }).prop_flat_map(|cpus| (Just(cpus), ops(cpus))),
        bits in (0_u32..=6).prop_map(|log| 1 << log),
        other_bits in (0_u32..=6).prop_map(|log| 1 << log),
    ) {
        run(&dense(cpus), |n| sparse(n, other_bits), &ops);
        run(&sparse(cpus, bits), dense, &ops);
        run(&sparse(cpus, bits), |n| sparse(n, other_bits), &ops);
    }
}

#[test]
fn every_start_wraps_at_every_size() {
    let sizes = [1, 2, 7, 8, 9, 63, 64, 65, 128, 129];
    for &cpus in &sizes[..if cfg!(miri) { 5 } else { sizes.len() }] {
        let mask = sparse(cpus, 8);
        let mut model = Model(vec![false; cpus as usize]);
        for cpu in [0, cpus / 2, cpus - 1] {
            mask.set(cpu).expect("in range");
            model.0[cpu as usize] = true;
        }
        agree(&mask, &model);
    }
}

#[test]
fn thousands_of_cpus_have_a_last_bit() {
    let (sparse, dense) = (sparse(8192, 8), dense(8192));
    assert_eq!((sparse.set(8191), dense.set(8191)), (Ok(false), Ok(false)));
    assert_eq!((sparse.first(), dense.first()), (Some(8191), Some(8191)));
    assert_eq!(sparse.first_from(8191), Some(8191));
    assert_eq!(format!("{sparse:?}"), "8191 of 8192");
}

#[test]
fn what_cannot_be_is_an_error() {
    assert_eq!(SparseMask::new(0).err(), Some(MaskError::NoCpus));
    assert_eq!(CpuMask::new(0).err(), Some(MaskError::NoCpus));
    for bits_per_line in [0, 3, 65, 128, u32::MAX] {
        let error = SparseMask::with_bits_per_line(8, bits_per_line).err();
        assert_eq!(error, Some(MaskError::BitsPerLine { bits_per_line }));
    }
    let (cpu, cpus) = (u32::MAX, 8);
    let out = MaskError::OutOfRange { cpu, cpus };
    assert_eq!(dense(cpus).set(cpu), Err(out));
    assert_eq!(out.to_string(), "CPU 4294967295 in a mask of CPUs below 8");
}

/// Each of so many threads sets its 16 bits `rounds` times, and each bit is cleared by whoever finds it first: none is
/// found twice.
fn set_and_clear<W: Word + Sync>(mask: &Mask<W>, threads: u32, rounds: u32) {
    let taken = AtomicU32::new(0);
    std::thread::scope(|scope| {
        for thread in 0..threads {
            let (mask, taken) = (&mask, &taken);
            scope.spawn(move || {
                let mut set = 0;
                while set < rounds {
                    let cpu = thread * 16 + set % 16;
                    set += u32::from(mask.set(cpu) == Ok(false));
                    let found = mask.first_from(cpu + 16);
                    let won = found.is_some_and(|cpu| mask.clear(cpu) == Ok(true));
                    taken.fetch_add(won.into(), Ordering::Relaxed);
                }
            });
        }
    });
    let taken = taken.into_inner();
    assert_eq!(taken + mask.count(), threads * rounds);
}

#[test]
fn of_those_who_clear_a_bit_one_wins() {
    let rounds = if cfg!(miri) { 20 } else { 500 };
    set_and_clear(&sparse(64, 8), 4, rounds);
    set_and_clear(&dense(64), 4, rounds);
}

#[test]
#[ignore = "takes two minutes"]
fn of_sixty_four_who_clear_a_bit_one_wins_for_minutes() {
    threads::for_minutes(|| {
        for bits in [1, 8, 64] {
            set_and_clear(&sparse(1024, bits), 64, 5_000);
        }
        set_and_clear(&dense(1024), 64, 5_000);
    });
}
