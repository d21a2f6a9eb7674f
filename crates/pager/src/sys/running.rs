//! Where a thread runs.

use std::fmt::Write as _;

use rustix::fs::{Mode, OFlags, open};
use rustix::io::{Errno, read};

/// The CPU that a thread of this process runs on, or ran on last. Some microseconds.
pub(crate) fn last_cpu(thread: u32) -> rustix::io::Result<u32> {
    let mut path = String::with_capacity(40);
    let _ = write!(path, "/proc/self/task/{thread}/stat");
    let file = open(&path, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty())?;
    // Its 52 numbers have at most 20 digits each.
    let mut text = [0; 2048];
    let len = read(&file, &mut text)?;
    processor(&text[..len]).ok_or(Errno::INVAL)
}

/// The field `processor` of a line of proc_pid_stat(5).
fn processor(stat: &[u8]) -> Option<u32> {
    // The second field is a name in parentheses, which may have parentheses and blanks itself.
    let after = stat.iter().rposition(|&byte| byte == b')')? + 1;
    let fields = std::str::from_utf8(&stat[after..]).ok()?;
    fields.split_ascii_whitespace().nth(39 - 3)?.parse().ok()
}

#[cfg(all(test, not(loom)))]
mod tests {
    use amdahl_topology::{allowed, set_allowed};

    use super::*;

    #[test]
    fn a_thread_that_is_bound_to_a_cpu_is_seen_there() {
        let (ask, asked) = std::sync::mpsc::channel();
        let (go_on, told) = std::sync::mpsc::channel::<()>();
        std::thread::scope(|scope| {
            scope.spawn(move || {
                for cpu in allowed().unwrap().iter() {
                    set_allowed(0, &[cpu].into_iter().collect()).unwrap();
                    ask.send((rustix::thread::gettid(), cpu)).unwrap();
                    told.recv().unwrap();
                }
            });
            // Dropped here, so that the thread ends when this fails.
            let go_on = go_on;
            for (thread, cpu) in asked {
                let thread = thread.as_raw_nonzero().get() as u32;
                assert_eq!(last_cpu(thread), Ok(cpu));
                go_on.send(()).unwrap();
            }
        });
    }

    #[test]
    fn a_thread_of_nobody_is_an_error() {
        // Process ids end at 2^22.
        assert_eq!(last_cpu(1 << 30), Err(Errno::NOENT));
    }

    #[test]
    fn names_may_look_like_fields() {
        let mut line = String::from("7 (a) R 1 2 (b) S");
        (4..39).for_each(|field| _ = write!(line, " {field}"));
        assert_eq!(processor(format!("{line} 511 0 0\n").as_bytes()), Some(511));
        assert_eq!(processor(line.as_bytes()), None);
        for nonsense in ["", ")", "1 (x", "1 (\u{fe}) R"] {
            assert_eq!(processor(nonsense.as_bytes()), None);
        }
    }
}
