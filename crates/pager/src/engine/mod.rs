//! Engines: who serves faults.

pub(crate) mod crew;
pub(crate) mod inline;
pub(crate) mod near;
pub(crate) mod queue;
pub(crate) mod reader;
pub(crate) mod watchdog;
pub(crate) mod worker;

use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::str::FromStr;

use crate::Error;
use crate::event::Event;
use crate::inner::{Inner, Served};
use crate::sys::clock::now_ns;
use crate::sys::support::Support;
use crate::sys::uffd::Features;

/// Who serves faults. Each can be asked for by name; `Auto` chooses.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Engine {
    /// Chosen by what kernel and owner allow: [`Inline`](Engine::Inline) if only user space touches the memory (the owner says so
    /// by [`only_user_space`](crate::Builder::only_user_space)), it is memory of this process and the source is signal-safe;
    /// else [`Sharded`](Engine::Sharded) for memory of this process, else [`Reader`](Engine::Reader), since a descriptor that was
    /// handed over cannot be divided.
    #[default]
    Auto,
    /// One descriptor, one thread that reads its messages. With other threads to hand faults to, if there are some.
    Reader,
    /// A descriptor for each part of the memory, each with a thread of its own that reads its messages; other threads help where
    /// the load is skewed.
    Sharded,
    /// The faulting thread fetches by itself, in a handler of SIGBUS: no other thread is woken, nothing is shared. A system call
    /// (or a KVM guest) that touches a missing page gets EFAULT.
    Inline,
}

impl Engine {
    /// All that can be asked for by name.
    pub const ALL: [Engine; 4] = [
        Engine::Auto,
        Engine::Reader,
        Engine::Sharded,
        Engine::Inline,
    ];

    /// Its name, as it is parsed.
    pub fn name(self) -> &'static str {
        match self {
            Engine::Auto => "auto",
            Engine::Reader => "reader",
            Engine::Sharded => "sharded",
            Engine::Inline => "inline",
        }
    }
}

impl fmt::Display for Engine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for Engine {
    type Err = String;

    fn from_str(text: &str) -> Result<Engine, String> {
        Engine::ALL
            .into_iter()
            .find(|engine| engine.name() == text)
            .ok_or_else(|| format!("no engine is called {text:?}: auto, reader, sharded, inline"))
    }
}

/// What came of a fault that was told by a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Outcome {
    Ended,
    /// The memory is about to change: to be served again after the next messages.
    Later,
}

/// Serves a fault that was told by a message. A panic leaves its page to the watchdog.
pub(crate) fn serve(inner: &Inner, fault: queue::Fault) -> Outcome {
    let served = catch_unwind(AssertUnwindSafe(|| {
        inner.serve(fault.page, fault.thread, fault.since_ns)
    }));
    match served {
        Ok(Served::Done) => {
            let took_ns = now_ns().saturating_sub(fault.since_ns);
            inner.tally.latency.record(took_ns);
        }
        // Woken by who fetches it, or stopped.
        Ok(Served::Busy | Served::Lost) => {}
        Ok(Served::Later) => return Outcome::Later,
        Err(_) => inner.events.tell(Event::Restarted),
    }
    Outcome::Ended
}

/// What the choice goes by.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Circumstances {
    /// All memory is of this process.
    pub is_own: bool,
    /// Nothing but user space touches it.
    pub only_user_space: bool,
    pub is_source_signal_safe: bool,
}

/// The engine that is used; never `Auto`.
///
/// # Errors
/// What was asked for is not possible: says why.
pub(crate) fn choose(
    asked: Engine,
    support: &Support,
    circumstances: Circumstances,
) -> Result<Engine, Error> {
    let Circumstances {
        is_own,
        only_user_space,
        is_source_signal_safe,
    } = circumstances;
    if is_own && support.way.is_none() {
        return Err(Error::Unavailable(support.missing().join("; ")));
    }
    let can_signal = support.features.contain(Features::SIGBUS);
    let inline = is_own && is_source_signal_safe && can_signal;
    match asked {
        Engine::Auto if inline && only_user_space => Ok(Engine::Inline),
        Engine::Auto if is_own => Ok(Engine::Sharded),
        Engine::Auto => Ok(Engine::Reader),
        Engine::Inline if inline => Ok(Engine::Inline),
        Engine::Inline if !is_own => Err(Error::Config(
            "the engine `inline` serves memory of this process alone: use `reader` for a descriptor that was handed over",
        )),
        Engine::Inline if !can_signal => Err(Error::Unavailable(
            "the engine `inline` needs the SIGBUS feature of userfaultfd (Linux 4.14): use `sharded`".to_owned(),
        )),
        Engine::Inline => Err(Error::Config(
            "this source may not be used inside of a signal handler, as the engine `inline` would: use `sharded`",
        )),
        Engine::Sharded if !is_own => Err(Error::Config(
            "a descriptor that was handed over cannot be divided among shards: use `reader`",
        )),
        Engine::Sharded | Engine::Reader => Ok(asked),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sys::support::Way;

    const OWN: Circumstances = Circumstances {
        is_own: true,
        only_user_space: true,
        is_source_signal_safe: true,
    };

    fn support() -> Support {
        let mut support = Support::probe();
        support.way = Some(Way::Call);
        support.features = Features::SIGBUS;
        support
    }

    #[test]
    fn the_rule() {
        let choose = |asked, circumstances| choose(asked, &support(), circumstances).ok();
        assert_eq!(choose(Engine::Auto, OWN), Some(Engine::Inline));
        let kernel = Circumstances {
            only_user_space: false,
            ..OWN
        };
        assert_eq!(choose(Engine::Auto, kernel), Some(Engine::Sharded));
        assert_eq!(choose(Engine::Inline, kernel), Some(Engine::Inline));
        let locks = Circumstances {
            is_source_signal_safe: false,
            ..OWN
        };
        assert_eq!(choose(Engine::Auto, locks), Some(Engine::Sharded));
        assert_eq!(choose(Engine::Inline, locks), None);
        let foreign = Circumstances {
            is_own: false,
            ..OWN
        };
        assert_eq!(choose(Engine::Auto, foreign), Some(Engine::Reader));
        assert_eq!(choose(Engine::Sharded, foreign), None);
        assert_eq!(choose(Engine::Inline, foreign), None);
    }

    #[test]
    fn names_are_parsed() {
        for engine in Engine::ALL {
            assert_eq!(engine.name().parse(), Ok(engine));
        }
        assert!("fast".parse::<Engine>().unwrap_err().contains("sharded"));
    }
}
