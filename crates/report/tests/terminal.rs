//! What a terminal shows.
mod fixture;

use amdahl_report::terminal::{Style, render};

#[test]
fn show() {
    let r = fixture::sweep();
    println!(
        "{}",
        render(
            &r,
            80,
            Style {
                color: false,
                unicode: true
            }
        )
    );
    println!(
        "{}",
        render(
            &r,
            40,
            Style {
                color: true,
                unicode: false
            }
        )
    );
    println!(
        "{}",
        render(
            &r,
            120,
            Style {
                color: true,
                unicode: true
            }
        )
    );
}
