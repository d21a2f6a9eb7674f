//! Numbers of the result on the page: each carries its path in `result.json` and its exact value.

use maud::{Markup, html};

use crate::headline::Part;
use crate::number::{factor_digits, percent, seconds, significant};
use crate::plain::plain;
use crate::point::PointId;

/// `text` as the reader's form of the number `value` that stands at `path`.
pub(crate) fn figure(path: &str, value: f64, text: &str) -> Markup {
    // The shortest text that reads back as the same number.
    html! { span data-figure=(path) data-value=(value) { (text) } }
}

/// A fraction as percent.
pub(crate) fn share(path: &str, fraction: f64) -> Markup {
    figure(path, fraction, &percent(fraction))
}

/// Seconds.
pub(crate) fn time(path: &str, value: f64) -> Markup {
    figure(path, value, &seconds(value))
}

/// A factor such as a speedup.
pub(crate) fn factor(path: &str, value: f64) -> Markup {
    figure(path, value, &format!("{}×", factor_digits(value)))
}

/// A plain number.
pub(crate) fn number(path: &str, value: f64) -> Markup {
    figure(path, value, &significant(value))
}

/// A count.
pub(crate) fn count(path: &str, value: u64) -> Markup {
    html! { span data-figure=(path) data-value=(value) { (value) } }
}

/// Which point of a sweep; `path` is that of what has its CPUs and threads.
pub(crate) fn place(path: &str, id: PointId) -> Markup {
    html! {
        (count(&format!("{path}.cpus"), u64::from(id.cpus())))
        span.unit { @if id.cpus() == 1 { " CPU" } @else { " CPUs" } }
        @if id.is_oversubscribed() {
            " with " (count(&format!("{path}.threads"), u64::from(id.threads()))) " threads"
        }
    }
}

/// A range from low to high; `path` is that of the pair.
pub(crate) fn range(path: &str, [low, high]: [f64; 2], show: fn(f64) -> String) -> Markup {
    html! {
        (figure(&format!("{path}.0"), low, &show(low)))
        " to "
        (figure(&format!("{path}.1"), high, &show(high)))
    }
}

/// A sentence with its figures.
pub(crate) fn sentence(parts: &[Part]) -> Markup {
    html! {
        @for part in parts {
            @match part {
                Part::Words(text) => (text),
                Part::Code(text) => (code(text)),
                Part::Figure { path, value, text } => (figure(path, *value, text)),
            }
        }
    }
}

/// Text from outside, which may be in any script and direction.
pub(crate) fn foreign(text: &str) -> Markup {
    html! { bdi { (plain(text)) } }
}

/// Code from outside.
pub(crate) fn code(text: &str) -> Markup {
    html! { code dir="ltr" { (plain(text)) } }
}
