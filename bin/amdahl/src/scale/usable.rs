//! CPUs that go while a sweep goes on: they are taken offline, or taken from us.

use amdahl_topology::{CpuSet, OnlineWatch};

/// Follows which CPUs may be used. It looks between runs: a CPU that is back when a run ends goes unseen.
pub struct Usable {
    /// None where sysfs does not tell.
    online: Option<OnlineWatch>,
    allowed: CpuSet,
}

impl Usable {
    /// Begins with those that are `allowed` now.
    pub fn new(allowed: CpuSet) -> Usable {
        Usable {
            online: OnlineWatch::new().ok(),
            allowed,
        }
    }

    /// Looks again, and tells what has changed.
    pub fn look(&mut self) -> Option<String> {
        if let Some(online) = &mut self.online {
            // What cannot be read is as it was.
            let _ = online.changed();
        }
        let now = amdahl_topology::allowed().unwrap_or_else(|_| self.allowed.clone());
        self.change_to(now)
    }

    fn change_to(&mut self, now: CpuSet) -> Option<String> {
        let before = std::mem::replace(&mut self.allowed, now);
        let left = before.difference(&self.allowed);
        let came = self.allowed.difference(&before);
        let mut changes = Vec::new();
        if !left.is_empty() {
            changes.push(self.why_missing(&left));
        }
        if !came.is_empty() {
            changes.push(format!("CPUs {came} may be used now"));
        }
        (!changes.is_empty()).then(|| changes.join("; "))
    }

    /// Why a run on `cpus` is not possible now, if it is not.
    pub fn lacks(&self, cpus: &CpuSet) -> Option<String> {
        let missing = cpus.difference(&self.allowed);
        (!missing.is_empty()).then(|| self.why_missing(&missing))
    }

    fn why_missing(&self, missing: &CpuSet) -> String {
        let online = match &self.online {
            Some(online) => missing.intersection(online.seen()),
            None => missing.clone(),
        };
        let offline = missing.difference(&online);
        let mut why = Vec::new();
        if !offline.is_empty() {
            why.push(format!("CPUs {offline} went offline"));
        }
        if !online.is_empty() {
            why.push(format!(
                "CPUs {online} may no longer be used (affinity or CPU set)"
            ));
        }
        why.join("; ")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cpus(text: &str) -> CpuSet {
        text.parse().expect("CPUs")
    }

    #[test]
    fn a_cpu_that_goes_makes_runs_on_it_impossible_until_it_is_back() {
        let sysfs = tempfile::tempdir().expect("a folder");
        let folder = sysfs.path().join("devices/system/cpu");
        std::fs::create_dir_all(&folder).expect("made");
        let put_online = |list: &str| std::fs::write(folder.join("online"), list).expect("written");
        put_online("0-3\n");
        let mut usable = Usable {
            online: OnlineWatch::new_at(sysfs.path()).ok(),
            allowed: cpus("0-3"),
        };
        assert_eq!(usable.change_to(cpus("0-3")), None);
        assert_eq!(usable.lacks(&cpus("0-3")), None);

        put_online("0-2\n");
        usable
            .online
            .as_mut()
            .expect("a watch")
            .changed()
            .expect("readable");
        let told = usable.change_to(cpus("0-1")).expect("a change");
        assert_eq!(
            told,
            "CPUs 3 went offline; CPUs 2 may no longer be used (affinity or CPU set)"
        );
        assert_eq!(usable.lacks(&cpus("0-1")), None);
        let why = usable.lacks(&cpus("0,3")).expect("impossible");
        assert_eq!(why, "CPUs 3 went offline");

        let told = usable.change_to(cpus("0-3")).expect("a change");
        assert_eq!(told, "CPUs 2-3 may be used now");
        assert_eq!(usable.lacks(&cpus("0-3")), None);
    }
}
