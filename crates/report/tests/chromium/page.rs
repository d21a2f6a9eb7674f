//! What is asked of every page.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use serde_json::{Value, json};

use super::Chromium;

/// Pictures and pages stay here for a person to look at.
pub fn kept() -> PathBuf {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join("../report");
    std::fs::create_dir_all(&folder).expect("target/report");
    folder.canonicalize().expect("target/report")
}

/// The number at a path such as `points.0.stack.work`.
fn at<'a>(mut value: &'a Value, path: &str) -> &'a Value {
    for key in path.split('.') {
        value = match key.parse::<usize>() {
            Ok(index) if value.is_array() => &value[index],
            _ => &value[key],
        };
    }
    value
}

/// All figures of the page: path, exact value, visible text.
const FIGURES: &str = "[...document.querySelectorAll('[data-figure]')].map(e => \
    [e.dataset.figure, e.dataset.value, e.closest('svg') || e.closest('.bar') ? '' : e.textContent])";

/// What a reader sees must be the exact value rounded to the digits shown.
fn assert_shown(path: &str, text: &str, exact: f64) {
    let digits: String = text
        .chars()
        .take_while(|c| c.is_ascii_digit() || "+-.e".contains(*c))
        .collect();
    let shown: f64 = digits
        .parse()
        .unwrap_or_else(|_| panic!("{path} shows {text:?}"));
    let scale = match text
        .trim_start_matches(digits.as_str())
        .trim_start_matches('\u{a0}')
    {
        "%" => 100.0,
        "ms" => 1e3,
        "µs" => 1e6,
        // A table whose caption says percent.
        "" if path.contains(".stack.") => 100.0,
        _ => 1.0,
    };
    let decimals = digits.split_once('.').map_or(0, |(_, after)| after.len());
    let half_a_digit = 0.5 * 10_f64.powi(-(decimals as i32)) * (1.0 + 1e-9);
    assert!(
        (shown - exact * scale).abs() <= half_a_digit,
        "{path}: {text} is not {exact}"
    );
}

/// Paths of the figures on the open page, each of which is as in the result `json`.
pub fn figures(browser: &mut Chromium, json: &Value) -> BTreeSet<String> {
    let mut paths = BTreeSet::new();
    for figure in browser.evaluate(FIGURES).as_array().unwrap() {
        let [path, value, text] = [0, 1, 2].map(|i| figure[i].as_str().unwrap());
        let exact = at(json, path)
            .as_f64()
            .unwrap_or_else(|| panic!("{path} is no number"));
        let value: f64 = value.parse().unwrap();
        assert_eq!(value.to_bits(), exact.to_bits(), "{path}");
        if !text.is_empty() {
            assert_shown(path, text, exact);
        }
        paths.insert(path.to_owned());
    }
    paths
}

/// Elements that reach beyond the window, those inside a part that scrolls by itself left out.
pub const OVERFLOW: &str = "[...document.body.querySelectorAll('*')].filter(e => !e.closest('.scroll, .skip, .causes thead') && \
    e.getBoundingClientRect().right > document.documentElement.clientWidth + 1).map(e => e.outerHTML.slice(0, 120))";

/// Contrast after WCAG 2 of every piece of text with the first opaque background behind it;
/// the pieces below 4.5 (3 for large text).
pub const FAINT: &str = r"(() => {
    const rgb = s => (s.match(/[\d.]+/g) || [0, 0, 0, 0]).map(Number);
    const light = c => { const [r, g, b] = c.map(v => { v /= 255; return v <= .04045 ? v / 12.92 : ((v + .055) / 1.055) ** 2.4; });
        return .2126 * r + .7152 * g + .0722 * b; };
    const behind = e => { for (; e; e = e.parentElement) { const c = rgb(getComputedStyle(e).backgroundColor);
        if (c.length < 4 || c[3] > .5) return c; } return [255, 255, 255]; };
    const faint = [];
    for (const e of document.body.querySelectorAll('*')) {
        if (![...e.childNodes].some(n => n.nodeType == 3 && n.textContent.trim()) || e.closest('svg, .skip')) continue;
        const style = getComputedStyle(e);
        let opacity = 1; for (let p = e; p; p = p.parentElement) opacity *= getComputedStyle(p).opacity;
        const back = behind(e), ink = rgb(style.color).slice(0, 3).map((v, i) => v * opacity + back[i] * (1 - opacity));
        const [a, b] = [light(ink), light(back)].sort((x, y) => y - x), size = parseFloat(style.fontSize);
        const ratio = (a + .05) / (b + .05);
        if (ratio < (size >= 24 ? 3 : 4.5)) faint.push(`${ratio.toFixed(2)} ${e.outerHTML.slice(0, 100)}`);
    }
    return faint; })()";

/// The page in `file` fits a phone with all its parts open, and is left so.
pub fn fits_a_phone(browser: &mut Chromium, file: &Path, name: &str) {
    browser.resize(375, 812, true);
    browser.open(file);
    browser.evaluate("document.querySelectorAll('details').forEach(d => d.open = true)");
    let width = browser.evaluate("document.documentElement.scrollWidth");
    assert_eq!(width, 375, "{name}");
    assert_eq!(browser.evaluate(OVERFLOW), json!([]), "{name}");
}

/// The page in `file` fits a phone, can be read in the light and in the dark, and has all its landmarks. It is left open on a large screen.
pub fn is_in_order(browser: &mut Chromium, file: &Path, name: &str) {
    for scheme in ["dark", "light"] {
        browser.prefer(scheme);
        fits_a_phone(browser, file, name);
        assert_eq!(browser.evaluate(FAINT), json!([]), "{name} {scheme}");
    }
    let scripts = "document.querySelectorAll('script, iframe, object, embed, form').length";
    assert_eq!(browser.evaluate(scripts), 0, "{name}");
    for landmark in ["header", "nav", "main", "footer"] {
        let count = format!("document.querySelectorAll('body > {landmark}').length");
        assert_eq!(browser.evaluate(&count), 1, "{name}: {landmark}");
    }
    browser.resize(1280, 900, false);
    browser.open(file);
}

/// The page in `file` has loaded nothing else until now, and complained of nothing.
pub fn has_been_quiet(browser: &mut Chromium, file: &Path, name: &str) {
    let url = format!("file://{}", file.display());
    let asked = browser.requests();
    assert!(asked.iter().all(|request| *request == url), "{asked:?}");
    assert_eq!(browser.complaints(), [""; 0], "{name}");
}
