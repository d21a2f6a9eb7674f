//! The value of one variable. Each function takes the text behind the equals sign and gives what it means, or nothing
//! where it means nothing; what is said about that is decided in `settings`.

use super::text::Text;
use crate::icv::{ProcBind, Schedule, ScheduleKind, TargetOffload, WaitPolicy};

/// Why a schedule was not taken: GCC's runtime says which of the two it was.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum BadSchedule {
    Kind,
    Chunk,
}

/// `[monotonic:|nonmonotonic:]KIND[,CHUNK]`.
pub(crate) fn schedule(value: &[u8]) -> Result<Schedule, BadSchedule> {
    let mut text = Text::new(value);
    text.skip_spaces();
    let modifier = text.take_one_of(&[("monotonic", true), ("nonmonotonic", false)]);
    if modifier.is_some() {
        text.skip_spaces();
        if !text.take(b':') {
            return Err(BadSchedule::Kind);
        }
        text.skip_spaces();
    }
    let kind = text
        .take_one_of(&[
            ("static", ScheduleKind::Static),
            ("dynamic", ScheduleKind::Dynamic),
            ("guided", ScheduleKind::Guided),
            ("auto", ScheduleKind::Auto),
        ])
        .ok_or(BadSchedule::Kind)?;
    let mut schedule = Schedule {
        kind,
        is_monotonic: modifier.unwrap_or(kind == ScheduleKind::Static),
        chunk: kind.default_chunk(),
    };
    if text.ends() {
        return Ok(schedule);
    }
    if !text.take(b',') {
        return Err(BadSchedule::Kind);
    }
    if text.ends() {
        return Err(BadSchedule::Chunk);
    }
    let chunk = text.unsigned().ok_or(BadSchedule::Chunk)?;
    if !text.ends() {
        return Err(BadSchedule::Chunk);
    }
    let chunk = i32::try_from(chunk.cast_signed())
        .ok()
        .filter(|&chunk| chunk >= 0)
        .ok_or(BadSchedule::Chunk)?;
    schedule.chunk = chunk.max(kind.default_chunk());
    Ok(schedule)
}

/// A number from `min`; negative ones are none.
pub(crate) fn number(value: &[u8], min: u64) -> Option<u64> {
    let mut text = Text::new(value);
    if text.ends() {
        return None;
    }
    let number = text.unsigned()?;
    (text.ends() && number >= min && number.cast_signed() >= 0).then_some(number)
}

/// A number that is an `int`.
pub(crate) fn int(value: &[u8], min: u64) -> Option<i32> {
    number(value, min).and_then(|number| i32::try_from(number).ok())
}

/// Positive numbers, commas between.
pub(crate) fn numbers(value: &[u8]) -> Option<Vec<u64>> {
    let mut text = Text::new(value);
    let mut numbers = vec![];
    loop {
        if text.ends() {
            return None;
        }
        let number = text.unsigned()?;
        if number.cast_signed() <= 0 {
            return None;
        }
        numbers.push(number);
        if text.ends() {
            return Some(numbers);
        }
        if !text.take(b',') {
            return None;
        }
    }
}

/// `true`, `false`, or a list of policies.
pub(crate) fn proc_bind(value: &[u8]) -> Option<Vec<ProcBind>> {
    const POLICIES: [(&str, ProcBind); 4] = [
        ("master", ProcBind::Primary),
        ("primary", ProcBind::Primary),
        ("close", ProcBind::Close),
        ("spread", ProcBind::Spread),
    ];
    let mut text = Text::new(value);
    text.skip_spaces();
    if let Some(only) = text.take_one_of(&[("false", ProcBind::False), ("true", ProcBind::True)]) {
        return text.ends().then(|| vec![only]);
    }
    let mut policies = vec![];
    loop {
        text.skip_spaces();
        policies.push(text.take_one_of(&POLICIES)?);
        if text.ends() {
            return Some(policies);
        }
        if !text.take(b',') {
            return None;
        }
    }
}

/// Bytes: a number of KiB, or with a unit of B, K, M or G.
pub(crate) fn stack_size(value: &[u8]) -> Option<u64> {
    let mut text = Text::new(value);
    if text.ends() {
        return None;
    }
    let number = text.unsigned()?;
    let mut shift = 10;
    if !text.ends() {
        shift = text.take_one_of(&[("b", 0), ("k", 10), ("m", 20), ("g", 30)])?;
    }
    (text.ends() && number << shift >> shift == number).then_some(number << shift)
}

/// Rounds of a spin loop: a number with a unit of K, M, G or T (powers of 1000), or infinitely many.
pub(crate) fn spin_count(value: &[u8]) -> Option<u64> {
    let mut text = Text::new(value);
    if text.ends() {
        return None;
    }
    if text
        .take_one_of(&[("infinite", ()), ("infinity", ())])
        .is_some()
    {
        return text.ends().then_some(u64::MAX);
    }
    let number = text.unsigned()?;
    let mut unit = 1_u64;
    if !text.ends() {
        unit = text.take_one_of(&[
            ("k", 1_000),
            ("m", 1_000_000),
            ("g", 1_000_000_000),
            ("t", 1_000_000_000_000),
        ])?;
    }
    text.ends().then(|| number.saturating_mul(unit))
}

/// One of a few words.
pub(crate) fn word<T: Copy>(value: &[u8], words: &[(&str, T)]) -> Option<T> {
    let mut text = Text::new(value);
    text.skip_spaces();
    let word = text.take_one_of(words)?;
    text.ends().then_some(word)
}

/// `true` or `false`.
pub(crate) fn boolean(value: &[u8]) -> Option<bool> {
    word(value, &[("true", true), ("false", false)])
}

pub(crate) fn wait_policy(value: &[u8]) -> Option<WaitPolicy> {
    word(
        value,
        &[
            ("active", WaitPolicy::Active),
            ("passive", WaitPolicy::Passive),
        ],
    )
}

pub(crate) fn target_offload(value: &[u8]) -> Option<TargetOffload> {
    word(
        value,
        &[
            ("default", TargetOffload::Default),
            ("mandatory", TargetOffload::Mandatory),
            ("disabled", TargetOffload::Disabled),
        ],
    )
}
