//! What all pages have: head, navigation, sections, footer, notices and the table of sources.

use maud::{DOCTYPE, Markup, PreEscaped, html};

use super::figure::{code, foreign};
use crate::plain::elide;
use crate::schema::{Notice, Source};

const STYLE: &str = include_str!("style.css");
/// The strictest policy that lets the page style itself.
const POLICY: &str =
    "default-src 'none'; style-src 'unsafe-inline'; base-uri 'none'; form-action 'none'";

/// A whole page.
pub(crate) struct Page<'a> {
    /// Begins the title of the window, e.g. `Amdahl locks`.
    pub window: &'static str,
    /// Stands beside the brand.
    pub view: &'static str,
    /// Rules beyond those of all pages: the program's own text.
    pub style: &'a str,
    pub headline: Markup,
    /// Sentences below it.
    pub lede: Vec<Markup>,
    /// What was watched: the command.
    pub target: &'a str,
    /// What stands before the sections: facts and notices.
    pub facts: Markup,
    pub sections: Vec<Section>,
    /// `measured` or `recorded`.
    pub made: &'static str,
    pub started: &'a str,
    pub amdahl_version: &'a str,
}

/// A part of a page that the navigation leads to.
pub(crate) struct Section {
    id: &'static str,
    /// In the navigation.
    short: &'static str,
    title: String,
    body: Markup,
}

impl Section {
    pub fn new(
        id: &'static str,
        short: &'static str,
        title: impl Into<String>,
        body: Markup,
    ) -> Section {
        Section {
            id,
            short,
            title: title.into(),
            body,
        }
    }
}

impl Page<'_> {
    pub fn render(&self) -> String {
        html! {
            (DOCTYPE)
            html lang="en" {
                head {
                    meta charset="utf-8";
                    meta http-equiv="Content-Security-Policy" content=(POLICY);
                    meta name="viewport" content="width=device-width, initial-scale=1";
                    meta name="color-scheme" content="light dark";
                    meta name="referrer" content="no-referrer";
                    title { (self.window) ": " (elide(self.target, 60, "…")) }
                    // Both parts are the program's own text.
                    style { (PreEscaped(STYLE)) (PreEscaped(self.style)) }
                }
                body {
                    a.skip href="#main" { "Skip to the result" }
                    header {
                        p.brand { "Amdahl" span { (self.view) } }
                        h1 { (self.headline) }
                        @for sentence in &self.lede { p.lede { (sentence) } }
                        p.command { (code(self.target)) }
                        (self.facts)
                    }
                    nav aria-label="Sections" {
                        ul { @for section in &self.sections {
                            li { a href={ "#" (section.id) } { (section.short) } }
                        } }
                    }
                    main #main tabindex="-1" {
                        @for section in &self.sections {
                            section aria-labelledby=(section.id) {
                                h2 #(section.id) { (section.title) }
                                (section.body)
                            }
                        }
                    }
                    (self.footer())
                }
            }
        }
        .into_string()
    }

    fn footer(&self) -> Markup {
        html! {
            footer {
                p { "Written by amdahl " (foreign(self.amdahl_version))
                    @if !self.started.is_empty() { ", " (self.made) " " (foreign(self.started)) }
                    ". The same numbers are in " code { "result.json" } " beside this page." }
            }
        }
    }
}

/// What limits the trust in the numbers, which stands before them: the content of list items.
pub(crate) fn notices(items: &[Markup]) -> Markup {
    html! {
        @if !items.is_empty() {
            aside.notices aria-label="What to know about these numbers" {
                ul { @for item in items { li { (item) } } }
            }
        }
    }
}

/// The notice of a run that was ended early.
pub(crate) fn interrupted() -> Markup {
    html! { b { "interrupted" } " This is what was measured until then." }
}

/// The notice of a warning.
pub(crate) fn warning(notice: &Notice) -> Markup {
    html! { b { (foreign(&notice.code)) } " " (foreign(&notice.text)) }
}

/// Where the figures come from, and what is missing.
pub(crate) fn sources(sources: &[Source]) -> Markup {
    html! {
        @if !sources.is_empty() {
            table.sources {
                caption { "Where the figures come from" }
                thead { tr {
                    th scope="col" { "Measured" } th scope="col" { "By" } th scope="col" { "What is missing" }
                } }
                tbody {
                    @for source in sources {
                        tr {
                            th scope="row" { (foreign(&source.what)) }
                            td { (foreign(&source.how)) }
                            td {
                                @if source.missing.is_empty() { "nothing" } @else {
                                    b { (foreign(&source.missing)) }
                                    @if !source.remedy.is_empty() { " " (foreign(&source.remedy)) }
                                }
                            }
                        }
                    }
                }
            }
        }
    }
}
