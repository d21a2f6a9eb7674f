//! Reads the CPUs of a machine from sysfs.
//!
//! The files are described in the kernel's Documentation/admin-guide/cputopology.rst
//! and Documentation/ABI/testing/sysfs-devices-system-cpu.

use std::collections::HashMap;
use std::fs;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};

use crate::machine::Place;
use crate::{CpuSet, Error, Result, Topology};

/// Where sysfs is mounted.
pub(crate) const ROOT: &str = "/sys";

const CPUS: &str = "devices/system/cpu";
const NODES: &str = "devices/system/node";

/// The group of a CPU that no shared cache is known for: with its package and node.
const NO_LLC: u32 = u32::MAX;

/// Every online CPU with its place. O(CPUs) files.
pub(crate) fn places(root: &Path) -> Result<Vec<Place>> {
    // A CPU that comes or goes meanwhile would be seen half.
    let mut before = online(root)?;
    let mut attempts_left = 3;
    loop {
        let places = places_of(root, &before)?;
        let after = online(root)?;
        attempts_left -= 1;
        if after == before || attempts_left == 0 {
            return Ok(places);
        }
        before = after;
    }
}

/// The online CPUs; never empty.
pub(crate) fn online(root: &Path) -> Result<CpuSet> {
    let folder = root.join(CPUS);
    let online = match read_cpu_list(&folder.join("online"))? {
        Some(cpus) => cpus,
        None => numbered(&folder, "cpu")?
            .into_iter()
            .filter(|(_, cpu)| !matches!(read(&cpu.join("online")), Ok(Some(text)) if text == "0"))
            .map(|(number, _)| number)
            .collect(),
    };
    match online.is_empty() {
        true => Err(Error::NoCpus { path: folder }),
        false => Ok(online),
    }
}

/// The CPUs that are there, online or not; none where the kernel does not tell.
pub(crate) fn present(root: &Path) -> Result<CpuSet> {
    let file = root.join(CPUS).join("present");
    Ok(read_cpu_list(&file)?.unwrap_or_default())
}

fn places_of(root: &Path, online: &CpuSet) -> Result<Vec<Place>> {
    let folder = |cpu: u32| root.join(CPUS).join(format!("cpu{cpu}"));

    let mut nodes: HashMap<u32, u32> = HashMap::new();
    for (node, folder) in numbered(&root.join(NODES), "node")? {
        if let Some(cpus) = read_cpu_list(&folder.join("cpulist"))? {
            nodes.extend(cpus.iter().map(|cpu| (cpu, node)));
        }
    }

    // Each list of siblings is read once and settles all its CPUs, so that the
    // work grows with the number of CPUs and not with its square.
    let mut cores: HashMap<u32, u32> = HashMap::new();
    for cpu in online.iter() {
        if !cores.contains_key(&cpu) {
            let siblings = siblings(&folder(cpu))?;
            settle(&mut cores, cpu, siblings.unwrap_or_default());
        }
    }
    let mut llcs: HashMap<u32, u32> = HashMap::new();
    for cpu in online.iter() {
        if !llcs.contains_key(&cpu)
            && let Some(sharers) = llc_sharers(&folder(cpu), cpu, &cores)?
        {
            settle(&mut llcs, cpu, sharers);
        }
    }
    let atoms = Atoms::read(root)?;

    online
        .iter()
        .map(|cpu| {
            let folder = folder(cpu);
            let package = folder.join("topology/physical_package_id");
            Ok(Place {
                id: cpu,
                // The kernel says -1 when it does not know.
                package: read_number(&package)?.unwrap_or(-1),
                node: nodes.get(&cpu).copied().unwrap_or(0),
                llc: llcs.get(&cpu).copied().unwrap_or(NO_LLC),
                core: cores.get(&cpu).copied().unwrap_or(cpu),
                capacity: read_number(&folder.join("cpu_capacity"))?
                    .unwrap_or_else(|| atoms.capacity(cpu))
                    .clamp(1, Topology::FULL_CAPACITY.into()) as u32,
            })
        })
        .collect()
}

/// Names the group of `members` after `cpu`; whoever is in a group stays there.
fn settle(groups: &mut HashMap<u32, u32>, cpu: u32, members: CpuSet) {
    groups.insert(cpu, cpu);
    for member in members.iter() {
        groups.entry(member).or_insert(cpu);
    }
}

/// The hardware threads of the core.
fn siblings(cpu_folder: &Path) -> Result<Option<CpuSet>> {
    let topology = cpu_folder.join("topology");
    // The second name is the one before Linux 5.3.
    match read_cpu_list(&topology.join("core_cpus_list"))? {
        Some(cpus) => Ok(Some(cpus)),
        None => read_cpu_list(&topology.join("thread_siblings_list")),
    }
}

/// The CPUs that share the last-level cache of `cpu`, if it has one.
///
/// A third level counts even if it serves one core (some EPYC parts are so). A
/// second level counts only if cores share it: where the kernel shows a private
/// L2 and nothing above, the shared level is merely unknown, as on arm64 servers
/// with a system-level cache.
fn llc_sharers(cpu_folder: &Path, cpu: u32, cores: &HashMap<u32, u32>) -> Result<Option<CpuSet>> {
    let mut last: Option<(i64, PathBuf)> = None;
    for index in 0.. {
        let cache = cpu_folder.join(format!("cache/index{index}"));
        let Some(level) = read_number(&cache.join("level"))? else {
            break;
        };
        if last.as_ref().is_none_or(|(highest, _)| level > *highest) {
            last = Some((level, cache));
        }
    }
    let Some((level, cache)) = last else {
        return Ok(None);
    };
    let Some(sharers) = read_cpu_list(&cache.join("shared_cpu_list"))? else {
        return Ok(None);
    };
    let counts = match level {
        ..2 => false,
        2 => sharers
            .iter()
            .any(|other| cores.get(&other) != cores.get(&cpu)),
        _ => true,
    };
    Ok(counts.then_some(sharers))
}

/// The efficiency cores of an Intel hybrid: before Linux 6.12 there is no
/// `cpu_capacity` on x86, but their perf device names them.
struct Atoms {
    cpus: CpuSet,
    capacity: i64,
}

impl Atoms {
    fn read(root: &Path) -> Result<Self> {
        let none = Atoms {
            cpus: CpuSet::new(),
            capacity: Topology::FULL_CAPACITY.into(),
        };
        let list = |device: &str| read_cpu_list(&root.join("devices").join(device).join("cpus"));
        let (Some(atoms), Some(cores)) = (list("cpu_atom")?, list("cpu_core")?) else {
            return Ok(none);
        };
        // The ratio of the clocks is what is known of their speed; it flatters
        // the small cores but orders them right.
        let fastest = |cpus: &CpuSet| -> Result<Option<i64>> {
            let mut fastest = None;
            for cpu in cpus.iter() {
                let cpufreq = root.join(CPUS).join(format!("cpu{cpu}/cpufreq"));
                fastest = fastest.max(read_number(&cpufreq.join("cpuinfo_max_freq"))?);
            }
            Ok(fastest)
        };
        Ok(match (fastest(&atoms)?, fastest(&cores)?) {
            (Some(small), Some(big)) if 0 < small && small < big => Atoms {
                cpus: atoms,
                capacity: (small as f64 / big as f64 * none.capacity as f64) as i64,
            },
            _ => none,
        })
    }

    fn capacity(&self, cpu: u32) -> i64 {
        match self.cpus.contains(cpu) {
            true => self.capacity,
            false => Topology::FULL_CAPACITY.into(),
        }
    }
}

/// The entries `<prefix><number>` of a folder; none if there is no such folder.
fn numbered(folder: &Path, prefix: &str) -> Result<Vec<(u32, PathBuf)>> {
    let entries = match fs::read_dir(folder) {
        Ok(entries) => entries,
        Err(error) if is_absent(error.kind()) => return Ok(Vec::new()),
        Err(error) => return Err(Error::read(folder, error)),
    };
    let mut found = Vec::new();
    for entry in entries {
        let entry = entry.map_err(|error| Error::read(folder, error))?;
        let number = entry
            .file_name()
            .to_str()
            .and_then(|name| name.strip_prefix(prefix))
            .and_then(|digits| digits.parse().ok())
            .filter(|&number| number <= CpuSet::MAX_PARSED);
        if let Some(number) = number {
            found.push((number, entry.path()));
        }
    }
    found.sort_unstable();
    Ok(found)
}

fn read_cpu_list(path: &Path) -> Result<Option<CpuSet>> {
    let Some(text) = read(path)? else {
        return Ok(None);
    };
    match text.parse() {
        Ok(cpus) => Ok(Some(cpus)),
        Err(_) => Err(Error::malformed(path, &text, "a CPU list")),
    }
}

fn read_number(path: &Path) -> Result<Option<i64>> {
    let Some(text) = read(path)? else {
        return Ok(None);
    };
    match text.parse() {
        Ok(number) => Ok(Some(number)),
        Err(_) => Err(Error::malformed(path, &text, "a number")),
    }
}

/// The text of a file without surrounding blanks; `None` if it is absent.
fn read(path: &Path) -> Result<Option<String>> {
    match fs::read_to_string(path) {
        Ok(text) => Ok(Some(text.trim().to_owned())),
        Err(error) if is_absent(error.kind()) => Ok(None),
        Err(error) => Err(Error::read(path, error)),
    }
}

/// What a sandbox hides counts as absent.
fn is_absent(kind: ErrorKind) -> bool {
    matches!(
        kind,
        ErrorKind::NotFound | ErrorKind::NotADirectory | ErrorKind::PermissionDenied
    )
}
