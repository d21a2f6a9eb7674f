//! Times of CPUs from `/proc/stat`, and what runs from `/proc/loadavg`.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;

use amdahl_topology::CpuSet;

use super::text::{self, CpuTicks};

/// An open file of `/proc`, read as a whole each time.
pub struct Text {
    file: File,
    buffer: Vec<u8>,
    /// How much of it was read last.
    len: usize,
}

impl Text {
    /// Opens `path`.
    pub fn open(path: &str) -> io::Result<Text> {
        Ok(Text {
            file: File::open(path)?,
            buffer: vec![0; 4096],
            len: 0,
        })
    }

    /// What it says now, up to `bytes_max` bytes or somewhat more.
    pub fn read(&mut self, bytes_max: usize) -> io::Result<&str> {
        let mut len = 0;
        loop {
            if len == self.buffer.len() {
                self.buffer.resize(2 * len, 0);
            }
            let read = self.file.read_at(&mut self.buffer[len..], len as u64)?;
            len += read;
            if read == 0 || len >= bytes_max {
                break;
            }
        }
        self.len = len;
        Ok(self.last())
    }

    /// What it said when it was read last.
    pub fn last(&self) -> &str {
        let text = &self.buffer[..self.len];
        match str::from_utf8(text) {
            Ok(text) => text,
            Err(error) => str::from_utf8(&text[..error.valid_up_to()]).unwrap_or_default(),
        }
    }
}

/// The sum of `ticks` over `allowed`. `is_all` says that those are all that are online: then their own sum is taken, which is rounded
/// down to ticks once and not for each CPU.
pub fn sum(stat: &str, allowed: &CpuSet, is_all: bool) -> CpuTicks {
    let mut sum = CpuTicks::default();
    for ticks in text::cpu_ticks(stat) {
        match ticks.cpu {
            None if is_all => return ticks,
            None => {}
            Some(cpu) if allowed.contains(cpu) => {
                sum.busy = sum.busy.saturating_add(ticks.busy);
                sum.idle = sum.idle.saturating_add(ticks.idle);
                sum.irq = sum.irq.saturating_add(ticks.irq);
                sum.steal = sum.steal.saturating_add(ticks.steal);
            }
            Some(_) => {}
        }
    }
    sum
}

/// Busy ticks of all CPUs beyond those of `ours`, which is the [`sum`] over the allowed ones.
pub fn busy_elsewhere(stat: &str, ours: CpuTicks, is_all: bool) -> u64 {
    let all = text::cpu_ticks(stat).find(|ticks| ticks.cpu.is_none());
    match all {
        Some(all) if !is_all => all.busy.saturating_sub(ours.busy),
        _ => 0,
    }
}

/// Nanoseconds of a clock tick of `/proc`.
pub fn tick_ns() -> u64 {
    // SAFETY: a query without side effects.
    let hz = unsafe { libc::sysconf(libc::_SC_CLK_TCK) };
    1_000_000_000 / u64::try_from(hz).ok().filter(|&hz| hz > 0).unwrap_or(100)
}

#[cfg(test)]
mod tests {
    use super::*;

    const STAT: &str = "cpu  10 0 0 100 0 0 0 7 0 0\ncpu0 4 0 0 60 0 0 0 3 0 0\ncpu2 6 0 0 40 0 0 0 3 0 0\nintr 1\n";

    #[test]
    fn only_allowed_cpus_count() {
        let set = |text: &str| text.parse::<CpuSet>().unwrap();
        let two = sum(STAT, &set("2"), false);
        assert_eq!((two.busy, two.idle, two.steal), (6, 40, 3));
        let parts = sum(STAT, &set("0-2"), false);
        assert_eq!((parts.busy, parts.steal), (10, 6));
        assert_eq!(
            sum(STAT, &set("0-2"), true).steal,
            7,
            "the kernel's own sum"
        );
        assert_eq!(sum("", &set("0"), false), CpuTicks::default());
        assert_eq!(busy_elsewhere(STAT, two, false), 4);
        assert_eq!(busy_elsewhere(STAT, two, true), 0);
        assert_eq!(busy_elsewhere("", two, false), 0);
    }

    #[test]
    fn long_files_are_read_as_far_as_wanted() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("file");
        std::fs::write(&path, "x".repeat(100_000)).unwrap();
        let mut text = Text::open(path.to_str().unwrap()).unwrap();
        assert_eq!(text.read(usize::MAX).unwrap().len(), 100_000);
        let some = text.read(5_000).unwrap().len();
        assert!((5_000..100_000).contains(&some) || some == 100_000);
    }
}
