//! The system calls of this crate, and nothing else.

use std::ffi::{c_int, c_void};
use std::io::Read;
use std::mem::MaybeUninit;
use std::ptr;
use std::sync::atomic::AtomicU32;

/// Sleeps while `word` is `expected`, until woken. Returns for no reason at times.
pub fn futex_wait(word: &AtomicU32, expected: u32) {
    futex_wait_for(word, expected, None);
}

/// The same, for `most_ns` nanoseconds at most if that is given.
pub fn futex_wait_for(word: &AtomicU32, expected: u32, most_ns: Option<u64>) {
    let most = most_ns.map(|ns| libc::timespec {
        tv_sec: (ns / 1_000_000_000) as libc::time_t,
        tv_nsec: (ns % 1_000_000_000) as libc::c_long,
    });
    let most = most.as_ref().map_or(ptr::null(), ptr::from_ref);
    // SAFETY: word and time outlive the call.
    unsafe {
        libc::syscall(
            libc::SYS_futex,
            word.as_ptr(),
            libc::FUTEX_WAIT | libc::FUTEX_PRIVATE_FLAG,
            expected,
            most,
        );
    }
}

/// Wakes at most `count` of those who sleep on `word`, and says how many. The word may be gone already: then nobody is
/// woken.
#[expect(
    clippy::not_unsafe_ptr_arg_deref,
    reason = "only the kernel looks at the address"
)]
pub fn futex_wake(word: *const AtomicU32, count: u32) -> u32 {
    // SAFETY: the kernel looks at the address only, and an address that is gone is an error it returns.
    let woken = unsafe {
        libc::syscall(
            libc::SYS_futex,
            word,
            libc::FUTEX_WAKE | libc::FUTEX_PRIVATE_FLAG,
            count.min(i32::MAX as u32),
        )
    };
    u32::try_from(woken).unwrap_or(0)
}

/// Lets others run who are ready on this CPU.
pub fn yield_now() {
    // SAFETY: no arguments.
    unsafe { libc::sched_yield() };
}

unsafe extern "C" {
    fn pthread_setcancelstate(state: c_int, before: *mut c_int) -> c_int;
}

/// While it is there the calling thread does not end because `pthread_cancel` asked it to: calls of the C library that open, read
/// or write are where it would.
pub(crate) struct NotCancelled(c_int);

/// To be had around all that may open, read or write a file: GCC's runtime has no call where a thread may end, and frames of Rust
/// must not be left like that.
pub(crate) fn not_cancelled() -> NotCancelled {
    /// `PTHREAD_CANCEL_DISABLE` of Linux's C libraries.
    const DISABLE: c_int = 1;
    let mut before = 0;
    // SAFETY: `before` is written by the call.
    unsafe { pthread_setcancelstate(DISABLE, &raw mut before) };
    NotCancelled(before)
}

impl Drop for NotCancelled {
    fn drop(&mut self) {
        let mut ours = 0;
        // SAFETY: a state that the call gave.
        unsafe { pthread_setcancelstate(self.0, &raw mut ours) };
    }
}

fn clock_ns(clock: libc::clockid_t) -> u64 {
    let mut time = MaybeUninit::<libc::timespec>::zeroed();
    // SAFETY: `time` is written by the call; where it fails it stays zero.
    let time = unsafe {
        libc::clock_gettime(clock, time.as_mut_ptr());
        time.assume_init()
    };
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}

/// Nanoseconds of the monotonic clock.
#[inline]
pub fn monotonic_ns() -> u64 {
    clock_ns(libc::CLOCK_MONOTONIC)
}

/// Nanoseconds of CPU time of the calling thread.
#[inline]
pub fn thread_cpu_ns() -> u64 {
    clock_ns(libc::CLOCK_THREAD_CPUTIME_ID)
}

/// Nanoseconds that a hypervisor had CPUs of this machine that wanted to run, of all CPUs together; `None` if nobody tells.
pub fn stolen_ns() -> Option<u64> {
    let mut line = [0; 256];
    let mut file = std::fs::File::open("/proc/stat").ok()?;
    let bytes = file.read(&mut line).ok()?;
    // SAFETY: no pointers.
    let ticks_per_s = u64::try_from(unsafe { libc::sysconf(libc::_SC_CLK_TCK) }).ok()?;
    let ticks = steal_of_stat(line.get(..bytes)?)?;
    Some(ticks.saturating_mul(1_000_000_000u64.checked_div(ticks_per_s)?))
}

/// The ticks of `steal` in what `/proc/stat` begins with: `cpu user nice system idle iowait irq softirq steal ...`.
fn steal_of_stat(stat: &[u8]) -> Option<u64> {
    let line = stat.split(|&byte| byte == b'\n').next()?;
    let mut words = line
        .split(|&byte| byte == b' ')
        .filter(|word| !word.is_empty());
    let steal = words.nth(8).filter(|_| line.starts_with(b"cpu "))?;
    std::str::from_utf8(steal).ok()?.parse().ok()
}

/// The kernel's number of the calling thread.
pub fn thread_number() -> u32 {
    // SAFETY: no pointers.
    unsafe { libc::gettid() as u32 }
}

/// The kernel's numbers of this process's threads, as far as they are told.
pub fn threads() -> impl Iterator<Item = u32> {
    let threads = std::fs::read_dir("/proc/self/task").into_iter().flatten();
    threads.filter_map(|thread| thread.ok()?.file_name().to_str()?.parse().ok())
}

/// CPUs that the calling thread may run on, by its affinity mask; at least 1.
pub fn allowed_cpus() -> u32 {
    let allowed = match amdahl_topology::allowed() {
        Ok(allowed) => allowed.len() as u32,
        Err(_) => {
            // SAFETY: no pointers.
            let online = unsafe { libc::sysconf(libc::_SC_NPROCESSORS_ONLN) };
            u32::try_from(online).unwrap_or(1)
        }
    };
    allowed.max(1)
}

/// Why a thread could not be started.
#[derive(Debug, Clone, Copy)]
pub struct SpawnError(pub i32);

impl std::fmt::Display for SpawnError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        // In the C library's words alone, which are those of GCC's runtime.
        let text = std::io::Error::from_raw_os_error(self.0).to_string();
        f.write_str(text.split(" (os error").next().unwrap_or(&text))
    }
}

/// Starts a detached thread that runs `start(argument)`, with a stack of `stack` bytes (0: the system's size).
///
/// # Safety
/// `argument` is what `start` expects, for as long as it runs.
pub unsafe fn spawn(
    stack: usize,
    start: extern "C" fn(*mut c_void) -> *mut c_void,
    argument: *mut c_void,
) -> Result<(), SpawnError> {
    let mut attributes = MaybeUninit::<libc::pthread_attr_t>::uninit();
    // SAFETY: initialised by the first call before it is used by the others, and destroyed last.
    unsafe {
        let error = libc::pthread_attr_init(attributes.as_mut_ptr());
        if error != 0 {
            return Err(SpawnError(error));
        }
        libc::pthread_attr_setdetachstate(attributes.as_mut_ptr(), libc::PTHREAD_CREATE_DETACHED);
        if stack != 0 {
            // A size that the system refuses leaves the default, as in GCC's library.
            libc::pthread_attr_setstacksize(attributes.as_mut_ptr(), stack);
        }
        let mut thread = MaybeUninit::<libc::pthread_t>::uninit();
        let error = libc::pthread_create(thread.as_mut_ptr(), attributes.as_ptr(), start, argument);
        libc::pthread_attr_destroy(attributes.as_mut_ptr());
        if error == 0 {
            Ok(())
        } else {
            Err(SpawnError(error))
        }
    }
}

/// The environment's variables: names and values.
pub fn environment() -> Vec<(Vec<u8>, Vec<u8>)> {
    use std::os::unix::ffi::OsStringExt as _;
    std::env::vars_os()
        .map(|(name, value)| (name.into_vec(), value.into_vec()))
        .collect()
}

/// Whether the program has more rights than who started it.
pub fn is_secure() -> bool {
    // SAFETY: no pointers.
    unsafe { libc::getauxval(libc::AT_SECURE) != 0 }
}

/// The name of this machine.
pub fn host_name() -> Vec<u8> {
    let mut name = vec![0_u8; 256];
    // SAFETY: the last byte stays 0.
    let result = unsafe { libc::gethostname(name.as_mut_ptr().cast(), name.len() - 1) };
    name.truncate(name.iter().position(|&byte| byte == 0).unwrap_or(0));
    if result == 0 { name } else { b"node".to_vec() }
}

/// The C library's name for the calling thread.
pub fn pthread_self() -> u64 {
    // SAFETY: no arguments.
    unsafe { libc::pthread_self() }
}

/// Writes to standard error; what cannot be written is lost.
pub fn write_error(text: &[u8]) {
    let mut left = text;
    let _whole = not_cancelled();
    while !left.is_empty() {
        // SAFETY: the buffer is `left`.
        let written = unsafe { libc::write(2, left.as_ptr().cast(), left.len()) };
        match usize::try_from(written) {
            Ok(n) if n > 0 => left = &left[n.min(left.len())..],
            _ => return,
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn what_a_hypervisor_takes_is_the_eighth_number() {
        let of = |stat: &str| steal_of_stat(stat.as_bytes());
        assert_eq!(
            of("cpu  1 2 3 4 5 6 7 89 0 0\ncpu0 1 2 3 4 5 6 7 8 0 0\n"),
            Some(89)
        );
        for other in [
            "",
            "cpu  1 2 3\n",
            "cpu  1 2 3 4 5 6 7 x 0 0\n",
            "intr 1 2 3 4 5 6 7 8 9\n",
        ] {
            assert_eq!(of(other), None, "{other:?}");
        }
        assert_eq!(
            stolen_ns().is_some(),
            std::path::Path::new("/proc/stat").exists()
        );
    }
}
