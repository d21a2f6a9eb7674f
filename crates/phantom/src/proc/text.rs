//! Texts of `/proc` to numbers. Nothing in them is believed to be well-formed.

/// Time of a CPU, or of all, in clock ticks since boot.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CpuTicks {
    /// The CPU's number; `None` for the sum of all.
    pub cpu: Option<u32>,
    /// Somebody ran, in the kernel or in a program.
    pub busy: u64,
    /// Nobody ran.
    pub idle: u64,
    /// Interrupts.
    pub irq: u64,
    /// The hypervisor had taken it.
    pub steal: u64,
}

/// The CPUs in `/proc/stat`, the sum first. What follows them is not looked at.
pub fn cpu_ticks(stat: &str) -> impl Iterator<Item = CpuTicks> + '_ {
    stat.lines().map_while(|line| {
        let (name, times) = line.split_once(' ')?;
        let number = name.strip_prefix("cpu")?;
        let cpu = match number {
            "" => None,
            number => Some(number.parse().ok()?),
        };
        let ticks = times
            .split_ascii_whitespace()
            .map_while(|field| field.parse::<u64>().ok());
        // user nice system idle iowait irq softirq steal; guest time is in user.
        let mut at = [0_u64; 8];
        for (sum, ticks) in at.iter_mut().zip(ticks) {
            *sum = ticks;
        }
        let [user, nice, system, idle, iowait, irq, softirq, steal] = at;
        let sum = |ticks: &[u64]| {
            ticks
                .iter()
                .fold(0, |sum: u64, &ticks| sum.saturating_add(ticks))
        };
        Some(CpuTicks {
            cpu,
            busy: sum(&[user, nice, system, irq, softirq]),
            idle: sum(&[idle, iowait]),
            irq: sum(&[irq, softirq]),
            steal,
        })
    })
}

/// Run time and run queue delay in nanoseconds, from a `schedstat` file of a thread.
pub fn schedstat(text: &str) -> Option<(u64, u64)> {
    let mut numbers = text.split_ascii_whitespace().map(str::parse);
    Some((numbers.next()?.ok()?, numbers.next()?.ok()?))
}

/// A process or thread in its `stat` file.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Stat {
    /// Its name.
    pub name: String,
    /// Clock ticks that it ran, of a process those of ended threads too.
    pub ran: u64,
    /// When it began, in clock ticks since boot: tells those of one number apart.
    pub began: u64,
    /// It is a thread of the kernel.
    pub is_kernel: bool,
}

/// From the text of `/proc/PID/stat`.
pub fn stat(text: &str) -> Option<Stat> {
    const PF_KTHREAD: u64 = 0x0020_0000;
    // The name may contain anything, parentheses and line ends too.
    let (open, close) = (text.find('(')?, text.rfind(')')?);
    let name = text.get(open + 1..close)?.to_owned();
    let fields: Vec<&str> = text.get(close + 1..)?.split_ascii_whitespace().collect();
    // Counted from the state, which is field 3.
    let number = |i: usize| fields.get(i)?.parse::<u64>().ok();
    Some(Stat {
        name,
        ran: number(11)?.saturating_add(number(12)?),
        began: number(19)?,
        is_kernel: number(6)? & PF_KTHREAD != 0,
    })
}

/// Threads that run or could run now on this machine, from `/proc/loadavg`.
pub fn runnable_threads(loadavg: &str) -> Option<u64> {
    let field = loadavg.split_ascii_whitespace().nth(3)?;
    field.split_once('/')?.0.parse().ok()
}

/// Nanoseconds in which at least one thread waited, from a `cpu.pressure` file or `/proc/pressure/cpu`.
pub fn some_pressure(text: &str) -> Option<u64> {
    let line = text.lines().find(|line| line.starts_with("some "))?;
    let total = line
        .split_ascii_whitespace()
        .find_map(|field| field.strip_prefix("total="))?;
    total.parse::<u64>().ok()?.checked_mul(1000)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn cpus_of_proc_stat() {
        let text =
            "cpu  10 0 5 100 1 2 3 4 0 0\ncpu0 1 2 3 40 5 6 7 8 0 0\ncpu17 1 0 0 0\nintr 5 cpu\n";
        let found: Vec<CpuTicks> = cpu_ticks(text).collect();
        let expected = CpuTicks {
            cpu: Some(0),
            busy: 19,
            idle: 45,
            irq: 13,
            steal: 8,
        };
        assert_eq!((found.len(), found[0].cpu, found[1]), (3, None, expected));
        assert_eq!((found[0].busy, found[0].idle), (20, 101));
        assert_eq!(found[2].cpu, Some(17));
    }

    #[test]
    fn threads_and_processes() {
        assert_eq!(schedstat("1000 200 3\n"), Some((1000, 200)));
        assert_eq!(schedstat("1000"), None);
        let text =
            "42 (a) b) (c) R 1 42 42 0 -1 4194304 95 0 0 0 7 5 0 0 20 0 1 0 7788 2469888 227\n";
        let expected = Stat {
            name: "a) b) (c".to_owned(),
            ran: 12,
            began: 7788,
            is_kernel: false,
        };
        assert_eq!(stat(text), Some(expected));
        let kernel = "2 (kthreadd) S 0 0 0 0 -1 2129984 0 0 0 0 0 3 0 0 20 0 1 0 9 0 0";
        assert!(stat(kernel).unwrap().is_kernel);
    }

    #[test]
    fn load_and_pressure() {
        assert_eq!(runnable_threads("2.04 1.97 1.91 3/95 30988\n"), Some(3));
        assert_eq!(runnable_threads("2.04 1.97"), None);
        let text =
            "some avg10=35.13 avg60=11.57 avg300=11.59 total=5085\nfull avg10=0.00 total=1\n";
        assert_eq!(some_pressure(text), Some(5_085_000));
        assert_eq!(some_pressure("full total=1\n"), None);
    }

    proptest! {
        #[test]
        fn nothing_panics(text in "\\PC*", other in "[0-9 ()/cpusometal=\n]*") {
            for text in [&text, &other] {
                let _ = (cpu_ticks(text).count(), schedstat(text), stat(text), runnable_threads(text), some_pressure(text));
            }
        }
    }
}
