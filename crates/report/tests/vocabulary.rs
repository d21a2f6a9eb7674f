//! The cause ids are the vocabulary of `amdahl-speedup`; each has its own look here.

mod fixture;

use amdahl_report::html;
use amdahl_speedup::cause::Cause;

#[test]
fn every_cause_has_a_look_of_its_own() {
    let mut result = fixture::sweep();
    let part = 1.0 / Cause::ALL.len() as f64;
    let point = result.points.last_mut().unwrap();
    // In the order of the vocabulary, which is the order of drawing.
    point.stack = Cause::ALL
        .iter()
        .map(|cause| (cause.id().to_owned(), part))
        .collect();
    let page = html::render(&result, &[]);
    let bar = page.rsplit_once(r#"aria-label="8"#).unwrap().1;
    let letters: Vec<&str> = bar
        .split(r#"<span class="letter">"#)
        .skip(1)
        .map(|rest| rest.split_once('<').unwrap().0)
        .collect();
    assert_eq!(letters.len(), Cause::ALL.len());
    assert!(
        !letters.contains(&"*"),
        "a cause without a look: {letters:?}"
    );
    let ids: Vec<&str> = bar
        .split(r#"data-figure="points.3.stack."#)
        .skip(1)
        .map(|rest| rest.split_once('"').unwrap().0)
        .take(Cause::ALL.len())
        .collect();
    assert_eq!(ids, Cause::ALL.map(Cause::id));
}
