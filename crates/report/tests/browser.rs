//! The report in a real browser.

mod chromium;
mod fixture;
mod perfetto;

use std::collections::BTreeSet;

use amdahl_report::html;
use chromium::Chromium;
use chromium::page::{FAINT, OVERFLOW, figures, fits_a_phone, has_been_quiet, is_in_order, kept};
use serde_json::Value;

#[test]
fn threads_beyond_the_cpus_are_numbers_of_the_result_too() {
    let Some(mut browser) = Chromium::start() else {
        return;
    };
    let result = fixture::oversubscribed();
    let file = kept().join("oversubscribed.html");
    std::fs::write(&file, html::render(&result, &fixture::rows())).unwrap();
    browser.resize(1280, 900, false);
    browser.open(&file);
    let paths = figures(&mut browser, &serde_json::to_value(&result).unwrap());
    for path in ["points.4.threads", "points.5.threads", "failures.0.threads"] {
        assert!(paths.contains(path), "{path} is not shown");
    }
    browser.screenshot(&kept().join("oversubscribed.png"));
    assert_eq!(browser.complaints(), [""; 0]);
}

#[test]
fn the_page_shows_the_numbers_of_the_result() {
    let Some(mut browser) = Chromium::start() else {
        return;
    };
    let result = fixture::sweep();
    let file = kept().join("report.html");
    std::fs::write(&file, html::render(&result, &fixture::rows())).unwrap();

    browser.resize(1280, 900, false);
    browser.prefer("light");
    browser.open(&file);

    let paths = figures(&mut browser, &serde_json::to_value(&result).unwrap());
    for (i, point) in result.points.iter().enumerate() {
        for field in [
            "cpus",
            "wall_s.median",
            "wall_s.min",
            "wall_s.max",
            "speedup",
            "efficiency",
        ] {
            assert!(
                paths.contains(&format!("points.{i}.{field}")),
                "points.{i}.{field} is not shown"
            );
        }
        for id in point.stack.keys() {
            assert!(
                paths.contains(&format!("points.{i}.stack.{id}")),
                "{id} is not shown"
            );
        }
    }
    for (i, cause) in result.causes.iter().enumerate() {
        assert!(paths.contains(&format!("causes.{i}.fraction")));
        for j in 0..cause.sites.len() {
            assert!(paths.contains(&format!("causes.{i}.sites.{j}.fraction")));
        }
    }
    for path in [
        "models.amdahl.parameters.serial_fraction",
        "models.usl.confidence.contention.1",
        "probe_cost.wall_ratio",
    ] {
        assert!(paths.contains(path), "{path} is not shown");
    }

    // The bars are as wide as their parts say.
    let widths = browser.evaluate(
        "[...document.querySelectorAll('.bar .seg')].map(e => \
         [e.getBoundingClientRect().width / e.parentElement.getBoundingClientRect().width, +e.dataset.value])",
    );
    for pair in widths.as_array().unwrap() {
        let (width, part) = (pair[0].as_f64().unwrap(), pair[1].as_f64().unwrap());
        assert!(
            (width - part).abs() < 0.002,
            "a bar of {width} stands for {part}"
        );
    }

    browser.screenshot(&kept().join("light.png"));
    assert_eq!(browser.requests(), [format!("file://{}", file.display())]);
    assert_eq!(browser.complaints(), [""; 0]);
}

#[test]
fn it_fits_a_phone() {
    let Some(mut browser) = Chromium::start() else {
        return;
    };
    for (name, result, rows) in [
        ("phone", fixture::sweep(), fixture::rows()),
        ("wide", fixture::wide(), fixture::rows()),
        ("hostile", fixture::hostile(), fixture::hostile_rows()),
    ] {
        let file = kept().join(format!("{name}.html"));
        std::fs::write(&file, html::render(&result, &rows)).unwrap();
        browser.prefer("light");
        fits_a_phone(&mut browser, &file, name);
        browser.evaluate("document.querySelectorAll('details').forEach((d, i) => d.open = i == 0)");
        browser.screenshot(&kept().join(format!("{name}.png")));
        assert_eq!(browser.complaints(), [""; 0]);
    }
}

#[test]
fn it_is_readable_in_light_and_dark() {
    let Some(mut browser) = Chromium::start() else {
        return;
    };
    let file = kept().join("dark.html");
    std::fs::write(&file, html::render(&fixture::sweep(), &fixture::rows())).unwrap();
    browser.resize(1280, 900, false);
    let mut backgrounds = Vec::new();
    for scheme in ["light", "dark"] {
        browser.prefer(scheme);
        browser.open(&file);
        browser.evaluate("document.querySelectorAll('details').forEach(d => d.open = true)");
        assert_eq!(browser.evaluate(FAINT), serde_json::json!([]), "{scheme}");
        let background = browser.evaluate("getComputedStyle(document.body).backgroundColor");
        backgrounds.push(background.as_str().unwrap().to_owned());
        browser.evaluate("document.querySelectorAll('details').forEach((d, i) => d.open = i == 0)");
        browser.screenshot(&kept().join(format!("{scheme}-open.png")));
        assert_eq!(browser.complaints(), [""; 0]);
    }
    assert_ne!(backgrounds[0], backgrounds[1]);
}

#[test]
fn it_can_be_used_without_eyes_or_mouse() {
    let Some(mut browser) = Chromium::start() else {
        return;
    };
    let file = kept().join("accessible.html");
    std::fs::write(&file, html::render(&fixture::sweep(), &fixture::rows())).unwrap();
    browser.resize(1280, 900, false);
    browser.open(&file);

    let tree = browser.call("Accessibility.getFullAXTree", serde_json::json!({}));
    let nodes: Vec<(String, String)> = tree["nodes"]
        .as_array()
        .unwrap()
        .iter()
        .filter(|node| node["ignored"] != true)
        .map(|node| {
            ["role", "name"]
                .map(|k| node[k]["value"].as_str().unwrap_or("").to_owned())
                .into()
        })
        .collect();
    let count = |role: &str| nodes.iter().filter(|(r, _)| r == role).count();
    for landmark in ["banner", "navigation", "main", "contentinfo"] {
        assert_eq!(count(landmark), 1, "{landmark}");
    }
    for (role, name) in &nodes {
        if [
            "image",
            "img",
            "region",
            "table",
            "navigation",
            "complementary",
            "link",
        ]
        .contains(&role.as_str())
        {
            assert!(!name.is_empty(), "a {role} without a name");
        }
    }
    assert_eq!(count("table"), 7);
    let orphans = "[...document.querySelectorAll('th')].filter(e => !e.scope).length + \
        [...document.querySelectorAll('table')].filter(e => !e.caption).length";
    assert_eq!(browser.evaluate(orphans), 0);
    let twice = "(ids => ids.length - new Set(ids).size)([...document.querySelectorAll('[id]')].map(e => e.id))";
    assert_eq!(browser.evaluate(twice), 0);
    let levels =
        browser.evaluate("[...document.querySelectorAll('h1,h2,h3')].map(e => +e.tagName[1])");
    let levels: Vec<u64> = levels
        .as_array()
        .unwrap()
        .iter()
        .map(|v| v.as_u64().unwrap())
        .collect();
    assert_eq!(levels[0], 1);
    assert!(
        levels.windows(2).all(|pair| pair[1] <= pair[0] + 1),
        "{levels:?}"
    );

    // Tab reaches the skip link first, then every link, summary and scrolling part, visibly.
    let wanted =
        browser.evaluate("document.querySelectorAll('a, summary, [tabindex=\"0\"]').length");
    let mut seen = BTreeSet::new();
    for step in 0..wanted.as_u64().unwrap() {
        for kind in ["keyDown", "keyUp"] {
            let key = serde_json::json!({"type": kind, "key": "Tab", "code": "Tab", "windowsVirtualKeyCode": 9});
            browser.call("Input.dispatchKeyEvent", key);
        }
        let focus = browser.evaluate(
            "(e => [[...document.querySelectorAll('*')].indexOf(e), e.className, getComputedStyle(e).outlineStyle])(document.activeElement)",
        );
        assert_eq!(focus[2], "solid", "step {step}: {focus}");
        assert!(step > 0 || focus[1] == "skip");
        seen.insert(focus[0].as_u64().unwrap());
    }
    assert_eq!(seen.len() as u64, wanted.as_u64().unwrap());
}

#[test]
fn a_hostile_result_stays_text() {
    let Some(mut browser) = Chromium::start() else {
        return;
    };
    let file = kept().join("attack.html");
    std::fs::write(
        &file,
        html::render(&fixture::hostile(), &fixture::hostile_rows()),
    )
    .unwrap();
    browser.resize(1280, 900, false);
    browser.open(&file);
    let allowed = "a aside b bdi body caption circle code dd desc details div dl dt figcaption figure footer g h1 h2 h3 head header html li line main meta nav ol p polygon polyline rect section span style summary svg table tbody td text tfoot th thead title tr ul";
    let found = browser.evaluate(
        "[...new Set([...document.querySelectorAll('*')].map(e => e.tagName.toLowerCase()))]",
    );
    for tag in found.as_array().unwrap() {
        let tag = tag.as_str().unwrap();
        assert!(allowed.split(' ').any(|a| a == tag), "<{tag}>");
    }
    let handlers = "[...document.querySelectorAll('*')].flatMap(e => [...e.attributes]).filter(a => a.name.startsWith('on')).length";
    assert_eq!(browser.evaluate(handlers), 0);
    // The text arrives as it was, apart from control characters.
    let text = browser.evaluate("document.querySelector('.command code').textContent");
    assert!(text.as_str().unwrap().contains("<script>alert(1)</script>"));
    assert_eq!(browser.requests(), [format!("file://{}", file.display())]);
    assert_eq!(browser.complaints(), [""; 0]);
}

/// The pages of the deep views, each as it is and with steering text; those with stacks have a flame graph.
fn view_pages() -> Vec<(&'static str, String)> {
    use amdahl_report::{locks, mem, sched};
    let steering = "\u{1b}[31m<script>alert(1)</script>\u{202e}";
    let seed = concat!(
        env!("CARGO_MANIFEST_DIR"),
        "/../../fuzz/seeds/mem_result/small.json"
    );
    let seed = std::fs::read(seed).expect("the seed");
    let memory = mem::parse(&seed, "small.json".into()).expect("a result");
    let mut bad_memory = memory.clone();
    bad_memory.command = vec![steering.to_owned()];
    for site in &mut bad_memory.faults.sites {
        site.process = steering.to_owned();
        site.object = steering.repeat(20);
    }
    let (rows, bad_rows) = (fixture::rows(), fixture::hostile_rows());
    vec![
        (
            "locks",
            locks::render_html(&fixture::locks::result(), &rows),
        ),
        (
            "locks-bad",
            locks::render_html(&fixture::locks::hostile(steering), &bad_rows),
        ),
        (
            "sched",
            sched::html::render(&fixture::sched::result(2, "worker")),
        ),
        (
            "sched-256",
            sched::html::render(&fixture::sched::result(256, "worker")),
        ),
        (
            "sched-bad",
            sched::html::render(&fixture::sched::result(2, steering)),
        ),
        ("mem", mem::html::render(&memory, &rows)),
        ("mem-bad", mem::html::render(&bad_memory, &bad_rows)),
    ]
}

/// The frames of all flame graphs as they are drawn: title; left and width as shares of the drawing; top and height in
/// pixels; whether it can be seen, and its label lies in it.
const FRAMES: &str = "[...document.querySelectorAll('.flame svg')].map(svg => { \
    const all = svg.getBoundingClientRect(); \
    return [...svg.querySelectorAll('g')].map(g => { \
        const rect = g.querySelector('rect'), text = g.querySelector('text'), r = rect.getBoundingClientRect(); \
        const is_seen = svg.checkVisibility() && !['none', 'rgba(0, 0, 0, 0)'].includes(getComputedStyle(rect).fill); \
        const fits = !text || text.getBoundingClientRect().right <= r.right + 1; \
        return [g.querySelector('title').textContent, (r.left - all.left) / all.width, r.width / all.width, \
            r.top - all.top, r.height, is_seen, fits]; }); })";

/// A frame of a flame graph.
struct Frame {
    name: String,
    /// Of the time, as its title says.
    share: f64,
    left: f64,
    width: f64,
    top: f64,
}

impl Frame {
    fn of(drawn: &Value) -> Frame {
        let title = drawn[0].as_str().unwrap();
        let number = |at: usize| drawn[at].as_f64().unwrap();
        assert!(number(4) > 10.0, "{title} is {} high", number(4));
        assert!(drawn[5] == true && drawn[6] == true, "{drawn}");
        let (name, figures) = title.rsplit_once(" (").unwrap();
        let percent = figures.rsplit_once(", ").unwrap().1.trim_end_matches("%)");
        Frame {
            name: name.to_owned(),
            share: percent.parse::<f64>().unwrap() / 100.0,
            left: number(1),
            width: number(2),
            top: number(3),
        }
    }

    fn right(&self) -> f64 {
        self.left + self.width
    }
}

/// The open page has a flame graph whose frames are as wide as their times say, and lie on their callers.
fn flame_adds_up(browser: &mut Chromium, page: &str) {
    let graphs = browser.evaluate(FRAMES);
    let graphs = graphs.as_array().unwrap();
    assert_eq!(graphs.len(), 1, "{page}");
    let frames: Vec<Frame> = graphs[0]
        .as_array()
        .unwrap()
        .iter()
        .map(Frame::of)
        .collect();
    // Two digits of a percentage.
    let is_same = |a: f64, b: f64| (a - b).abs() < 2e-4;
    let rows: BTreeSet<i64> = frames.iter().map(|frame| frame.top as i64).collect();
    let rows: Vec<Vec<&Frame>> = rows
        .iter()
        .rev()
        .map(|&top| frames.iter().filter(|f| f.top as i64 == top).collect())
        .collect();
    assert!(rows.len() > 2 && rows[0].len() == 1, "{page}");
    for frame in &frames {
        assert!(is_same(frame.width, frame.share), "{page}: {}", frame.name);
    }
    // Each stack has a cause.
    let causes: f64 = rows[1].iter().map(|frame| frame.width).sum();
    assert!(
        is_same(rows[0][0].width, 1.0) && (causes - 1.0).abs() < 1e-3,
        "{page}"
    );
    for (below, row) in rows.iter().zip(&rows[1..]) {
        for frame in row {
            let lies_on = |caller: &&&Frame| {
                caller.left < frame.left + 2e-4 && frame.right() < caller.right() + 2e-4
            };
            assert!(
                below.iter().any(|caller| lies_on(&caller)),
                "{page}: {}",
                frame.name
            );
        }
    }
}

/// What is drawn is what the samples say.
#[test]
fn the_flame_graph_of_a_view_is_as_wide_as_its_samples() {
    let Some(mut browser) = Chromium::start() else {
        return;
    };
    let rows = fixture::rows();
    let file = kept().join("view-flame.html");
    let page = amdahl_report::locks::render_html(&fixture::locks::result(), &rows);
    std::fs::write(&file, page).unwrap();
    browser.resize(1280, 900, false);
    browser.open(&file);
    let drawn = browser.evaluate(FRAMES);
    let frames = drawn[0].as_array().unwrap().iter().map(Frame::of);
    let frames: Vec<Frame> = frames.collect();
    let all: u64 = rows.iter().map(|row| row.charged_ns).sum();
    let causes: BTreeSet<&str> = rows.iter().map(|row| &*row.cause).collect();
    for cause in causes {
        let of_cause = rows.iter().filter(|row| row.cause == cause);
        let share = of_cause.map(|row| row.charged_ns).sum::<u64>() as f64 / all as f64;
        let frame = frames.iter().find(|frame| frame.name == cause);
        let width = frame.map_or(0.0, |frame| frame.width);
        assert!((width - share).abs() < 1e-3, "{cause}: {width} of {share}");
    }
}

#[test]
fn pages_of_views_fit_are_readable_and_load_nothing() {
    let Some(mut browser) = Chromium::start() else {
        return;
    };
    for (name, page) in view_pages() {
        let file = kept().join(format!("view-{name}.html"));
        std::fs::write(&file, page).unwrap();
        is_in_order(&mut browser, &file, name);
        if !name.starts_with("sched") {
            flame_adds_up(&mut browser, name);
        }
        browser.screenshot(&kept().join(format!("view-{name}.png")));
        has_been_quiet(&mut browser, &file, name);
    }
}

/// The other tests mean nothing if the browser would not tell.
#[test]
fn the_browser_tells_what_a_bad_page_does() {
    let Some(mut browser) = Chromium::start() else {
        return;
    };
    let page = html::render(&fixture::sweep(), &[]);
    let file = kept().join("bad.html");
    for bad in [
        "<script>1</script>",
        "<img src=\"pixel.png\" alt=\"\">",
        "<link rel=\"stylesheet\" href=\"style.css\">",
    ] {
        std::fs::write(&file, page.replace("</footer>", &format!("{bad}</footer>"))).unwrap();
        browser.open(&file);
        assert!(!browser.complaints().is_empty(), "{bad}");
    }
    let open = page.replace("http-equiv", "data-was");
    let image = "<img src=\"pixel.png\" alt=\"\"></footer>";
    std::fs::write(&file, open.replace("</footer>", image)).unwrap();
    browser.open(&file);
    assert_eq!(browser.requests().len(), 2);
    let wide = "<p style=\"width:500px\">wide</p></footer>";
    std::fs::write(&file, page.replace("</footer>", wide)).unwrap();
    browser.resize(375, 812, true);
    browser.open(&file);
    assert_ne!(browser.evaluate(OVERFLOW), serde_json::json!([]));
    std::fs::remove_file(&file).unwrap();
}
