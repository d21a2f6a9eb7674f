//! What is said at a door. Pure.

use std::path::PathBuf;
use std::time::Duration;

use amdahl_remote::Credentials;
use serde::{Deserialize, Serialize};

use crate::plan::converge::{Limits, Round};
use crate::{DepartureStats, Outage, Way};

/// The version of what is said.
const FORMAT: &str = "amdahl.migrate-door/1";

/// What is wanted of a process.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Request {
    format: String,
    /// Where to: a [`Way`](crate::Way) as text.
    pub to: String,
    /// Milliseconds for which the guest may stand still.
    pub downtime_ms: u64,
    /// Rounds while it runs.
    pub rounds: u32,
    /// Whether pages may be fetched after the switch-over.
    pub post_copy: bool,
    /// Whether the guest may be slowed down.
    pub throttle: bool,
    /// Milliseconds for which the other side may say nothing.
    pub timeout_ms: u64,
    /// Milliseconds for which the other side is tried again when it is away after the switch-over; 0: it is not.
    #[serde(default)]
    pub recover_ms: u64,
    /// Files that the process reads by itself.
    pub tls: Option<Files>,
}

/// Credentials by their files; absolute paths, since the process is in a folder of its own.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Files {
    /// Our certificate.
    pub certificate: PathBuf,
    /// Its key.
    pub key: PathBuf,
    /// Who vouches for the other side.
    pub authorities: PathBuf,
    /// The name in the other side's certificate, if that is not its address.
    pub name: Option<String>,
}

impl Files {
    pub(super) fn credentials(&self) -> Credentials {
        Credentials {
            certificates: self.certificate.clone(),
            key: self.key.clone(),
            authorities: self.authorities.clone(),
        }
    }
}

impl Request {
    /// To that place, and as [`Limits::default`] and [`Departure::default`](crate::Departure) have it else.
    pub fn new(to: &Way) -> Request {
        let limits = Limits::default();
        Request {
            format: FORMAT.to_owned(),
            to: to.to_string(),
            downtime_ms: millis(limits.downtime_max),
            rounds: limits.rounds_max,
            post_copy: limits.post_copy,
            throttle: limits.throttle,
            timeout_ms: 10_000,
            recover_ms: 0,
            tls: None,
        }
    }

    pub(super) fn limits(&self) -> Limits {
        Limits {
            downtime_max: Duration::from_millis(self.downtime_ms),
            rounds_max: self.rounds.max(1),
            post_copy: self.post_copy,
            throttle: self.throttle,
        }
    }

    /// A second and an hour are the bounds.
    pub(super) fn timeout(&self) -> Duration {
        Duration::from_millis(self.timeout_ms.clamp(1000, 3_600_000))
    }

    /// A day at most.
    pub(super) fn recovery(&self) -> Option<Duration> {
        let recovery = Duration::from_millis(self.recover_ms.min(86_400_000));
        (!recovery.is_zero()).then_some(recovery)
    }

    /// Of a line that anybody may have written.
    ///
    /// # Errors
    /// What is wrong with it, for people.
    pub fn of_line(line: &[u8]) -> Result<Request, String> {
        let request: Request = serde_json::from_slice(line)
            .map_err(|error| format!("what is asked is not understood: {error}"))?;
        match request.format == FORMAT {
            true => Ok(request),
            false => Err(format!(
                "asked in {:?}, and {FORMAT:?} is spoken here",
                request.format
            )),
        }
    }
}

fn millis(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
}

fn nanos(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}

/// What happens, as who asked is told. The first is `Begun`, the last one of `Moved`, `Stayed` and `Unknown`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "event", rename_all = "kebab-case")]
#[non_exhaustive]
pub enum News {
    /// The process has taken the request, and connects.
    Begun {
        /// Of its memory.
        memory_bytes: u64,
    },
    /// A round is over.
    Round {
        /// Counted from 1.
        number: u64,
        /// That were to be sent.
        pages: u64,
        /// That were sent for them.
        bytes: u64,
        /// Until they were in their places.
        took_ns: u64,
        /// Written meanwhile.
        dirty_pages: u64,
        /// How long the guest would stand still if that was sent now.
        downtime_estimate_ns: u64,
    },
    /// The guest runs at the other side: there is no way back.
    SwitchedOver {
        /// How long it stood still.
        downtime_ns: u64,
        /// Left to be fetched.
        left_pages: u64,
    },
    /// So many pages are still to be fetched.
    ToFetch {
        /// How many.
        pages: u64,
    },
    /// After the switch-over: whether the guest runs there is not known; its pages are served on.
    InDoubt {
        /// Why.
        why: String,
    },
    /// After the switch-over: the other side is away, and is tried again; its pages are served on.
    Paused {
        /// Why.
        why: String,
        /// How long it is tried.
        within_ms: u64,
    },
    /// It is there again, and goes on from there.
    Recovered {
        /// How long it was away.
        away_ns: u64,
    },
    /// All of it is at the other side, which needs nothing of this one any more.
    Moved {
        /// What was done.
        #[serde(flatten)]
        figures: Figures,
    },
    /// Nothing has changed: the guest goes on where it was.
    Stayed {
        /// Why.
        why: String,
    },
    /// The guest stands still here, whether it runs there is not known, and its pages are served no longer.
    Unknown {
        /// Why.
        why: String,
    },
}

/// [`DepartureStats`] as they are told.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Figures {
    /// While the guest ran.
    pub rounds: Vec<RoundFigures>,
    /// All bytes of the connection.
    pub sent_bytes: u64,
    /// Pages that the guest wrote in the last round, by its time.
    pub dirty_pages_per_s: f64,
    /// Sent while it stood still.
    pub paused_pages: u64,
    /// Left to be fetched.
    pub left_pages: u64,
    /// The most that the guest was slowed down by.
    pub throttle_percent: u8,
    /// How long it was expected to stand still.
    pub downtime_estimate_ns: u64,
    /// How long it did.
    pub downtime_ns: u64,
    /// How often the other side was away after the switch-over.
    #[serde(default)]
    pub outages: u32,
}

/// [`Round`] as it is told.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct RoundFigures {
    /// That were to be sent.
    pub pages: u64,
    /// That were sent.
    pub bytes: u64,
    /// Until they were in their places.
    pub took_ns: u64,
    /// Written meanwhile.
    pub dirty_pages: u64,
    /// How long the guest would have stood still if that had been sent then.
    pub downtime_estimate_ns: u64,
}

impl From<&Round> for RoundFigures {
    fn from(round: &Round) -> RoundFigures {
        RoundFigures {
            pages: round.pages,
            bytes: round.bytes,
            took_ns: nanos(round.took),
            dirty_pages: round.dirty_pages,
            downtime_estimate_ns: nanos(round.downtime_estimate),
        }
    }
}

impl From<&DepartureStats> for Figures {
    fn from(stats: &DepartureStats) -> Figures {
        Figures {
            rounds: stats.rounds.iter().map(RoundFigures::from).collect(),
            sent_bytes: stats.sent_bytes,
            dirty_pages_per_s: stats.dirty_pages_per_second(),
            paused_pages: stats.paused_pages,
            left_pages: stats.left_pages,
            throttle_percent: stats.throttle_percent,
            downtime_estimate_ns: nanos(stats.downtime_estimate),
            downtime_ns: nanos(stats.downtime),
            outages: stats.outages,
        }
    }
}

impl From<&Outage> for News {
    fn from(outage: &Outage) -> News {
        match outage {
            Outage::Begun { why, within } => News::Paused {
                why: why.clone(),
                within_ms: millis(*within),
            },
            Outage::Over { lasted } => News::Recovered {
                away_ns: nanos(*lasted),
            },
        }
    }
}

impl News {
    pub(super) fn round(number: u64, round: &Round) -> News {
        let figures = RoundFigures::from(round);
        News::Round {
            number,
            pages: figures.pages,
            bytes: figures.bytes,
            took_ns: figures.took_ns,
            dirty_pages: figures.dirty_pages,
            downtime_estimate_ns: figures.downtime_estimate_ns,
        }
    }

    /// Whether nothing follows.
    pub fn is_last(&self) -> bool {
        matches!(
            self,
            News::Moved { .. } | News::Stayed { .. } | News::Unknown { .. }
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_asked_arrives_as_it_was_and_nothing_else_is_taken() {
        let way: Way = "host:7000".parse().unwrap();
        let mut request = Request::new(&way);
        request.tls = Some(Files {
            certificate: "/a".into(),
            key: "/b".into(),
            authorities: "/c".into(),
            name: None,
        });
        let line = serde_json::to_vec(&request).unwrap();
        assert_eq!(Request::of_line(&line), Ok(request.clone()));
        assert_eq!(request.limits(), Limits::default());
        request.format = "amdahl.migrate-door/2".into();
        let line = serde_json::to_vec(&request).unwrap();
        assert!(Request::of_line(&line).unwrap_err().contains("door/2"));
        for wrong in [&b""[..], b"{}", b"[1]", b"\xff", &line[..20]] {
            assert!(Request::of_line(wrong).is_err());
        }
        // Nobody waits for a time that somebody else has made up.
        assert_eq!(request.recovery(), None);
        (request.timeout_ms, request.rounds) = (u64::MAX, 0);
        request.recover_ms = u64::MAX;
        assert_eq!(request.timeout(), Duration::from_secs(3600));
        assert_eq!(request.recovery(), Some(Duration::from_secs(86_400)));
        assert_eq!(request.limits().rounds_max, 1);
    }

    #[test]
    fn news_are_lines_with_a_name() {
        let stats = DepartureStats {
            rounds: vec![Round {
                pages: 7,
                took: Duration::from_secs(1),
                dirty_pages: 3,
                downtime_estimate: Duration::MAX,
                ..Round::default()
            }],
            ..DepartureStats::default()
        };
        let news = News::Moved {
            figures: Figures::from(&stats),
        };
        let line = serde_json::to_value(&news).unwrap();
        assert_eq!(line["event"], "moved");
        assert_eq!(line["rounds"][0]["downtime_estimate_ns"], u64::MAX);
        assert_eq!(line["dirty_pages_per_s"], 3.0);
        assert_eq!(serde_json::from_value::<News>(line).unwrap(), news);
        assert!(news.is_last());
        assert!(!News::ToFetch { pages: 1 }.is_last());
    }
}
