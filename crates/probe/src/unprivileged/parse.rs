//! The text of `/proc`, as far as a poll needs it.

use amdahl_speedup::event::Ns;
use amdahl_speedup::snapshot::CpuTimes;

/// `/proc/PID/task/TID/stat`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Stat<'a> {
    pub(super) name: &'a [u8],
    pub(crate) state: u8,
    pub(super) parent: u32,
    pub(super) group: u32,
    pub(super) session: u32,
    /// A thread of the kernel.
    pub(super) is_kernel: bool,
    pub(super) user_ticks: u64,
    pub(super) system_ticks: u64,
    /// Clock ticks from boot to its start.
    pub(super) started: u64,
    pub(super) cpu: u32,
}

/// Of the flags in `stat`.
const PF_KTHREAD: u64 = 0x0020_0000;

pub(crate) fn stat(text: &[u8]) -> Option<Stat<'_>> {
    // The name may hold anything, parentheses and spaces too; what follows holds none.
    let open = text.iter().position(|&byte| byte == b'(')?;
    let close = text.iter().rposition(|&byte| byte == b')')?;
    let name = text.get(open + 1..close)?;
    // Numbered as in proc(5), where the state is the third.
    let mut fields = [0_u64; 40];
    let mut state = 0;
    let rest = text.get(close + 2..)?;
    for (number, field) in rest.split(|&byte| byte == b' ').enumerate().take(37) {
        if number == 0 {
            state = *field.first()?;
        } else {
            fields[number + 3] = decimal(field)?;
        }
    }
    Some(Stat {
        name,
        state,
        parent: fields[4] as u32,
        group: fields[5] as u32,
        session: fields[6] as u32,
        is_kernel: fields[9] & PF_KTHREAD != 0,
        user_ticks: fields[14],
        system_ticks: fields[15],
        started: fields[22],
        cpu: fields[39] as u32,
    })
}

/// A decimal number; a negative one is 0.
fn decimal(field: &[u8]) -> Option<u64> {
    if field.first() == Some(&b'-') {
        return Some(0);
    }
    if field.is_empty() {
        return None;
    }
    field.iter().try_fold(0_u64, |value, &byte| {
        let digit = byte.wrapping_sub(b'0');
        (digit < 10).then(|| value.wrapping_mul(10).wrapping_add(u64::from(digit)))
    })
}

fn hexadecimal(field: &[u8]) -> Option<u64> {
    let digits = std::str::from_utf8(field.strip_prefix(b"0x")?).ok()?;
    u64::from_str_radix(digits, 16).ok()
}

fn words(text: &[u8]) -> impl Iterator<Item = &[u8]> {
    text.split(|byte| byte.is_ascii_whitespace())
        .filter(|word| !word.is_empty())
}

/// `/proc/PID/task/TID/schedstat`: time on a CPU, time in a run queue, times put on a CPU.
pub(crate) fn schedstat(text: &[u8]) -> Option<[u64; 3]> {
    let mut words = words(text);
    Some([
        decimal(words.next()?)?,
        decimal(words.next()?)?,
        decimal(words.next()?)?,
    ])
}

/// `/proc/PID/task/TID/syscall`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Syscall {
    /// On a CPU or runnable.
    Running,
    /// Blocked in a system call, or in none (a page fault, an exit).
    Blocked {
        number: Option<u32>,
        args: [u64; 6],
        sp: u64,
        pc: u64,
    },
}

pub(crate) fn syscall(text: &[u8]) -> Option<Syscall> {
    let mut words = words(text);
    let first = words.next()?;
    if first == b"running" {
        return Some(Syscall::Running);
    }
    let mut next = || hexadecimal(words.next()?);
    if first.first() == Some(&b'-') {
        return Some(Syscall::Blocked {
            number: None,
            args: [0; 6],
            sp: next()?,
            pc: next()?,
        });
    }
    let number = u32::try_from(decimal(first)?).ok()?;
    let mut args = [0; 6];
    for arg in &mut args {
        *arg = next()?;
    }
    Some(Syscall::Blocked {
        number: Some(number),
        args,
        sp: next()?,
        pc: next()?,
    })
}

/// The `cpuN` lines of `/proc/stat`; `tick` is the length of its unit.
pub(super) fn cpu_times(text: &[u8], tick: Ns) -> Vec<CpuTimes> {
    text.split(|&byte| byte == b'\n')
        .take_while(|line| line.starts_with(b"cpu"))
        .filter_map(|line| {
            let mut words = words(line);
            let cpu = u32::try_from(decimal(words.next()?.strip_prefix(b"cpu")?)?).ok()?;
            let mut next = || {
                words
                    .next()
                    .and_then(decimal)
                    .unwrap_or(0)
                    .saturating_mul(tick)
            };
            let (user, nice, system) = (next(), next(), next());
            let (idle, iowait) = (next(), next());
            let (irq, softirq, steal) = (next(), next(), next());
            Some(CpuTimes {
                cpu,
                user_ns: user.saturating_add(nice),
                system_ns: system,
                idle_ns: idle,
                iowait_ns: iowait,
                irq_ns: irq.saturating_add(softirq),
                steal_ns: steal,
            })
        })
        .collect()
}

/// Numbers separated by white space, as in `children` and `cgroup.procs`.
pub(super) fn pids(text: &[u8]) -> impl Iterator<Item = u32> {
    words(text).filter_map(|word| u32::try_from(decimal(word)?).ok())
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn names_may_look_like_the_rest_of_the_line() {
        let text = b"1261 (a) R 9 (b) S 1258 1250 30212 0 -1 4194368 1 0 0 0 11 12 0 0 20 0 3 0 236475 19320832 288 \
            18446744073709551615 94188004155392 94188004155873 140720362518816 0 0 0 0 6 0 1 0 0 -1 5 0 0 0\n";
        let stat = stat(text).expect("a line");
        assert_eq!((stat.name, stat.state), (&b"a) R 9 (b"[..], b'S'));
        assert_eq!((stat.parent, stat.group, stat.session), (1258, 1250, 30212));
        assert_eq!((stat.user_ticks, stat.system_ticks), (11, 12));
        assert_eq!((stat.started, stat.cpu), (236_475, 5));
    }

    #[test]
    fn system_calls_have_arguments_or_none() {
        assert_eq!(syscall(b"running\n"), Some(Syscall::Running));
        assert_eq!(
            syscall(b"-1 0x7ffc 0x7f9d\n"),
            Some(Syscall::Blocked {
                number: None,
                args: [0; 6],
                sp: 0x7ffc,
                pc: 0x7f9d
            })
        );
        assert_eq!(
            syscall(b"202 0x55a9 0x80 0x2 0x0 0x0 0xf 0x7f9d 0x7f9e\n"),
            Some(Syscall::Blocked {
                number: Some(202),
                args: [0x55a9, 0x80, 2, 0, 0, 15],
                sp: 0x7f9d,
                pc: 0x7f9e
            })
        );
        assert_eq!(syscall(b"202 0x1"), None);
    }

    #[test]
    fn cpu_lines_end_where_others_begin() {
        let text =
            b"cpu  9 9 9 9 9 9 9 9 0 0\ncpu0 1 2 3 4 5 6 7 8 0 0\ncpu3 1 0 0 0\nintr 1\ncpu9 1\n";
        let times = cpu_times(text, 10);
        assert_eq!(
            times.iter().map(|times| times.cpu).collect::<Vec<_>>(),
            [0, 3]
        );
        assert_eq!(
            times[0],
            CpuTimes {
                cpu: 0,
                user_ns: 30,
                system_ns: 30,
                idle_ns: 40,
                iowait_ns: 50,
                irq_ns: 130,
                steal_ns: 80,
            }
        );
        assert_eq!((times[1].user_ns, times[1].steal_ns), (10, 0));
    }

    proptest! {
        #[test]
        fn any_text_is_parsed_without_a_panic(text in proptest::collection::vec(any::<u8>(), 0..300)) {
            let _ = (stat(&text), schedstat(&text), syscall(&text), cpu_times(&text, 10_000_000), pids(&text).count());
        }

        #[test]
        fn any_line_is_parsed_without_a_panic(text in "cpu[0-9]{0,22}( [0-9()x-]{0,22}){0,45}") {
            let text = text.as_bytes();
            let _ = (stat(text), schedstat(text), syscall(text), cpu_times(text, 10_000_000), pids(text).count());
        }
    }
}
