//! The thread that records: one view at a time, the one that is shown.

use std::sync::mpsc::Sender;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use amdahl_probe::bpf::{Losses, Part, Recorder, RecorderError, Settings};
use amdahl_top::{By, Data, Snapshot, Tab};
use amdahl_topology::CpuSet;

use super::Message;
use super::control::{Asked, Control};
use super::live::{Live, Look};
use crate::cli::{ProbeKind, Selection};
use crate::failure::Failure;
use crate::watch::{self, Follow, Present, live};
use crate::{locks, mem, sched};

/// Parts are taken this often, so that processes are looked at while they live.
const PART_AFTER: Duration = Duration::from_millis(500);
/// Between two looks at losses and at who joined a group.
const CARE: Duration = Duration::from_millis(500);

/// Making snapshots takes one of so many parts of the time, at most: those of many threads and locks take long, and come less often
/// than is asked for.
const BUDGET: u32 = 50;

/// Whom to record, and for whom.
pub struct Recording<'a> {
    /// Starts no command.
    pub selection: &'a Selection,
    /// All that are online.
    pub cpus: &'a CpuSet,
    /// How long `mmap_lock` is held is recorded.
    pub holds: bool,
    /// Who has it and for how long, in the view of locks.
    pub owners: bool,
    /// What is asked for.
    pub control: &'a Control,
    /// Where snapshots go.
    pub messages: Sender<Message>,
    /// Called when everybody is watched: the first time.
    pub ready: Box<dyn FnMut() + Send + 'a>,
}

/// Makes snapshots of what it follows, when they are due.
struct Reporting<'a, L> {
    live: L,
    pace: Pace<'a>,
    /// So far, from the thread that looks after the recorder.
    losses: &'a Mutex<Losses>,
}

/// When the next snapshot is due, and what it says of ourselves.
struct Pace<'a> {
    control: &'a Control,
    turn: u64,
    messages: Sender<Message>,
    begun: Instant,
    last: Option<(Instant, By)>,
    /// To make the last one.
    took: Duration,
    /// Our CPU time, and when.
    spent: (Duration, Instant),
}

impl Pace<'_> {
    fn new<'a>(control: &'a Control, turn: u64, messages: &Sender<Message>) -> Pace<'a> {
        Pace {
            control,
            turn,
            messages: messages.clone(),
            begun: Instant::now(),
            last: None,
            took: Duration::ZERO,
            spent: (cpu_time(), Instant::now()),
        }
    }

    /// What is asked for, if a snapshot is due.
    fn due(&mut self, now: Instant) -> Option<Asked> {
        let asked = self.control.now();
        let is_due = match self.last {
            None => now.duration_since(self.begun) >= PART_AFTER.min(asked.interval),
            Some((last, by)) => {
                // Who asks for other rows does not wait for having looked at these for long.
                let rest = (by == asked.by).then(|| self.took * BUDGET);
                let interval = asked.interval.max(rest.unwrap_or_default());
                // Parts come a little late: that must not double the interval.
                now.duration_since(last) >= interval.saturating_sub(PART_AFTER / 4)
            }
        };
        is_due.then(|| {
            self.last = Some((now, asked.by));
            asked
        })
    }

    fn seconds(&self, now: Instant) -> f64 {
        now.duration_since(self.begun).as_secs_f64()
    }

    fn give(&mut self, data: Data, losses: Losses) {
        let (spent, now) = (cpu_time(), Instant::now());
        let since = now.duration_since(self.spent.1).as_secs_f64();
        let own = spent.saturating_sub(self.spent.0).as_secs_f64();
        let own_cpu = (since > 0.1).then(|| own / since);
        self.spent = (spent, now);
        let snapshot = Snapshot {
            data,
            seconds: self.seconds(now),
            own_cpu,
            lost: losses.events,
            is_cut: losses.is_cut,
        };
        // Nobody listens any more where the screen has ended.
        let _ = self
            .messages
            .send(Message::Snapshot(self.turn, Arc::new(snapshot)));
    }
}

/// CPU time of this process so far.
fn cpu_time() -> Duration {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ProcessCPUTime);
    Duration::new(time.tv_sec.max(0) as u64, time.tv_nsec as u32)
}

impl<L: Live> Follow for Reporting<'_, L> {
    fn attach(&mut self, pid: u32, threads: &[(u32, String)]) {
        self.live.attach(pid, threads);
    }

    fn look_back(&mut self, present: &Present) {
        self.live.look_back(present);
    }

    fn take(&mut self, part: Part) {
        self.live.take(part);
        let now = Instant::now();
        if let Some(asked) = self.pace.due(now) {
            let losses = *self.losses.lock().unwrap_or_else(PoisonError::into_inner);
            let seconds = self.pace.seconds(now);
            let data = self.live.data(asked.by, seconds, losses);
            self.pace.took = now.elapsed();
            self.pace.give(data, losses);
        }
    }
}

impl Recording<'_> {
    /// Records what is asked for until it is over.
    pub fn run(mut self) {
        let mut loaded: Option<(Tab, Recorder)> = None;
        loop {
            let asked = self.control.now();
            if asked.is_over {
                return;
            }
            let done = match self.recorder(asked.tab, &mut loaded) {
                Ok(recorder) => self.record(asked, recorder),
                Err(why) => {
                    loaded = None;
                    self.look(asked, why)
                }
            };
            if let Err(failure) = done {
                self.tell(asked.tab, failure.message);
                (self.ready)();
                while self.control.wait(asked.turn, Duration::from_secs(3600)) {}
            }
        }
    }

    fn tell(&self, tab: Tab, text: String) {
        let _ = self.messages.send(Message::Notice(tab, text));
    }

    /// The one of this tab: it is loaded again only where another was between.
    fn recorder<'r>(
        &self,
        tab: Tab,
        loaded: &'r mut Option<(Tab, Recorder)>,
    ) -> Result<&'r mut Recorder, Option<RecorderError>> {
        if self.selection.probe == ProbeKind::Proc {
            return Err(None);
        }
        if loaded.as_ref().is_none_or(|(of, _)| *of != tab) {
            // The one before gives its memory back first.
            *loaded = None;
            let memory = self.selection.memory_bytes();
            let settings = match tab {
                Tab::Locks => locks::live::settings(self.cpus, self.owners),
                Tab::Sched => sched::live::settings(self.cpus),
                Tab::Mem => mem::live::settings(self.cpus, self.holds),
            };
            let settings = Settings {
                part_after: PART_AFTER,
                everyone: self.selection.system,
                ..settings.within(memory)
            };
            *loaded = Some((tab, Recorder::new(&settings).map_err(Some)?));
        }
        let (_, recorder) = loaded.as_mut().expect("loaded above");
        Ok(recorder)
    }

    fn record(&mut self, asked: Asked, recorder: &mut Recorder) -> Result<(), Failure> {
        let selection = self.selection;
        match asked.tab {
            Tab::Locks => {
                let live = locks::live::Recorded::new(selection, recorder, self.owners)?;
                self.follow(asked, recorder, live)
            }
            Tab::Sched => {
                let live = sched::live::Recorded::new(selection, recorder, self.cpus)?;
                self.follow(asked, recorder, live)
            }
            Tab::Mem => {
                let looker = mem::live::looker(selection);
                let live =
                    mem::live::Recorded::new(selection, recorder, self.cpus, &looker, self.holds);
                self.follow(asked, recorder, live)
            }
        }
    }

    fn follow(
        &mut self,
        asked: Asked,
        recorder: &mut Recorder,
        live: impl Live,
    ) -> Result<(), Failure> {
        let losses = Mutex::new(Losses::default());
        let mut reporting = Reporting {
            live,
            pace: Pace::new(self.control, asked.turn, &self.messages),
            losses: &losses,
        };
        let (control, ready) = (self.control, &mut self.ready);
        live::follow(
            self.selection,
            self.cpus,
            recorder,
            &mut reporting,
            |recorder| {
                ready();
                *losses.lock().unwrap_or_else(PoisonError::into_inner) = recorder.losses();
                control.wait(asked.turn, CARE)
            },
        )
    }

    /// Without BPF.
    fn look(&mut self, asked: Asked, why: Option<RecorderError>) -> Result<(), Failure> {
        let (why, remedy) = match &why {
            None => (String::new(), "leave --probe proc away"),
            Some(error) if self.selection.probe == ProbeKind::Bpf => {
                return Err(watch::refused(error));
            }
            Some(error) => (
                format!(", since BPF cannot be used ({error})"),
                watch::bpf_remedy(error),
            ),
        };
        let selection = self.selection;
        let mut look: Box<dyn Look> = match asked.tab {
            Tab::Locks => Box::new(locks::live::Polling::of(
                selection,
                self.owners,
                &why,
                remedy,
            )?),
            Tab::Sched => Box::new(sched::live::Looked::new(selection, remedy)),
            Tab::Mem => Box::new(mem::live::Looked::new(selection, &why, remedy)),
        };
        let mut pace = Pace::new(self.control, asked.turn, &self.messages);
        loop {
            let pause = look.look();
            (self.ready)();
            let now = Instant::now();
            if let Some(asked) = pace.due(now) {
                let data = look.data(asked.by, pace.seconds(now));
                pace.took = now.elapsed();
                pace.give(data, Losses::default());
            }
            if !self.control.wait(asked.turn, pause) {
                return Ok(());
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::channel;

    use super::*;

    #[test]
    fn large_tables_come_less_often_until_others_are_asked_for() {
        let control = Control::new(Tab::Locks, By::Site, Duration::from_secs(1));
        let (sender, _messages) = channel();
        let mut pace = Pace::new(&control, 0, &sender);
        let begun = pace.begun;
        let is_due =
            |pace: &mut Pace<'_>, ms| pace.due(begun + Duration::from_millis(ms)).is_some();
        assert!(!is_due(&mut pace, 400) && is_due(&mut pace, 600));
        pace.took = Duration::from_millis(10);
        assert!(!is_due(&mut pace, 1400) && is_due(&mut pace, 1600));
        pace.took = Duration::from_millis(100);
        assert!(!is_due(&mut pace, 6400) && is_due(&mut pace, 6600));
        control.ask(|asked| asked.by = By::Thread);
        assert!(!is_due(&mut pace, 7400) && is_due(&mut pace, 7600));
        assert!(!is_due(&mut pace, 12_400) && is_due(&mut pace, 12_600));
    }
}
