//! Simulates what others have published about schedulers, and says how far off it is:
//! `cargo run --release -p amdahl-des --example published -- experiments/2026-11-22-published-schedulers [SECTION...]`.

mod hackbench;
mod lab;
mod nix;
mod search;
mod storms;

use lab::{Lab, Result};

type Section = fn(&mut Lab) -> Result<()>;

const SECTIONS: &[(&str, Section)] = &[
    ("hackbench", hackbench::run),
    ("bounded", search::bounded),
    ("utilisation", search::utilisation),
    ("nix", nix::run),
    ("pipes", storms::pipes),
    ("counter", storms::counter),
    ("shared", storms::shared),
    ("lending", storms::lending),
];

fn main() -> Result<()> {
    let mut arguments = std::env::args().skip(1);
    let folder = arguments
        .next()
        .ok_or("usage: published FOLDER [SECTION...]")?;
    let wanted: Vec<String> = arguments.collect();
    let mut lab = Lab {
        folder: folder.into(),
        seeds: 3,
        report: String::new(),
        csv: "section,row,published,simulated,error_percent,role\n".into(),
    };
    for (name, section) in SECTIONS {
        if wanted.is_empty() || wanted.iter().any(|wanted| wanted == name) {
            section(&mut lab).map_err(|error| format!("{name}: {error}"))?;
        }
    }
    if wanted.is_empty() {
        std::fs::write(lab.folder.join("results.md"), lab.report.trim_start())?;
        std::fs::write(lab.folder.join("results.csv"), &lab.csv)?;
    }
    Ok(())
}
