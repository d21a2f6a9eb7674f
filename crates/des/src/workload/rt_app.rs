//! Workloads of rt-app (doc/tutorial.txt of its repository), as far as a simulator can run them.
//!
//! Times are microseconds. Scheduling classes and utilisation clamps are read and have no effect;
//! `priority` is a nice value for who is not of a real-time class. A timer belongs to the thread that uses it.

use std::collections::BTreeMap;

use super::json::{self, Node, Value};
use super::{Result, WorkloadError};
use crate::program::{
    BarrierSpec, DeviceSpec, Kind, LockKind, LockSpec, Named, Object, Op, Step, Template, Time,
    VARS_FREE, Val, Waits, Workload,
};
use crate::random::Dist;
use crate::time::{self, Ns, TIME_MAX};

/// Longest first, as one may begin with another.
const EVENTS: [&str; 17] = [
    "sig_and_wait",
    "runtime",
    "suspend",
    "barrier",
    "unlock",
    "resume",
    "signal",
    "iorun",
    "sleep",
    "timer",
    "broad",
    "yield",
    "lock",
    "wait",
    "sync",
    "fork",
    "run",
];

/// Properties of threads and phases.
const PROPERTIES: [&str; 17] = [
    "instance",
    "delay",
    "phases",
    "loop",
    "policy",
    "priority",
    "dl-runtime",
    "dl-period",
    "dl-deadline",
    "deadline",
    "cpus",
    "util_min",
    "util_max",
    "membind_nodes",
    "nodes_membind",
    "taskgroup",
    "comment",
];

const USEC_MAX: i64 = (TIME_MAX / 1000) as i64;
const INSTANCES_MAX: i64 = 1_000_000;
/// What a kibibyte of `mem` takes.
const MEM_KIB: Ns = 60;

/// Reads a workload of rt-app. The only parameter is `duration`, which replaces the file's.
///
/// # Errors
/// What is wrong, with the line.
pub fn rt_app(text: &str, set: &BTreeMap<String, String>) -> Result<Workload> {
    let file = json::parse(text)?;
    let mut reader = RtApp {
        w: Workload {
            name: "rt-app".to_owned(),
            vars: usize::from(VARS_FREE) + 2,
            ..Workload::default()
        },
        ..RtApp::default()
    };
    if let Some(key) = set.keys().find(|key| *key != "duration") {
        return Err(WorkloadError::new(
            None,
            format!("an rt-app workload has no parameter `{key}`; it has duration"),
        ));
    }
    if let Some(duration) = file.get("global").and_then(|global| global.get("duration")) {
        let seconds = duration.integer("duration", -1, (TIME_MAX / 1_000_000_000) as i64)?;
        reader.w.duration = (seconds > 0).then(|| seconds as Ns * 1_000_000_000);
    }
    if let Some(duration) = set.get("duration") {
        let ns = time::parse(duration).map_err(|error| {
            WorkloadError::new(None, format!("--set duration={duration}: {error}"))
        })?;
        reader.w.duration = Some(ns);
    }
    let Some(tasks) = file.get("tasks") else {
        return Err(file.error("there is no object `tasks`"));
    };
    let tasks = tasks.object("`tasks`")?;
    for (index, (name, task)) in (0..).zip(tasks) {
        if reader.templates.insert(name.clone(), index).is_some() {
            return Err(task.error(format!("there are two tasks called `{name}`")));
        }
    }
    for (_, task) in tasks {
        let instances = instances(task)?;
        reader.count_barriers(task, instances)?;
    }
    let mut is_endless = None;
    for (name, task) in tasks {
        if reader.task(name, task)? {
            is_endless.get_or_insert((name, task));
        }
    }
    if let (Some((name, task)), None) = (is_endless, reader.w.duration) {
        return Err(task.error(format!("task `{name}` never ends and neither does the run: give `global` a `duration`, or --set duration=10s")));
    }
    Ok(reader.w)
}

fn instances(task: &Node) -> Result<u32> {
    Ok(task
        .get("instance")
        .map_or(Ok(1), |count| count.integer("instance", 0, INSTANCES_MAX))? as u32)
}

#[derive(Default)]
struct RtApp {
    w: Workload,
    templates: BTreeMap<String, u32>,
    objects: BTreeMap<(usize, String), u32>,
    /// How many come to each barrier.
    parties: BTreeMap<String, u32>,
    timers: BTreeMap<String, u8>,
}

fn event(key: &str) -> Option<&'static str> {
    let is_own = |name: &str| key.strip_prefix(name).is_some();
    if is_own("mem") && !key.starts_with("membind") {
        return Some("mem");
    }
    EVENTS.into_iter().find(|name| is_own(name))
}

impl RtApp {
    fn object(&mut self, kind: Kind, name: &str) -> u32 {
        if let Some(&index) = self.objects.get(&(kind as usize, name.to_owned())) {
            return index;
        }
        let w = &mut self.w;
        let base = match kind {
            Kind::Lock => {
                w.locks.push(LockSpec {
                    kind: LockKind::Mutex,
                    spin: 0,
                    keeps_cpu: false,
                });
                w.locks.len() as u32 - 1
            }
            Kind::Barrier => {
                let parties = self.parties.get(name).copied().unwrap_or(1).max(1);
                w.barriers.push(BarrierSpec {
                    parties,
                    spin: 0,
                    waits: Waits::Spin,
                });
                w.barriers.len() as u32 - 1
            }
            Kind::Device => {
                w.devices.push(DeviceSpec {
                    parallelism: 1,
                    service: Dist::Const(0),
                });
                w.devices.len() as u32 - 1
            }
            _ => {
                w.conditions += 1;
                w.conditions - 1
            }
        };
        w.names[kind as usize].push(Named {
            name: name.to_owned(),
            base,
            len: 1,
            is_array: false,
        });
        self.objects.insert((kind as usize, name.to_owned()), base);
        base
    }

    fn count_barriers(&mut self, node: &Node, instances: u32) -> Result<()> {
        let Value::Object(fields) = &node.value else {
            return Ok(());
        };
        for (key, value) in fields {
            if event(key) == Some("barrier") && !PROPERTIES.contains(&key.as_str()) {
                let count = self
                    .parties
                    .entry(value.text("barrier")?.to_owned())
                    .or_default();
                *count = count.saturating_add(instances);
            }
            if key == "phases" {
                for (_, phase) in value.object("phases")? {
                    self.count_barriers(phase, instances)?;
                }
            }
        }
        Ok(())
    }

    /// Whether it never ends.
    fn task(&mut self, name: &str, task: &Node) -> Result<bool> {
        task.object("a task")?;
        let is_real_time = task.get("policy").is_some_and(
            |policy| !matches!(&policy.value, Value::Text(name) if name == "SCHED_OTHER"),
        );
        let nice = match task.get("priority") {
            Some(priority) => {
                let nice = priority.integer("priority", -20, 99)?;
                if is_real_time {
                    0
                } else {
                    nice.clamp(-20, 19) as i8
                }
            }
            None => 0,
        };
        let delay = task
            .get("delay")
            .map_or(Ok(0), |delay| delay.integer("delay", 0, USEC_MAX))? as Ns
            * 1000;
        let node = match task
            .get("membind_nodes")
            .or_else(|| task.get("nodes_membind"))
        {
            Some(Node {
                value: Value::List(nodes),
                ..
            }) => nodes
                .first()
                .map(|node| node.integer("a node", 0, 65_535))
                .transpose()?,
            Some(other) => return Err(other.error("membind_nodes must be a list of nodes")),
            None => None,
        };
        let mask = self.mask(task)?;
        let template = Template {
            name: name.to_owned(),
            count: instances(task)?,
            entry: self.w.ops.len() as u32,
            start: Time::Dist(Dist::Const(delay)),
            is_daemon: false,
            is_process: false,
            nice,
            mask,
            node: node.map(|node| node as u32),
            memory_permille: 0,
        };
        self.w.templates.push(template);
        self.timers.clear();
        let count = task.get("loop").map_or(Ok(-1), |count| {
            count.integer("loop", -1, i64::from(u32::MAX))
        })?;
        let phases = task.get("phases").cloned();
        let is_endless = self.repeat(count, VARS_FREE, |this| {
            let Some(phases) = &phases else {
                return this.events(task);
            };
            for (_, phase) in phases.object("phases")? {
                phase.object("a phase")?;
                let count = phase.get("loop").map_or(Ok(1), |count| {
                    count.integer("loop", -1, i64::from(u32::MAX))
                })?;
                if this.repeat(count, VARS_FREE + 2, |this| this.events(phase))? {
                    // Nothing comes after it.
                    break;
                }
            }
            Ok(())
        })?;
        self.w.ops.push(Op::Exit);
        Ok(is_endless)
    }

    fn mask(&mut self, node: &Node) -> Result<Option<u32>> {
        let Some(cpus) = node.get("cpus") else {
            return Ok(None);
        };
        let Value::List(list) = &cpus.value else {
            return Err(cpus.error("cpus must be a list of CPUs"));
        };
        let cpus = list
            .iter()
            .map(|cpu| cpu.integer("a CPU", 0, 65_535).map(|cpu| cpu as u32));
        self.w.masks.push(cpus.collect::<Result<_>>()?);
        Ok(Some(self.w.masks.len() as u32 - 1))
    }

    /// A body that is done `count` times; -1 is for ever, which is told.
    fn repeat(
        &mut self,
        count: i64,
        var: u8,
        body: impl FnOnce(&mut RtApp) -> Result<()>,
    ) -> Result<bool> {
        if usize::from(var) + 2 > self.w.vars {
            self.w.vars = usize::from(var) + 2;
        }
        let bound = self.w.expression(&[Step::Const(count.max(0))]);
        self.w.ops.push(Op::Set {
            var,
            value: Val::constant(0),
        });
        self.w.ops.push(Op::Set {
            var: var + 1,
            value: bound,
        });
        let start = self.w.ops.len();
        self.w.ops.push(Op::Jump(start as u32 + 1));
        body(self)?;
        if count < 0 {
            self.w.ops.push(Op::Jump(start as u32 + 1));
            return Ok(true);
        }
        self.w.ops.push(Op::Next {
            var,
            end: var + 1,
            to: start as u32 + 1,
        });
        if count == 0 {
            self.w.ops[start] = Op::Jump(self.w.ops.len() as u32);
        }
        Ok(false)
    }

    fn usec(&mut self, node: &Node, what: &str) -> Result<u32> {
        let ns = node.integer(what, 0, USEC_MAX)? as Ns * 1000;
        Ok(self.w.time(Time::Dist(Dist::Const(ns))))
    }

    fn events(&mut self, node: &Node) -> Result<()> {
        for (key, value) in node.object("a phase")? {
            if PROPERTIES.contains(&key.as_str()) {
                continue;
            }
            let Some(event) = event(key) else {
                return Err(value.error(format!("`{key}` is no event or property that is known")));
            };
            self.event(event, value)?;
        }
        Ok(())
    }

    /// `{ "ref": ..., "mutex": ... }`.
    fn condition(&mut self, value: &Node, what: &str) -> Result<(Object, Object)> {
        let part = |name: &str| match value.get(name) {
            Some(node) => node.text(name),
            None => Err(value.error(format!("{what} needs `{name}`"))),
        };
        let (condition, lock) = (part("ref")?, part("mutex")?);
        let condition = Object::one(self.object(Kind::Condition, condition));
        Ok((condition, Object::one(self.object(Kind::Lock, lock))))
    }

    fn event(&mut self, event: &str, value: &Node) -> Result<()> {
        let op = match event {
            "run" => Op::Compute(self.usec(value, "run")?),
            "runtime" => Op::Occupy(self.usec(value, "runtime")?),
            "sleep" => Op::Sleep(self.usec(value, "sleep")?),
            "mem" => {
                let bytes = value.integer("mem", 0, 1 << 40)? as Ns;
                let time = self.w.time(Time::Dist(Dist::Const(bytes * MEM_KIB / 1024)));
                Op::Compute(time)
            }
            "iorun" => {
                // A device that takes a byte each nanosecond.
                let bytes = value.integer("iorun", 0, 1 << 40)? as Ns;
                let time = self.w.time(Time::Dist(Dist::Const(bytes)));
                Op::Io {
                    device: Object::one(self.object(Kind::Device, "io_device")),
                    time,
                }
            }
            "timer" => {
                let (Some(period), Some(name)) = (value.get("period"), value.get("ref")) else {
                    return Err(value.error("a timer needs `ref` and `period`"));
                };
                let time = self.usec(period, "period")?;
                let is_absolute = value.get("mode").is_some_and(
                    |mode| matches!(&mode.value, Value::Text(mode) if mode == "absolute"),
                );
                let next = VARS_FREE as usize + 4 + self.timers.len();
                if next >= 250 {
                    return Err(value.error("a task has more than 200 timers"));
                }
                let var = *self
                    .timers
                    .entry(name.text("ref")?.to_owned())
                    .or_insert(next as u8);
                self.w.vars = self.w.vars.max(usize::from(var) + 1);
                Op::Period {
                    var,
                    is_absolute,
                    time,
                }
            }
            "lock" => Op::Lock {
                lock: Object::one(self.object(Kind::Lock, value.text("lock")?)),
                is_shared: false,
            },
            "unlock" => Op::Unlock(Object::one(self.object(Kind::Lock, value.text("unlock")?))),
            "wait" => {
                let (condition, lock) = self.condition(value, "wait")?;
                Op::Await { condition, lock }
            }
            "sync" | "sig_and_wait" => {
                let (condition, lock) = self.condition(value, event)?;
                self.w.ops.push(Op::Lock {
                    lock,
                    is_shared: false,
                });
                self.w.ops.push(Op::Signal {
                    condition,
                    is_all: false,
                });
                self.w.ops.push(Op::Await { condition, lock });
                Op::Unlock(lock)
            }
            "signal" => Op::Signal {
                condition: Object::one(self.object(Kind::Condition, value.text("signal")?)),
                is_all: false,
            },
            "broad" => Op::Signal {
                condition: Object::one(self.object(Kind::Condition, value.text("broad")?)),
                is_all: true,
            },
            "suspend" => {
                let condition = self.notice(value, "suspend")?;
                Op::Await {
                    condition,
                    lock: Object::NONE,
                }
            }
            "resume" => Op::Signal {
                condition: self.notice(value, "resume")?,
                is_all: true,
            },
            "barrier" => Op::Barrier {
                barrier: Object::one(self.object(Kind::Barrier, value.text("barrier")?)),
                parties: Val::constant(0),
            },
            "yield" => Op::Yield,
            _ => {
                let name = value.text("fork")?;
                let Some(&template) = self.templates.get(name) else {
                    return Err(value.error(format!("fork: there is no task `{name}`")));
                };
                Op::Spawn {
                    template,
                    count: Val::constant(1),
                    is_process: false,
                }
            }
        };
        self.w.ops.push(op);
        Ok(())
    }

    /// A condition of its own; nobody remembers a resume that comes too early.
    fn notice(&mut self, value: &Node, what: &str) -> Result<Object> {
        let name = value.text(what)?;
        let name = if name.is_empty() {
            self.w.templates[self.w.templates.len() - 1].name.clone()
        } else {
            name.to_owned()
        };
        Ok(Object::one(
            self.object(Kind::Condition, &format!("{name} (suspended)")),
        ))
    }
}
