//! How the iterations of a loop are dealt out, as pure functions. Iterations are numbered from 0 here, whatever the
//! program's variable does: then signed and unsigned loops, up and down, are the same, and nothing overflows.

/// The iterations of a loop.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Iterations {
    /// Value of the variable in the first one, and where the loop ends. Signed values stand as two's complement.
    start: u64,
    end: u64,
    step: u64,
    count: u64,
}

/// Whole steps from 0 to what is at least `distance`.
fn steps(distance: u64, step: u64) -> u64 {
    match step {
        1 => distance,
        // A step of 0 is not a loop.
        0 => 0,
        _ => distance.div_ceil(step),
    }
}

impl Iterations {
    /// `for (i = start; i < end; i += step)`, or `>` if the step is negative.
    #[inline]
    pub fn signed(start: i64, end: i64, step: i64) -> Iterations {
        let distance = match step {
            1.. if start < end => end.wrapping_sub(start),
            ..=-1 if start > end => start.wrapping_sub(end),
            _ => 0,
        };
        Iterations {
            start: start as u64,
            end: end as u64,
            step: step as u64,
            count: steps(distance as u64, step.unsigned_abs()),
        }
    }

    /// The same for unsigned variables. Loops that go down have the two's complement of their step.
    #[inline]
    pub fn unsigned(is_up: bool, start: u64, end: u64, step: u64) -> Iterations {
        let count = if is_up {
            steps(end.saturating_sub(start), step)
        } else {
            steps(start.saturating_sub(end), step.wrapping_neg())
        };
        Iterations {
            start,
            end,
            step,
            count,
        }
    }

    /// `0..count`.
    pub fn upto(count: u64) -> Iterations {
        Iterations::unsigned(true, 0, count, 1)
    }

    /// How many there are.
    #[inline]
    pub fn count(&self) -> u64 {
        self.count
    }

    /// The values of the variable for the iterations `first..end`: the first one, and where to stop. The last
    /// iterations stop at the loop's own end: the step beyond it may not be a number.
    #[inline]
    pub fn values(&self, first: u64, end: u64) -> (u64, u64) {
        let value = |n: u64| self.start.wrapping_add(n.wrapping_mul(self.step));
        let stop = if end == self.count {
            self.end
        } else {
            value(end)
        };
        (value(first), stop)
    }
}

/// Numbers of iterations: from the first to before the second.
pub type Range = (u64, u64);

/// The part of `count` that thread `id` of `threads` has where each gets one block: the first ones get one more if
/// that does not come out even.
#[inline]
pub fn block(count: u64, threads: u64, id: u64) -> Range {
    let (each, more) = (count / threads, count % threads);
    let first = each * id + id.min(more);
    (first, first + each + u64::from(id < more))
}

/// Who has iteration `number` by [`block`].
pub fn block_owner(count: u64, threads: u64, number: u64) -> u64 {
    let (each, more) = (count / threads, count % threads);
    let longer = more * (each + 1);
    if number < longer {
        number / (each + 1)
    } else {
        (number - longer)
            .checked_div(each)
            .map_or(threads - 1, |n| n + more)
    }
}

/// What thread `id` gets as its chunk number `trip` of a static loop; chunks of 0: one block each.
#[inline]
pub fn fixed(count: u64, chunk: u64, threads: u64, id: u64, trip: u64) -> Option<Range> {
    if chunk == 0 {
        let (first, end) = block(count, threads, id);
        return (trip == 0 && first < end).then_some((first, end));
    }
    let first = trip
        .checked_mul(threads)
        .and_then(|n| n.checked_add(id))
        .and_then(|n| n.checked_mul(chunk))
        .filter(|&first| first < count)?;
    Some((first, first + chunk.min(count - first)))
}

/// Who has iteration `number` of a static loop.
pub fn fixed_owner(count: u64, chunk: u64, threads: u64, number: u64) -> u64 {
    match number.checked_div(chunk) {
        Some(index) => index % threads,
        None => block_owner(count, threads, number),
    }
}

/// The speed of a thread that has a CPU to itself; half of it is that of a thread whose CPU another one has half of the
/// time.
pub const FULL_SPEED: u32 = 1 << 16;

/// Iterations of the next chunk of a guided loop of which `left` are left, for a thread of this speed: who gets less of a
/// CPU takes less, so that nobody waits for it at the end. At full speed what is left over the threads.
#[inline]
pub fn guided(left: u64, chunk: u64, threads: u64, speed: u32) -> u64 {
    let even = left.div_ceil(threads);
    let own = if speed >= FULL_SPEED {
        even
    } else {
        // Cannot truncate: it is less than `even`.
        (u128::from(even) * u128::from(speed) / u128::from(FULL_SPEED)) as u64
    };
    own.max(chunk).max(1).min(left)
}

/// Iterations that a thread takes at once of a block of `block` of which `left` are left. Its own: half of them, and at
/// least a sixteenth of the block, so that it comes back five times. Another's: half, so that helpers and the
/// one who is helped end together (after Markatos and LeBlanc: Using Processor Affinity in Loop Scheduling, 1994).
#[inline]
pub fn of_block(left: u64, block: u64, is_own: bool) -> u64 {
    let half = left.div_ceil(2);
    let least = if is_own { block / 16 } else { 0 };
    half.max(least).min(left)
}

/// Whether a counter that each thread moves on by `chunk` until it is at `count` stays a number: each of them
/// may pass the end once.
#[inline]
pub fn is_countable(count: u64, chunk: u64, threads: u64) -> bool {
    chunk
        .checked_mul(threads + 1)
        .and_then(|beyond| count.checked_add(beyond))
        .is_some()
}

/// Parts with a counter each that a dynamic loop is divided into: threads take what is in the part of their group,
/// then help elsewhere. 1 where a group has fewer than a few chunks for each of its threads.
#[inline]
pub fn parts(count: u64, chunk: u64, threads: u64, group: u64) -> u64 {
    const CHUNKS_EACH: u64 = 8;
    if threads <= group || count / chunk / CHUNKS_EACH < threads {
        1
    } else {
        threads.div_ceil(group)
    }
}

/// The iterations of part `index` of `parts`, which begin and end with chunks.
pub fn part(count: u64, chunk: u64, parts: u64, index: u64) -> Range {
    let (first, end) = block(count.div_ceil(chunk), parts, index);
    let at = |chunks: u64| chunks.saturating_mul(chunk).min(count);
    (at(first), at(end))
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// Values of the variable, one after another, with numbers that cannot overflow.
    fn naive(start: i128, end: i128, step: i128) -> Vec<i128> {
        let mut values = Vec::new();
        let mut i = start;
        while (step > 0 && i < end) || (step < 0 && i > end) {
            values.push(i);
            i += step;
        }
        values
    }

    /// What the compiled loop does with its iterations, given in two parts. `word` is what it takes a word for.
    fn in_parts(loop_: Iterations, cut: u64, step: i128, word: impl Fn(u64) -> i128) -> Vec<i128> {
        let mut values = Vec::new();
        for range in [(0, cut), (cut, loop_.count())] {
            if range.0 == range.1 {
                continue;
            }
            let (from, to) = loop_.values(range.0, range.1);
            values.extend(naive(word(from), word(to), step));
        }
        values
    }

    /// Near the ends and the middle of the numbers.
    fn edge() -> impl Strategy<Value = i64> {
        prop_oneof![
            -50i64..50,
            (0i64..60).prop_map(|n| i64::MAX - n),
            (0i64..60).prop_map(|n| i64::MIN + n),
        ]
    }

    fn step() -> impl Strategy<Value = i64> {
        prop_oneof![
            1i64..9,
            -9i64..0,
            Just(i64::MAX),
            Just(i64::MIN),
            Just(i64::MAX / 3)
        ]
    }

    proptest! {
        #[test]
        fn signed_loops_are_the_program_s(start in edge(), span in -60i64..60, step in step(), cut: u64) {
            let end = start.saturating_add(span);
            let expected = naive(start.into(), end.into(), step.into());
            let loop_ = Iterations::signed(start, end, step);
            prop_assert_eq!(loop_.count(), expected.len() as u64);
            if loop_.count() == 0 {
                return Ok(());
            }
            let values = in_parts(loop_, cut % loop_.count(), step.into(), |word| (word as i64).into());
            prop_assert_eq!(values, expected);
        }

        #[test]
        fn unsigned_loops_are_the_program_s(start in edge(), span in 0u64..60, step in 1u64..9, is_up: bool, cut: u64) {
            let start = start as u64;
            let end = if is_up { start.saturating_add(span) } else { start.saturating_sub(span) };
            let signed = if is_up { i128::from(step) } else { -i128::from(step) };
            let expected = naive(start.into(), end.into(), signed);
            let step = if is_up { step } else { step.wrapping_neg() };
            let loop_ = Iterations::unsigned(is_up, start, end, step);
            prop_assert_eq!(loop_.count(), expected.len() as u64);
            if loop_.count() == 0 {
                return Ok(());
            }
            let values = in_parts(loop_, cut % loop_.count(), signed, u64::into);
            prop_assert_eq!(values, expected);
        }

        #[test]
        fn static_loops_are_dealt_out_once_and_the_owner_is_known(
            count in 0u64..500, chunk in 0u64..40, threads in 1u64..20,
        ) {
            let mut owner = vec![None; count as usize];
            for id in 0..threads {
                for trip in 0.. {
                    let Some((first, end)) = fixed(count, chunk, threads, id, trip) else { break };
                    prop_assert!(first < end);
                    for number in first..end {
                        prop_assert_eq!(owner[number as usize].replace(id), None);
                    }
                }
            }
            for (number, id) in owner.iter().enumerate() {
                prop_assert_eq!(*id, Some(fixed_owner(count, chunk, threads, number as u64)));
            }
        }

        #[test]
        fn static_chunks_of_any_size_stay_numbers(
            count: u64, chunk: u64, threads in 1u64..100_000, id: u64, trip: u64,
        ) {
            let id = id % threads;
            if let Some((first, end)) = fixed(count, chunk, threads, id, trip) {
                prop_assert!(first < end && end <= count);
                prop_assert_eq!(fixed_owner(count, chunk, threads, first), id);
                prop_assert_eq!(fixed_owner(count, chunk, threads, end - 1), id);
            }
        }

        #[test]
        fn guided_chunks_shrink_to_the_smallest(
            count: u64, chunk in 0u64..1000, threads in 1u64..1000, speed in FULL_SPEED / 2..=FULL_SPEED,
        ) {
            let (mut left, mut before) = (count, u64::MAX);
            let mut turns = 0;
            while left > 0 {
                let size = guided(left, chunk, threads, speed);
                prop_assert!(size >= 1 && size <= left && size <= before);
                prop_assert!(size >= chunk || size == left);
                (left, before, turns) = (left - size, size, turns + 1);
                // A two thousandth of what is left each time, 64 bits of it.
                prop_assert!(turns < 2000 * 64);
            }
        }

        #[test]
        fn who_is_slow_takes_less_and_something(left in 1u64.., chunk in 0u64..9, threads in 1u64..1000, speed: u32) {
            let even = guided(left, chunk, threads, FULL_SPEED);
            let own = guided(left, chunk, threads, speed);
            prop_assert!(own >= 1 && own <= even);
            if chunk <= 1 && speed < FULL_SPEED {
                let exact = left.div_ceil(threads) as f64 * f64::from(speed) / f64::from(FULL_SPEED);
                prop_assert!((own as f64 - exact).abs() <= 1.0 + exact * 1e-9);
            }
        }

        #[test]
        fn a_block_is_taken_whole_in_few_steps(block in 1u64.., others in prop::collection::vec(any::<bool>(), 0..200)) {
            let (mut left, mut own_steps) = (block, 0);
            for is_other in others.into_iter().chain(std::iter::repeat(false)) {
                if left == 0 {
                    break;
                }
                let size = of_block(left, block, !is_other);
                prop_assert!(size >= 1 && size <= left);
                left -= size;
                own_steps += u32::from(!is_other);
            }
            prop_assert!(own_steps <= 5 || block < 16);
        }

        #[test]
        fn parts_are_the_whole(count: u64, chunk in 1u64.., threads in 1u64..2000) {
            let parts = parts(count, chunk, threads, 8);
            prop_assert!(parts <= threads);
            let mut at = 0;
            for index in 0..parts {
                let (first, end) = part(count, chunk, parts, index);
                prop_assert_eq!(first, at);
                prop_assert!(end >= first);
                prop_assert!(first % chunk == 0 || first == count);
                at = end;
            }
            prop_assert_eq!(at, count);
        }
    }

    /// A loop in which each thread does so many iterations in a unit of time: when the last one ends. Who is done first takes
    /// next.
    fn simulated(speeds: &[f64], mut take: impl FnMut(usize) -> u64) -> f64 {
        let mut free_at = vec![0.0_f64; speeds.len()];
        let mut end: f64 = 0.0;
        loop {
            let next = (0..speeds.len()).min_by(|&a, &b| free_at[a].total_cmp(&free_at[b]));
            let id = next.expect("somebody");
            let size = take(id);
            if size == 0 {
                free_at[id] = f64::INFINITY;
                if free_at.iter().all(|at| at.is_infinite()) {
                    return end;
                }
                continue;
            }
            free_at[id] += size as f64 / speeds[id];
            end = end.max(free_at[id]);
        }
    }

    /// One thread of four has a quarter of a CPU. The first chunk that it took of a guided loop was as large as
    /// everybody's, and all waited for it.
    #[test]
    fn loops_end_when_all_threads_have_worked_all_the_time() {
        const COUNT: u64 = 100_000;
        let speeds = [1.0, 1.0, 1.0, 0.25];
        let best = COUNT as f64 / speeds.iter().sum::<f64>();
        let with = |follow: bool| {
            let mut left = COUNT;
            simulated(&speeds, |id| {
                let speed = if follow { speeds[id] } else { 1.0 };
                let size = guided(left, 1, 4, (speed * f64::from(FULL_SPEED)) as u32);
                left -= size;
                size
            })
        };
        assert!(with(false) > 1.25 * best);
        assert!(with(true) < 1.01 * best);
        // By blocks, where nobody says who is slow.
        let block = COUNT / 4;
        let mut left = [block; 4];
        let by_blocks = simulated(&speeds, |id| {
            for index in (id..4).chain(0..id) {
                if left[index] > 0 {
                    let size = of_block(left[index], block, index == id);
                    left[index] -= size;
                    return size;
                }
            }
            0
        });
        let alone = block as f64 / 0.25;
        assert!(by_blocks < 0.6 * alone, "{by_blocks} of {alone}");
    }

    #[test]
    fn all_numbers_make_a_loop() {
        let all = Iterations::signed(i64::MIN, i64::MAX, 1);
        assert_eq!(all.count(), u64::MAX);
        let (from, to) = all.values(u64::MAX - 1, u64::MAX);
        assert_eq!((from as i64, to as i64), (i64::MAX - 1, i64::MAX));
        let down = Iterations::signed(i64::MAX, i64::MIN, i64::MIN);
        assert_eq!(down.count(), 2);
        assert_eq!(Iterations::unsigned(true, 0, u64::MAX, 1).count(), u64::MAX);
        assert_eq!(Iterations::signed(0, 10, 0).count(), 0);
        assert_eq!(Iterations::unsigned(true, 0, 10, 0).count(), 0);
    }

    #[test]
    fn counters_that_could_overflow_are_known() {
        assert!(is_countable(1 << 40, 1 << 20, 1000));
        assert!(!is_countable(u64::MAX - 1, 1, 1));
        assert!(is_countable(u64::MAX - 2, 1, 1));
        assert!(!is_countable(1 << 63, 1 << 63, 1));
        assert!(!is_countable(1, u64::MAX, 3));
    }
}
