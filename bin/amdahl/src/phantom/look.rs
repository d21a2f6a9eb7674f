//! Looking again and again, at a pace that costs little.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use amdahl_phantom::{Estimate, Estimator, How, Look, Sampler, Settings, SourceError, Taken};
use amdahl_phantom_page::{Publisher, Source as PageSource};
use amdahl_report::schema::Source;

use super::account::Account;
use super::host::{self, Host, Teller};
use super::rhythm::{Rhythm, timed};
use super::whom::Whom;
use crate::cli::{Phantom, ProbeKind};
use crate::failure::Failure;
use crate::watch;

/// Looking at what changes seldom takes at most a thousandth of a CPU.
const REFRESH_SHARE: u32 = 1000;

/// What is done with each look.
pub enum Sink<'a> {
    /// Nothing.
    None,
    /// It is shown; `false` ends the looking.
    Show(&'a mut (dyn FnMut(&Estimate) -> Result<bool, Failure> + Send)),
    /// It is published.
    Publish(Publisher),
}

/// Somebody who is looked at.
pub struct Looking {
    whom: Whom,
    sampler: Sampler,
    estimator: Estimator,
    rhythm: Rhythm,
    /// Of the host's page, where nothing else will.
    teller: Option<Teller>,
    /// What there is, and what is missing.
    pub sources: Vec<Source>,
}

/// What was found.
pub struct Found {
    /// All figures.
    pub account: Account,
    /// Who else ran: most first.
    pub taken: Vec<Taken>,
    /// Only the allowed CPUs are in that.
    pub is_of_allowed: bool,
    /// The allowed CPUs as a list.
    pub cpus: String,
    /// For how long.
    pub wall: Duration,
    /// Time between looks at the end.
    pub interval: Duration,
    /// Threads that were not followed because there were too many.
    pub lost: u64,
    /// The host's page, if there is one.
    pub host: Option<Host>,
    /// Why it failed, if it did.
    pub failed: Option<Failure>,
    /// It ended by itself: it failed, or nobody reads any more. Then there is nothing to wait for but a command.
    pub is_over: bool,
}

impl Looking {
    /// Opens the best source that is allowed.
    pub fn new(args: &Phantom, whom: Whom) -> Result<Looking, Failure> {
        let (mut sampler, sources) = open(args, &whom)?;
        host::follow(args, &mut sampler)?;
        let usual = match (args.serve, sampler.source()) {
            (true, PageSource::Bpf) => Duration::from_millis(20),
            _ => Duration::from_millis(100),
        };
        let interval = args.interval.unwrap_or(usual);
        let window_ns = Settings::default()
            .window_ns
            .max(u64::try_from(interval.as_nanos()).unwrap_or(u64::MAX));
        Ok(Looking {
            whom,
            sampler,
            estimator: Estimator::new(Settings { window_ns }),
            rhythm: Rhythm::new(interval, REFRESH_SHARE),
            teller: ((args.serve || args.watch) && !args.quiet).then(Teller::default),
            sources,
        })
    }

    /// Where figures come from.
    pub fn source(&self) -> PageSource {
        self.sampler.source()
    }

    /// Time between looks, unless they turn out to be dear.
    pub fn interval(&self) -> Duration {
        self.rhythm.interval()
    }

    /// Looks until `stop` is set; whoever sets it unparks this thread.
    pub fn run(mut self, mut sink: Sink<'_>, stop: &AtomicBool) -> Found {
        let begun = Instant::now();
        let before = Look::now(&self.sampler);
        let mut account = Account::default();
        let (mut failed, mut is_closed) = (None, false);
        let mut last_ns = 0;
        loop {
            let is_last = stop.load(Ordering::Relaxed);
            let (ticked, cost) = timed(|| self.tick(&mut account, &mut last_ns, &mut sink));
            match ticked {
                Ok(true) => {}
                Ok(false) => {
                    is_closed = true;
                    break;
                }
                Err(failure) => {
                    failed = Some(failure);
                    break;
                }
            }
            if is_last {
                break;
            }
            if self.rhythm.is_refresh_due() {
                let (refreshed, cost) = timed(|| self.refresh());
                if let Err(error) = refreshed {
                    failed = Some(Failure::machine(error.to_string()));
                    break;
                }
                self.rhythm.refreshed(cost);
            }
            self.rhythm.wait(cost, stop);
        }
        let after = Look::now(&self.sampler);
        let mut ours = self.whom.members().processes();
        ours.push(std::process::id());
        Found {
            account,
            taken: after.since(&before, &ours),
            is_of_allowed: after.is_of_allowed() || self.sampler.has_all(),
            cpus: self.sampler.allowed().to_string(),
            wall: begun.elapsed(),
            interval: self.rhythm.interval(),
            lost: self.sampler.lost(),
            host: Host::of(&self.sampler),
            is_over: is_closed || failed.is_some(),
            failed,
        }
    }

    fn refresh(&mut self) -> Result<(), SourceError> {
        self.sampler.refresh(self.whom.members())?;
        if let Some(teller) = &mut self.teller {
            teller.look(&self.sampler);
        }
        Ok(())
    }

    fn tick(
        &mut self,
        account: &mut Account,
        last_ns: &mut u64,
        sink: &mut Sink<'_>,
    ) -> Result<bool, Failure> {
        let failed = |error: SourceError| Failure::machine(error.to_string());
        let reading = self.sampler.read().map_err(failed)?;
        let at_ns = reading.at_ns;
        let elapsed_ns = at_ns.saturating_sub(std::mem::replace(last_ns, at_ns));
        let Some(estimate) = self.estimator.tick(reading) else {
            return Ok(true);
        };
        account.add(&estimate, elapsed_ns as f64 / 1e9);
        match sink {
            Sink::None => Ok(true),
            Sink::Show(show) => show(&estimate),
            Sink::Publish(publisher) => {
                let tick_ns = self.rhythm.interval().as_nanos() as u64;
                publisher.publish(estimate.snapshot(account.ticks, tick_ns));
                Ok(true)
            }
        }
    }
}

fn open(args: &Phantom, whom: &Whom) -> Result<(Sampler, Vec<Source>), Failure> {
    let by_proc = |why: String, remedy: String| {
        let sampler = Sampler::new(whom.scope(), How::Proc)
            .map_err(|error| Failure::machine(error.to_string()))?;
        let missing = missing_of_proc(whom, sampler.source());
        let source = source(
            "runnable CPUs and phantoms",
            "/proc",
            &format!("{missing}{why}"),
            &remedy,
        );
        Ok((sampler, vec![source]))
    };
    if args.probe == ProbeKind::Proc {
        return by_proc(String::new(), "leave --probe proc away".to_owned());
    }
    let how = How::Bpf {
        keeps_takers: !args.serve,
    };
    match Sampler::new(whom.scope(), how) {
        Ok(sampler) => Ok((
            sampler,
            vec![source("runnable CPUs and phantoms", "bpf", "", "")],
        )),
        Err(SourceError::Bpf(error)) if args.probe == ProbeKind::Bpf => Err(watch::refused(&error)),
        Err(SourceError::Bpf(error)) => by_proc(
            format!(" BPF cannot be used: {error}."),
            watch::bpf_remedy(&error).to_owned(),
        ),
        Err(error) => Err(Failure::machine(error.to_string())),
    }
}

fn missing_of_proc(whom: &Whom, source: PageSource) -> &'static str {
    match (whom, source) {
        (Whom::System, _) => {
            "Threads that wait are counted at each look, not in between; running is counted in clock ticks."
        }
        (_, PageSource::Pressure) => {
            "This kernel does not count how long threads wait (no schedstat): phantoms are what pressure stall information shows, which is \
             at most one; running is counted in clock ticks."
        }
        _ => {
            "A wait is counted when it ends, and idling in clock ticks of 10 ms; who else ran is told for all CPUs and without processes \
             that have ended."
        }
    }
}

/// A source as results tell it.
pub fn source(what: &str, how: &str, missing: &str, remedy: &str) -> Source {
    Source {
        what: what.to_owned(),
        how: how.to_owned(),
        missing: missing.to_owned(),
        remedy: remedy.to_owned(),
    }
}
