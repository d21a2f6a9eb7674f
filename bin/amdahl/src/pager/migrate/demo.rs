//! What is moved: threads that write pages and know what each has to hold.

use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use amdahl_migrate::Guest;
use amdahl_pager::{Mapping, PAGE};

use crate::cli::migrate::DemoSize;

/// Threads that are stopped: how often each page was written.
pub struct Stopped {
    memory: Arc<Mapping>,
    settings: Settings,
    versions: Vec<u32>,
}

/// How they write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Settings {
    pub threads: u32,
    /// Pages that all of them write a second; 0: as many as they can.
    pub write_rate: u32,
}

impl Settings {
    pub fn of(size: &DemoSize) -> Settings {
        Settings {
            threads: size.threads,
            write_rate: size.write_rate,
        }
    }
}

/// Has a thread that touches a page which is lost stand still for good, instead of ending the program: whoever fetches pages knows by then why, and says it.
pub fn park_when_lost() {
    extern "C" fn park(_: libc::c_int) {
        loop {
            // SAFETY: waits for a signal; async-signal-safe.
            unsafe { libc::pause() };
        }
    }
    // SAFETY: all zeros is a valid `sigaction`.
    let mut action: libc::sigaction = unsafe { std::mem::zeroed() };
    action.sa_sigaction = park as extern "C" fn(libc::c_int) as usize;
    // SAFETY: the handler calls nothing that is not async-signal-safe, and the structure is a valid one.
    unsafe { libc::sigaction(libc::SIGBUS, &raw const action, std::ptr::null_mut()) };
}

/// Threads that write.
pub struct Running {
    memory: Arc<Mapping>,
    settings: Settings,
    shared: Arc<Shared>,
    threads: Vec<JoinHandle<Result<Vec<u32>, usize>>>,
}

#[derive(Default)]
struct Shared {
    stop: AtomicBool,
    /// Percent of the time in which they do nothing.
    throttle: AtomicU32,
}

/// What a page holds when it was written so often.
fn content(page: usize, version: u32) -> [u8; PAGE] {
    let mut bytes = [0; PAGE];
    if version > 0 {
        let mut word = (page as u64) << 32 | u64::from(version);
        for part in bytes.chunks_exact_mut(8) {
            word = next(word);
            part.copy_from_slice(&word.to_le_bytes());
        }
    }
    bytes
}

fn next(value: u64) -> u64 {
    value
        .wrapping_mul(6_364_136_223_846_793_005)
        .wrapping_add(1_442_695_040_888_963_407)
}

fn holds(memory: &Mapping, page: usize, version: u32) -> bool {
    let mut found = [0; PAGE];
    memory.read(page * PAGE, &mut found);
    found == content(page, version)
}

impl Stopped {
    /// Every second page was written once.
    pub fn new(memory: Arc<Mapping>, settings: Settings) -> Stopped {
        let pages = memory.len() / PAGE;
        let versions: Vec<u32> = (0..pages).map(|page| u32::from(page % 2 == 0)).collect();
        for page in (0..pages).step_by(2) {
            memory.write(page * PAGE, &content(page, 1));
        }
        Stopped {
            memory,
            settings,
            versions,
        }
    }

    /// What they know besides the memory.
    pub fn state(&self) -> Vec<u8> {
        let settings = [self.settings.threads, self.settings.write_rate];
        let words = settings.iter().chain(&self.versions);
        words.flat_map(|word| word.to_le_bytes()).collect()
    }

    /// Of what they knew at the other side.
    pub fn of_state(memory: Arc<Mapping>, state: &[u8]) -> Result<Stopped, &'static str> {
        let pages = memory.len() / PAGE;
        if state.len() != 4 * (pages + 2) {
            return Err("this is not the state of a demonstration");
        }
        let word = |bytes: &[u8]| u32::from_le_bytes(bytes.try_into().expect("4 bytes"));
        let mut words = state.chunks_exact(4).map(word);
        let settings = Settings {
            threads: words.next().unwrap_or(0),
            write_rate: words.next().unwrap_or(0),
        };
        if !(1..=256).contains(&settings.threads) {
            return Err("a demonstration has 1 to 256 threads");
        }
        Ok(Stopped {
            memory,
            settings,
            versions: words.collect(),
        })
    }

    /// The first page that does not hold what it should, if there is one.
    pub fn wrong(&self) -> Option<usize> {
        let mut pages = self.versions.iter().enumerate();
        pages
            .find(|(page, version)| !holds(&self.memory, *page, **version))
            .map(|(page, _)| page)
    }

    /// Lets them write.
    pub fn run(self) -> Running {
        let shared = Arc::new(Shared::default());
        let pages = self.versions.len();
        let count = self.settings.threads as usize;
        let mut running = Running {
            memory: self.memory.clone(),
            settings: self.settings,
            shared: shared.clone(),
            threads: Vec::new(),
        };
        for number in 0..count {
            let slice = number * pages / count..(number + 1) * pages / count;
            let versions = self.versions[slice.clone()].to_vec();
            let (memory, shared, settings) = (self.memory.clone(), shared.clone(), self.settings);
            let write = move || write(&memory, slice, versions, settings, &shared);
            running.threads.push(thread::spawn(write));
        }
        running
    }
}

/// Writes pages until it is told to stop: how often each was written; or which held something else than it should.
fn write(
    memory: &Mapping,
    slice: Range<usize>,
    mut versions: Vec<u32>,
    settings: Settings,
    shared: &Shared,
) -> Result<Vec<u32>, usize> {
    /// Pages between two looks at the clock.
    const AT_ONCE: u32 = 16;
    let rate = f64::from(settings.write_rate) / f64::from(settings.threads);
    let mut random = slice.start as u64 + 1;
    while !shared.stop.load(Ordering::Relaxed) && !versions.is_empty() {
        let begun = Instant::now();
        for _ in 0..AT_ONCE {
            random = next(random);
            let nth = (((random >> 32) * versions.len() as u64) >> 32) as usize;
            let page = slice.start + nth;
            if !holds(memory, page, versions[nth]) {
                return Err(page);
            }
            versions[nth] = versions[nth].wrapping_add(1).max(1);
            memory.write(page * PAGE, &content(page, versions[nth]));
        }
        let mut whole = begun.elapsed();
        if rate > 0.0 {
            whole = whole.max(Duration::from_secs_f64(f64::from(AT_ONCE) / rate));
        }
        let throttle = shared.throttle.load(Ordering::Relaxed).min(99);
        whole = whole * 100 / (100 - throttle);
        if let Some(rest) = whole.checked_sub(begun.elapsed()) {
            // Not longer than anybody wants to wait for it to stop.
            thread::sleep(rest.min(Duration::from_millis(50)));
        }
    }
    Ok(versions)
}

impl Running {
    /// Stops them: nobody writes afterwards. A page that held something else than it should, if there was one.
    pub fn stop(mut self) -> Result<Stopped, usize> {
        self.shared.stop.store(true, Ordering::Relaxed);
        let mut versions = Vec::new();
        for thread in self.threads.drain(..) {
            versions.extend(thread.join().expect("no thread panics")?);
        }
        Ok(Stopped {
            memory: self.memory.clone(),
            settings: self.settings,
            versions,
        })
    }
}

/// The threads as a guest.
pub struct Demo {
    pub running: Option<Running>,
    pub stopped: Option<Stopped>,
    /// A page that was found to hold something else than it should.
    wrong: Option<usize>,
    state_bytes: u64,
}

impl Demo {
    pub fn new(stopped: Stopped) -> Demo {
        Demo {
            state_bytes: stopped.state().len() as u64,
            running: Some(stopped.run()),
            stopped: None,
            wrong: None,
        }
    }

    /// Whether a thread has ended by itself, which it does only when it found a page that was wrong.
    pub fn has_failed(&self) -> bool {
        let running = self.running.as_ref();
        running.is_some_and(|running| running.threads.iter().any(JoinHandle::is_finished))
    }

    /// Stops them for good; which page was wrong, if one was.
    pub fn end(&mut self) -> Result<(), usize> {
        // Who has found one does not go on.
        if let Some(page) = self.wrong {
            return Err(page);
        }
        if let Some(running) = self.running.take() {
            self.stopped = Some(running.stop()?);
        }
        match self.stopped.as_ref().and_then(Stopped::wrong) {
            Some(page) => Err(page),
            None => Ok(()),
        }
    }
}

impl Guest for Demo {
    fn state_bytes(&self) -> u64 {
        self.state_bytes
    }

    fn pause(&mut self) -> Result<Vec<u8>, String> {
        let running = self.running.take().ok_or("it does not run")?;
        let stopped = running.stop().map_err(|page| {
            self.wrong = Some(page);
            format!("page {page} held something else than it should")
        })?;
        let state = stopped.state();
        self.stopped = Some(stopped);
        Ok(state)
    }

    fn resume(&mut self) {
        self.running = self.stopped.take().map(Stopped::run);
    }

    fn throttle(&mut self, percent: u8) {
        if let Some(running) = &self.running {
            let throttle = &running.shared.throttle;
            throttle.store(percent.into(), Ordering::Relaxed);
        }
    }
}

#[cfg(test)]
mod tests {
    use amdahl_pager::Backing;

    use super::*;

    const SETTINGS: Settings = Settings {
        threads: 3,
        write_rate: 0,
    };

    #[test]
    fn threads_go_on_where_they_were_and_notice_what_is_wrong() {
        let memory = Arc::new(Mapping::new(64 * PAGE, Backing::Small).unwrap());
        let mut demo = Demo::new(Stopped::new(memory.clone(), SETTINGS));
        let state = demo.pause().unwrap();
        assert_eq!(state.len() as u64, demo.state_bytes());
        let again = Stopped::of_state(memory.clone(), &state).unwrap();
        assert_eq!((again.wrong(), again.settings), (None, SETTINGS));
        demo.resume();
        demo.throttle(99);
        demo.end().unwrap();

        let stopped = demo.stopped.as_ref().unwrap();
        let state = stopped.state();
        memory.write(17 * PAGE + 4000, &[0xaa; 9]);
        assert_eq!(stopped.wrong(), Some(17));
        for wrong in [&state[1..], &state[..8]] {
            assert!(Stopped::of_state(memory.clone(), wrong).is_err());
        }
        // Also by a thread, while it runs, and that is remembered.
        let mut demo = Demo::new(Stopped::of_state(memory.clone(), &state).unwrap());
        let running = demo.running.as_ref().unwrap();
        while !running.threads.iter().any(JoinHandle::is_finished) {
            thread::yield_now();
        }
        assert!(demo.pause().unwrap_err().contains("page 17"));
        demo.resume();
        assert_eq!(demo.end(), Err(17));
        let mut none = state.clone();
        none[..4].fill(0);
        assert!(Stopped::of_state(memory, &none).is_err());
    }
}
