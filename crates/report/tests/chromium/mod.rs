//! A headless Chromium, driven over its DevTools pipe.

pub mod page;

use std::io::{BufRead, BufReader, PipeReader, PipeWriter, Write, pipe};
use std::os::fd::OwnedFd;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::time::Duration;

use base64::Engine;
use command_fds::{CommandFdExt, FdMapping};
use serde_json::{Value, json};

const CANDIDATES: [&str; 3] = [
    "/usr/bin/chromium",
    "/usr/bin/chromium-browser",
    "/usr/bin/google-chrome",
];

/// Longer than any page of a test takes, so that a browser that hangs ends the test.
const PATIENCE: Duration = Duration::from_secs(300);

/// A browser with one open page.
pub struct Chromium {
    child: Child,
    to: PipeWriter,
    from: BufReader<PipeReader>,
    calls: u64,
    session: String,
    /// What the page reported since the last look.
    events: Vec<Value>,
    /// Dropped last of all: the profile, and the sign to the watchdog.
    _profile: tempfile::TempDir,
    _alive: mpsc::Sender<()>,
}

impl Chromium {
    /// Starts it; `None` with the reason printed when this machine has none.
    pub fn start() -> Option<Chromium> {
        let Some(program) = CANDIDATES.into_iter().find(|path| Path::new(path).exists()) else {
            println!("SKIPPED: no Chromium; install it with `apt-get install chromium`");
            return None;
        };
        let profile = tempfile::tempdir().expect("a temporary folder");
        let (their_in, to) = pipe().expect("a pipe");
        let (from, their_out) = pipe().expect("a pipe");
        let mut command = Command::new(program);
        command
            .args([
                "--headless",
                "--no-sandbox",
                "--disable-gpu",
                "--disable-quic",
                "--no-first-run",
            ])
            .args([
                "--disable-background-networking",
                "--disable-component-update",
                "--disable-sync",
            ])
            .args([
                "--hide-scrollbars",
                "--remote-debugging-pipe",
                "about:blank",
            ])
            .arg(format!("--user-data-dir={}", profile.path().display()))
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .fd_mappings(vec![
                FdMapping {
                    parent_fd: OwnedFd::from(their_in),
                    child_fd: 3,
                },
                FdMapping {
                    parent_fd: OwnedFd::from(their_out),
                    child_fd: 4,
                },
            ])
            .expect("no other mapping of these descriptors");
        let child = command.spawn().expect("Chromium starts");
        // The parent's copies of the browser's ends close, so that its death ends our reading.
        drop(command);
        let (alive, watch) = mpsc::channel::<()>();
        let pid = rustix::process::Pid::from_child(&child);
        std::thread::spawn(move || {
            if watch.recv_timeout(PATIENCE) == Err(RecvTimeoutError::Timeout) {
                let _ = rustix::process::kill_process(pid, rustix::process::Signal::KILL);
            }
        });
        let mut chromium = Chromium {
            child,
            to,
            from: BufReader::new(from),
            calls: 0,
            session: String::new(),
            events: Vec::new(),
            _profile: profile,
            _alive: alive,
        };
        let target = chromium.call("Target.createTarget", json!({"url": "about:blank"}));
        let id = target["targetId"].clone();
        let attached = chromium.call(
            "Target.attachToTarget",
            json!({"targetId": id, "flatten": true}),
        );
        chromium.session = attached["sessionId"]
            .as_str()
            .expect("a session")
            .to_owned();
        for domain in ["Page", "Runtime", "Log", "Network", "Audits"] {
            chromium.call(&format!("{domain}.enable"), json!({}));
        }
        Some(chromium)
    }

    /// Sends a command and waits for its answer.
    pub fn call(&mut self, method: &str, params: Value) -> Value {
        self.calls += 1;
        let mut message = json!({"id": self.calls, "method": method, "params": params});
        if !self.session.is_empty() {
            message["sessionId"] = json!(self.session);
        }
        self.to
            .write_all(message.to_string().as_bytes())
            .expect("Chromium listens");
        self.to.write_all(&[0]).expect("Chromium listens");
        loop {
            let answer = self.receive();
            if answer["id"] == self.calls {
                assert!(answer["error"].is_null(), "{method}: {}", answer["error"]);
                return answer["result"].clone();
            }
            self.events.push(answer);
        }
    }

    fn receive(&mut self) -> Value {
        let mut bytes = Vec::new();
        self.from
            .read_until(0, &mut bytes)
            .expect("Chromium answers");
        assert_eq!(bytes.pop(), Some(0), "Chromium went away");
        serde_json::from_slice(&bytes).expect("Chromium speaks JSON")
    }

    /// Opens a file and waits until it has loaded.
    pub fn open(&mut self, file: &Path) {
        self.open_url(&format!("file://{}", file.display()));
    }

    /// The same of a page that somebody serves.
    pub fn open_url(&mut self, url: &str) {
        self.events.clear();
        self.call("Page.navigate", json!({"url": url}));
        while !self
            .events
            .iter()
            .any(|event| event["method"] == "Page.loadEventFired")
        {
            let event = self.receive();
            self.events.push(event);
        }
    }

    /// The value of a JavaScript expression on the page, or what it promises.
    pub fn evaluate(&mut self, expression: &str) -> Value {
        let params = json!({"expression": expression, "returnByValue": true, "awaitPromise": true});
        let answer = self.call("Runtime.evaluate", params);
        assert!(
            answer["exceptionDetails"].is_null(),
            "{expression}: {answer}"
        );
        answer["result"]["value"].clone()
    }

    /// Looks like a screen of this size.
    pub fn resize(&mut self, width: u32, height: u32, is_phone: bool) {
        let scale = if is_phone { 2 } else { 1 };
        self.call(
            "Emulation.setDeviceMetricsOverride",
            json!({"width": width, "height": height, "deviceScaleFactor": scale, "mobile": is_phone}),
        );
    }

    /// Prefers `light` or `dark`.
    pub fn prefer(&mut self, scheme: &str) {
        let feature = json!({"name": "prefers-color-scheme", "value": scheme});
        self.call("Emulation.setEmulatedMedia", json!({"features": [feature]}));
    }

    /// The whole page as PNG.
    pub fn screenshot(&mut self, file: &Path) {
        let params = json!({"format": "png", "captureBeyondViewport": true});
        let answer = self.call("Page.captureScreenshot", params);
        let text = answer["data"].as_str().expect("a picture");
        let png = base64::engine::general_purpose::STANDARD
            .decode(text)
            .expect("base64");
        std::fs::write(file, png).expect("the picture is kept");
    }

    /// Addresses that the page asked for.
    pub fn requests(&self) -> Vec<String> {
        let requests = self
            .events
            .iter()
            .filter(|e| e["method"] == "Network.requestWillBeSent");
        requests
            .map(|e| {
                e["params"]["request"]["url"]
                    .as_str()
                    .unwrap_or("?")
                    .to_owned()
            })
            .collect()
    }

    /// Console messages, log entries, exceptions, dialogues and issues (violations of the content
    /// security policy are among them).
    pub fn complaints(&self) -> Vec<String> {
        let kinds = [
            "Runtime.consoleAPICalled",
            "Runtime.exceptionThrown",
            "Log.entryAdded",
            "Page.javascriptDialogOpening",
            "Audits.issueAdded",
        ];
        let is_complaint = |e: &&Value| kinds.contains(&e["method"].as_str().unwrap_or_default());
        self.events
            .iter()
            .filter(is_complaint)
            .map(Value::to_string)
            .collect()
    }
}

impl Drop for Chromium {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
