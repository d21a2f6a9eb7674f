//! Simulates what others have published about schedulers, and says how far off it is:
//! `cargo run --release -p amdahl-des --example published -- experiments/2026-11-22-published-schedulers [--fit] [PAGE...]`.

mod fit;
mod measure;
mod page;
mod report;
mod score;
mod study;

use std::collections::BTreeMap;
use std::error::Error;
use std::fs;
use std::path::PathBuf;

use page::Page;
use report::Section;
use score::{Row, holds, roles};
use study::Study;

type Result<T> = std::result::Result<T, Box<dyn Error>>;

fn main() -> Result<()> {
    let mut arguments: Vec<String> = std::env::args().skip(1).collect();
    let fits = arguments.iter().position(|argument| argument == "--fit");
    if let Some(at) = fits {
        arguments.remove(at);
    }
    if arguments.is_empty() {
        return Err("usage: published FOLDER [--fit] [PAGE...]".into());
    }
    let folder = PathBuf::from(arguments.remove(0));
    let pages = page::read(&folder.join("rows"))?;
    let is_wanted = |page: &&Page| {
        arguments.is_empty()
            || arguments
                .iter()
                .any(|word| page.file.contains(word.as_str()))
    };
    let constants = folder.join("fitted.json");
    let known: BTreeMap<String, f64> = match fs::read_to_string(&constants) {
        Ok(text) => serde_json::from_str(&text)?,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => BTreeMap::new(),
        Err(error) => return Err(format!("cannot read {}: {error}", constants.display()).into()),
    };
    let mut study = Study::new(folder.clone(), known);
    if fits.is_some() {
        fit::fit(&mut study, &pages)?;
        let text = serde_json::to_string_pretty(&study.constants)? + "\n";
        fs::write(&constants, text)?;
    }
    let wanted: Vec<&Page> = pages.iter().filter(is_wanted).collect();
    let specs = wanted
        .iter()
        .map(|page| study.rows(page))
        .collect::<Result<Vec<_>>>()?;
    study.simulate(&specs.concat())?;
    let mut sections = vec![];
    for (page, specs) in wanted.into_iter().zip(specs) {
        let values = study.values(&specs);
        let roles = roles(page, &specs);
        let rows: Vec<Row> = specs
            .into_iter()
            .zip(values)
            .zip(roles)
            .map(|((spec, simulated), role)| Row {
                name: spec.name,
                published: spec.published,
                simulated,
                role,
            })
            .collect();
        let orders = page.orders.iter().map(|order| holds(order, &rows));
        let orders = orders.collect::<std::result::Result<_, _>>()?;
        sections.push(Section { page, rows, orders });
    }
    let text = report::markdown(&sections, &study.constants);
    if arguments.is_empty() {
        fs::write(folder.join("results.md"), &text)?;
        fs::write(folder.join("results.csv"), report::csv(&sections))?;
        let head: Vec<&str> = text
            .lines()
            .take_while(|line| !line.starts_with("## "))
            .collect();
        println!("{}", head.join("\n"));
    } else {
        println!("{text}");
    }
    Ok(())
}
