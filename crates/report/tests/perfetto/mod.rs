//! Traces in Perfetto's own UI, as `tools/perfetto/fetch.sh` leaves it: what its processor of traces finds in them.

use std::collections::BTreeMap;
use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::net::{TcpListener, TcpStream};
use std::path::{Path, PathBuf};

use amdahl_report::schema::Slice;
use amdahl_report::trace::{self, Names};
use serde_json::Value;

use crate::chromium::Chromium;
use crate::kept;

const TRACE: &str = "/trace.json.gz";

/// Opens the trace that lies beside the UI, once that listens, and asks for what was made of it.
const OPEN: &str = r"(async () => {
    const until = async (what) => {
        for (;;) {
            const found = await what();
            if (found) return found;
            await new Promise((done) => setTimeout(done, 50));
        }
    };
    let listens = false;
    window.addEventListener('message', (event) => { listens ||= event.data === 'PONG'; });
    await until(() => { window.postMessage('PING', '*'); return listens; });
    const buffer = await (await fetch('/trace.json.gz')).arrayBuffer();
    window.postMessage({perfetto: {buffer, title: 'amdahl', keepApiOpen: true}}, '*');
    const engine = await until(() => window.app?.trace?.engine);
    await window.waitForPerfettoIdle();
    const rows = async (sql, spec) => {
        const found = [];
        for (const row = (await engine.query(sql)).iter(spec); row.valid(); row.next()) {
            found.push(Object.keys(spec).map((name) => row[name]));
        }
        return found;
    };
    return {
        slices: await rows(
            `select process.pid as pid, thread.tid as tid, count() as count, sum(slice.dur) as ns
             from slice join thread_track on slice.track_id = thread_track.id
             join thread using (utid) join process using (upid) group by 1, 2`,
            {pid: 0, tid: 0, count: 0, ns: 0}),
        names: await rows(`select tid, name from thread where name is not null`, {tid: 0, name: 'str'}),
        errors: await rows(`select name, value from stats where severity != 'info' and value > 0`, {name: 'str', value: 0}),
    };
})()";

/// Serves the files of `folder`, and `trace`, on a port of this machine until the test ends.
fn serve(folder: PathBuf, trace: Vec<u8>) -> u16 {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let port = listener.local_addr().expect("an address").port();
    std::thread::spawn(move || {
        for connection in listener.incoming().flatten() {
            // Who has heard enough hangs up.
            let _ = answer(connection, &folder, &trace);
        }
    });
    port
}

fn answer(mut connection: TcpStream, folder: &Path, trace: &[u8]) -> std::io::Result<()> {
    let mut lines = BufReader::new(connection.try_clone()?).lines();
    let first = lines.next().transpose()?.unwrap_or_default();
    while lines
        .next()
        .transpose()?
        .is_some_and(|line| !line.is_empty())
    {}
    let path = first.split(' ').nth(1).unwrap_or("/");
    let path = path.split('?').next().unwrap_or("/");
    let file = match path {
        "/" => "index.html",
        _ => path.trim_start_matches('/'),
    };
    let body = match path {
        TRACE => Some(trace.to_vec()),
        _ => fs::read(folder.join(file))
            .ok()
            .filter(|_| !file.contains("..")),
    };
    let kind = match file.rsplit('.').next() {
        Some("html") => "text/html",
        Some("js") => "text/javascript",
        Some("css") => "text/css",
        Some("wasm") => "application/wasm",
        Some("json") => "application/json",
        _ => "application/octet-stream",
    };
    let status = if body.is_some() {
        "200 OK"
    } else {
        "404 Not Found"
    };
    let body = body.unwrap_or_default();
    let length = body.len();
    write!(
        connection,
        "HTTP/1.1 {status}\r\nContent-Type: {kind}\r\nContent-Length: {length}\r\nConnection: close\r\n\r\n"
    )?;
    connection.write_all(&body)
}

/// Two processes with two threads each, that run and wait in turn; names with what must be escaped.
fn slices() -> (Vec<Slice>, Names) {
    let mut names = Names::default();
    let mut slices = Vec::new();
    for pid in [700, 800] {
        names
            .processes
            .insert(pid, format!("program \"{pid}\" \\ ä"));
        for tid in [pid, pid + 1] {
            names.threads.insert((pid, tid), format!("worker <{tid}>"));
            // A CPU each.
            let cpu = (pid == 800) as u32 * 2 + (tid - pid);
            for step in 0..500_u64 {
                let waits = step % 2 == 1;
                slices.push(Slice {
                    cpu: (!waits).then_some(cpu),
                    pid,
                    tid,
                    // Late, as on a machine that has been up for weeks.
                    start_ns: (1 << 51) + step * 1_000_003,
                    len_ns: 1 + step * 1_001,
                    label: if waits { "lock-wait" } else { "worker" }.to_owned(),
                });
            }
        }
    }
    (slices, names)
}

#[test]
fn perfetto_finds_all_that_was_written() {
    let ui = Path::new(env!("CARGO_TARGET_TMPDIR")).join("../perfetto-ui");
    if !ui.join("index.html").exists() {
        println!("SKIPPED: no Perfetto's UI; tools/perfetto/fetch.sh target/perfetto-ui gets it");
        return;
    }
    let Some(mut browser) = Chromium::start() else {
        return;
    };
    let (slices, names) = slices();
    let mut expected: BTreeMap<(u64, u64), (u64, u64)> = BTreeMap::new();
    for slice in &slices {
        let sum = expected
            .entry((slice.pid.into(), slice.tid.into()))
            .or_default();
        *sum = (sum.0 + 1, sum.1 + slice.len_ns);
    }
    let on_cpus: u64 = slices
        .iter()
        .filter(|slice| slice.cpu.is_some())
        .map(|slice| slice.len_ns)
        .sum();
    let written = trace::write(slices, &names, Vec::new()).expect("written");

    let port = serve(ui, written);
    browser.resize(1400, 900, false);
    browser.open_url(&format!("http://127.0.0.1:{port}/"));
    let found = browser.evaluate(OPEN);
    browser.screenshot(&kept().join("perfetto.png"));

    assert_eq!(found["errors"], Value::Array(Vec::new()));
    let mut of_cpus = 0;
    for row in found["slices"].as_array().expect("rows") {
        let [pid, tid, count, ns] = [0, 1, 2, 3].map(|at| row[at].as_u64().expect("a number"));
        match expected.remove(&(pid, tid)) {
            Some(sum) => assert_eq!((count, ns), sum, "{pid}/{tid}"),
            None => of_cpus += ns,
        }
    }
    assert!(expected.is_empty(), "{expected:?}");
    assert_eq!(of_cpus, on_cpus, "the tracks of the CPUs");
    for ((_, tid), name) in names.threads {
        let row = serde_json::json!([tid, name]);
        let rows = found["names"].as_array().expect("rows");
        assert!(rows.contains(&row), "{row} not in {rows:?}");
    }
}
