//! The terminal: raw mode and the alternate screen, keys in, frames out, and all as it was at the end,
//! whatever ends it.

use std::io::{BufWriter, IsTerminal, Stdout, Write};
use std::mem::ManuallyDrop;
use std::sync::Once;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender};
use std::time::Duration;

use amdahl_top::{Key, Screen, Wish, draw};
use crossterm::event::{self, Event, KeyCode, KeyEvent, KeyEventKind, KeyModifiers};
use crossterm::{cursor, execute, terminal as tty};
use ratatui_crossterm::CrosstermBackend;
use rustix::event::{PollFd, PollFlags, Timespec, poll};

use super::Message;
use crate::failure::Failure;

/// The terminal is not as it was.
static IS_OURS: AtomicBool = AtomicBool::new(false);
/// How late signals are seen, at most.
const LOOK: Duration = Duration::from_millis(250);

/// Whether there is a terminal that can do it.
pub fn check() -> Result<(), Failure> {
    let is_dumb = std::env::var_os("TERM").is_none_or(|term| term == "dumb" || term.is_empty());
    if !is_dumb && std::io::stdin().is_terminal() && std::io::stdout().is_terminal() {
        return Ok(());
    }
    let what = if is_dumb {
        "the terminal cannot move its cursor (TERM)"
    } else {
        "standard input or output is no terminal"
    };
    Err(Failure::usage(format!(
        "{what}; for plain tables: --batch N"
    )))
}

/// The terminal while it is ours.
pub struct Terminal {
    /// Not dropped: it would write to a terminal that has gone and, where standard error is the same one, panic. What it
    /// would do, `restore` does.
    inner: ManuallyDrop<ratatui::Terminal<CrosstermBackend<BufWriter<Stdout>>>>,
}

impl Terminal {
    /// Takes the terminal; keys come as `messages`.
    pub fn enter(messages: Sender<Message>) -> Result<Terminal, Failure> {
        let failed = |error: std::io::Error| {
            restore();
            Failure::result(format!("cannot use the terminal: {error}"))
        };
        restore_on_panic();
        IS_OURS.store(true, Ordering::SeqCst);
        tty::enable_raw_mode().map_err(failed)?;
        let mut out = std::io::stdout();
        execute!(out, tty::EnterAlternateScreen, cursor::Hide).map_err(failed)?;
        let backend = CrosstermBackend::new(BufWriter::new(out));
        let inner = ratatui::Terminal::new(backend).map_err(failed)?;
        // It is not waited for: it ends with the process, or when the terminal has gone.
        std::thread::Builder::new()
            .name("amdahl-keys".into())
            .spawn(move || read_keys(&messages))
            .map_err(failed)?;
        Ok(Terminal {
            inner: ManuallyDrop::new(inner),
        })
    }

    /// Shows and obeys until `grant` or `goes_on` says that it is over. Snapshots of turns that are not current are
    /// left out. Returns the exit code.
    pub fn run(
        &mut self,
        screen: &mut Screen,
        received: &Receiver<Message>,
        is_current: impl Fn(u64) -> bool,
        grant: impl Fn(Wish) -> bool,
        goes_on: impl Fn() -> bool,
    ) -> Result<u8, Failure> {
        let mut is_new = true;
        while goes_on() && IS_OURS.load(Ordering::SeqCst) {
            if is_new && self.inner.draw(|frame| draw(screen, frame)).is_err() {
                // Nobody sees it any more.
                return Ok(5);
            }
            let first = match received.recv_timeout(LOOK) {
                Ok(message) => message,
                // Who reads the keys is not told.
                Err(RecvTimeoutError::Timeout) if has_gone() => return Ok(5),
                Err(RecvTimeoutError::Timeout) => {
                    is_new = false;
                    continue;
                }
                Err(RecvTimeoutError::Disconnected) => return Ok(0),
            };
            is_new = true;
            for message in std::iter::once(first).chain(received.try_iter()) {
                let wish = match message {
                    Message::Snapshot(turn, snapshot) => {
                        // A recorder that is told to begin again still gives what it had.
                        if is_current(turn) {
                            screen.take(snapshot);
                        }
                        None
                    }
                    Message::Notice(tab, text) => {
                        screen.tell(tab, &text);
                        None
                    }
                    Message::Ended(how) => {
                        screen.ended(how);
                        None
                    }
                    Message::Key(key) => screen.key(key),
                    Message::Resized => None,
                    Message::Gone => return Ok(5),
                };
                if wish.is_some_and(|wish| !grant(wish)) {
                    return Ok(0);
                }
            }
        }
        Ok(0)
    }
}

impl Drop for Terminal {
    fn drop(&mut self) {
        restore();
    }
}

/// Whether the terminal was closed: its window, or the connection to it.
fn has_gone() -> bool {
    let stdin = std::io::stdin();
    let mut fds = [PollFd::new(&stdin, PollFlags::empty())];
    let gone = PollFlags::HUP | PollFlags::ERR | PollFlags::NVAL;
    poll(&mut fds, Some(&Timespec::default())).is_ok() && fds[0].revents().intersects(gone)
}

/// Gives the terminal back as it was; the first time only.
fn restore() {
    if IS_OURS.swap(false, Ordering::SeqCst) {
        let mut out = std::io::stdout();
        let _ = execute!(out, tty::LeaveAlternateScreen, cursor::Show);
        let _ = tty::disable_raw_mode();
        let _ = out.flush();
    }
}

/// What is said of a panic must be readable, on whatever thread it is.
fn restore_on_panic() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        let usual = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |panic| {
            // What a library says of a damaged file is no end.
            if !amdahl_contain::is_contained() {
                restore();
            }
            usual(panic);
        }));
    });
}

fn read_keys(messages: &Sender<Message>) {
    loop {
        let message = match event::read() {
            Ok(Event::Key(key)) => match translated(key) {
                Some(key) => Message::Key(key),
                None => continue,
            },
            Ok(Event::Resize(..)) => Message::Resized,
            Ok(_) => continue,
            Err(_) => Message::Gone,
        };
        let is_gone = matches!(message, Message::Gone);
        if messages.send(message).is_err() || is_gone {
            return;
        }
    }
}

fn translated(key: KeyEvent) -> Option<Key> {
    if key.kind == KeyEventKind::Release {
        return None;
    }
    Some(match key.code {
        KeyCode::Char(c) if key.modifiers.contains(KeyModifiers::CONTROL) => Key::Ctrl(c),
        KeyCode::Char(c) => Key::Char(c),
        KeyCode::Up => Key::Up,
        KeyCode::Down => Key::Down,
        KeyCode::Left => Key::Left,
        KeyCode::Right => Key::Right,
        KeyCode::PageUp => Key::PageUp,
        KeyCode::PageDown => Key::PageDown,
        KeyCode::Home => Key::Home,
        KeyCode::End => Key::End,
        KeyCode::Enter => Key::Enter,
        KeyCode::Esc => Key::Escape,
        KeyCode::Backspace => Key::Backspace,
        KeyCode::Tab => Key::Tab,
        KeyCode::BackTab => Key::BackTab,
        _ => return None,
    })
}
