//! Threads and tasks in a line, by channels: `cargo run -p amdahl-pool --example pipeline`

use amdahl_pool::{Pool, channel};

fn main() {
    let pool = Pool::new().expect("threads can be started");
    let (lines, numbers) = channel::<String>(16);
    let (parsed, sums) = channel::<u64>(16);
    // A task: waits without a thread.
    pool.spawn_future(async move {
        while let Ok(line) = numbers.recv_async().await {
            if let Ok(number) = line.parse() {
                let _ = parsed.send_async(number).await;
            }
        }
    });
    // A thread of the program: blocks, after a short spin.
    let reader = std::thread::spawn(move || {
        for n in 0..1000 {
            lines.send(n.to_string()).expect("the task receives");
        }
    });
    let mut sum = 0;
    while let Ok(number) = sums.recv() {
        sum += number;
    }
    reader.join().expect("it does not panic");
    println!("{sum}; receiving waited {:?}", sums.waits());
}
