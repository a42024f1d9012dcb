//! What lanes are asked for, what is planned from it, and what came of it.

use std::path::Path;

use super::affinity::{self, Pin};
use super::topology::Topology;

/// Lanes that can be asked for.
pub const LANES_MAX: usize = 256;

/// How long a lane looks for work before it sleeps, where every lane has a core.
const SPIN_NS: u64 = 30_000;

/// The same where lanes share cores: a spinning lane would keep a working one from its core.
const SPIN_SHARED_NS: u64 = 1_000;

/// What lanes to start.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct LaneOptions {
    /// Number of lanes, the caller's included, at most [`LANES_MAX`]; 0 means one for each core
    /// that the process may use.
    pub lanes: usize,
    /// Pin each started lane to a core of its own, the fastest cores first.
    pub pin: bool,
    /// Pin the calling thread too: it is lane 0 and gets the fastest core.
    pub pin_caller: bool,
    /// How long a lane looks for work before it sleeps; `None` chooses by the number of cores.
    pub spin_ns: Option<u64>,
}

/// What was decided before any thread is started.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct LanePlan {
    pub lanes: usize,
    pub spin_ns: u64,
    pub allowed: usize,
    /// Cores to pin to, in the order of the lanes; empty if nothing is pinned.
    cores: Vec<u16>,
}

impl LanePlan {
    /// The core to pin `lane` to.
    pub(crate) fn core(&self, lane: usize) -> Option<u16> {
        self.cores.get(lane).copied()
    }
}

impl LaneOptions {
    pub(crate) fn plan(&self) -> LanePlan {
        let mut allowed = affinity::allowed_cores();
        if allowed.is_empty() {
            let count = std::thread::available_parallelism().map_or(1, |count| count.get());
            allowed = (0..count as u16).collect();
        }
        let topology = Topology::read(Path::new("/sys/devices/system/cpu"), &allowed);
        self.plan_on(&topology, affinity::quota_millicores())
    }

    fn plan_on(&self, topology: &Topology, quota_millicores: Option<u64>) -> LanePlan {
        let allowed = topology.cores.len().max(1);
        let quota_cores = match quota_millicores {
            Some(millicores) => (millicores.div_ceil(1000) as usize).max(1),
            None => usize::MAX,
        };
        let usable = allowed.min(quota_cores);
        let lanes = if self.lanes == 0 { usable } else { self.lanes }.min(LANES_MAX);
        let spin_ns = match self.spin_ns {
            Some(spin_ns) => spin_ns,
            None if lanes <= usable => SPIN_NS,
            None => SPIN_SHARED_NS,
        };
        let pins = if self.pin || self.pin_caller {
            topology.choose(lanes)
        } else {
            Vec::new()
        };
        let pinned = if self.pin { pins.len() } else { 1 };
        LanePlan {
            lanes,
            spin_ns,
            allowed,
            cores: pins.into_iter().take(pinned).collect(),
        }
    }
}

/// A lane's thread, and what became of its pin when it started.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Placement {
    thread: i32,
    pin: Pin,
}

impl Placement {
    /// Pins the current thread to `core`, if there is one.
    pub(crate) fn here(core: Option<u16>) -> Self {
        let pin = core.map_or(Pin::Free, affinity::pin_here);
        Placement {
            thread: affinity::thread_number(),
            pin,
        }
    }

    /// Where the lane is now.
    pub(crate) fn check(&self) -> Pin {
        match self.pin {
            Pin::Core(core) => affinity::check(self.thread, core),
            other => other,
        }
    }
}

/// What became of the lanes that were asked for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LaneReport {
    /// Lanes that there are, the caller's included.
    pub lanes: usize,
    /// Lanes that there should have been.
    pub asked: usize,
    /// Cores that the process may use.
    pub allowed_cores: usize,
    /// The place of each lane.
    pub pins: Vec<Pin>,
    /// Whether pins were asked for.
    pub pin: bool,
}

impl LaneReport {
    pub(crate) fn new(plan: &LanePlan, options: &LaneOptions, placements: &[Placement]) -> Self {
        LaneReport {
            lanes: placements.len(),
            asked: plan.lanes,
            allowed_cores: plan.allowed,
            pins: placements.iter().map(|placement| placement.pin).collect(),
            pin: options.pin || options.pin_caller,
        }
    }
}

impl core::fmt::Display for LaneReport {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        write!(
            f,
            "{} {}",
            self.lanes,
            if self.lanes == 1 { "lane" } else { "lanes" }
        )?;
        if self.lanes < self.asked {
            write!(f, " of {} asked for", self.asked)?;
        }
        write!(f, " on {} cores", self.allowed_cores)?;
        if !self.pin {
            return Ok(());
        }
        write!(f, ", pinned to")?;
        for (lane, pin) in self.pins.iter().enumerate() {
            write!(f, "{}", if lane == 0 { " " } else { "," })?;
            match *pin {
                Pin::Free => write!(f, "any")?,
                Pin::Core(core) => write!(f, "{core}")?,
                Pin::Ignored { core } => write!(f, "{core} (ignored)")?,
                Pin::Refused { core, errno } => {
                    write!(f, "{core} ({})", nix::errno::Errno::from_raw(errno).desc())?;
                }
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::linux::topology::Core;

    fn machine(capacities: &[u32]) -> Topology {
        let core = |(index, &capacity)| Core {
            index: index as u16,
            capacity: Some(capacity),
            freq_max_khz: None,
            thread_index: 0,
        };
        Topology {
            cores: capacities.iter().enumerate().map(core).collect(),
        }
    }

    #[test]
    fn lanes_default_to_the_cores_there_are() {
        let phone = machine(&[300, 300, 700, 1024]);
        let plan = LaneOptions::default().plan_on(&phone, None);
        assert_eq!((plan.lanes, plan.spin_ns, plan.core(0)), (4, SPIN_NS, None));
        let plan = LaneOptions::default().plan_on(&phone, Some(1500));
        assert_eq!((plan.lanes, plan.spin_ns), (2, SPIN_NS));
        let plan = LaneOptions::default().plan_on(&Topology::default(), Some(0));
        assert_eq!(plan.lanes, 1);
    }

    #[test]
    fn lanes_that_share_cores_sleep_early() {
        let phone = machine(&[700, 1024]);
        let options = LaneOptions {
            lanes: 4,
            pin: true,
            ..Default::default()
        };
        let plan = options.plan_on(&phone, None);
        assert_eq!((plan.lanes, plan.spin_ns), (4, SPIN_SHARED_NS));
        assert_eq!(
            [0, 1, 2, 3].map(|lane| plan.core(lane)),
            [Some(1), Some(0), None, None]
        );
        let options = LaneOptions {
            lanes: usize::MAX,
            spin_ns: Some(7),
            ..options
        };
        let plan = options.plan_on(&phone, None);
        assert_eq!((plan.lanes, plan.spin_ns), (LANES_MAX, 7));
    }

    #[test]
    fn the_caller_alone_can_be_pinned() {
        let phone = machine(&[300, 700, 1024]);
        let options = LaneOptions {
            pin_caller: true,
            ..Default::default()
        };
        let plan = options.plan_on(&phone, None);
        assert_eq!([0, 1].map(|lane| plan.core(lane)), [Some(2), None]);
    }

    #[test]
    fn reports_read_well() {
        let mut report = LaneReport {
            lanes: 2,
            asked: 2,
            allowed_cores: 8,
            pins: vec![],
            pin: false,
        };
        assert_eq!(report.to_string(), "2 lanes on 8 cores");
        report.pin = true;
        report.pins = vec![Pin::Free, Pin::Core(6)];
        assert_eq!(report.to_string(), "2 lanes on 8 cores, pinned to any,6");
        report.asked = 4;
        report.pins = vec![
            Pin::Ignored { core: 7 },
            Pin::Refused { core: 6, errno: 22 },
        ];
        assert_eq!(
            report.to_string(),
            "2 lanes of 4 asked for on 8 cores, pinned to 7 (ignored),6 (Invalid argument)"
        );
    }
}
