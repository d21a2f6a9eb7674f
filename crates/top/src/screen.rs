//! The state of the screen: what is shown, and what keys do to it.

use std::sync::Arc;
use std::time::Duration;

use amdahl_report::terminal::Style;

use crate::filter::Filter;
use crate::grid::{Grid, Row};
use crate::snapshot::{By, Shape, Snapshot, Tab};
use crate::views;

/// A key, whatever the terminal calls it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Key {
    /// A character.
    Char(char),
    /// Ctrl and a letter.
    Ctrl(char),
    /// Arrow.
    Up,
    /// Arrow.
    Down,
    /// Arrow.
    Left,
    /// Arrow.
    Right,
    /// A page back.
    PageUp,
    /// A page on.
    PageDown,
    /// The first row.
    Home,
    /// The last row.
    End,
    /// Return.
    Enter,
    /// Escape.
    Escape,
    /// Delete to the left.
    Backspace,
    /// The next tab.
    Tab,
    /// The tab before.
    BackTab,
}

/// What the owner of the screen is asked to do.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Wish {
    /// End.
    Quit,
    /// Record this view, with rows of this kind, in place of what is recorded.
    Show(Tab, By),
    /// Make rows of this kind from now on.
    GroupBy(By),
    /// Forget what was counted.
    Reset,
    /// A snapshot each time that this has passed.
    Interval(Duration),
}

/// How rows are sorted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Order {
    /// By which column.
    pub column: usize,
    /// The largest first.
    pub is_falling: bool,
}

/// What a tab remembers.
#[derive(Clone, Debug, Default)]
pub(crate) struct TabState {
    by: usize,
    /// As chosen; for each way of making rows another.
    order: Option<Order>,
    /// Key of the row that is selected.
    selected: Option<String>,
    /// Rows above the screen.
    pub top: usize,
}

impl TabState {
    pub fn selected_key(&self) -> Option<&str> {
        self.selected.as_deref()
    }
}

/// What is in front.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Mode {
    /// The table.
    Table,
    /// The filter is typed; what it was before.
    Filter(String),
    /// Keys and columns; lines above the screen.
    Help(usize),
    /// All of one row; lines above the screen.
    Detail(usize),
}

/// Times between snapshots.
const INTERVALS_MS: [u64; 7] = [500, 1000, 2000, 3000, 5000, 10_000, 30_000];
/// Characters of a filter.
const FILTER_MAX: usize = 200;

/// The state of the screen.
#[derive(Debug)]
pub struct Screen {
    pub(crate) style: Style,
    pub(crate) target: String,
    pub(crate) tab: Tab,
    tabs: [TabState; 3],
    pub(crate) filter: Filter,
    owners: bool,
    pub(crate) is_paused: bool,
    interval: usize,
    pub(crate) mode: Mode,
    pub(crate) shown: Option<Arc<Snapshot>>,
    /// The newest, while paused.
    newest: Option<Arc<Snapshot>>,
    /// Why there is nothing, or something to know of it.
    pub(crate) notice: Option<String>,
    /// How the watched program ended.
    pub(crate) end: Option<String>,
    /// Rows of the table that the screen had room for.
    pub(crate) room: usize,
}

impl Screen {
    /// An empty one. `target` says who is watched.
    pub fn new(style: Style, target: &str, tab: Tab, interval: Duration) -> Screen {
        let ms = interval.as_millis() as u64;
        let nearest = INTERVALS_MS.iter().position(|&known| known >= ms);
        Screen {
            style,
            target: amdahl_report::plain::plain(target),
            tab,
            tabs: Default::default(),
            filter: Filter::default(),
            owners: false,
            is_paused: false,
            interval: nearest.unwrap_or(INTERVALS_MS.len() - 1),
            mode: Mode::Table,
            shown: None,
            newest: None,
            notice: None,
            end: None,
            room: 10,
        }
    }

    /// Shows only rows that `filter` wants.
    pub fn filter(&mut self, filter: Filter) {
        self.filter = filter;
    }

    /// Rows of locks name who released them.
    pub fn show_owners(&mut self, owners: bool) {
        self.owners = owners;
    }

    pub(crate) fn shape(&self) -> Shape {
        Shape {
            by: self.by(),
            owners: self.owners,
        }
    }

    /// What makes a row.
    pub fn by(&self) -> By {
        self.tab.groupings()[self.state().by]
    }

    /// Makes rows of this kind, if the tab has it.
    pub fn group_by(&mut self, by: By) {
        let found = self.tab.groupings().iter().position(|&known| known == by);
        let state = self.state_mut();
        (state.by, state.order) = (found.unwrap_or(state.by), None);
    }

    /// Time between snapshots.
    pub fn interval(&self) -> Duration {
        Duration::from_millis(INTERVALS_MS[self.interval])
    }

    /// Something is new. What belongs to a tab that was left is ignored.
    pub fn take(&mut self, snapshot: Arc<Snapshot>) {
        if snapshot.tab() != self.tab {
            return;
        }
        self.notice = None;
        if self.is_paused && self.shown.is_some() {
            self.newest = Some(snapshot);
        } else {
            self.shown = Some(snapshot);
        }
    }

    /// There is nothing to show, for this reason; or the watched program has ended.
    pub fn tell(&mut self, tab: Tab, notice: &str) {
        if tab == self.tab {
            self.notice = Some(amdahl_report::plain::plain(notice));
        }
    }

    /// The watched program has ended.
    pub fn ended(&mut self, how: Result<(), String>) {
        let text = match how {
            Ok(()) => "The program has ended.".to_owned(),
            Err(how) => format!("The program failed: {how}."),
        };
        self.end = Some(amdahl_report::plain::plain(&text));
    }

    pub(crate) fn state(&self) -> &TabState {
        &self.tabs[self.tab as usize]
    }

    pub(crate) fn state_mut(&mut self) -> &mut TabState {
        &mut self.tabs[self.tab as usize]
    }

    /// As the snapshot has it: what was asked for last may come with the next one.
    fn shown_shape(&self) -> Shape {
        let shown = self.shown.as_ref();
        shown.map_or(self.shape(), |shown| views::shape(shown, self.shape()))
    }

    /// How rows are sorted.
    pub fn order(&self) -> Order {
        let shape = self.shown_shape();
        let usual = Order {
            column: views::sorted(self.tab, shape),
            is_falling: true,
        };
        let columns = views::columns(self.tab, shape).len();
        let chosen = self.state().order;
        chosen
            .filter(|order| order.column < columns)
            .unwrap_or(usual)
    }

    /// The table as it is shown: filtered, sorted. Cost: n log n of its rows.
    pub fn grid(&self) -> Option<Grid> {
        let shown = self.shown.as_ref()?;
        let mut grid = views::grid(shown, self.shape());
        grid.rows.retain(|row| self.filter.wants(row));
        let order = self.order();
        grid.sort(order.column, order.is_falling);
        Some(grid)
    }

    /// Where the selected row is, or was: it stays in sight when others overtake it.
    pub(crate) fn selected(&self, rows: &[Row]) -> usize {
        let key = self.state().selected.as_deref();
        let at = key.and_then(|key| rows.iter().position(|row| row.key == key));
        at.unwrap_or(0)
    }

    fn select(&mut self, to: impl FnOnce(usize, usize) -> usize) {
        let Some(grid) = self.grid() else {
            return;
        };
        let last = grid.rows.len().saturating_sub(1);
        let at = to(self.selected(&grid.rows), self.room.max(1)).min(last);
        self.state_mut().selected = match at {
            // The first place is a place, not a row: who comes there is selected.
            0 => None,
            _ => grid.rows.get(at).map(|row| row.key.clone()),
        };
    }

    /// A key was pressed.
    pub fn key(&mut self, key: Key) -> Option<Wish> {
        if key == Key::Ctrl('c') {
            return Some(Wish::Quit);
        }
        match self.mode.clone() {
            Mode::Filter(before) => self.filter_key(key, before),
            Mode::Help(top) => return self.page_key(key, top, Mode::Help),
            Mode::Detail(top) => return self.page_key(key, top, Mode::Detail),
            Mode::Table => return self.table_key(key),
        }
        None
    }

    fn filter_key(&mut self, key: Key, before: String) {
        let mut typed = self.filter.typed().to_owned();
        match key {
            Key::Enter => self.mode = Mode::Table,
            Key::Escape => {
                self.mode = Mode::Table;
                typed = before;
            }
            Key::Backspace => drop(typed.pop()),
            Key::Ctrl('u') => typed.clear(),
            Key::Char(c) if typed.chars().count() < FILTER_MAX && !c.is_control() => typed.push(c),
            _ => {}
        }
        self.filter = Filter::new(&typed);
    }

    fn page_key(&mut self, key: Key, top: usize, mode: fn(usize) -> Mode) -> Option<Wish> {
        let page = self.room.max(1);
        self.mode = match key {
            Key::Down | Key::Char('j') => mode(top + 1),
            Key::Up | Key::Char('k') => mode(top.saturating_sub(1)),
            Key::PageDown | Key::Char(' ') => mode(top + page),
            Key::PageUp => mode(top.saturating_sub(page)),
            Key::Home => mode(0),
            Key::Char('q') => return Some(Wish::Quit),
            _ => Mode::Table,
        };
        None
    }

    fn table_key(&mut self, key: Key) -> Option<Wish> {
        match key {
            Key::Char('q') => return Some(Wish::Quit),
            Key::Tab => return Some(self.show(1)),
            Key::BackTab => return Some(self.show(Tab::ALL.len() - 1)),
            Key::Char(c @ '1'..='3') => {
                let to = c as usize - '1' as usize;
                return Some(self.show(Tab::ALL.len() + to - self.tab as usize));
            }
            Key::Char('g') => return Some(self.group()),
            Key::Char('r') => {
                (self.shown, self.newest) = (None, None);
                return Some(Wish::Reset);
            }
            Key::Char('o') if self.tab == Tab::Locks => {
                self.owners = !self.owners;
                // Columns are others now.
                self.state_mut().order = None;
            }
            Key::Char('+' | '=') => return Some(self.slower(true)),
            Key::Char('-') => return Some(self.slower(false)),
            Key::Char(' ' | 'p') => self.pause(),
            Key::Char('?' | 'h') => self.mode = Mode::Help(0),
            Key::Char('/') => self.mode = Mode::Filter(self.filter.typed().to_owned()),
            Key::Escape => self.filter = Filter::default(),
            Key::Enter if self.grid().is_some_and(|grid| !grid.rows.is_empty()) => {
                self.open();
            }
            _ => self.move_key(key),
        }
        None
    }

    fn move_key(&mut self, key: Key) {
        match key {
            Key::Left | Key::Char('<') => self.sort_beside(false),
            Key::Right | Key::Char('>') => self.sort_beside(true),
            Key::Char('i') => {
                let order = self.order();
                self.state_mut().order = Some(Order {
                    is_falling: !order.is_falling,
                    ..order
                });
            }
            Key::Up | Key::Char('k') => self.select(|at, _| at.saturating_sub(1)),
            Key::Down | Key::Char('j') => self.select(|at, _| at + 1),
            Key::PageUp => self.select(|at, page| at.saturating_sub(page)),
            Key::PageDown => self.select(|at, page| at + page),
            Key::Home => self.select(|_, _| 0),
            Key::End => self.select(|_, _| usize::MAX),
            _ => {}
        }
    }

    /// The details stay with their row.
    fn open(&mut self) {
        if let Some(grid) = self.grid() {
            let at = self.selected(&grid.rows);
            self.state_mut().selected = grid.rows.get(at).map(|row| row.key.clone());
        }
        self.mode = Mode::Detail(0);
    }

    fn pause(&mut self) {
        self.is_paused = !self.is_paused;
        if let Some(newest) = self.newest.take() {
            self.shown = Some(newest);
        }
    }

    fn show(&mut self, on: usize) -> Wish {
        self.tab = Tab::ALL[(self.tab as usize + on) % Tab::ALL.len()];
        (self.shown, self.newest, self.notice) = (None, None, None);
        Wish::Show(self.tab, self.by())
    }

    fn group(&mut self) -> Wish {
        let all = self.tab.groupings().len();
        let state = self.state_mut();
        *state = TabState {
            by: (state.by + 1) % all,
            ..TabState::default()
        };
        Wish::GroupBy(self.by())
    }

    fn slower(&mut self, is_slower: bool) -> Wish {
        self.interval = if is_slower {
            (self.interval + 1).min(INTERVALS_MS.len() - 1)
        } else {
            self.interval.saturating_sub(1)
        };
        Wish::Interval(self.interval())
    }

    /// Sorts by the column beside; texts rise, figures fall.
    fn sort_beside(&mut self, is_right: bool) {
        let order = self.order();
        let columns = views::columns(self.tab, self.shown_shape());
        if columns.is_empty() {
            return;
        }
        let step = if is_right { 1 } else { columns.len() - 1 };
        let column = (order.column + step) % columns.len();
        self.state_mut().order = Some(Order {
            column,
            is_falling: !columns[column].is_text,
        });
    }
}
