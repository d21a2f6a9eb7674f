//! The result in one sentence or two.

use crate::number::{factor_digits, percent_coarse};
use crate::palette::look_of;
use crate::plain::{elide, plain};
use crate::point::{PointId, count};
use crate::schema::{Point, ScaleResult};

/// Below this fraction of the capacity nothing is blamed.
pub(crate) const WORTH_BLAMING: f64 = 0.02;
/// Nor is anything where so much is work: what is left is what starting, ending and measuring take, on a shared machine also others.
const ALL_WORK: f64 = 0.95;

/// A piece of a sentence.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Part {
    /// Words.
    Words(String),
    /// A name from the program's code.
    Code(String),
    /// A number of the result.
    Figure {
        /// Where it stands in `result.json`.
        path: String,
        /// Its exact value.
        value: f64,
        /// How the sentence says it.
        text: String,
    },
}

/// What a reader should take away when he reads nothing else.
pub(crate) struct Headline {
    /// How well it scales.
    pub speedup: Vec<Part>,
    /// Where most of the rest goes; empty when there is nothing to say.
    pub loss: Vec<Part>,
}

/// The result as plain text, e.g. `On 8 CPUs it runs 3.1× as fast as on one. The largest loss: ...`.
/// Numbers and their units are joined by no-break spaces.
pub fn text(result: &ScaleResult) -> String {
    let line = headline(result);
    format!("{} {}", sentence(&line.speedup), sentence(&line.loss))
        .trim_end()
        .to_owned()
}

/// The sentence without its parts.
pub(crate) fn sentence(parts: &[Part]) -> String {
    let text = |part: &Part| match part {
        Part::Words(text) | Part::Figure { text, .. } => text.clone(),
        Part::Code(text) => format!("`{text}`"),
    };
    parts.iter().map(text).collect()
}

fn words(text: impl Into<String>) -> Part {
    Part::Words(text.into())
}

/// Makes the headline of a result.
pub(crate) fn headline(result: &ScaleResult) -> Headline {
    let Some((at, main)) = result.main_point() else {
        return Headline {
            speedup: vec![words("Nothing was measured.")],
            loss: Vec::new(),
        };
    };
    let mut speedup = speedup(result, at, main);
    speedup.extend(oversubscribed(&result.points, main));
    Headline {
        speedup,
        loss: loss(result, at, main),
    }
}

/// `2 CPUs`, `2 CPUs with 8 threads`.
fn place(at: usize, point: &Point) -> Vec<Part> {
    let id = PointId::from(point);
    let mut parts = vec![Part::Figure {
        path: format!("points.{at}.cpus"),
        value: f64::from(point.cpus),
        text: count(id.cpus(), "CPU"),
    }];
    if id.is_oversubscribed() {
        parts.extend([words(" with "), threads(at, point)]);
    }
    parts
}

fn threads(at: usize, point: &Point) -> Part {
    Part::Figure {
        path: format!("points.{at}.threads"),
        value: f64::from(point.threads),
        text: count(point.threads, "thread"),
    }
}

fn speedup(result: &ScaleResult, at: usize, main: &Point) -> Vec<Part> {
    let first = &result.points[0];
    let sentence =
        |begin: &str, end: Vec<Part>| [vec![words(begin)], place(at, main), end].concat();
    if !result.has_speedup() {
        return match main.stack.get("work") {
            Some(&work) => {
                let share = Part::Figure {
                    path: format!("points.{at}.stack.work"),
                    value: work,
                    text: percent_coarse(work),
                };
                let end = words(" of the CPU time is useful work.");
                sentence("On ", vec![words(", "), share, end])
            }
            None => sentence("It ran on ", vec![words(".")]),
        };
    }
    let base = if first.cpus == 1 {
        "one".to_owned()
    } else {
        first.cpus.to_string()
    };
    #[expect(
        clippy::float_cmp,
        reason = "the baseline is one by definition, not by computation"
    )]
    let ratio = if first.speedup == 1.0 {
        Part::Figure {
            path: format!("points.{at}.speedup"),
            value: main.speedup,
            text: format!("{}×", coarse_factor(main.speedup)),
        }
    } else if first.speedup > 0.0 {
        words(format!("{}×", coarse_factor(main.speedup / first.speedup)))
    } else {
        let end = words(" it ran; there is no baseline to compare with.");
        return sentence("On ", vec![end]);
    };
    let end = words(format!(" as fast as on {base}."));
    sentence("On ", vec![words(" it runs "), ratio, end])
}

/// What more threads than CPUs change, where the result is about one for each: the point with most of them.
fn oversubscribed(points: &[Point], main: &Point) -> Vec<Part> {
    let Some((at, most)) = points.iter().enumerate().next_back() else {
        return Vec::new();
    };
    let is_more = most.cpus == main.cpus && PointId::from(most) > PointId::from(main);
    if !is_more || main.speedup <= 0.0 {
        return Vec::new();
    }
    let ratio = coarse_factor(most.speedup / main.speedup);
    let fewer = PointId::from(main).threads();
    vec![
        words(" With "),
        threads(at, most),
        words(format!(" there it runs {ratio}× as fast as with {fewer}.")),
    ]
}

fn loss(result: &ScaleResult, at: usize, main: &Point) -> Vec<Part> {
    let (id, fraction, site, path) = match result.causes.first() {
        Some(cause) => {
            let path = "causes.0.fraction".to_owned();
            (cause.id.as_str(), cause.fraction, cause.sites.first(), path)
        }
        None => {
            let losses = main.stack.iter().filter(|(id, _)| *id != "work");
            match losses.max_by(|a, b| a.1.total_cmp(b.1)) {
                Some((id, &part)) => (id.as_str(), part, None, format!("points.{at}.stack.{id}")),
                None => return Vec::new(),
            }
        }
    };
    let work = main.stack.get("work").copied().unwrap_or(0.0);
    if fraction < WORTH_BLAMING || work >= ALL_WORK {
        let bound = (fraction.max(WORTH_BLAMING) * 100.0).ceil() / 100.0;
        return vec![words(format!(
            "Nothing to blame: no loss takes more than {} of the CPU time.",
            percent_coarse(bound)
        ))];
    }
    let share = Part::Figure {
        path,
        value: fraction,
        text: percent_coarse(fraction),
    };
    if id == "unexplained" {
        let begin = "The largest part of the loss could not be explained: ";
        return vec![words(begin), share, words(" of the CPU time.")];
    }
    let title = match look_of(id).title {
        "" => String::new(),
        title => format!(" ({title})"),
    };
    let begin = format!("The largest loss: {}{title}, ", elide(&plain(id), 40, "…"));
    let mut parts = vec![words(begin), share, words(" of the CPU time")];
    if let Some(site) = site.filter(|site| !site.symbol.is_empty()) {
        parts.extend([
            words(", in "),
            Part::Code(elide(&plain(&site.symbol), 60, "…")),
        ]);
        if let (Some(file), Some(line)) = (&site.file, site.line) {
            let file = file.rsplit('/').next().unwrap_or(file);
            parts.push(words(format!(" ({}:{line})", elide(&plain(file), 40, "…"))));
        }
    }
    parts.push(words("."));
    parts
}

fn coarse_factor(ratio: f64) -> String {
    if (0.95..9.95).contains(&ratio) {
        format!("{ratio:.1}")
    } else {
        factor_digits(ratio)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::schema::{CauseReport, NO_SPEEDUP, Site};

    fn result(points: &[(u32, f64)]) -> ScaleResult {
        let point = |&(cpus, speedup): &(u32, f64)| Point {
            cpus,
            speedup,
            ..Point::default()
        };
        ScaleResult {
            points: points.iter().map(point).collect(),
            ..ScaleResult::default()
        }
    }

    #[test]
    fn names_the_largest_loss_and_its_place() {
        let mut r = result(&[(1, 1.0), (8, 3.08)]);
        let site = Site {
            symbol: "worker".into(),
            file: Some("/src/x.c".into()),
            line: Some(12),
            ..Site::default()
        };
        r.causes = vec![CauseReport {
            id: "lock-wait".into(),
            fraction: 0.412,
            sites: vec![site],
            ..CauseReport::default()
        }];
        let h = headline(&r);
        assert_eq!(
            sentence(&h.speedup),
            "On 8\u{a0}CPUs it runs 3.1× as fast as on one."
        );
        assert_eq!(
            sentence(&h.loss),
            "The largest loss: lock-wait (waiting for a lock), 41\u{a0}% of the CPU time, in `worker` (x.c:12)."
        );
    }

    #[test]
    fn blames_nothing_when_nothing_is_lost() {
        let mut r = result(&[(2, 2.0), (4, 3.96)]);
        r.points[1].stack = [("work".into(), 0.99), ("serial".into(), 0.01)].into();
        let h = headline(&r);
        assert_eq!(
            sentence(&h.speedup),
            "On 4\u{a0}CPUs it runs 2.0× as fast as on 2."
        );
        assert!(
            sentence(&h.loss).starts_with("Nothing to blame"),
            "{}",
            sentence(&h.loss)
        );
    }

    #[test]
    fn who_works_all_the_time_is_not_blamed_for_what_little_is_left() {
        let loss = |work: f64, fraction: f64| {
            let mut r = result(&[(1, 1.0), (2, 1.95)]);
            r.points[1].stack = [("work".into(), work), ("placement".into(), fraction)].into();
            r.causes = vec![CauseReport {
                id: "placement".into(),
                fraction,
                ..CauseReport::default()
            }];
            sentence(&headline(&r).loss)
        };
        assert_eq!(
            loss(0.965, 0.031),
            "Nothing to blame: no loss takes more than 4.0\u{a0}% of the CPU time."
        );
        assert!(loss(0.94, 0.031).contains("placement"));
    }

    #[test]
    fn more_threads_than_cpus_are_told_apart() {
        let mut r = result(&[(1, 1.0), (2, 1.9), (2, 1.8), (2, 1.33)]);
        (r.points[2].threads, r.points[3].threads) = (4, 8);
        r.causes_point = Some(1);
        assert_eq!(
            sentence(&headline(&r).speedup),
            "On 2\u{a0}CPUs it runs 1.9× as fast as on one. With 8\u{a0}threads there it runs 0.70× as fast as with 2."
        );
        // Of the result of an older version the causes are those of the last point.
        r.causes_point = None;
        assert_eq!(
            sentence(&headline(&r).speedup),
            "On 2\u{a0}CPUs with 8\u{a0}threads it runs 1.3× as fast as on one."
        );
    }

    #[test]
    fn one_point_has_no_speedup() {
        let mut r = result(&[(4, 4.0)]);
        r.points[0].stack = [("work".into(), 0.61)].into();
        assert_eq!(
            sentence(&headline(&r).speedup),
            "On 4\u{a0}CPUs, 61\u{a0}% of the CPU time is useful work."
        );
        assert_eq!(
            sentence(&headline(&ScaleResult::default()).speedup),
            "Nothing was measured."
        );
    }

    #[test]
    fn unknown_work_has_no_speedup() {
        let mut r = result(&[(1, 1.0), (4, 1.0)]);
        r.settings.speedup_of = NO_SPEEDUP.to_owned();
        r.points[1].stack = [("work".into(), 0.61)].into();
        assert_eq!(
            sentence(&headline(&r).speedup),
            "On 4\u{a0}CPUs, 61\u{a0}% of the CPU time is useful work."
        );
    }
}
