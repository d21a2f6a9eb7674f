#![doc = include_str!("../README.md")]

mod affinity;
mod bandwidth;
mod cgroup;
mod cpu_set;
mod describe;
mod error;
mod machine;
mod online;
mod pressure;
mod quota;
mod sweep;
mod synthetic;
mod sysfs;
mod throttle;

pub use affinity::{allowed, allowed_of, set_allowed};
pub use bandwidth::{Bandwidth, BandwidthUse, bandwidth_around, bandwidth_from, bandwidth_of};
pub use cgroup::{Membership, memberships, memberships_from};
pub use cpu_set::{CpuSet, ParseCpuSetError};
pub use error::{Error, Result};
pub use machine::{Cpu, Topology};
pub use online::{Change, OnlineWatch, online, online_from};
pub use pressure::{cpu_pressure, cpu_pressure_from};
pub use quota::{CgroupVersion, Quota, quota, quota_from, quota_of};
pub use sweep::{Order, sweep_counts};
pub use synthetic::{Level, ParseTopologyError};
pub use throttle::{Throttle, ThrottleStat};
