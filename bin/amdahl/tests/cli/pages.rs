//! The pages of real recordings, in a real browser.

#[path = "../../../../crates/report/tests/chromium/mod.rs"]
mod chromium;

use std::ffi::OsStr;

use serde_json::Value;

use crate::tool::{Place, alone, cpus};
use crate::workload::planted;
use chromium::Chromium;
use chromium::page::{figures, has_been_quiet, is_in_order, kept};

#[test]
fn pages_of_recordings_are_in_order() {
    let _alone = alone();
    let Some(mut browser) = Chromium::start() else {
        return;
    };
    let place = Place::new();
    let Some(program) = planted(&place, "c-two_serial_lock", "gcc") else {
        return;
    };
    let all = cpus().min(4).to_string();
    let counts = if all == "1" {
        all.clone()
    } else {
        format!("1,{all}")
    };
    let sweep = ["scale", "--cpus", &counts, "--runs", "2"];
    let polled = [&sweep[..], &["--probe", "proc"]].concat();
    for (name, args) in [
        ("scale", &sweep[..]),
        ("scale-proc", &polled),
        ("locks", &["locks"]),
        ("sched", &["sched", "record"]),
        ("mem", &["mem"]),
    ] {
        let mut tool = place.tool(args);
        tool.args(["--quiet", "--output", name, "--"]);
        tool.args([program.as_os_str(), OsStr::new(&all)]);
        place.run(tool).ends_with(0);
        let page = place.join(name).join("report.html");
        is_in_order(&mut browser, &page, name);
        let text = browser.evaluate("document.body.textContent");
        let text = text.as_str().expect("text");
        assert!(text.contains("two_serial_lock"), "{name}: {text}");
        browser.screenshot(&kept().join(format!("of-{name}.png")));
        if args[0] == "scale" {
            shows_the_numbers(&mut browser, &place.read(&format!("{name}/result.json")));
        }
        has_been_quiet(&mut browser, &page, name);
    }
}

fn shows_the_numbers(browser: &mut Chromium, result: &str) {
    let result: Value = serde_json::from_str(result).expect("a result");
    let shown = figures(browser, &result);
    let points = result["points"].as_array().expect("points");
    for at in 0..points.len() {
        for field in ["cpus", "wall_s.median", "stack.work"] {
            let figure = format!("points.{at}.{field}");
            assert!(shown.contains(&figure), "{figure} is not shown");
        }
    }
    assert!(shown.contains("causes.0.fraction"));
}
