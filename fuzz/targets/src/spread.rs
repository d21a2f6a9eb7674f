//! Masks, histograms and hashed locks: operations from bytes, against naive models.

use amdahl_spread::{Buckets, CpuMask, HashedRwLocks, Histogram, Mask, Snapshot, SparseMask, Word};

/// Two bytes at a time: an operation and its operand.
fn pairs(bytes: &[u8]) -> impl Iterator<Item = (u8, u8)> + '_ {
    bytes.chunks_exact(2).map(|pair| (pair[0], pair[1]))
}

/// The first two bytes choose the number of CPUs and the bits in a line, the rest are operations.
pub(crate) fn cpu_mask(bytes: &[u8]) {
    let Some((&[cpus, bits], operations)) = bytes.split_first_chunk() else {
        return;
    };
    let cpus = u32::from(cpus) * 3;
    let Ok(dense) = CpuMask::new(cpus) else {
        assert_eq!(cpus, 0);
        return;
    };
    let Ok(sparse) = SparseMask::with_bits_per_line(cpus, bits.into()) else {
        assert!(!bits.is_power_of_two() || bits > 64);
        return;
    };
    let mut model = vec![false; cpus as usize];
    for (operation, operand) in pairs(operations) {
        let cpu = u32::from(operand) * 3 + u32::from(operation >> 6);
        let known = model.get(cpu as usize).copied();
        match operation % 8 {
            0..4 => {
                assert_eq!([dense.set(cpu).ok(), sparse.set(cpu).ok()], [known; 2]);
                known.inspect(|_| model[cpu as usize] = true);
            }
            4 | 5 => {
                assert_eq!([dense.clear(cpu).ok(), sparse.clear(cpu).ok()], [known; 2]);
                known.inspect(|_| model[cpu as usize] = false);
            }
            6 => {
                let other = CpuMask::new(cpu + 2).expect("a CPU");
                other.set(cpu).and(other.set(cpu / 2)).expect("in range");
                assert_eq!(sparse.union_with(&other).is_ok(), known.is_some());
                assert_eq!(dense.union_with(&other).is_ok(), known.is_some());
                for cpu in [cpu, cpu / 2] {
                    if let Some(bit) = model.get_mut(cpu as usize) {
                        *bit = true;
                    }
                }
            }
            _ => {
                assert_agrees(&dense, &model, cpu);
                assert_agrees(&sparse, &model, cpu);
            }
        }
    }
    for start in [0, cpus / 2, cpus - 1, cpus, u32::MAX] {
        assert_agrees(&dense, &model, start);
        assert_agrees(&sparse, &model, start);
    }
}

fn assert_agrees<W: Word>(mask: &Mask<W>, model: &[bool], start: u32) {
    let cpus = model.len() as u32;
    let begin = if start < cpus { start } else { 0 };
    let expected: Vec<u32> = (begin..cpus)
        .chain(0..begin)
        .filter(|&cpu| model[cpu as usize])
        .collect();
    assert_eq!(mask.iter_from(start).collect::<Vec<u32>>(), expected);
    assert_eq!(mask.first_from(start), expected.first().copied());
    assert_eq!(mask.count() as usize, expected.len());
}

/// The first byte is the precision, the next eight the largest value, the rest are values of eight bytes.
pub(crate) fn histogram(bytes: &[u8]) {
    let Some((&precision, rest)) = bytes.split_first() else {
        return;
    };
    let Some((max, rest)) = rest.split_first_chunk() else {
        return;
    };
    // Small tables: the memory of large ones is all that they add.
    let Ok(buckets) = Buckets::new((precision % 16).into(), u64::from_le_bytes(*max)) else {
        assert!(u32::from(precision % 16) > Buckets::PRECISION_MAX);
        return;
    };
    if buckets.count() > 4096 {
        return;
    }
    let values = rest.chunks_exact(8);
    let mut values: Vec<u64> = values
        .map(|value| u64::from_le_bytes(value.try_into().expect("eight bytes")))
        .collect();
    let histogram = Histogram::new(buckets);
    let mut halves = [Snapshot::new(buckets), Snapshot::new(buckets)];
    for (half, seen) in values.chunks(values.len() / 2 + 1).zip(&mut halves) {
        half.iter().for_each(|&value| histogram.record(value));
        histogram.snapshot_into(seen).expect("the same buckets");
    }
    let all = histogram.snapshot();
    let [first, second] = halves;
    if !values.is_empty() {
        let mut again = all.clone();
        again.subtract(&first).expect("the same buckets");
        again.merge(&first).expect("the same buckets");
        assert_eq!(again, all);
        assert!(all == second || all == first);
    }
    values.sort_unstable();
    assert_eq!(all.count() as usize, values.len());
    for tenth in 0..=10 {
        let q = f64::from(tenth) / 10.0;
        let rank = ((q * values.len() as f64).ceil() as usize).max(1);
        let truth = values.get(rank - 1).copied();
        let said = all.quantile(q);
        assert_eq!(said.is_some(), truth.is_some());
        if let (Some(said), Some(truth)) = (said, truth) {
            let slack = truth as f64 * buckets.relative_error();
            let is_near = (said - truth) as f64 <= slack;
            assert!(is_near || truth > buckets.max() && said == u64::MAX);
        }
    }
}

/// The first byte is the number of locks, then keys: those to read up to a zero, those to write after it.
pub(crate) fn hashed_locks(bytes: &[u8]) {
    let Some((&locks, keys)) = bytes.split_first() else {
        return;
    };
    let locks =
        HashedRwLocks::<u8>::with_locks(std::num::NonZeroUsize::MIN.saturating_add(locks.into()));
    let (read, write) = match keys.iter().position(|&key| key == 0) {
        Some(at) => (&keys[..at], &keys[at + 1..]),
        None => (keys, &[][..]),
    };
    // What each lock should be: free, shared or exclusive.
    let mut model = vec![0; locks.locks()];
    read.iter().for_each(|key| model[locks.index_of(key)] = 1);
    write.iter().for_each(|key| model[locks.index_of(key)] = 2);
    let guard = locks.lock_many(read, write);
    assert_eq!(
        guard.locks(),
        model.iter().filter(|&&mode| mode > 0).count()
    );
    for key in 0..=u8::MAX {
        let mode = model[locks.index_of(&key)];
        assert_eq!(locks.try_read(&key).is_some(), mode < 2);
        assert_eq!(locks.try_write(&key).is_some(), mode < 1);
    }
    drop(guard);
    let all = locks.write_all();
    assert_eq!(all.locks(), locks.locks());
}
