//! Cores that serve the first one, joined by spinning: nothing here could sleep them.
//!
//! One job at a time; items are claimed from a shared counter. A core that comes too late finds the
//! gate closed and stays out, so the leader never waits for a core that has not begun.

#![allow(unsafe_code)]

use core::cell::{Cell, UnsafeCell};
use core::hint;
use core::sync::atomic::{AtomicU32, AtomicUsize, Ordering};

use crate::cores::Cores;

/// Gate: set while cores may enter the job.
const OPEN: u32 = 1 << 31;
/// Gate: the number of cores inside.
const INSIDE: u32 = OPEN - 1;
/// Members: set when the leader has counted them; who comes later is not needed.
const COUNTED: u32 = 1 << 31;
/// Items are claimed in runs such that each lane has about this many runs.
const RUNS_PER_LANE: usize = 8;

/// A call of `for_each`, with its types forgotten.
#[derive(Clone, Copy)]
struct Job {
    /// A `Call<T>` on the leader's stack.
    call: *const (),
    /// The `run_range` of the same `T`.
    run: unsafe fn(*const (), usize, usize, usize),
    items: usize,
    items_per_claim: usize,
}

struct Call<'a, T> {
    items: *mut T,
    visit: &'a (dyn Fn(usize, &mut T) + Sync),
}

/// Visits items `first..end` of the call on `lane`.
///
/// # Safety
/// `call` points to a live `Call<T>` whose `items` has at least `end` elements, and no one else
/// refers to the elements of this range.
unsafe fn run_range<T>(call: *const (), lane: usize, first: usize, end: usize) {
    // SAFETY: promised by the caller.
    let call = unsafe { &*call.cast::<Call<'_, T>>() };
    for index in first..end {
        // SAFETY: `index` is in bounds and in a range that is this lane's alone.
        let item = unsafe { &mut *call.items.add(index) };
        (call.visit)(lane, item);
    }
}

/// Where cores meet: one for a machine, in a static.
pub struct Team {
    /// Cores that serve, and [`COUNTED`].
    members: AtomicU32,
    /// Counts jobs; cores wait for it to change.
    epoch: AtomicU32,
    gate: AtomicU32,
    /// First item that no one has claimed.
    next: AtomicUsize,
    /// Written by the leader while the gate is closed and no core is inside; read by cores inside.
    job: UnsafeCell<Job>,
}

// SAFETY: `job` is guarded by the gate as its comment says; the items behind it are `Send`, and
// the visitor is `Sync`, by the bounds of `for_each`.
unsafe impl Sync for Team {}
// SAFETY: as above.
unsafe impl Send for Team {}

impl Default for Team {
    fn default() -> Self {
        Team::new()
    }
}

impl Team {
    /// A team of nobody.
    pub const fn new() -> Self {
        let job = Job {
            call: core::ptr::null(),
            run: run_range::<()>,
            items: 0,
            items_per_claim: 1,
        };
        Team {
            members: AtomicU32::new(0),
            epoch: AtomicU32::new(0),
            gate: AtomicU32::new(0),
            next: AtomicUsize::new(0),
            job: UnsafeCell::new(job),
        }
    }

    /// Cores that have come so far, the leader not counted.
    pub fn members(&self) -> usize {
        (self.members.load(Ordering::Acquire) & !COUNTED) as usize
    }

    /// The life of a further core: works whenever the leader does. Returns only where the leader
    /// has already counted its lanes and this core is not needed.
    pub fn serve(&self) {
        let members = self.members.fetch_add(1, Ordering::AcqRel);
        if members & COUNTED != 0 {
            return;
        }
        self.work_until(members as usize + 1, &|| false);
    }

    /// Serves as `lane` until `stop` says so between two jobs.
    fn work_until(&self, lane: usize, stop: &dyn Fn() -> bool) {
        let mut seen = 0;
        loop {
            let now = self.epoch.load(Ordering::Acquire);
            if now == seen {
                if stop() {
                    return;
                }
                hint::spin_loop();
                continue;
            }
            seen = now;
            if self.enter() {
                // SAFETY: inside, so the leader does not write.
                let job = unsafe { *self.job.get() };
                // SAFETY: this core is inside until the gate has been told.
                unsafe { self.work(&job, lane) };
                // Release: what this lane wrote is visible to the leader that sees it gone.
                self.gate.fetch_sub(1, Ordering::Release);
            }
        }
    }

    /// Claims and visits items until none is left.
    ///
    /// # Safety
    /// `job` is the open job, and its gate stays open or this core stays inside until the return.
    unsafe fn work(&self, job: &Job, lane: usize) {
        loop {
            let first = self.next.fetch_add(job.items_per_claim, Ordering::Relaxed);
            if first >= job.items {
                return;
            }
            let end = (first + job.items_per_claim).min(job.items);
            // SAFETY: the call lives until the leader has seen everyone leave, and the counter
            // gives out each range once.
            unsafe { (job.run)(job.call, lane, first, end) };
        }
    }

    /// Enters the open job; false if there is none.
    fn enter(&self) -> bool {
        // Acquire: what the leader wrote before it opened the gate is visible inside.
        let enter = |gate: u32| (gate & OPEN != 0).then_some(gate + 1);
        self.gate
            .try_update(Ordering::Acquire, Ordering::Relaxed, enter)
            .is_ok()
    }
}

impl core::fmt::Debug for Team {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("Team")
            .field("members", &self.members())
            .finish_non_exhaustive()
    }
}

/// The leader's core, and those of its team that have come.
pub struct Lanes<'t> {
    team: &'t Team,
    others: usize,
    /// Inside a `for_each`. Also keeps `Lanes` from being shared, and so from visits.
    busy: Cell<bool>,
}

impl<'t> Lanes<'t> {
    /// Leads the cores that serve `team` by now; nobody can join afterwards.
    ///
    /// # Panics
    /// If somebody leads the team already.
    pub fn new(team: &'t Team) -> Self {
        let members = team.members.fetch_or(COUNTED, Ordering::AcqRel);
        assert!(members & COUNTED == 0, "the team has a leader");
        Lanes {
            team,
            others: members as usize,
            busy: Cell::new(false),
        }
    }
}

/// Ends a `for_each`, also when a visit of the leader's panics and that unwinds (on a host).
struct Join<'a, 't>(&'a Lanes<'t>);

impl Drop for Join<'_, '_> {
    fn drop(&mut self) {
        let gate = &self.0.team.gate;
        gate.fetch_and(!OPEN, Ordering::Relaxed);
        while gate.load(Ordering::Acquire) & INSIDE != 0 {
            hint::spin_loop();
        }
        self.0.busy.set(false);
    }
}

impl Cores for Lanes<'_> {
    fn lanes(&self) -> usize {
        self.others + 1
    }

    fn for_each<T: Send>(&self, items: &mut [T], visit: &(dyn Fn(usize, &mut T) + Sync)) {
        assert!(
            !self.busy.replace(true),
            "for_each inside a visit of the same lanes"
        );
        let join = Join(self);
        if self.others == 0 || items.len() < 2 {
            for item in items {
                visit(0, item);
            }
            return;
        }
        let call = Call {
            items: items.as_mut_ptr(),
            visit,
        };
        let job = Job {
            call: (&raw const call).cast(),
            run: run_range::<T>,
            items: items.len(),
            items_per_claim: (items.len() / (self.lanes() * RUNS_PER_LANE)).max(1),
        };
        let team = self.team;
        // SAFETY: the gate is closed and no core is inside: `join` of the job before saw to it.
        unsafe { *team.job.get() = job };
        team.next.store(0, Ordering::Relaxed);
        team.gate.store(OPEN, Ordering::Release);
        team.epoch.fetch_add(1, Ordering::Release);
        // SAFETY: the gate is open until `join` closes it.
        unsafe { team.work(&job, 0) };
        drop(join);
    }
}

impl core::fmt::Debug for Lanes<'_> {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("Lanes")
            .field("lanes", &self.lanes())
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use core::sync::atomic::AtomicBool;

    use super::*;

    /// Threads play the cores.
    fn with_lanes(others: usize, test: impl FnOnce(&Lanes<'_>)) {
        let (team, over) = (Team::new(), AtomicBool::new(false));
        std::thread::scope(|scope| {
            for _ in 0..others {
                scope.spawn(|| {
                    let lane = team.members.fetch_add(1, Ordering::AcqRel) as usize + 1;
                    team.work_until(lane, &|| over.load(Ordering::Relaxed));
                });
            }
            while team.members() < others {
                std::thread::yield_now();
            }
            test(&Lanes::new(&team));
            over.store(true, Ordering::Relaxed);
        });
    }

    #[test]
    fn every_item_is_visited_once() {
        for others in 0..3 {
            with_lanes(others, |lanes| {
                assert_eq!(lanes.lanes(), others + 1);
                for count in [0, 1, 2, 7, 100] {
                    let mut items = vec![0; count];
                    for round in 1..=100 {
                        lanes.for_each(&mut items, &|lane, item| {
                            assert!(lane <= others);
                            *item += 1;
                        });
                        assert!(items.iter().all(|&item| item == round), "{items:?}");
                    }
                }
            });
        }
    }

    #[test]
    fn who_comes_late_is_not_needed() {
        let team = Team::new();
        let lanes = Lanes::new(&team);
        team.serve();
        assert_eq!(lanes.lanes(), 1);
    }

    #[test]
    #[should_panic(expected = "the team has a leader")]
    fn a_team_has_one_leader() {
        let team = Team::new();
        let _first = Lanes::new(&team);
        let _second = Lanes::new(&team);
    }
}
