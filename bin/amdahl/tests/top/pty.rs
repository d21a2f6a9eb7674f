//! A pseudo-terminal with the tool in it, and what is on its screen.

use std::fs::File;
use std::io::{Read, Write};
use std::num::NonZero;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, ExitStatus};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::{Duration, Instant};

/// Whatever takes longer hangs. Far above what anything here needs on a busy machine.
const HANGS_AFTER: Duration = Duration::from_secs(120);

/// The terminal and who is in it.
pub struct Pty {
    master: File,
    /// The master once more, of the thread that reads.
    reader: RawFd,
    /// Kept open, so that its modes can be read when the tool has ended.
    slave: OwnedFd,
    modes: libc::termios,
    output: Receiver<Vec<u8>>,
    screen: vt100::Parser,
    child: Child,
}

fn modes(fd: &OwnedFd) -> libc::termios {
    // SAFETY: any bits are a termios, which tcgetattr fills.
    let mut modes: libc::termios = unsafe { std::mem::zeroed() };
    // SAFETY: an open terminal, and room for what it tells.
    let done = unsafe { libc::tcgetattr(fd.as_raw_fd(), &raw mut modes) };
    assert_eq!(done, 0);
    modes
}

fn cells(count: u16) -> NonZero<u16> {
    NonZero::new(count).expect("more than none")
}

fn size(rows: u16, columns: u16) -> libc::winsize {
    libc::winsize {
        ws_row: rows,
        ws_col: columns,
        ws_xpixel: 0,
        ws_ypixel: 0,
    }
}

impl Pty {
    /// Runs `amdahl ARGS` in a terminal of 80 by 24.
    pub fn run(args: &[&str]) -> Pty {
        let (mut master, mut slave) = (0, 0);
        let window = size(24, 80);
        // SAFETY: room for two descriptors; no name and no modes are given.
        let opened = unsafe {
            libc::openpty(
                &raw mut master,
                &raw mut slave,
                std::ptr::null_mut(),
                std::ptr::null(),
                &raw const window,
            )
        };
        assert_eq!(opened, 0, "{}", std::io::Error::last_os_error());
        // SAFETY: fresh descriptors that nobody else owns.
        let (master, slave) = unsafe { (File::from_raw_fd(master), OwnedFd::from_raw_fd(slave)) };
        // Another test's tool must not keep this terminal open.
        for fd in [master.as_raw_fd(), slave.as_raw_fd()] {
            // SAFETY: an open descriptor.
            let done = unsafe { libc::fcntl(fd, libc::F_SETFD, libc::FD_CLOEXEC) };
            assert_eq!(done, 0);
        }
        let modes = modes(&slave);
        let stdio = || slave.try_clone().expect("a descriptor");
        let mut command = Command::new(env!("CARGO_BIN_EXE_amdahl"));
        command
            .args(args)
            .env("TERM", "xterm-256color")
            .env("LC_ALL", "C.UTF-8")
            .stdin(stdio())
            .stdout(stdio())
            .stderr(stdio());
        // SAFETY: async-signal-safe calls between fork and exec.
        unsafe {
            command.pre_exec(|| {
                if libc::setsid() < 0 || libc::ioctl(0, libc::TIOCSCTTY, 0) < 0 {
                    return Err(std::io::Error::last_os_error());
                }
                Ok(())
            });
        }
        let child = command.spawn().expect("started");
        let (send, output) = channel();
        let mut reader = master.try_clone().expect("a descriptor");
        let reader_fd = reader.as_raw_fd();
        std::thread::spawn(move || {
            let mut buffer = [0; 4096];
            while let Ok(len @ 1..) = reader.read(&mut buffer) {
                if send.send(buffer[..len].to_vec()).is_err() {
                    break;
                }
            }
        });
        Pty {
            master,
            reader: reader_fd,
            slave,
            modes,
            output,
            screen: vt100::Parser::new(cells(24), cells(80), 0),
            child,
        }
    }

    /// Presses keys.
    pub fn press(&mut self, keys: &str) {
        self.master.write_all(keys.as_bytes()).expect("typed");
    }

    /// Makes the terminal as large as that.
    pub fn resize(&mut self, rows: u16, columns: u16) {
        let window = size(rows, columns);
        let fd = self.master.as_raw_fd();
        // SAFETY: an open terminal, and a size that lives during the call.
        let done = unsafe { libc::ioctl(fd, libc::TIOCSWINSZ, &raw const window) };
        assert_eq!(done, 0);
        self.screen
            .screen_mut()
            .set_size(cells(rows), cells(columns));
    }

    /// Waits until the screen is as wanted; returns its text.
    pub fn until(&mut self, what: &str, is_so: impl Fn(&str) -> bool) -> String {
        let until = Instant::now() + HANGS_AFTER;
        loop {
            let text = self.screen.screen().contents();
            if is_so(&text) {
                return text;
            }
            match self
                .output
                .recv_timeout(until.saturating_duration_since(Instant::now()))
            {
                Ok(bytes) => self.screen.process(&bytes),
                Err(RecvTimeoutError::Timeout) => panic!("{what} is never there:\n{text}"),
                Err(RecvTimeoutError::Disconnected) => panic!("it ended before {what}:\n{text}"),
            }
        }
    }

    /// Waits until the text is on the screen.
    pub fn shows(&mut self, text: &str) -> String {
        self.until(text, |screen| screen.contains(text))
    }

    /// Waits for figures that are newer than those on the screen.
    pub fn counts_on(&mut self) -> String {
        let counted = |screen: &str| {
            let line = screen.lines().find(|line| line.contains(" counted"));
            line.map(str::to_owned)
        };
        let before = counted(&self.screen.screen().contents());
        self.until("newer figures", |screen| {
            let now = counted(screen);
            now.is_some() && now != before
        })
    }

    /// Its process id.
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Its process.
    pub fn signal(&self, signal: libc::c_int) {
        let pid = i32::try_from(self.child.id()).expect("a process id");
        // SAFETY: our own child, which has not been waited for.
        assert_eq!(unsafe { libc::kill(pid, signal) }, 0);
    }

    /// Closes the terminal, as who closes its window or loses its connection does, and waits for the end.
    pub fn hang_up(mut self) -> ExitStatus {
        let nothing = File::open("/dev/null").expect("opened");
        for fd in [self.master.as_raw_fd(), self.reader] {
            // SAFETY: open descriptors. The thread that reads ends with the next read, which what the tool writes
            // last brings about.
            assert_eq!(unsafe { libc::dup2(nothing.as_raw_fd(), fd) }, fd);
        }
        self.child.wait().expect("waited")
    }

    /// Waits for the end. The terminal must be as it was.
    pub fn ends(mut self) -> ExitStatus {
        let status = self.child.wait().expect("waited");
        // What it wrote last may still be on its way.
        let until = Instant::now() + HANGS_AFTER;
        loop {
            let now = self.screen.screen();
            let left = now.contents();
            if !now.alternate_screen() && !now.hide_cursor() && left.trim().is_empty() {
                break;
            }
            let bytes = self
                .output
                .recv_timeout(until.saturating_duration_since(Instant::now()));
            let bytes = bytes.unwrap_or_else(|_| panic!("left on the screen:\n{left}"));
            self.screen.process(&bytes);
        }
        let modes = modes(&self.slave);
        assert_eq!(modes.c_lflag, self.modes.c_lflag);
        assert_eq!(modes.c_iflag, self.modes.c_iflag);
        assert_eq!(modes.c_oflag, self.modes.c_oflag);
        status
    }
}

impl Drop for Pty {
    fn drop(&mut self) {
        // Where a test has failed, the tool is still there.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
